"""What the API answers, as types: OpenAPI is made of these, and the tests hold every answer to them.

Answers may gain fields; a client ignores those it does not know. Null is unknown, or that there is none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from app.dispatch.view import WorkloadFlow
from app.failover.view import Role
from app.kernel.load import Load

Spans = list[Annotated[list[int], Meta(min_length=2, max_length=2)]]  # offsets [from, before)


class ProblemError(TypedDict):
    """One thing that is wrong with a definition, where (`field`, `line` from 1), and what to do about it."""

    field: str
    value: str
    message: str
    remedy: str
    severity: Literal["error", "warning"]
    line: int | None


class Problem(TypedDict):
    """A problem (RFC 9457). `errors` are all that is wrong with a definition."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: NotRequired[list[ProblemError]]


# -- outside ---------------------------------------------------------------------------------------


class Live(TypedDict):
    """The process answers; `worker` is empty until it has started."""

    status: Literal["live"]
    worker: str


class Ready(TypedDict):
    """Whether it takes part: it has read the control log, holds its lease, and is not about to stop.

    `clock`: that the host's clock differs from the brokers', by which it goes; "": it does not.
    `open_files`: that it can hardly open any more files, and so is not ready; "": it can.
    `unsaved`: why it has not saved its jobs' progress for 30 s, and so is not ready; "": it can. `loop`: how
    long its event loop stood still in the last minute, and so is not ready; "": for less than half of it.
    """

    status: Literal["ready", "not ready"]
    control_log_read: bool
    lease_holds: bool
    draining: bool
    unsaved: str
    open_files: str
    clock: str
    loop: str


# -- the region ------------------------------------------------------------------------------------


class Worker(TypedDict):
    """A worker that was heard lately: `capacity` is what it has, `used` what is taken of it.

    `clock_ahead_s`: by how much its host's clock is ahead of the brokers', below 0 behind; null: not known.
    """

    worker: str
    url: str
    state: str
    silent_s: float
    started_ms: int
    jobs: int
    leader: bool
    group: str
    capacity: Load
    used: Load
    clock_ahead_s: float | None


class Job(TypedDict):
    """Whose a job is, why, since when, and what it takes. `wish`: the worker an operator wants it on."""

    job: str
    worker: str | None
    epoch: int
    term: int
    release: bool
    reason: str
    at_ms: int
    since: str
    cpu_cores: float | None
    memory_bytes: float | None
    network_bytes_per_s: float | None
    wish: str | None


class Activity(TypedDict):
    """An event of the control log; further fields are the event's own."""

    event: str
    at_ms: int


class Incident(TypedDict):
    """Something a person must know, with the remedy."""

    at_ms: int
    worker: str
    kind: str
    subject: str
    message: str
    remedy: str


class Workload(TypedDict):
    """A workload in numbers, summed over its partitions and retry tiers; `bound` is what holds it back.
    `role` is of one with a mode; `passed_over` counts messages that another region had finished."""

    key: str
    group: str | None
    topic: str | None
    cluster: str | None
    owner: str
    etag: str
    partitions: int
    waiting: int
    bound: str
    why: str
    hibernated: str | None
    role: Role | None
    lag_messages: int | None
    lag_s: float | None
    lag_s_at_least: float | None
    in_flight: int
    unfinished: int
    delivered: int
    retried: int
    dead_lettered: int
    passed_over: int
    stashed: int
    breaker: str
    held: int
    troubles: list[str]


# A route in numbers, summed over its partitions. `copied` counts the records that the destination has, since
# the jobs' owners began: `verbatim` ones in batches as they were, `encoded` ones in others. `left_out` have
# been where the route leads; `lost` offsets were gone from the source before they were copied, since copying
# began, the last of them found missing at `lost_ms`; `compared` were read back as they were sent, `differing`
# were not; of a route that compares all, `uncompared` ones could not be read back. `begun_anew` times the
# source, and `destination_losses` times the destination, was truncated or made anew, of each partition; these
# three since copying began. `halted`, `stuck` and `limited` count partitions: that stopped at a gap, that
# have a batch that cannot be copied, and that wait for the route's own limits, or for routes of a higher
# priority. `rate` is in records a second.
Route = TypedDict(
    "Route",
    {
        "name": str,
        "from": str | None,
        "to": str | None,
        "owner": str,
        "etag": str,
        "topics": int,
        "partitions": int,
        "waiting": int,
        "paused": bool,
        "lag_messages": int | None,
        "lag_s": float | None,
        "lag_s_at_least": float | None,
        "copied": int,
        "verbatim": int,
        "encoded": int,
        "left_out": int,
        "lost": int,
        "lost_ms": int | None,
        "compared": int,
        "differing": int,
        "uncompared": int,
        "begun_anew": int,
        "destination_losses": int,
        "halted": int,
        "stuck": int,
        "limited": int,
        "rate": float | None,
        "unfinished": int,
        "troubles": list[str],
    },
)


