"""Reads operators' requests, and forms the answers to them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson
from aiohttp import web

from app.dispatch.dlq.query import BadQuery, parse_when
from app.kafka.client.cluster import EARLIEST, LATEST
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonMapping, JsonObject
from app.kernel.ranges import Range
from app.web.http.request_bodies import LEAST_MS, MAX_REASON_CHARS, MOST_MS, fields
from app.web.http.responses import errors_as_problems, is_number
from app.worker.jobs.operator_acts import (
    EndedOffsets,
    NotHere,
    OperationRefused,
    PositionMove,
    checked,
    count,
)

PARTITIONS_AT_ONCE = 16
MAX_PARTITIONS = 256  # reset by one request
ENDS = {"earliest": EARLIEST, "latest": LATEST}

acting = errors_as_problems(
    (NotHere, 503, "Not now"),
    (OperationRefused, 409, "Refused"),
    (BadQuery, 400, "Bad request"),
    (LookupError, 503, "Partition away"),
)


def reset_fields(partition: int, move: PositionMove) -> JsonObject:
    """One partition's reset."""
    return {"partition": partition, "from": move.start, "to": move.to, "skipped": move.skipped,
            "again": move.again, "note": move.note}  # fmt: skip


def ended_fields(ended: EndedOffsets) -> JsonObject:
    """The result for single offsets."""
    counts = {"ended": count(ended.ended), "pending": count(ended.pending)}
    counts["refused"] = sum(count(spans) for spans in ended.refused.values())
    return {"ended": ended.ended, "pending": ended.pending, "refused": ended.refused, "counts": counts}


def actor_of(request: web.Request) -> str:
    """The operator's name, from a header because there is no authentication; otherwise the address."""
    actor = request.headers.get("X-Switchyard-Actor") or request.remote or "unknown"
    return actor[:200].encode("utf-8", "replace").decode()  # it goes into the control log


async def read_body(request: web.Request, shape: object) -> JsonMapping:
    """The body as an object with fields of `shape` (a type of `request_bodies`) only; {} for no body.

    Raises:
        BadQuery: The body is not valid. A repeated name is not valid either, because JSON does not say
        which one counts.
    """
    raw = await request.read() or b"{}"
    try:
        body = orjson.loads(raw)  # no NaN, no lone surrogates, not too deep
        json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadQuery(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadQuery("the body must be an object")
    check_fields(body, shape)
    return body


def _once(pairs: Iterable[tuple[str, object]]) -> JsonObject:
    found: JsonObject = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:60]!r} stands twice in an object; remove one")
        found[name] = value
    return found


def check_fields(body: JsonMapping, shape: Any, place: str = "") -> None:
    """Raises BadQuery for a name that `shape` does not have."""
    known = fields(shape)
    if unknown := sorted(set(body) - known):
        raise BadQuery(f"{place}{unknown[0][:60]}: no such field; there are {', '.join(sorted(known))}")


def flag_of(body: JsonMapping, name: str) -> bool:
    """The field `name`, False when it is missing. Raises BadQuery."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise BadQuery(f"{name}: must be true or false")
    return value


def reason_of(body: JsonMapping) -> str:
    """The field `reason`, "" when it is missing. Raises BadQuery."""
    reason = body.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS:
        raise BadQuery(f"reason: must be text of at most {MAX_REASON_CHARS} characters")
    return reason


def when_of(body: JsonMapping, name: str) -> int:
    """The time `name` in milliseconds. Raises BadQuery."""
    value = body[name]
    if isinstance(value, str):
        return parse_when(value, now_ms())
    if type(value) is int and LEAST_MS <= value < MOST_MS:
        return value
    raise BadQuery(f'{name}: write a time such as "2h" (ago), "2026-01-31T12:00" or milliseconds')


def offsets_of(body: JsonMapping) -> dict[int, int]:
    """The field `offsets`: partition -> offset. Raises BadQuery."""
    offsets = body["offsets"]
    if not isinstance(offsets, dict) or not offsets or "partitions" in body or not all(
        is_number(partition) and type(offset) is int and 0 <= offset < 1 << 63
        for partition, offset in offsets.items()
    ):  # fmt: skip
        raise BadQuery('offsets: write {"0": 1042}, and no partitions beside it')
    return {int(partition): offset for partition, offset in offsets.items()}


def partitions_of(body: JsonMapping) -> list[int]:
    """The field `partitions`, [] when it is missing. Raises BadQuery."""
    wanted = body.get("partitions", [])
    if not isinstance(wanted, list) or not all(type(partition) is int for partition in wanted):
        raise BadQuery("partitions: must be a list of numbers")
    return wanted


def end_of(body: JsonMapping) -> int:
    """The target of a body without offsets: `to` (an end of the log) or `at` (a time). Raises BadQuery."""
    if "to" not in body:
        return when_of(body, "at")
    to = str(body["to"])
    if to not in ENDS:
        raise BadQuery(f"to: must be earliest or latest, not {to[:40]!r}")
    return ENDS[to]


def ranges_of(body: JsonMapping) -> tuple[Range, ...]:
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
