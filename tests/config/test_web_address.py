"""The `web` section: addresses that cannot work are refused at their line, with the remedy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.config.problems import InvalidConfiguration
from app.config.settings import Settings, load_settings
from app.config.web_address import Web, bracketed, is_loopback, normal_origin

SETTINGS = (
    "region: east\n"
    "clusters: [{name: east-regional, region: east, tier: regional, bootstrap: 'localhost:9092'}]\n"
)


def load(folder: Path, text: str) -> Settings:
    file = folder / "switchyard.yaml"
    file.write_text(SETTINGS + text)
    return load_settings(file, {})


@pytest.mark.parametrize(
    ("advertise", "url"),
    [
        ("10.0.0.7", "http://10.0.0.7:6066"),
        ("worker-1.switchyard", "http://worker-1.switchyard:6066"),
        ("fd00::7", "http://[fd00::7]:6066"),
        ("[fd00::7]", "http://[fd00::7]:6066"),
        ("http://10.0.0.7:80/", "http://10.0.0.7"),
        ("https://Worker-1.example.com:8443", "https://worker-1.example.com:8443"),
        ("http://[fd00::7]:7000", "http://[fd00::7]:7000"),
    ],
)
def test_an_advertised_host_takes_the_workers_port_and_a_url_stands_as_it_is(
    tmp_path: Path, advertise: str, url: str
) -> None:
    assert load(tmp_path, f"web: {{host: 0.0.0.0, advertise: '{advertise}'}}\n").web.advertised == url


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:6066"), ("::1", "http://[::1]:6066"), ("0.0.0.0", ""), ("::", "")],  # noqa: S104
)
def test_by_default_the_host_is_advertised_unless_it_is_every_address(host: str, url: str) -> None:
    assert Web(host=host).advertised == url


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("advertise: 0.0.0.0", "every address is none"), ("advertise: '::'", "every address is none"),
        ("advertise: 'http://0.0.0.0:6066'", "every address is none"),
        ("advertise: '10.0.0.7:6066'", "neither a host nor a URL"),
        ("advertise: 10.0.0.300", "neither a host nor a URL"),
        ("advertise: 'ftp://a'", "not an http or https address"),
        ("advertise: 'http://a/console'", "more than scheme, host and port"),
        ("advertise: 7", "not an address"), ("advertise: ''", "not an address"),
        ("public: ['switchyard.example.com']", "not an http or https address"),
        ("public: ['https://*.example.com']", "its host or port is none"),
        ("public: ['https://me@example.com']", "more than scheme, host and port"),
        ("public: ['https://example.com/console']", "more than scheme, host and port"),
        ("public: ['https://example.com:99999']", "not an address"),
        ("public: ['https://']", "its host or port is none"), ("public: ['null']", "not an http"),
        ("public: ['https://a', 'https://bücher.example']", "plain characters"),
        ("public: https://example.com", "must be a list"), ("host: '10.0.0.7:6066'", "not a host"),
    ],
)  # fmt: skip
def test_an_impossible_address_is_refused_at_its_line_with_the_remedy(
    tmp_path: Path, value: str, message: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        load(tmp_path, f"web:\n  {value}\n")
    (problem,) = refused.value.problems
    assert message in problem.message
    assert problem.remedy
    assert problem.field.startswith(f"web.{value.partition(':')[0]}")
    assert problem.line == 4


def test_public_origins_are_kept_as_browsers_send_them() -> None:
    public = ("https://Switchyard.Example.com:443/", "http://[FD00::7]:80", "https://a:8443")
    assert Web(public=public).public == (
        "https://switchyard.example.com",
        "http://[fd00::7]",
        "https://a:8443",
    )


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1", "::"]
)
def test_loopback_is_recognised_in_all_its_forms(host: str) -> None:
    assert is_loopback(host)


@given(st.ip_addresses(), st.sampled_from(["http", "https"]), st.integers(1, 65535))
def test_every_address_makes_an_origin_that_normalises_to_itself(
    address: object, scheme: str, port: int
) -> None:
    origin = normal_origin(f"{scheme}://{bracketed(str(address))}:{port}")
    assert normal_origin(origin) == origin
    assert Web(public=(origin,)).public == (origin,)


@given(st.text(max_size=60))
def test_every_text_is_accepted_or_refused_without_another_error(text: str) -> None:
    for field in ({"host": text}, {"advertise": text}, {"advertise": f"http://{text}"}, {"public": (text,)}):
        with suppress(ValidationError):
            url = Web.model_validate(field).advertised
            assert url == "" or urlsplit(url).hostname
