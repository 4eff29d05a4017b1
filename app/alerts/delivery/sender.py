"""Sends one notice to one channel by HTTP, once, within a time limit.

1. A proxy may answer in place of the receiver, so no answer makes the worker give a notice up: the lane sends
   it again (`lanes`). The receiver took a notice if the status is 200 to 299 and the answer is no HTML page.
   Proxies answer with such pages for login or maintenance.
2. The worker follows no redirect. A POST may become a GET, which delivers nothing, and a receiver must not
   choose the workers' next address.
3. The worker reads an environment variable when it sends, and no error contains its value.
4. With `alerts: {local: refuse}` the worker sends nothing to addresses near it (`app.alerts.egress_policy`).
   It checks the name, and the address that the name has at that moment. It then uses no proxy, since a proxy
   would resolve the name itself.
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
import orjson

from app.alerts.channel_definition import Alertmanager, Channel, MissingVariable, Webhook, revealed
from app.alerts.delivery.message_bodies import alertmanager, webhook
from app.alerts.delivery.notice import AlertNotice, plain
from app.alerts.egress_policy import leads_inside
from app.kernel.clock import now_ms

SEND_TIMEOUT_S = 15.0
MAX_ANSWER_CHARS = 200
MOST_READ_BYTES = 2_000  # of an answer: more than an error shows, so that no secret is cut before it is found
API_V2 = "/api/v2/alerts"
MOST_WAIT_S = 3600.0
LEAST_SECRET_CHARS = 6
HTML = "text/html"
_PAGE = re.compile(r"<(!doctype\s{1,9}html|html)\b", re.IGNORECASE)
_PIECES = re.compile(r"[/?&=\s]+")


class NotTaken(Exception):
    """A channel did not take a notice. `after_s`: the pause that its receiver asks for; 0: none."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class LeadsInside(OSError):
    """A name has an address near the worker."""


class PublicResolver(aiohttp.ThreadedResolver):
    """Looks names up, and refuses those with an address near the worker."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        """Raises LeadsInside: one of the addresses is near the worker."""
        found = await super().resolve(host, port, family)
        if inside := next(filter(None, (leads_inside(one["host"]) for one in found)), ""):
            raise LeadsInside(errno.EACCES, refusal(inside))
        return found


def refusal(inside: str) -> str:
    """The reason why the worker sends nothing to an address that leads to `inside`."""
    return f"the address leads to {inside}, which this worker's configuration refuses (alerts.local)"


class NoticeSender:
    """Sends notices until `close`. `refuses_local`: rule 4 applies."""

    def __init__(self, env: Mapping[str, str] = os.environ, *, refuses_local: bool = False) -> None:
        self._env = env
        self.refuses_local = refuses_local
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, channel: Channel, notice: AlertNotice, within_s: float = SEND_TIMEOUT_S) -> None:
        """Raises NotTaken: with the reason, and no secret in it."""
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
            case Alertmanager() as manager:
                url = revealed(manager.url, self._env).rstrip("/").removesuffix(API_V2) + API_V2
                await self._post(url, alertmanager(notice, now_ms()), self._headers(manager.headers))
            case None:
                raise NotTaken(channel.trouble)

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: revealed(text, self._env) for name, text in headers.items()}

    async def _post(self, url: str, body: Any, headers: Mapping[str, str]) -> None:
        url = revealed(url, self._env)
        if self.refuses_local and (inside := _inside(url)):
            raise NotTaken(refusal(inside))
        if self._session is None:
            resolver = PublicResolver() if self.refuses_local else None
            self._session = aiohttp.ClientSession(  # `send` limits the time
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
                if is_taken and not _PAGE.search(said):  # many frameworks say "ok" as HTML
                    return
                shown = without_secrets(plain(" ".join(said.split())), url, headers)[:MAX_ANSWER_CHARS]
                page = " with a page for people, so that a proxy may have taken it" if is_taken else ""
                raise NotTaken(f"answered {answer.status}{page}: {shown}", _after_s(answer.headers))
        except TimeoutError:
            raise
        except (aiohttp.ClientConnectionError, ssl.SSLError, socket.gaierror) as error:
            raise NotTaken(f"cannot be reached: {_why(error)}") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:  # such as an invalid address
            raise NotTaken(f"cannot be asked: {type(error).__name__}") from error


def without_secrets(said: str, url: str, headers: Mapping[str, str]) -> str:
    """The receiver's answer without the secrets of the request: some repeat the path or the refused token."""
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
    except ValueError:  # an invalid address: the request fails with a better error
        return ""


def _why(error: BaseException) -> str:
    """The system's words for an error, without the address that asyncio adds: it may be a secret."""
    reason = getattr(error, "os_error", None) or error
    if isinstance(reason, ssl.SSLError):  # its number is OpenSSL's, not the system's
        words = getattr(reason, "verify_message", "") or (reason.reason or "failed").replace("_", " ").lower()
        return f"TLS: {plain(words.partition(', certificate is not valid for')[0])}"
    number, words = getattr(reason, "errno", None), getattr(reason, "strerror", None)
    if isinstance(number, int) and number in errno.errorcode and not isinstance(reason, LeadsInside):
        return os.strerror(number)
    return words or type(reason).__name__


def _after_s(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return min(float(text), MOST_WAIT_S) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
