"""One notice to one channel, once: by HTTP or SMTP, within a time.

A proxy may stand before a receiver, and a receiver has no word of ours. So no answer gives a notice up: the
lane tries it again (`lanes`). A status from 200 to 299 says that the receiver took it, unless a page for
people comes with it: a login or a maintenance page of a proxy.

Redirects are not followed: a POST that becomes a GET tells nobody anything, and whoever answers must not say
where workers go next. What environment variables hold is read when something is sent, and stands in no error.
Where it is configured, nothing is sent to what is near the workers only (`app.alerts.egress_policy`): neither
by its name, nor by the address that a name leads to at that moment. No proxy looks that up then: what the
environment says of proxies is passed over.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import aiosmtplib
import orjson

from app.alerts.channel_definition import (
    Alertmanager,
    Channel,
    Email,
    MissingVariable,
    Slack,
    Webhook,
    revealed,
)
from app.alerts.delivery.message_bodies import alertmanager, mail, slack, webhook
from app.alerts.delivery.notice import AlertNotice, plain
from app.alerts.egress_policy import leads_inside
from app.kernel.clock import now_ms

SEND_TIMEOUT_S = 15.0
MAX_ANSWER_CHARS = 200
MOST_READ_BYTES = 2_000  # of an answer: more than is told, so that no secret is cut in two before it is found
API_V2 = "/api/v2/alerts"
MOST_WAIT_S = 3600.0
LEAST_SECRET_CHARS = 6
HTML = "text/html"
_PAGE = re.compile(r"<(!doctype\s{1,9}html|html)\b", re.IGNORECASE)
_PIECES = re.compile(r"[/?&=\s]+")


class NotTaken(Exception):
    """A channel did not take a notice. `after_s`: it asks not to be told before, 0: it says nothing."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class LeadsInside(OSError):
    """A name does."""


class PublicResolver(aiohttp.ThreadedResolver):
    """Looks names up, and refuses those that lead inside."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        """Raises LeadsInside: any of its addresses does."""
        found = await super().resolve(host, port, family)
        if inside := next(filter(None, (leads_inside(one["host"]) for one in found)), ""):
            raise LeadsInside(errno.EACCES, refusal(inside))
        return found


async def connected(host: str, port: int) -> socket.socket:
    """A connection to one of a host's addresses, none of which leads inside.

    Raises:
        LeadsInside: one does. OSError: none answers.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if inside := next(filter(None, (leads_inside(str(at[0])) for *_, at in found)), ""):
        raise LeadsInside(errno.EACCES, refusal(inside))
    failure = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, kind, protocol, _, at in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, at)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            failure = error
        else:
            return connection
    raise failure


def refusal(inside: str) -> str:
    """Why nothing is sent there."""
    return f"the address leads to {inside}, which this worker's configuration refuses (alerts.local)"