class Totals(TypedDict):
    """Of the region; `lag_messages` is of workloads, `alerts_firing` of what the audit finds."""

    workloads: int
    routes: int
    workers: int
    lag_messages: int | None
    in_flight: int
    dead_lettered: int
    alerts_firing: int


class Overview(TypedDict):
    """Everything the first page shows."""

    region: str
    at_ms: int
    term: int
    leader: str | None
    workers: list[Worker]
    workloads: list[Workload]
    routes: list[Route]
    totals: Totals
    incidents: list[Incident]


class Partition(TypedDict):
    """One job of a workload as it stands; offsets are the next ones."""

    job: str
    topic: str
    partition: int
    worker: str
    epoch: int
    state: str
    committed: int | None
    fetched: int | None
    high_watermark: int | None
    lag_messages: int | None
    lag_s: float | None
    in_flight: int
    unfinished: int
    delivered: int
    retried: int
    dead_lettered: int
    passed_over: int
    ready: int
    behind: int
    postponed: int
    backoff: int
    outgoing: int
    due_in_s: float | None
    tracker_used: int
    tracker_capacity: int
    buffered_bytes: int
    trouble: str
    reason: str
    since_ms: int | None
    wish: str | None


class Deployed(TypedDict):
    """When the definition came into force, and by whom."""

    at_ms: int
    by: str


class WorkloadDetail(TypedDict):
    """One workload: its definition as PUT takes it back, its partitions, and what holds it back."""

    definition: dict[str, Any]
    status: Workload
    partitions: list[Partition]
    flow: WorkloadFlow
    deployed: Deployed


class Put(TypedDict):
    """What became of a definition; `etag` is its own, without quotes. `doubts` are the warnings that only a
    worker can have."""

    key: str
    etag: str
    changed: bool
    dry_run: bool
    warnings: list[str]
    doubts: list[str]


class Deleted(TypedDict):
    """It stops once what is in flight has ended."""

    key: str
    deleted: Literal[True]


class Tracker(TypedDict):
    """What is finished, in flight and waiting between `base` and `end`; ranges and offsets are the first
    2000 of each, `more_ranges` are not told."""

    job: str
    worker: str
    epoch: int
    state: str
    base: int
    end: int
    high_watermark: int
    capacity: int
    room: int
    in_flight: int
    unfinished: int
    acked: int
    nacked: int
    canceled: int
    utilisation: float
    unfinished_ranges: Spans
    finished_ranges: Spans
    more_ranges: int
    in_flight_offsets: list[int]
    trouble: str


# -- what operators do -----------------------------------------------------------------------------


class PausedNow(TypedDict):
    """What is paused now: `all`, or these partitions of the main topic."""

    key: str
    changed: bool
    all: bool
    partitions: list[int]


# Of a partition: from where to where. `skipped` are passed over, `again` are read again. With `execute`:
# whether it is `done`, or else `why` not; those of another worker that failed tell nothing else.
ResetRow = TypedDict(
    "ResetRow",
    {
        "partition": int,
        "from": int | None,
        "to": int,
        "skipped": int,
        "again": int,
        "note": str,
        "done": NotRequired[bool],
        "why": NotRequired[str],
    },
)


class Reset(TypedDict):
    """What a reset would do, or (`execute`) did; `done` counts partitions."""

    key: str
    execute: bool
    done: int
    partitions: list[ResetRow]


class EndedCounts(TypedDict):
    """Of offsets."""

    ended: int
    pending: int
    refused: int


class Ended(TypedDict):
    """What became, or would become, of single offsets; `refused` by the reason why they cannot be ended now,
    `pending`: their call or copy is under way."""

    job: str
    action: Literal["skip", "stash"]
    execute: bool
    ended: Spans
    pending: Spans
    refused: dict[str, Spans]
    counts: EndedCounts


class Operation(TypedDict):
    """Long work. What `progress` holds depends on the kind; in the end it is the result."""

    id: str
    kind: Literal["merge", "purge", "move", "drill", "missing", "copy-again"]
    subject: str
    actor: str
    state: Literal["running", "done", "failed", "canceled"]
    error: str | None
    progress: dict[str, Any]
    started_ms: int
    ended_ms: int | None
