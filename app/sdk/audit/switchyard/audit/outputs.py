"""Outputs: the ways in which reports are sent. An output delivers a batch or raises.

    KafkaOutput (switchyard.audit.kafka_output)   the topic `switchyard-<region>-audit`
    HttpOutput                          POST /api/v1/audit/reports
    CallOutput                          a function or coroutine function of yours
    FileOutput                          a file, a report a line

The audit retries after an error, so an output may deliver a report twice, also from another process. The
receiver counts each id once (`app.audit.folds.collector`). A batch has at most `MOST_BATCH_BYTES`, encoded,
unless a single report is larger.
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
# Only Switchyard can refuse reports for ever. Its problem type (RFC 9457) says so; a status may be a proxy's.
BAD_REPORT = "urn:switchyard:problem:bad-report"
# Proxies answer these because of a body's size, type or content. A smaller body, or another, may pass.
OF_BODIES = frozenset({400, 403, 406, 413, 415, 422})

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode


class _Answer(msgspec.Struct):
    """Switchyard's answer: the number of accepted reports, or a problem's type."""

    taken: int = -1
    type: str = ""


_decode_answer = msgspec.json.Decoder(_Answer).decode


class Output(Protocol):
    """Sends reports. Both methods run in the event loop of the audit's thread."""

    async def send(self, reports: Sequence[Report]) -> None:
        """Returns once the receiver has the reports.

        Raises:
            Refused: The receiver will never accept them.
            NotPassed: Fewer of them may reach it.
            Exception: Any other error; the audit retries.
        """

    async def close(self) -> None:
        """Releases connections and files."""


def batches(reports: Iterable[Report]) -> Iterator[list[Report]]:
    """The reports in batches of at most `MOST_BATCH_BYTES`."""
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
    """The report as two, each with half of its windows; None: it has fewer than two.

    A window of a numbered report counts once, whichever half it comes in. The first half says nothing of the
    source's watermark, so send it first.
    """
    half = len(report.windows) // 2
    if not half:
        return None
    first = msgspec.structs.replace(
        report, windows=report.windows[:half], watermark_ms=-1, late_ms=0, leaves=False
    )
    return first, msgspec.structs.replace(report, windows=report.windows[half:])


def json_lines(reports: Iterable[Report]) -> bytes:
    """The body of HTTP requests: a report a line."""
    return b"".join(encode(report) + b"\n" for report in reports)


def read_lines(data: bytes) -> Iterator[Report]:
    """The reports of `json_lines`, without lines that are no report, such as torn ones."""
    for line in data.splitlines():
        try:
            yield _decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue


class CallOutput:
    """Calls a function with each batch: in a thread, or as a coroutine function.

    The reports are delivered once it returns.
    """

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
        """Nothing to release."""


class FileOutput:
    """Appends to a file, which `read_lines` reads."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._is_complete = False

    async def send(self, reports: Sequence[Report]) -> None:
        begin = b"" if self._is_complete else b"\n"  # the earlier process may have been killed within a line
        self._is_complete = False  # this write may also be cut short, such as by a full disk
        self._path.touch(mode=0o600)  # topics and counts are private
        with self._path.open("ab") as file:
            file.write(begin + json_lines(reports))
        self._is_complete = True

    async def close(self) -> None:
        """Nothing to release."""


class HttpOutput:
    """Posts JSON lines. It follows no redirects and uses no proxy settings.

    A proxy may stand before the receiver. So reports have arrived only if Switchyard says so (`{"taken":
    n}`), and are refused only by Switchyard's problem type. After any other answer they are sent again.

    Args:
        url: Http or https, with its path: "https://switchyard.east/api/v1/audit/reports".
        headers: Such as Authorization.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        found = urlsplit(url)
        try:
            host, port = found.hostname, found.port
        except ValueError:  # the port is invalid
            host, port = None, None
        if found.scheme not in {"http", "https"} or not host:
            raise AuditError(
                f"url={url!r}: not an http or https address; write one such as http://host:6066/api/v1/…"
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
        """Nothing to release: each batch has its own connection, every few seconds."""

    def _post(self, body: bytes, count: int) -> None:
        connection = self._new()
        try:
            with contextlib.suppress(
                BrokenPipeError
            ):  # a proxy may answer without reading all of a large body
                connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            content = answer.read(MOST_ANSWER_BYTES)
        finally:
            connection.close()
        found = _switchyard_answer(content)
        if 200 <= answer.status < 300 and found.taken == count:
            return
        text = _plain(f"{answer.status} {answer.reason}: {content.decode(errors='replace')}")[
            :MOST_ANSWER_CHARS
        ]
        if found.type == BAD_REPORT:
            raise Refused(text)
        if answer.status in OF_BODIES:
            raise NotPassed(text)
        if 200 <= answer.status < 300:
            text = f'this is not Switchyard\'s answer ({{"taken": {count}}}), retrying: {text}'
        raise OSError(text)


def _plain(text: str) -> str:
    """The text in one line, without control characters that a terminal would obey: it goes into logs."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _switchyard_answer(content: bytes) -> _Answer:
    """Switchyard's answer; an empty one if a proxy answered."""
    try:
        return _decode_answer(content)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return _Answer()