class NoticeSender:
    """Sends; closed when nothing is to be sent any more. `refuses_local`: nothing to what leads inside."""

    def __init__(self, env: Mapping[str, str] = os.environ, *, refuses_local: bool = False) -> None:
        self._env = env
        self.refuses_local = refuses_local
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Lets connections go."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, channel: Channel, notice: AlertNotice, within_s: float = SEND_TIMEOUT_S) -> None:
        """Raises NotTaken: why, in words that hold no secret."""
        try:
            async with asyncio.timeout(within_s):
                await self._send(channel, notice)
        except TimeoutError as error:
            raise NotTaken(f"did not answer within {within_s:g} s") from error
        except MissingVariable as error:
            raise NotTaken(str(error)) from error

    async def _send(self, channel: Channel, notice: AlertNotice) -> None:
        match channel.target:
            case Webhook() as hook:
                headers = {**self._headers(hook.headers), "Idempotency-Key": notice.dedup_id}
                await self._post(hook.url, webhook(notice), headers)
            case Slack() as hook:
                await self._post(hook.url, slack(notice), {})
            case Alertmanager() as manager:
                url = revealed(manager.url, self._env).rstrip("/").removesuffix(API_V2) + API_V2
                await self._post(url, alertmanager(notice, now_ms()), self._headers(manager.headers))
            case Email() as email:
                await self._mail(email, notice)

    def _headers(self, told: Mapping[str, str]) -> dict[str, str]:
        return {name: revealed(text, self._env) for name, text in told.items()}

    async def _post(self, url: str, body: Any, headers: Mapping[str, str]) -> None:
        url = revealed(url, self._env)
        if self.refuses_local and (inside := _inside(url)):
            raise NotTaken(refusal(inside))
        if self._session is None:
            resolver = PublicResolver() if self.refuses_local else None
            self._session = aiohttp.ClientSession(  # `send` sees to the time
                timeout=aiohttp.ClientTimeout(total=None), trust_env=not self.refuses_local,
                connector=aiohttp.TCPConnector(limit_per_host=4, resolver=resolver),
            )  # fmt: skip
        try:
            async with self._session.post(
                url, data=orjson.dumps(body), allow_redirects=False,
                headers={**headers, "Content-Type": "application/json"},
            ) as answer:  # fmt: skip
                is_taken = 200 <= answer.status < 300
                if is_taken and answer.content_type != HTML:
                    return
                said = (await answer.content.read(MOST_READ_BYTES)).decode("utf-8", "replace")
                if is_taken and not _PAGE.search(said):  # Slack says "ok" as HTML, as many frameworks do
                    return
                told = without_secrets(plain(" ".join(said.split())), url, headers)[:MAX_ANSWER_CHARS]
                page = " with a page for people, so that a proxy may have taken it" if is_taken else ""
                raise NotTaken(f"answered {answer.status}{page}: {told}", _after_s(answer.headers))
        except TimeoutError:
            raise
        except (aiohttp.ClientConnectionError, ssl.SSLError, socket.gaierror) as error:
            raise NotTaken(f"cannot be reached: {_why(error)}") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:  # such as an address that is none
            raise NotTaken(f"cannot be asked: {type(error).__name__}") from error

    async def _mail(self, email: Email, notice: AlertNotice) -> None:
        host, _, at = email.smtp.rpartition(":")
        host, port, connection = host.strip("[]"), int(at), None
        if self.refuses_local and (inside := leads_inside(host)):
            raise NotTaken(refusal(inside))
        user, password = (
            None if told is None else revealed(told, self._env) for told in (email.user, email.password)
        )
        try:
            if self.refuses_local:
                connection = await connected(host, port)
            refused, _ = await aiosmtplib.send(
                mail(notice, email, now_ms()), hostname=host, port=None if connection else port,
                sock=connection, use_tls=email.tls == "tls", start_tls=email.tls == "starttls",
                username=user, password=password, timeout=SEND_TIMEOUT_S,
            )  # fmt: skip
        except aiosmtplib.SMTPAuthenticationError as error:
            raise NotTaken(f"refused user and password: {error.code}") from error
        except (aiosmtplib.SMTPConnectError, ConnectionError, ssl.SSLError) as error:
            raise NotTaken(f"cannot be reached: {_why(error.__cause__ or error)}") from error
        except aiosmtplib.SMTPException as error:
            raise NotTaken(f"did not take the mail: {plain(str(error))[:MAX_ANSWER_CHARS]}") from error
        except ValueError as error:  # such as a password that is no text
            raise NotTaken(f"cannot be asked: {type(error).__name__}") from None
        except OSError as error:
            raise NotTaken(f"cannot be reached: {_why(error)}") from error
        if refused:
            names = ", ".join(sorted(refused))
            raise NotTaken(f"took the mail, but not for {plain(names)[:MAX_ANSWER_CHARS]}")


def without_secrets(said: str, url: str, headers: Mapping[str, str]) -> str:
    """What a receiver said, without what it was sent: some repeat the path or the token that they refuse."""
    parts = urlsplit(url)
    sent = [url, parts.path, parts.query, *headers.values()]
    pieces = {piece for text in sent for piece in (text, *_PIECES.split(text))}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) >= LEAST_SECRET_CHARS:
            said = said.replace(piece, "…")
    return said


def _inside(url: str) -> str:
    try:
        return leads_inside(urlsplit(url).hostname or "")
    except ValueError:  # no address at all: that is told when it is asked
        return ""


def _why(error: BaseException) -> str:
    """Without addresses, which may be secrets: asyncio puts them beside what the system says."""
    reason = getattr(error, "os_error", None) or error
    if isinstance(reason, ssl.SSLError):  # its number is OpenSSL's, and none of the system's
        words = getattr(reason, "verify_message", "") or (reason.reason or "failed").replace("_", " ").lower()
        return f"TLS: {plain(words.partition(', certificate is not valid for')[0])}"
    number, words = getattr(reason, "errno", None), getattr(reason, "strerror", None)
    if isinstance(number, int) and number in errno.errorcode and not isinstance(reason, LeadsInside):
        return os.strerror(number)
    return words or type(reason).__name__


def _after_s(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return min(float(text), MOST_WAIT_S) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
