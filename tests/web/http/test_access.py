"""The server is safe by default: which requests it refuses, and which headers every answer has."""

from __future__ import annotations

import gzip
import re
import socket
from http import HTTPStatus
from urllib.parse import urlsplit

import pytest

from app.controllog.events import Paused
from app.web.http.responses import MAX_BODY_BYTES
from tests.web.client import Answer, Console
from tests.web.runtime_fake import FakeRuntime, assigned, definition, job, put, serving

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
    fed = FakeRuntime()
    with serving(fed, host="0.0.0.0") as url:  # noqa: S104 - only configured, not bound
        console = Console(url, fed)
        for host in ("192.168.1.7:6066", "[fe80::1]", socket.gethostname(), "localhost"):
            assert console.ask("GET", "/api/v1/overview", Host=host).status == 200, host
        assert console.ask("GET", "/api/v1/overview", Host="evil.example").status == 421


FOREIGN = [
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
    {"Sec_Fetch_Site": "same-site"},  # another port of this machine
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},
    {"Referer": "http://evil.example/page"},
]


def _gets(console: Console) -> list[str]:
    """The path of every GET of the API, with `x` for each parameter."""
    paths = console.ask("GET", "/api/v1/openapi.json").json["paths"]
    return [re.sub(r"\{[^}]*\}", "x", path) for path, methods in paths.items() if "get" in methods]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_foreign_page_cannot_read_the_api(console: Console, headers: dict[str, str]) -> None:
    paths = _gets(console)
    assert any(path.endswith("/export") for path in paths)
    for path in paths:
        if path.startswith("/api/"):
            answer = console.ask("GET", path, **headers)
            assert (answer.status, answer.json["title"]) == (403, "Cross-site request"), path
    assert console.ask("GET", "/", **headers).status == 200  # a link to the console works


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_consoles_own_pages_and_programs_may_read(console: Console, site: str) -> None:
    assert console.ask("GET", "/api/v1/overview", Sec_Fetch_Site=site).status == 200
    assert console.ask("GET", "/api/v1/overview").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost:1"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_foreign_page_can_change_nothing(console: Console, method: str, origin: str) -> None:
    console.fed.apply(put(definition()))
    answer = console.ask(method, PATH, definition(dlq={"enabled": False}), Origin=origin)
    assert answer.status == 403
    assert not console.fed.control.appended


def test_the_consoles_own_page_may_change_things(console: Console) -> None:
    assert console.ask("PUT", PATH, definition(), Origin=console.url).status == 201


def assert_problem(answer: Answer, status: int) -> None:
    """Asserts that the answer is a problem with every member of RFC 9457 and no internals."""
    assert answer.status == status, answer.text
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    fields = answer.json
    assert set(fields) - {"errors"} == {"type", "title", "status", "detail", "instance"}
    assert (fields["status"], fields["instance"][:1]) == (status, "/")
    assert (fields["type"] == "about:blank") == (fields["title"] == HTTPStatus(status).phrase)
    assert fields["detail"]
    assert not any(word in answer.text for word in ("Traceback", "site-packages", ".py"))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("OPTIONS", PATH, 405),
        ("POST", PATH, 405),
        ("TRACE", PATH, 405),
        ("DELETE", "/api/v1/overview", 405),
        ("HEAD", "/api/v1/events", 405),
        ("GET", "/api/v1/nonsense", 404),
        ("GET", "/api/v1//workloads", 404),
        ("GET", "/api/v1/workloads/", 404),
        ("GET", "/api/v1/workloads/%FF/%00", 404),
        ("GET", "/api/v1/workloads/%ED%A0%80/x", 404),
        ("GET", "/api/v1/operations/%3Fx%FF", 404),
        ("GET", f"{PATH}/partitions/0/tracker?topic=%ED%A0%80", 400),
        ("GET", "/api/v1/workers?limit=%FF", 400),
        ("GET", "/api/v1/workers?limit=3&limit=4", 400),
        ("GET", "/api/v1/workers?limits=3", 400),
        ("PUT", f"{PATH}?dry-run=true", 400),
        ("PUT", f"{PATH}?dry_run=yes", 400),
    ],
)
def test_a_wrong_request_is_a_problem_and_changes_nothing(
    console: Console, method: str, path: str, status: int
) -> None:
    console.fed.apply(put(definition()), assigned(job(0)))
    answer = console.ask(method, path, definition(tracker={"capacity": 5}) if method == "PUT" else None)
    if method == "HEAD":
        assert answer.status == status
    else:
        assert_problem(answer, status)
    assert ("Allow" in answer.headers) == (status == 405)
    assert not console.fed.control.appended


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ("{}", {"Content_Type": "application/xml"}, 415),
        ("a=b", {"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ("{}", {"Content_Type": "text/plain"}, 415),
        ("{}", {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(b" " * 10_000_000), {"Content_Encoding": "gzip"}, 413),
        (" " * (MAX_BODY_BYTES + 1), {}, 413),
        (b"\xff\xfe", {}, 400),
        ("[" * 2000, {}, 400),
        ('{"partitions": ' + "[" * 900 + "]" * 900 + "}", {}, 400),
        ('{"partitions": [0], "partitions": []}', {}, 400),
        ('{"partitions": [' + "9" * 5000 + "]}", {}, 400),
        ('{"partitions": [NaN]}', {}, 400),
        ('{"\\ud83d": 1}', {}, 400),
        ("null", {}, 400),
    ],
)
def test_a_body_that_cannot_be_read_is_a_problem_and_changes_nothing(
    console: Console, body: str | bytes, headers: dict[str, str], status: int
) -> None:
    console.fed.apply(put(definition()), assigned(job(0)))
    assert_problem(console.ask("POST", f"{PATH}/pause", body, **headers), status)
    assert not console.fed.control.appended


def test_an_actor_name_of_undecodable_bytes_is_recorded_as_printable_text(console: Console) -> None:
    console.fed.apply(put(definition()))
    place = urlsplit(console.url)
    request = f"POST {PATH}/pause HTTP/1.1\r\nHost: localhost\r\nX-Switchyard-Actor: \xff\r\n\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=60) as stream:
        stream.sendall(request.encode("latin-1"))
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
    (event,) = console.fed.control.appended
    assert isinstance(event, Paused)
    assert event.actor.isprintable()
