"""Warnings about alert addresses that lead inside or contain a secret; no warning repeats the secret."""

from __future__ import annotations

from typing import Any

import pytest

from app.alerts.egress_policy import LINK, MACHINE, METADATA, inside_of, secrets_of
from app.definitions.registry import parse_alert
from tests.alerts.test_definition import ALERT
from tests.config.examples import changed

WORD = "Xk92jd8Aj3Lq0zPw7Rt5"


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("localhost", MACHINE), ("LOCALHOST.", MACHINE), ("a.localhost:1", MACHINE), ("127.0.0.1", MACHINE),
        ("127.9.9.9", MACHINE), ("127.1", MACHINE), ("2130706433", MACHINE), ("0x7f000001", MACHINE),
        ("0177.0.0.1", MACHINE), ("0", MACHINE), ("[::1]", MACHINE), ("[::]", MACHINE),
        ("[::ffff:127.0.0.1]", MACHINE), ("[64:ff9b::7f00:1]", MACHINE),
        ("169.254.1.1", LINK), ("[fe80::1]", LINK), ("224.0.0.1", LINK),
        ("169.254.169.254", METADATA), ("2852039166", METADATA), ("[::ffff:169.254.169.254]", METADATA),
        ("[fd00:ec2::254]", METADATA), ("100.100.100.200", METADATA), ("metadata.google.internal", METADATA),
        ("alerts.example", ""), ("10.0.0.1", ""), ("192.168.1.7:9093", ""), ("[2001:db8::1]", ""),
        ("127.0.0.1.example", ""), ("localhost.example", ""), ("1e100.net", ""),
    ],
)  # fmt: skip
def test_an_address_that_leads_inside_is_recognised_in_any_form(host: str, inside: str) -> None:
    assert inside_of(f"https://{host}/hook") == inside


@pytest.mark.parametrize(
    ("url", "headers", "places"),
    [
        (f"https://a.example/hook?token={WORD}", {}, ["the parameter token"]),
        ("https://a.example/hook?api_key=x", {}, ["the parameter api_key"]),
        (f"https://a.example/hook?a={WORD}", {}, ["the parameter a"]),
        (f"https://a.example/in/{WORD}", {}, ["the path"]),
        ("https://a.example/123e4567-e89b-12d3-a456-426614174000", {}, ["the path"]),
        ("https://hooks.slack.com/services/T0/B0/x", {}, ["the address of such a service"]),
        ("https://discord.com/api/webhooks/1/x", {}, ["the address of such a service"]),
        ("https://a.example/hook", {"X-Way": f"Bearer {WORD}"}, ["the header X-Way"]),
        ("https://a.example/hook", {"X-Way": "env:SWITCHYARD_ALERT_WAY", "X-Team": "data"}, []),
        ("https://a.example/hooks/orders-team-alerts?team=data-platform&keyboard=us", {}, []),
        ("http://alertmanager:9093", {}, []),
    ],
)
def test_a_value_that_looks_like_a_secret_is_reported_by_its_place(
    url: str, headers: dict[str, str], places: list[str]
) -> None:
    assert list(secrets_of(url, headers)) == places


@pytest.mark.parametrize(
    ("channel", "messages"),
    [
        ({"webhook": {"url": f"https://127.0.0.1/{WORD}"}}, ["leads to this machine", "the path looks like"]),
        ({"alertmanager": {"url": "http://169.254.169.254/latest"}}, ["leads to a cloud's metadata"]),
        (
            {"webhook": {"url": "env:SWITCHYARD_ALERT_X", "headers": {"X-Way": f"Bearer {WORD}"}}},
            ["the header X-Way looks like a secret"],
        ),
        ({"webhook": {"url": "https://alerts.example/hook"}}, []),
    ],
)
def test_deploying_an_alert_warns_of_inside_addresses_and_secrets_without_repeating_them(
    channel: dict[str, Any], messages: list[str]
) -> None:
    _, warnings = parse_alert(changed("spec/channels", [channel], base=ALERT))
    assert [text in str(problem) for text, problem in zip(messages, warnings, strict=True)] == [True] * len(
        messages
    )
    assert all(problem.severity == "warning" and problem.remedy for problem in warnings)
    assert WORD not in "".join(map(str, warnings))
