"""Safe by default: what the server refuses, and what every answer carries."""

from __future__ import annotations

import socket

import pytest

from tests.console.client import Console
from tests.console.hand_fed import HandFed, definition, put, serving

PATH = "/api/v1/workloads/billing/orders"


@pytest.mark.parametrize(
    "path", ["/", "/assets/console.js", "/api/v1/overview", "/health/ready", "/metrics", "/no/such", PATH]
)
def test_every_answer_carries_the_security_headers(console: Console, path: str) -> None:
    headers = console.ask("GET", path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    if path.startswith("/api/"):
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "10.0.0.1", "[::1", ""]
)
def test_a_name_that_is_not_this_servers_is_refused(console: Console, host: str) -> None:
    assert console.ask("GET", "/api/v1/overview", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:6066", "127.0.0.1:1", "[::1]:6066", "127.9.9.9"])
def test_loopback_is_answered_by_any_of_its_names(console: Console, host: str) -> None:
    assert console.ask("GET", "/api/v1/overview", Host=host).status == 200


def test_a_server_on_every_address_answers_for_addresses_and_its_own_name_only() -> None:
    fed = HandFed()
    with serving(fed, host="0.0.0.0") as url:  # noqa: S104 - told to the guard, not bound
        console = Console(url, fed)
        for host in ("192.168.1.7:6066", "[fe80::1]", socket.gethostname(), "localhost"):
            assert console.ask("GET", "/api/v1/overview", Host=host).status == 200, host
        assert console.ask("GET", "/api/v1/overview", Host="evil.example").status == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost:1"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_foreign_page_can_change_nothing(console: Console, method: str, origin: str) -> None:
    console.fed.apply(put(definition()))
    answer = console.ask(method, PATH, definition(dlq={"enabled": False}), Origin=origin)
    assert answer.status == 403
    assert not console.fed.control.appended


def test_the_consoles_own_page_may_change_things(console: Console) -> None:
    assert console.ask("PUT", PATH, definition(), Origin=console.url).status == 201


def test_an_unknown_address_is_a_problem_too(console: Console) -> None:
    answer = console.ask("GET", "/api/v1/nonsense")
    assert answer.status == 404
    assert answer.json["status"] == 404
    assert console.ask("POST", PATH).status == 405
