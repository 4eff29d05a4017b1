"""Types of request bodies: their fields, with bounds. OpenAPI is made from them.

`operator_requests.read_body` refuses other fields, and the handlers check the values with messages for
people.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.dispatch.dlq.query import MAX_ITEMS, MAX_NUMBER, MAX_TEXT_CHARS

MAX_REASON_CHARS = 300
MAX_MOVES = 1_000
MAX_OFFSET = 2**63 - 1
LEAST_MS, MOST_MS = 10**10, 10**15  # the range of times in milliseconds; other numbers are years or durations

Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Partitions = list[Annotated[int, Meta(ge=0, le=2**31 - 1)]]
Number = Annotated[str, Meta(pattern="^[0-9]{1,18}$")]
Reason = Annotated[str, Meta(max_length=MAX_REASON_CHARS, description="told in the activity")]
When = Annotated[
    Annotated[int, Meta(ge=LEAST_MS, lt=MOST_MS)] | str,
    Meta(description='"2h" (so long ago), an ISO 8601 time (UTC where it names no zone), or milliseconds'),
]
Execute = Annotated[bool, Meta(description="do it; without it, what would happen is told")]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Base of all bodies."""


class PauseBody(Body, kw_only=True, frozen=True):
    """Partitions of the main topic; none: all of them, and the retry topics."""

    partitions: Partitions = []


class ResetBody(Body, kw_only=True, frozen=True):
    """The new position: exactly one of `to`, `at` and `offsets` (by partition)."""

    to: Annotated[str, Meta(extra_json_schema={"enum": ["earliest", "latest"]})] | UnsetType = UNSET
    at: When | UnsetType = UNSET
    offsets: Annotated[dict[Number, Offset], Meta(min_length=1)] | UnsetType = UNSET
    partitions: Partitions | UnsetType = UNSET
    execute: Execute = False


ONE_OF = Meta(extra_json_schema={"oneOf": [{"required": [name]} for name in ("to", "at", "offsets")]})
RESET_BODY = Annotated[ResetBody, ONE_OF]


class CopyAgainBody(Body, kw_only=True, frozen=True):
    """A window of a topic, by its start, and two tiers."""

    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    from_tier: Annotated[str, Meta(min_length=1, max_length=249)]
    to_tier: Annotated[str, Meta(min_length=1, max_length=249)]
    start: When
    execute: Execute = False


class RouteResetBody(ResetBody, kw_only=True, frozen=True):
    """The new position: exactly one of `to`, `at` and `offsets` (by partition).

    `topic` is a topic of the source; none: all of the route's, without `offsets` and `partitions`.
    """

    topic: Annotated[str, Meta(min_length=1, max_length=249)] | UnsetType = UNSET


ROUTE_RESET_BODY = Annotated[RouteResetBody, ONE_OF]


class SkipBody(Body, kw_only=True, frozen=True):
    """Offsets [start, end) of the source."""

    start: Offset
    end: Offset
    reason: Reason = ""
    execute: Execute = False


class EndBody(Body, kw_only=True, frozen=True):
    """Offsets, as ranges [from, before)."""

    ranges: Annotated[list[Annotated[list[Offset], Meta(min_length=2, max_length=2)]], Meta(min_length=1)]
    reason: Reason = ""
    execute: Execute = False


class Span(Body, kw_only=True, frozen=True):
    """Offsets [start, end)."""

    start: Offset = 0
    end: Offset = 2**62


class Letters(Body, kw_only=True, frozen=True):
    """Conditions for dead letters; a letter must meet all that are given. `reason` between slashes is an
    RE2 expression, `key` may be base64:..."""

    reason: Annotated[str, Meta(max_length=MAX_TEXT_CHARS)] | None = None
    code: Annotated[
        list[Annotated[str, Meta(pattern="^[A-Za-z0-9_]{1,40}$")]], Meta(max_length=MAX_ITEMS)
    ] = []
    since_ms: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None = None
    until_ms: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None = None
    key: Annotated[str, Meta(max_length=MAX_TEXT_CHARS)] | None = None
    attempt_min: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None = None
    partition: Annotated[list[Annotated[int, Meta(ge=0, le=MAX_NUMBER)]], Meta(max_length=MAX_ITEMS)] = []


OperationId = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{1,40}$", description="its id, to go on with; else it gets one")
]
Resume = Annotated[bool, Meta(description="go on with `operation` under its own terms")]


class MergeBody(Body, kw_only=True, frozen=True):
    """The letters to merge, how often at most, and how fast (letters per second)."""

    query: Letters | UnsetType = UNSET
    max_merges: Annotated[int, Meta(ge=0, le=1000)] | UnsetType = UNSET
    again: bool = False
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] = 1000.0
    ranges: dict[Number, Span] = {}
    operation: OperationId | UnsetType = UNSET
    resume: Resume = False
    execute: Execute = False


class PurgeBody(Body, kw_only=True, frozen=True):
    """The letters to delete: those before a bound, or those of a `query` (then neither `before` nor
    `partitions`).

    With `execute`: the `ranges` of the answer without it.
    """

    before: When | None = None
    ranges: dict[Number, Span] = {}
    partitions: Partitions | UnsetType = UNSET
    query: Letters | UnsetType = UNSET
    operation: OperationId | UnsetType = UNSET
    resume: Resume = False
    execute: Execute = False


class MoveBody(Body, kw_only=True, frozen=True):
    """The target cluster, and what to do with the dead letters. Messages of `margin` ("10s", or seconds)
    before the position are read again. `force`: move, however many messages are delivered again."""

    to: Annotated[str, Meta(min_length=1)]
    margin: str | Annotated[float, Meta(ge=0)] = "10s"
    dlq: Annotated[str, Meta(extra_json_schema={"enum": ["copy", "leave"]})] = "copy"
    force: bool = False
    execute: Execute = False


class JobTo(Body, kw_only=True, frozen=True):
    """A job, and the worker that an operator wants it on."""

    job: str
    to: str


class PlanBody(Body, kw_only=True, frozen=True):
    """Moves by hand, or even numbers of jobs."""

    moves: Annotated[list[JobTo], Meta(max_length=MAX_MOVES)] = []
    even: bool = False


class ApplyBody(PlanBody, kw_only=True, frozen=True):
    """The planned moves, with the plan's id."""

    plan: str
    reason: Reason = ""


class ReleaseBody(Body, kw_only=True, frozen=True):
    """The job whose wish is canceled."""

    job: str
    reason: Reason = ""
    execute: Execute = False


class DrainBody(Body, kw_only=True, frozen=True):
    """`draining` false: the worker gets jobs again."""

    draining: bool = True
    execute: Execute = False


def fields(body: Any) -> set[str]:
    """The names of a body's fields."""
    return {field.encode_name for field in msgspec.structs.fields(body)}
