"""Receivers of alerts: real servers of HTTP and SMTP on this machine, that take, refuse, or stand still."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import Message
from typing import Any

import orjson
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from app.alerts.channel_definition import Channel
from app.alerts.definition import AlertDefinition
from app.alerts.delivery.notice import AlertNotice
from app.controllog.alert_state import AlertState, AlertWindow

ENOUGH_S = 30.0
AT_MS = 1_800_000_000_000
SPEC: dict[str, Any] = {"on": ["loss"], "topics": ["orders"], "severity": "critical"}


class WebhookServer:
    """Takes what is posted. `answers`: statuses of the next ones, else 200; `hangs`: it never answers."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, dict[str, str], Any]] = []  # path, headers, body
        self.asked = 0
        self.answers: list[int] = []
        self.down = self.hangs = False
        self.headers: dict[str, str] = {}
        self.words = "not now"  # of refusals; may name what `request` has
        self.url = ""
        self.page = ""  # with status 200, by whatever stands before the receiver

    async def take(self, request: web.Request) -> web.Response:
        """Any request."""
        self.asked += 1
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
    """A server of HTTP; with `tls` of HTTPS, at localhost."""
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


class MailServer:
    """Takes mail of `user` with `password`; refuses whom it does not know."""

    def __init__(self, user: str = "yard", password: str = "word", known: str = "example.org") -> None:  # noqa: S107
        self.mails: list[Message] = []
        self.to: list[list[str]] = []
        self.place = ""
        self._user, self._password, self._known = user, password, known

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _: SMTP, __: Session, envelope: Envelope, address: str, ___: list[str]
    ) -> str:
        """A recipient."""
        if not address.endswith(self._known):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:  # noqa: N802
        """A mail."""
        assert isinstance(envelope.content, bytes)
        self.mails.append(message_from_bytes(envelope.content))
        self.to.append(list(envelope.rcpt_tos))
        return "250 OK"

    def login(self, _: Any, __: Any, ___: Any, ____: str, data: Any) -> AuthResult:
        """Whether somebody may send."""
        good = isinstance(data, LoginPassword) and (data.login, data.password) == (
            self._user.encode(), self._password.encode(),
        )  # fmt: skip
        return AuthResult(success=good, handled=False)


@asynccontextmanager
async def mailbox(tls: ssl.SSLContext | None = None, *, at_once: bool = False) -> AsyncIterator[MailServer]:
    """A server of SMTP that asks for user and password; with `tls` after STARTTLS, or `at_once`."""
    found = MailServer()
    loop = asyncio.get_running_loop()
    must = tls is not None and not at_once

    def serve() -> SMTP:
        with warnings.catch_warnings(action="ignore"):  # of passwords without TLS
            return SMTP(
                found, authenticator=found.login, auth_required=True, auth_require_tls=must,
                tls_context=tls if must else None, require_starttls=must, loop=loop,
            )  # fmt: skip

    server = await loop.create_server(serve, "127.0.0.1", 0, ssl=tls if at_once else None)
    port = server.sockets[0].getsockname()[1]
    found.place = f"localhost:{port}" if tls else f"127.0.0.1:{port}"
    try:
        yield found
    finally:
        server.close()


def definition(*channels: dict[str, Any], name: str = "orders-lost", **spec: Any) -> AlertDefinition:
    """An alert that tells these channels."""
    return AlertDefinition.model_validate(
        {
            "apiVersion": "switchyard/v1", "kind": "Alert", "metadata": {"name": name, "owner": "data"},
            "spec": {**SPEC, "channels": list(channels), **spec},
        }
    )  # fmt: skip


def channel(kind: str, **told: Any) -> Channel:
    """One channel."""
    return Channel.model_validate({kind: told})


def notice(number: int = 1, alert: str = "f00-1", **told: Any) -> AlertNotice:
    """An alert that fires: two of 100 records are missing."""
    window = AlertWindow(AT_MS - 120_000, AT_MS - 60_000, "lossy", 100, 98, 2, 0, 1500)
    fields: dict[str, Any] = {
        "state": "firing", "topic": "orders", "from_tier": "regional", "to_tier": "aggregate",
        "windows": (window,), "fired_ms": AT_MS, **told,
    }  # fmt: skip
    state = AlertState(
        at_ms=AT_MS, id=alert, term=1, rule="orders-lost", since_ms=AT_MS - 1_000, notice=number, **fields
    )
    return AlertNotice(alert, number, "east", "data", "critical", ("loss",), state)


async def until(condition: Callable[[], Any]) -> None:
    """Returns once it is true."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - servers and callbacks change it
            await asyncio.sleep(0.01)
