"""Lists as files: CSV or JSON lines, all rows in one stream, beside the pages of JSON.

What is asked for stands in `format`, or else in Accept. A stream that breaks off is not whole.
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
from app.web.http.responses import ApiError, json_response, paged
from app.web.http.route_docs import JSON, TEXT, AnswerDoc, Param

CSV, NDJSON = "text/csv", "application/x-ndjson"
KINDS = {"json": JSON, "csv": CSV, "ndjson": NDJSON}
FORMAT = Param(
    "format", {"type": "string", "enum": list(KINDS)},
    "json: pages; csv or ndjson: all rows, without limit and cursor. Without it, as Accept says",
)  # fmt: skip
ROWS_A_PIECE = 500
EXPORT_READER_TIMEOUT_S = 30.0  # a reader that takes nothing for so long is gone


def listing(shape: Any) -> dict[int, AnswerDoc]:
    """What a route that is `listed` answers; of this shape as JSON."""
    return {200: AnswerDoc({JSON: shape, CSV: TEXT, NDJSON: TEXT})}


def format_of(request: web.Request) -> str:
    """One of `KINDS`. Raises ApiError."""
    told = request.query.get("format")
    if told is None:
        kinds = request.headers.get("Accept", "").lower().split(",")
        accepted = [kind.partition(";")[0].strip() for kind in kinds]
        return next((name for kind in accepted for name, known in KINDS.items() if kind == known), "json")
    if told not in KINDS:
        raise ApiError(
            400, "Bad query", f"format={told[:40]!r}: no such format; there are {', '.join(KINDS)}"
        )
    return told


def check_whole(request: web.Request, name: str) -> None:
    """Raises ApiError: a page of a list is asked for in a format that has all rows."""
    if paging := [param for param in ("limit", "cursor") if param in request.query]:
        detail = f"{paging[0]}: not with {name}, which has all rows; leave it out"
        raise ApiError(400, "Bad query", detail)


async def listed(
    request: web.Request, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], notes: Sequence[str] = ()
) -> web.StreamResponse:
    """`rows` as they are asked for. With `notes` they are not all: JSON says so, no file is made of them.

    Raises:
        ApiError: a format or limit that there is not, or not all rows are known.
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
    except (ConnectionResetError, TimeoutError):  # nobody reads any more: what was sent must not look whole
        if request.transport is not None:
            request.transport.abort()
    return answer


async def write(answer: web.StreamResponse, data: bytes) -> None:
    """Raises TimeoutError: nobody reads."""
    async with asyncio.timeout(EXPORT_READER_TIMEOUT_S):
        await answer.write(data)


def csv_lines(rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows of CSV (RFC 4180), in UTF-8."""
    text = io.StringIO()
    csv.writer(text).writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def cell(value: Any) -> Any:
    """A value in one cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        value = [f"{name}={one}" for name, one in value.items()]
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    return text_cell(value) if isinstance(value, str) else value
