"""Types of the API's answers. OpenAPI is made from them, and the tests check every answer against them.

Answers may get more fields; a client ignores those that it does not know. Null means unknown, or none.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from app.dispatch.view import WorkloadFlow
from app.failover.view import Role
from app.kernel.json_types import JsonObject
from app.kernel.load import Load

Spans = list[Annotated[list[int], Meta(min_length=2, max_length=2)]]  # offsets [from, before)


class ProblemError(TypedDict):
    """A problem of a definition: its place (`field`, `line` from 1) and the remedy."""

    field: str
    value: str
    message: str
    remedy: str
    severity: Literal["error", "warning"]
    line: int | None


class Problem(TypedDict):
    """A problem (RFC 9457). `errors` are all problems of a definition."""

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
    """Whether the worker takes part: it has read the control log, holds its lease, and does not stop.

    `clock`: how far the host's clock differs from the brokers'; "": it does not. Three reasons make a
    worker not ready; "" means that all is well. `open_files`: it can hardly open more files. `unsaved`:
    why it has not saved its jobs' progress for 30 s. `loop`: how long its event loop stood still in the
    last minute, if that was half of it or more. `disk`: it takes no rows of tables, or has little space.
    """

    status: Literal["ready", "not ready"]
    control_log_read: bool
    lease_holds: bool
    draining: bool
    unsaved: str
    open_files: str
    clock: str
    loop: str
    disk: str


# -- the region ------------------------------------------------------------------------------------


class Worker(TypedDict):
    """A worker with a recent heartbeat: its `capacity`, and how much of it is `used`.

    `clock_ahead_s`: its host's clock minus the brokers', in seconds; null: not known. `cpu_throttled`: the
    share of the last minute (0 to 1) whose periods used up a CPU quota of its container.
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
    cpu_throttled: float


class Job(TypedDict):
    """A job: its worker, why and since when it runs there, and its load. `wish`: the worker that an
    operator wants it on."""

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
    """A problem that a person must know of, with the remedy.

    `lasts`: it is a state, else an event of a moment, which has no end. `open`: the state lasts still.
    `ended_why` says why it ended, if not because the problem is over.
    """

    at_ms: int
    worker: str
    kind: str
    subject: str
    message: str
    remedy: str
    lasts: bool
    open: bool
    ended_ms: int | None
    ended_why: str


class Workload(TypedDict):
    """A workload in numbers, summed over its partitions and retry tiers; `bound` is what holds it back.

    `role` is for workloads with a mode; `passed_over` counts messages that another region had finished.
    `definition` only comes with `?definitions=true`.
    """

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
    definition: NotRequired[JsonObject]


# A route in numbers, summed over its partitions.
# - Since the jobs' owners began: `copied` records that the destination has; of them `verbatim` in unchanged
#   batches, `encoded` in others. `left_out` records come from the destination. `compared` copies were read
#   back and are equal, `differing` are not.
# - Since copying began: `lost` offsets that the source dropped before they were copied, the last found at
#   `lost_ms`. `uncompared` copies could not be read back, for a route that compares all. `begun_anew` counts
#   how often the source, `destination_losses` how often the destination, was truncated or recreated.
# - Partitions: `halted` at a gap, `stuck` at a batch that cannot be copied, `limited` by the route's limits
#   or by routes of a higher priority. `throttled` are sentences about delays by a broker's quota. `rate` is
#   records per second.
# - `definition`, and the failover definition that it was `made_by` ("": none), only with `?definitions=true`.
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
        "throttled": list[str],
        "rate": float | None,
        "unfinished": int,
        "troubles": list[str],
        "definition": NotRequired[JsonObject],
        "made_by": NotRequired[str],
    },
)


class Totals(TypedDict):
    """Sums of the region; `lag_messages` is for workloads, `alerts_firing` for audit findings."""

    workloads: int
    routes: int
    workers: int
    lag_messages: int | None
    in_flight: int
    dead_lettered: int
    alerts_firing: int


class Overview(TypedDict):
    """Everything on the first page."""

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
    """One job of a workload; offsets are next offsets."""

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
    """When the definition was deployed, and by whom."""

    at_ms: int
    by: str


class WorkloadDetail(TypedDict):
    """One workload: its definition in the form of a PUT, its partitions, and what holds it back."""

    definition: JsonObject
    status: Workload
    partitions: list[Partition]
    flow: WorkloadFlow
    deployed: Deployed


class TopicChange(TypedDict):
    """A setting of a topic that a route copies to. `setting` "partitions" is the number of its partitions.
    `old` is null for a new topic, `new` is null for the default."""

    cluster: str
    topic: str
    action: Literal["create", "grow", "alter"]
    setting: str
    old: str | None
    new: str | None


class Put(TypedDict):
    """The result of a PUT; `etag` is the definition's, without quotes. `doubts` are warnings that only a
    worker can give. `topics` are the changes that a route makes at its destination."""

    key: str
    etag: str
    changed: bool
    dry_run: bool
    warnings: list[str]
    doubts: list[str]
    topics: list[TopicChange]


class Deleted(TypedDict):
    """The definition is deleted; its jobs stop once the messages in flight have ended."""

    key: str
    deleted: Literal[True]


class Tracker(TypedDict):
    """Finished, in-flight and waiting offsets between `base` and `end`; the first 2000 ranges and offsets
    of each, and the number of `more_ranges`."""

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


class TracedStage(TypedDict):
    """How long messages took for a stage of their way; `count` is how many."""

    stage: str
    count: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


class TracedWorker(TypedDict):
    """The stages of the partitions of one worker; `unanswered` as in `LatencyTrace`."""

    worker: str
    partitions: int
    unanswered: int
    stages: list[TracedStage]


class LatencyTrace(TypedDict):
    """Where the messages of a workload waited.

    `problems`: why partitions are not in it, or in part. `unanswered`: messages that were fetched, and had no
    answer when the trace ended; no stage has them.
    """

    key: str
    seconds: int
    stages: list[TracedStage]
    problems: list[str]
    unanswered: int
    workers: list[TracedWorker]


# -- what operators do -----------------------------------------------------------------------------


class PausedNow(TypedDict):
    """The paused partitions: `all`, or these of the main topic."""

    key: str
    changed: bool
    all: bool
    partitions: list[int]


# A partition's reset: old and new position, messages that it skips, and messages read `again`. With
# `execute`: whether it is `done`, or `why` not; a partition whose worker failed has nothing else.
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
    """The plan of a reset, or (`execute`) its result; `done` counts partitions."""

    key: str
    execute: bool
    done: int
    partitions: list[ResetRow]


class EndedCounts(TypedDict):
    """The numbers of offsets."""

    ended: int
    pending: int
    refused: int


class Ended(TypedDict):
    """The result for single offsets, or its plan. `refused`: by reason, those that cannot be ended now.
    `pending`: their call or copy is in progress."""

    job: str
    action: Literal["skip", "stash"]
    execute: bool
    ended: Spans
    pending: Spans
    refused: dict[str, Spans]
    counts: EndedCounts


class Operation(TypedDict):
    """Long work. The content of `progress` depends on the kind; at the end it is the result."""

    id: str
    kind: Literal["merge", "purge", "move", "drill", "missing", "copy-again"]
    subject: str
    actor: str
    state: Literal["running", "done", "failed", "canceled"]
    error: str | None
    progress: JsonObject
    started_ms: int
    ended_ms: int | None
