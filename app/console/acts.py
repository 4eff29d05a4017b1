"""What operators' requests say, and what they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from app.control.acts import Ended, Move, checked, count
from app.core.ranges import Range
from app.dlq.query import BadQuery


def move_told(partition: int, move: Move) -> dict[str, Any]:
    """One partition's reset."""
    return {"partition": partition, "from": move.start, "to": move.to, "skipped": move.skipped,
            "again": move.again, "note": move.note}  # fmt: skip


def ended_told(ended: Ended) -> dict[str, Any]:
    """What became of single offsets."""
    counts = {"ended": count(ended.ended), "pending": count(ended.pending)}
    counts["refused"] = sum(count(spans) for spans in ended.refused.values())
    return {"ended": ended.ended, "pending": ended.pending, "refused": ended.refused, "counts": counts}


def actor_of(request: web.Request) -> str:
    """Who asks: by header, since there is no authentication here; else the address."""
    told = request.headers.get("X-Switchyard-Actor") or request.remote or "unknown"
    return told[:200].encode("utf-8", "replace").decode()  # it is handed on, and written down


async def read_body(request: web.Request, known: set[str]) -> Mapping[str, Any]:
    """The body as an object of `known` fields; {} when there is none. Raises BadQuery."""
    try:
        body = orjson.loads(await request.read() or b"{}")
    except orjson.JSONDecodeError as error:
        raise BadQuery(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadQuery("the body must be an object")
    if unknown := sorted(set(body) - known):
        raise BadQuery(f"{unknown[0][:60]}: no such field; there are {', '.join(sorted(known))}")
    return body


def flag_of(body: Mapping[str, Any], name: str) -> bool:
    """The field `name`, False when it is not there. Raises BadQuery."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadQuery(f"{name}: must be true or false")
    return value


def ranges_of(body: Mapping[str, Any]) -> tuple[Range, ...]:
    """Half-open ranges of offsets. Raises BadQuery."""
    ranges = body.get("ranges")
    if not isinstance(ranges, list) or not all(
        isinstance(span, list) and len(span) == 2 and all(type(offset) is int for offset in span)
        for span in ranges
    ):
        raise BadQuery("ranges: write [[from, before], ...] in offsets, before not included")
    try:
        return checked([(start, end) for start, end in ranges])
    except ValueError as error:
        raise BadQuery(str(error)) from error
