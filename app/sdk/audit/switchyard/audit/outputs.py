"""Where reports go. An output delivers a batch or raises; who sends it tries again, so it may deliver twice.

    KafkaOutput (switchyard.audit.kafka_output)   the topic `switchyard-<region>-audit`
    HttpOutput                          POST /api/v1/audit/reports
    CallOutput                          a function or coroutine function of yours
    FileOutput                          a file, a report a line

A batch has at most `MOST_BATCH_BYTES`, encoded, unless one report alone is larger. The same report may come
again, from another process too: whoever receives it keeps each id once (`app.audit.folds.collector`).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import inspect
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from switchyard.audit.errors import AuditError, NotPassed, Refused
from switchyard.audit.model.reports import Report

MOST_BATCH_BYTES = 64 * 1024
HTTP_ANSWER_TIMEOUT_S = 10.0
NDJSON = "application/x-ndjson"
MOST_ANSWER_BYTES = 8 * 1024
MOST_ANSWER_CHARS = 500
# Only Switchyard knows what it will never take: the problem's type (RFC 9457) is its word, a status is not.
BAD_REPORT = "urn:switchyard:problem:bad-report"
# What proxies answer because of a body: its size, its kind, its content. A smaller one, or another, may pass.
OF_BODIES = frozenset({400, 403, 406, 413, 415, 422})

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode


class _Answer(msgspec.Struct):
    """What Switchyard answers: how many reports it took, or a problem's type."""

    taken: int = -1
    type: str = ""


_decode_answer = msgspec.json.Decoder(_Answer).decode


class Output(Protocol):
    """See the module. Both are called in one event loop, that of the audit's own thread."""

    async def send(self, reports: Sequence[Report]) -> None:
        """Returns when the receiver has them. Raises `Refused` if it says that it never will, `NotPassed` if
        fewer of them may reach it, anything else if not now."""

    async def close(self) -> None:
        """Gives back what it holds."""


def batches(reports: Iterable[Report]) -> Iterator[list[Report]]:
    """Cut where one would be larger than `MOST_BATCH_BYTES`."""
    batch: list[Report] = []
    size = 0
    for report in reports:
        nbytes = len(encode(report)) + 1
        if batch and size + nbytes > MOST_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(report)
        size += nbytes
    if batch:
        yield batch


def halves(report: Report) -> tuple[Report, Report] | None:
    """The report as two, each with half of its windows; None: it has too few. A window of a numbered report
    counts once, in whichever of them it comes. The first one says nothing of how far the source is: send it
    first."""
    half = len(report.windows) // 2
    if not half:
        return None
    first = msgspec.structs.replace(
        report, windows=report.windows[:half], watermark_ms=-1, late_ms=0, leaves=False
    )
    return first, msgspec.structs.replace(report, windows=report.windows[half:])


def json_lines(reports: Iterable[Report]) -> bytes:
    """A report a line; the body of HTTP requests."""
    return b"".join(encode(report) + b"\n" for report in reports)


def read_lines(data: bytes) -> Iterator[Report]:
    """The reports of `json_lines`; lines that are none, torn ones say, are left out."""
    for line in data.splitlines():
        try:
            yield _decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue


class CallOutput:
    """Calls a function, in a thread, or a coroutine function with each batch: it has them once it returns."""

    def __init__(self, call: Callable[[Sequence[Report]], Awaitable[None] | None]) -> None:
        self._call = call

    async def send(self, reports: Sequence[Report]) -> None:
        if inspect.iscoroutinefunction(self._call):
            await self._call(reports)
        else:
            found = await asyncio.to_thread(self._call, reports)
            if inspect.isawaitable(found):
                await found

    async def close(self) -> None:
        """It holds nothing."""


class FileOutput:
    """Appends to a file; `read_lines` reads it back."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._is_begun = False

    async def send(self, reports: Sequence[Report]) -> None:
        begin = b"" if self._is_begun else b"\n"  # the process before may have been killed within a line
        self._is_begun = False  # so may this write be cut short, on a full disk say
        self._path.touch(mode=0o600)  # what is audited is its owner's business
        with self._path.open("ab") as file:
            file.write(begin + json_lines(reports))
        self._is_begun = True

    async def close(self) -> None:
        """It holds nothing."""


class HttpOutput:
    """Posts JSON lines. No redirects, no proxies: reports go to the address that is given, or wait.

    Proxies may stand before the receiver. So reports have arrived only when Switchyard says so
    (`{"taken": n}`), and are refused only by a problem of its type. A proxy's page or error is tried again.

    Args:
        url: http or https, with its path: "https://switchyard.east/api/v1/audit/reports".
        headers: such as Authorization.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        found = urlsplit(url)
        try:
            host, port = found.hostname, found.port
        except ValueError:  # its port is none
            host, port = None, None
        if found.scheme not in {"http", "https"} or not host:
            raise AuditError(
                f"url={url!r}: no http or https address; give one such as http://host:6066/api/v1/…"
            )
        self._path = (found.path or "/") + (f"?{found.query}" if found.query else "")
        self._headers = {"Content-Type": NDJSON, **(headers or {})}
        self._new: Callable[[], http.client.HTTPConnection]
        if found.scheme == "https":
            self._new = lambda: http.client.HTTPSConnection(
                host, port, timeout=HTTP_ANSWER_TIMEOUT_S, context=tls
            )
        else:
            self._new = lambda: http.client.HTTPConnection(host, port, timeout=HTTP_ANSWER_TIMEOUT_S)

    async def send(self, reports: Sequence[Report]) -> None:
        await asyncio.to_thread(self._post, json_lines(reports), len(reports))

    async def close(self) -> None:
        """It holds nothing: a connection a batch, every few seconds."""

    def _post(self, body: bytes, many: int) -> None:
        connection = self._new()
        try:
            with contextlib.suppress(
                BrokenPipeError
            ):  # a proxy may answer without reading all of a large body
                connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            said = answer.read(MOST_ANSWER_BYTES)
        finally:
            connection.close()
        told = _answered(said)
        if 200 <= answer.status < 300 and told.taken == many:
            return
        text = _plain(f"{answer.status} {answer.reason}: {said.decode(errors='replace')}")[:MOST_ANSWER_CHARS]
        if told.type == BAD_REPORT:
            raise Refused(text)
        if answer.status in OF_BODIES:
            raise NotPassed(text)
        if 200 <= answer.status < 300:
            text = f'not Switchyard\'s answer ({{"taken": {many}}}), so it is sent again: {text}'
        raise OSError(text)


def _plain(text: str) -> str:
    """In one line, without what a terminal would take for a command: it goes into logs."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _answered(said: bytes) -> _Answer:
    """What Switchyard says in an answer; nothing in one of a proxy."""
    try:
        return _decode_answer(said)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return _Answer()
