"""What requests may say, as types: the fields that there are, with their bounds. OpenAPI is made of these;
`operator_requests.read_body` takes no other field, and the handlers check the values, in words for people.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.dispatch.dlq.query import MAX_ITEMS, MAX_NUMBER, MAX_TEXT_CHARS

MAX_REASON_CHARS = 300
MAX_MOVES = 1_000
MAX_OFFSET = 2**63 - 1
LEAST_MS, MOST_MS = 10**10, 10**15  # what is a time in milliseconds, and no year nor duration

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
    """Which partitions of the main topic; none: all, and the retry topics."""

    partitions: Partitions = []


class ResetBody(Body, kw_only=True, frozen=True):
    """Where to: exactly one of `to`, `at` and `offsets` (by partition)."""

    to: Annotated[str, Meta(extra_json_schema={"enum": ["earliest", "latest"]})] | UnsetType = UNSET
    at: When | UnsetType = UNSET
    offsets: Annotated[dict[Number, Offset], Meta(min_length=1)] | UnsetType = UNSET
    partitions: Partitions | UnsetType = UNSET
    execute: Execute = False


ONE_OF = Meta(extra_json_schema={"oneOf": [{"required": [name]} for name in ("to", "at", "offsets")]})
RESET_BODY = Annotated[ResetBody, ONE_OF]


class CopyAgainBody(Body, kw_only=True, frozen=True):
    """Which window of a topic, by when it begins, and which tiers."""

    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    from_tier: Annotated[str, Meta(min_length=1, max_length=249)]
    to_tier: Annotated[str, Meta(min_length=1, max_length=249)]
    start: When
    execute: Execute = False


class RouteResetBody(ResetBody, kw_only=True, frozen=True):
    """Where to: exactly one of `to`, `at` and `offsets` (by partition). `topic` is one of the source's; none:
    all of the route's, which `offsets` and `partitions` are not for."""

    topic: Annotated[str, Meta(min_length=1, max_length=249)] | UnsetType = UNSET


ROUTE_RESET_BODY = Annotated[RouteResetBody, ONE_OF]


class SkipBody(Body, kw_only=True, frozen=True):
    """Offsets [start, end) of the source."""

    start: Offset
    end: Offset
    reason: Reason = ""
    execute: Execute = False


class EndBody(Body, kw_only=True, frozen=True):
    """Which offsets, as [from, before)."""

    ranges: Annotated[list[Annotated[list[Offset], Meta(min_length=2, max_length=2)]], Meta(min_length=1)]
    reason: Reason = ""
    execute: Execute = False


class Span(Body, kw_only=True, frozen=True):
    """Offsets [start, end)."""

    start: Offset = 0
    end: Offset = 2**62


class Letters(Body, kw_only=True, frozen=True):
    """Which dead letters: every condition that is given must hold. `reason` between slashes is an RE2
    expression, `key` may be base64:..."""

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
    """Which letters are merged back, how often at most, and how fast (letters a second)."""

    query: Letters | UnsetType = UNSET
    max_merges: Annotated[int, Meta(ge=0, le=1000)] | UnsetType = UNSET
    again: bool = False
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] = 1000.0
    ranges: dict[Number, Span] = {}
    operation: OperationId | UnsetType = UNSET
    resume: Resume = False
    execute: Execute = False


class PurgeBody(Body, kw_only=True, frozen=True):
    """Which letters go: those before a bound, or those that a `query` chooses (then neither `before` nor
    `partitions`). With `execute` the `ranges` that the look told."""

    before: When | None = None
    ranges: dict[Number, Span] = {}
    partitions: Partitions | UnsetType = UNSET
    query: Letters | UnsetType = UNSET
    operation: OperationId | UnsetType = UNSET
    resume: Resume = False
    execute: Execute = False


class MoveBody(Body, kw_only=True, frozen=True):
    """To which cluster, and what becomes of the dead letters. `margin` is read again before what was
    finished: "10s", or seconds."""

    to: Annotated[str, Meta(min_length=1)]
    margin: str | Annotated[float, Meta(ge=0)] = "10s"
    dlq: Annotated[str, Meta(extra_json_schema={"enum": ["copy", "leave"]})] = "copy"
    execute: Execute = False


class JobTo(Body, kw_only=True, frozen=True):
    """A job, and the worker it is wanted on."""

    job: str
    to: str


class PlanBody(Body, kw_only=True, frozen=True):
    """Moves by hand, or evenness by number of jobs."""

    moves: Annotated[list[JobTo], Meta(max_length=MAX_MOVES)] = []
    even: bool = False


class ApplyBody(PlanBody, kw_only=True, frozen=True):
    """The same as was planned, with the plan's id."""

    plan: str
    reason: Reason = ""


class ReleaseBody(Body, kw_only=True, frozen=True):
    """The job of which the wish is taken back."""

    job: str
    reason: Reason = ""
    execute: Execute = False


class DrainBody(Body, kw_only=True, frozen=True):
    """`draining` false: it may have jobs again."""

    draining: bool = True
    execute: Execute = False


def fields(body: Any) -> set[str]:
    """The names that a body may have."""
    return {field.encode_name for field in msgspec.structs.fields(body)}
