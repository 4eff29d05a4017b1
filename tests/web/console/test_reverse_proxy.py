"""The console behind Caddy, a real reverse proxy that ends TLS: pages, changes, events, other workers."""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.dev.demo.stage import free_port, wait_until
from tests.web.client import Answer
from tests.web.runtime_fake import (
    ENOUGH_S,
    FakeRuntime,
    a_pump,
    assigned,
    beat,
    definition,
    flowing,
    job,
    put,
    serving,
)

NAME = "switchyard.example.com"
PATH = "/api/v1/workloads/billing/orders"
TRACKER = f"{PATH}/partitions/0/tracker"
KEEPS_HOST, OWN_HOST = "", "header_up Host {upstream_hostport}"  # the default of Caddy, and of nginx
CADDYFILE = """
{
  admin off
  skip_install_trust
  auto_https disable_redirects
  storage file_system %(folder)s/storage
}
https://%(name)s:%(port)d {
  bind 127.0.0.1
  tls internal
  reverse_proxy %(upstream)s {
    %(host)s
  }
}
"""


@dataclass
class Proxy:
    """A client of the proxy that trusts the proxy's certificate authority."""

    port: int
    context: ssl.SSLContext

    @property
    def origin(self) -> str:
        return f"https://{NAME}:{self.port}"

    def open(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=ENOUGH_S, context=self.context
        )
        connection.connect()
        all_headers = {"Host": f"{NAME}:{self.port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.request(method, path, None if body is None else json.dumps(body), all_headers)
        return connection.getresponse()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return Answer(self.open(method, path, body, **headers))


class ProxyNameContext(ssl.SSLContext):
    """Sends the proxy's name as server name, because the connection uses an address."""

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return super().wrap_socket(*args, **{**options, "server_hostname": NAME})


@contextmanager
def proxied(folder: Path, port: int, upstream: str, host: str) -> Iterator[Proxy]:
    """Caddy in front of `upstream` (a URL), once it has its certificate."""
    caddy = shutil.which("caddy")
    if caddy is None:
        pytest.skip("caddy is not on PATH; as root: apt-get install caddy")
    config, log = folder / "Caddyfile", folder / "caddy.log"
    text = {"folder": folder, "name": NAME, "port": port, "upstream": upstream.removeprefix("http://")}
    config.write_text(CADDYFILE % {**text, "host": host})
    root = folder / "storage" / "pki" / "authorities" / "local" / "root.crt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [caddy, "run", "--config", str(config), "--adapter", "caddyfile"],
            stdout=output, stderr=output, env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    try:
        context = ProxyNameContext(ssl.PROTOCOL_TLS_CLIENT)

        def is_written() -> bool:  # Caddy makes the file before it writes into it
            try:
                context.load_verify_locations(root)
            except OSError:
                return False
            return True

        wait_until(is_written, ENOUGH_S, lambda: log.read_text()[-2000:])
        proxy = Proxy(port, context)

        def answers() -> bool:
            try:
                return proxy.ask("GET", "/health/live").status == 200
            except OSError:
                return False

        wait_until(answers, ENOUGH_S, lambda: log.read_text()[-2000:])
        yield proxy
    finally:
        process.terminate()
        process.wait(ENOUGH_S)


@pytest.fixture(params=[KEEPS_HOST, OWN_HOST], ids=["keeps the Host", "sends its own Host"])
def proxied_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Proxy, FakeRuntime]]:
    """A worker's console behind the proxy, which the worker's configuration names."""
    fed, port = FakeRuntime(), free_port()
    fed.apply(put(definition()))
    with (
        serving(fed, public=(f"https://{NAME}:{port}",)) as url,
        proxied(tmp_path, port, url, request.param) as proxy,
    ):
        yield proxy, fed


def test_pages_lists_and_metrics_come_through_the_proxy(proxied_worker: tuple[Proxy, FakeRuntime]) -> None:
    proxy, _ = proxied_worker
    for path in ("/", "/assets/console.js", "/api/v1/workloads", "/metrics", "/health/ready"):
        assert proxy.ask("GET", path, Referer=f"{proxy.origin}/audit").status == 200, path
    assert proxy.ask("GET", "/api/v1/workloads", Referer="https://evil.example/").status == 403


def test_only_a_page_that_came_through_the_proxy_may_change_things(
    proxied_worker: tuple[Proxy, FakeRuntime],
) -> None:
    proxy, fed = proxied_worker
    foreign = [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": f"http://{NAME}:{proxy.port}"},
        {"Origin": f"https://{NAME}:{proxy.port + 1}"},
        {"Origin": "https://[", "Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
    ]  # fmt: skip
    for headers in foreign:
        assert proxy.ask("POST", f"{PATH}/pause", {}, **headers).status == 403, headers
    assert not fed.control.appended
    own = {"Origin": proxy.origin, "Sec_Fetch_Site": "same-origin"}
    assert proxy.ask("POST", f"{PATH}/pause", {}, **own).status == 200
    assert proxy.ask("POST", f"{PATH}/resume", {}).status == 200, "a request without Origin was refused"
    assert len(fed.control.appended) == 2


def test_live_pages_get_events_through_the_proxy_as_they_happen(
    proxied_worker: tuple[Proxy, FakeRuntime],
) -> None:
    proxy, _ = proxied_worker
    answer = proxy.open("GET", "/api/v1/events", Accept="text/event-stream")
    try:
        assert answer.status == 200
        for _ in range(2):  # the stream has no end: a proxy that holds it back shows none
            assert answer.readline().startswith(b'data: {"')
            assert answer.readline() == b"\n"
    finally:
        answer.close()


def test_answers_of_another_worker_come_through_the_proxy(proxied_worker: tuple[Proxy, FakeRuntime]) -> None:
    proxy, fed = proxied_worker
    other = FakeRuntime()
    other.worker = "worker-b"
    other.jobs.pumps[job(0)] = a_pump()
    for worker in (fed, other):
        worker.control.view.apply(assigned(job(0), "worker-b"))
    other.apply(put(definition()))
    with serving(other) as url:
        fed.observe(beat(flowing(job(0)), worker="worker-b", url=url))
        answer = proxy.ask("GET", TRACKER)
        assert (answer.status, answer.json["worker"]) == (200, "worker-b"), answer.text


def test_behind_a_proxy_that_is_not_configured_the_refusals_say_what_to_set(tmp_path: Path) -> None:
    fed, port = FakeRuntime(), free_port()
    with ExitStack() as stack:
        url = stack.enter_context(serving(fed))
        proxy = stack.enter_context(proxied(tmp_path, port, url, KEEPS_HOST))
        refused = proxy.ask("GET", "/api/v1/workloads")
        assert refused.status == 421
        assert "web.public" in refused.json["detail"]
        assert proxy.ask("GET", "/health/live").status == 200, "a probe by another name was refused"
