"""Lists as files: CSV or JSON lines with all rows in one stream, beside JSON in pages.

`format` selects the format, otherwise Accept. A stream that ends early is incomplete.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from app.kernel.csv_cells import text_cell
from app.kernel.json_types import JsonMapping
from app.web.http.responses import ApiError, json_response, paged
from app.web.http.route_docs import JSON, TEXT, AnswerDoc, Param

CSV, NDJSON = "text/csv", "application/x-ndjson"
KINDS = {"json": JSON, "csv": CSV, "ndjson": NDJSON}
FORMAT = Param(
    "format", {"type": "string", "enum": list(KINDS)},
    "json: pages; csv or ndjson: all rows, without limit and cursor. Without it, as Accept says",
)  # fmt: skip
ROWS_A_PIECE = 500
EXPORT_READER_TIMEOUT_S = 30.0  # a reader that takes nothing for this long is gone


def listing(shape: object) -> dict[int, AnswerDoc]:
    """The answers of a route with `listed`; `shape` is that of its JSON."""
    return {200: AnswerDoc({JSON: shape, CSV: TEXT, NDJSON: TEXT})}


def format_of(request: web.Request) -> str:
    """The requested format, one of `KINDS`. Raises ApiError."""
    given = request.query.get("format")
    if given is None:
        kinds = request.headers.get("Accept", "").lower().split(",")
        accepted = [kind.partition(";")[0].strip() for kind in kinds]
        return next((name for kind in accepted for name, known in KINDS.items() if kind == known), "json")
    if given not in KINDS:
        raise ApiError(
            400, "Bad query", f"format={given[:40]!r}: no such format; there are {', '.join(KINDS)}"
        )
    return given


def check_whole(request: web.Request, name: str) -> None:
    """Raises ApiError when a request wants a page of a list in a format that has all rows."""
    if paging := [param for param in ("limit", "cursor") if param in request.query]:
        detail = f"{paging[0]}: not with {name}, which has all rows; leave it out"
        raise ApiError(400, "Bad query", detail)


async def listed(
    request: web.Request, rows: Sequence[JsonMapping], columns: Sequence[str], notes: Sequence[str] = ()
) -> web.StreamResponse:
    """`rows` in the requested format. With `notes` the rows are incomplete: JSON says so, and files are
    refused.

    Raises:
        ApiError: The format or limit is not valid, or the rows are incomplete.
    """
    name = format_of(request)
    if name == "json":
        return json_response({**paged(rows, request), "notes": list(notes)})
    check_whole(request, name)
    if notes:
        raise ApiError(409, "Too much", notes[0])
    kind = f"{CSV}; charset=utf-8" if name == "csv" else NDJSON
    answer = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-store"})
    await answer.prepare(request)
    try:
        if name == "csv":
            await write(answer, csv_lines([columns]))
        for start in range(0, len(rows), ROWS_A_PIECE):
            piece = rows[start : start + ROWS_A_PIECE]
            if name == "csv":
                text = csv_lines([[row[column] for column in columns] for row in piece])
            else:
                text = b"".join(orjson.dumps(row) + b"\n" for row in piece)
            await write(answer, text)
        async with asyncio.timeout(EXPORT_READER_TIMEOUT_S):
            await answer.write_eof()
    except (ConnectionResetError, TimeoutError):  # the reader is gone; the stream must not look complete
        if request.transport is not None:
            request.transport.abort()
    return answer


async def write(answer: web.StreamResponse, data: bytes) -> None:
    """Raises TimeoutError when the reader takes nothing."""
    async with asyncio.timeout(EXPORT_READER_TIMEOUT_S):
        await answer.write(data)


def csv_lines(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows of CSV (RFC 4180), in UTF-8."""
    text = io.StringIO()
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def cell(value: object) -> object:
    """A value as a cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        value = [f"{name}={one}" for name, one in value.items()]
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    return text_cell(value) if isinstance(value, str) else value
