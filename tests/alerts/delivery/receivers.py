"""Receivers of alerts: real HTTP servers on this machine, which take, refuse, or never answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from app.alerts.channel_definition import Channel
from app.alerts.definition import AlertDefinition
from app.alerts.delivery.notice import AlertNotice
from app.controllog.alert_state import AlertState, AlertWindow

ENOUGH_S = 30.0
AT_MS = 1_800_000_000_000
SPEC: dict[str, Any] = {"on": ["loss"], "topics": ["orders"], "severity": "critical"}


class WebhookServer:
    """An HTTP receiver. `answers`: The statuses of its next answers, else 200. `hangs`: It never answers."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, str], Any]] = []  # path, headers, body
        self.request_count = 0
        self.answers: list[int] = []
        self.down = self.hangs = False
        self.headers: dict[str, str] = {}
        self.words = "not now"  # text of a refusal; a format string with `request`
        self.url = ""
        self.page = ""  # an HTML page that a proxy answers, with status 200

    async def take(self, request: web.Request) -> web.Response:
        """Answers any request."""
        self.request_count += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.page:
            return web.Response(text=self.page, content_type="text/html")
        status = self.answers.pop(0) if self.answers else 503 if self.down else 200
        if status == 200:
            self.taken.append((request.path, dict(request.headers), orjson.loads(await request.read())))
        text = "ok" if status == 200 else self.words.format(request=request)
        return web.Response(status=status, text=text, headers=self.headers)

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.taken]


@asynccontextmanager
async def hooks(tls: ssl.SSLContext | None = None) -> AsyncIterator[WebhookServer]:
    """Runs an HTTP server; with `tls` an HTTPS server at localhost."""
    found = WebhookServer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", found.take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port = runner.addresses[0][1]
    found.url = f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    try:
        yield found
    finally:
        await runner.cleanup()


def definition(*channels: dict[str, Any], name: str = "orders-lost", **spec: Any) -> AlertDefinition:
    """An alert that notifies these channels."""
    return AlertDefinition.model_validate(
        {
            "apiVersion": "switchyard/v1", "kind": "Alert", "metadata": {"name": name, "owner": "data"},
            "spec": {**SPEC, "channels": list(channels), **spec},
        }
    )  # fmt: skip


def channel(kind: str, **fields: Any) -> Channel:
    return Channel.model_validate({kind: fields})


def notice(number: int = 1, alert: str = "f00-1", **changes: Any) -> AlertNotice:
    """An alert that fires: two of 100 records are missing."""
    window = AlertWindow(AT_MS - 120_000, AT_MS - 60_000, "lossy", 100, 98, 2, 0, 1500)
    fields: dict[str, Any] = {
        "state": "firing", "topic": "orders", "from_tier": "regional", "to_tier": "aggregate",
        "windows": (window,), "fired_ms": AT_MS, **changes,
    }  # fmt: skip
    state = AlertState(
        at_ms=AT_MS, id=alert, term=1, rule="orders-lost", since_ms=AT_MS - 1_000, notice=number, **fields
    )
    return AlertNotice(alert, number, "east", "data", "critical", ("loss",), state)


async def until(condition: Callable[[], Any]) -> None:
    """Waits until the condition is true."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - servers and callbacks change it
            await asyncio.sleep(0.01)
