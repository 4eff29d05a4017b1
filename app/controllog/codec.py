"""What crosses a control topic: JSON by msgspec, typed on both sides.

JSON, because Spark and people read the changelogs too. Decoding untrusted bytes raises one error
only, `BadEvent`, so that an agent can count it, tell it, and go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from app.audit.folds.collector import CollectorTick
from app.audit.folds.collector import Event as AuditEvent
from app.audit.folds.tier import CloseWindows, ForgetWindows, TierRecord
from app.audit.folds.window import WindowRecord
from app.controllog.events import AnyControlEvent, for_people
from app.dispatch.model.throughput_diagnosis import TargetStatus
from app.kernel.fencing import SnapshotItem, Snapshots, TakeoverAnswer, TrackerEvent, TrackerRecord
from app.kernel.limit_shares import LimitNeed
from app.kernel.load import DEFAULT_WORKER, Load
from app.offsets.model.offset_map import (
    BarrierItem,
    Barriers,
    EndedItem,
    EndedLines,
    NeedItem,
    OffsetMapLine,
    PinRequests,
)
from switchyard.audit.model.reports import Report

CheckpointEvent = Barriers | PinRequests | EndedLines
# No client of ours writes a larger record: topics take batches of 2 MiB, and clients send records of 2 MB.
MAX_READ_BYTES = 2 * 1024 * 1024
MAX_EVENT_BYTES = 900_000  # below what brokers and producers take unless told otherwise: 1 MB
ACTIVITY_KEEP = 10_000  # events that the activity table remembers
TRACKER_CAPACITY = 10_000  # of a definition that names none: left out, as it is the same object
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1  # what Spark, JVMs and orjson read
MAX_LANE = (1 << 64) - 1  # of audits' fingerprints
# As many digits as the former has, and one more than a lane has: fingerprints are not looked at one by one.
_LONG_NUMBER, _LONG_LANE = (re.compile(rb"[:,\[]\s*-?[0-9]{%d}" % digits) for digits in (19, 21))
_FRAME_BYTES = 2_000  # of an event without its items

T = TypeVar("T")


class BadEvent(ValueError):
    """Bytes on a control topic that are not an event of it."""


class CopyingStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the owner of a replica says of its copies; records, since it began here.

    Attributes:
        halted: why it goes on no more, until an operator says so; "" while it does.
        stuck: offsets [start, end) of the source that wait for an operator.
        encoded: of those delivered, in batches that were encoded anew; the others went as they were.
        left_out: have been where the route leads (`app.replicate.destination.copy_headers`).
        lost, lost_ms: offsets that were gone from the source before they were copied, since copying began, by
            whomever; some may have had no record. When the last were found missing, 0: none were.
        compared, differing: read back, and as they were sent or not
        (`app.replicate.destination.verification`). uncompared: of a route that compares all, those that could
        not be, since copying began, by whomever. begun_anew: how often the source was truncated, or made
        anew, since copying began. destination_losses:
            how often the destination was, and had lost what it had acknowledged.
        limited: the route's own limits hold it back now, or routes of a higher priority do.
        rate: records a second, below 0 while unknown.
        barrier: the newest of the offset map: next offsets of source and copy, and when.
    """

    halted: str = ""
    stuck: tuple[int, int] | None = None
    encoded: int = 0
    left_out: int = 0
    lost: int = 0
    lost_ms: int = 0
    compared: int = 0
    differing: int = 0
    limited: bool = False
    rate: float = -1
    barrier: tuple[int, int, int] | None = None
    uncompared: int = 0
    begun_anew: int = 0
    destination_losses: int = 0


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the owner of a job says of it, twice a second.

    Offsets are next offsets (half-open); `-1` is unknown. What is unfinished and not in flight is `ready`,
    waits `behind` another of its key, for its time (`postponed`, the first until `due_ms`), or for its next
    attempt (`backoff`), or is on its way to a retry topic or the DLQ (`outgoing`). `used` and `capacity` are
    the tracker's, `buffered_bytes` were fetched and wait. `load` is what it takes of its worker, once that
    was measured. `arriving` and `ceiling` are rates in messages a second (`app.kernel.rates`), below 0 while
    unknown. `passed_over` were finished in another copy of the topic
    (`app.dispatch.pump.remote_progress_filter`). What only a replica has is in `copying`.
    """

    job: str
    epoch: int
    state: str
    committed: int = -1
    fetched: int = -1
    high_watermark: int = -1
    in_flight: int = 0
    unfinished: int = 0
    oldest_ms: int = -1
    delivered: int = 0
    retried: int = 0
    dead_lettered: int = 0
    passed_over: int = 0
    trouble: str = ""
    ready: int = 0
    behind: int = 0
    postponed: int = 0
    backoff: int = 0
    outgoing: int = 0
    due_ms: int = -1
    used: int = 0
    capacity: int = TRACKER_CAPACITY
    buffered_bytes: int = 0
    load: Load | None = None
    arriving: float = -1
    ceiling: float = -1
    copying: CopyingStatus | None = None


class HeadStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The message that holds a partition's offset back, and why it was not moved away yet.

    `tracker_used` is the share of the tracker in use, `unfinished_share` that of it which is unfinished (both
    0 to 1): what the thresholds are for. `age_s` None: the receiver does not have it.
    """

    topic: str
    partition: int
    offset: int
    age_s: float | None = None
    tracker_used: float = 0.0
    unfinished_share: float = 0.0
    why_not: str = ""


class HeadDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that blocked its partition and was moved away: when, by which rule, with its numbers."""

    at_ms: int
    topic: str
    partition: int
    offset: int
    rule: str
    reason: str
    age_s: float = 0.0


class WorkloadStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says of a workload and its receivers as it sees them.

    Attributes:
        breaker, limit: the main target's; `in_flight`, `held`: of all.
        targets: every receiver, the main one first.
        rate_messages, rate_bytes: this worker's shares of the rates, a second, 0 without one; `tokens_*` of
            them are there, below 0 for a debt.
        blocked: why this worker may send nothing at all: "lease", "snapshots" or "".
        budget_used: share of the worker's memory for fetched messages, 0 to 1.
        stashed: messages moved away because they blocked their partition; `decisions` are the last of them,
            `heads` those that may be next, the oldest first; `more_heads` are not told.
        withheld: messages that failed and may not be dead-lettered yet
        (`app.dispatch.model.dead_letter_budget`);
            `withheld_by` counts the answers that would have dead-lettered one, by status, `withheld_last` is
            the newest of them.
        letters: dead letters that may be written now; below 0: without a limit.
    """

    key: str
    breaker: str
    in_flight: int
    limit: int
    held: int = 0
    targets: list[TargetStatus] = []
    rate_messages: float = 0
    rate_bytes: float = 0
    tokens_messages: float = 0
    tokens_bytes: float = 0
    blocked: str = ""
    budget_used: float = 0
    stashed: int = 0
    decisions: list[HeadDecision] = []
    heads: list[HeadStatus] = []
    more_heads: int = 0
    withheld: int = 0
    withheld_by: dict[str, int] = {}
    withheld_last: str = ""
    letters: float = -1


class WorkloadTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a workload now, beyond its jobs, and the remedy (`app.worker.catalog`)."""

    key: str
    why: str


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker lives: who, where its web address is, and what it does.

    One that is too large comes in `parts`, of which this is the `part`th. `presence` is what the worker is
    called where it counts since when it is there (`app.failover.run.presence`). `place` tells whether the
    worker shares its loopback addresses with another (`app.worker.members.advertised_address`); "" is an
    older version's. `read` is how far it had read, and applied, the control log (a next offset); `needs` are
    of what has limits (`app.kernel.limit_shares`). `unsaved`: it has not saved anything for a while
    (`app.worker.runtime.save_watch`). `troubles`: the leader tells of them. `clock_ahead_s`: by how much its
    host's clock is ahead of the brokers' (`app.worker.members.host_clock`); None: not known. `seals`:
    which topics it seals (`app.controllog.seals.VERSION`); 0: none.
    """

    worker: str
    at_ms: int
    started_ms: int
    url: str
    state: str
    term: int
    jobs: list[JobStatus] = []
    workloads: list[WorkloadStatus] = []
    group: str = ""
    capacity: Load = DEFAULT_WORKER
    used: Load = Load()
    part: int = 0
    parts: int = 1
    presence: str = ""
    place: str = ""
    read: int = 0
    needs: list[LimitNeed] = []
    unsaved: bool = False
    troubles: list[WorkloadTrouble] = []
    clock_ahead_s: float | None = None
    seals: int = 0


class IncidentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Something a person must know, with the remedy."""

    at_ms: int
    worker: str
    kind: str
    subject: str
    message: str
    remedy: str = ""


_control = msgspec.json.Decoder(AnyControlEvent)
_tracker = msgspec.json.Decoder(TrackerEvent)
_answer = msgspec.json.Decoder(TakeoverAnswer)
_heartbeat = msgspec.json.Decoder(Heartbeat)
_record = msgspec.json.Decoder(TrackerRecord)
_incident = msgspec.json.Decoder(IncidentRecord)
_checkpoint: msgspec.json.Decoder[CheckpointEvent] = msgspec.json.Decoder(CheckpointEvent)
_line = msgspec.json.Decoder(OffsetMapLine)
_audit: msgspec.json.Decoder[AuditEvent] = msgspec.json.Decoder(
    Report | CloseWindows | ForgetWindows | CollectorTick
)
_window = msgspec.json.Decoder(WindowRecord)
_tier = msgspec.json.Decoder(TierRecord)

encode = msgspec.json.encode


def _decode(decoder: msgspec.json.Decoder[T], what: str, data: bytes | None, *, lanes: bool = False) -> T:
    """`lanes`: it may have fingerprints."""
    long, most = (_LONG_LANE, MAX_LANE) if lanes else (_LONG_NUMBER, MAX_INTEGER)
    if data is not None and len(data) > MAX_READ_BYTES:
        raise BadEvent(f"not a {what}: {len(data)} bytes; at most {MAX_READ_BYTES} are read")
    try:
        event = decoder.decode(data or b"")
        if data and long.search(data) and _has_above(most, msgspec.json.decode(data)):
            raise BadEvent(
                f"not a {what}: it has an integer of more than 64 bits; {len(data)} bytes, ignored"
            )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadEvent(f"not a {what}: {error}; {len(data or b'')} bytes, ignored") from error
    return event


def _has_above(most: int, found: Any) -> bool:
    """Whether an integer in it is one that nobody else reads. Raises RecursionError."""
    match found:
        case dict():
            return any(_has_above(most, one) for one in found.values())
        case list():
            return any(_has_above(most, one) for one in found)
        case int():
            return not MIN_INTEGER <= found <= most
    return False


def control_event(data: bytes | None) -> AnyControlEvent:
    """Raises `BadEvent`."""
    event: AnyControlEvent = _decode(_control, "control event", data)
    return event


def tracker_event(data: bytes | None) -> TrackerEvent:
    """Raises `BadEvent`."""
    event: TrackerEvent = _decode(_tracker, "tracker event", data)
    return event


def takeover_answer(data: bytes | None) -> TakeoverAnswer:
    """Raises `BadEvent`."""
    return _decode(_answer, "takeover answer", data)


def heartbeat(data: bytes | None) -> Heartbeat:
    """Raises `BadEvent`."""
    return _decode(_heartbeat, "heartbeat", data)


def tracker_record(data: bytes | None) -> TrackerRecord:
    """Raises `BadEvent`."""
    return _decode(_record, "tracker record", data)


def incident(data: bytes | None) -> IncidentRecord:
    """Raises `BadEvent`."""
    return _decode(_incident, "incident", data)


def checkpoint_event(data: bytes | None) -> CheckpointEvent:
    """Raises `BadEvent`."""
    found: CheckpointEvent = _decode(_checkpoint, "event of the checkpoint topic", data)
    return found


def checkpoint_line(data: bytes | None) -> OffsetMapLine:
    """A value of the checkpoint table. Raises `BadEvent`."""
    return _decode(_line, "line of the offset map", data)


def audit_event(data: bytes | None) -> AuditEvent:
    """Raises `BadEvent`."""
    event: AuditEvent = _decode(_audit, "event of the audit topic", data, lanes=True)
    return event


def window_record(data: bytes | None) -> WindowRecord:
    """A value of the table of windows. Raises `BadEvent`."""
    return _decode(_window, "record of a window", data, lanes=True)


def tier_record(data: bytes | None) -> TierRecord:
    """A value of the table of tiers. Raises `BadEvent`."""
    return _decode(_tier, "record of a tier", data, lanes=True)


def report_events(report: Report) -> list[bytes]:
    """A report as one event, or as several of its windows each, to be below `MAX_EVENT_BYTES`; only the last
    of them tells how far the source has come: nothing may be closed in between."""
    whole = encode(report)
    if len(whole) <= MAX_EVENT_BYTES:
        return [whole]
    runs = _runs(report.windows)
    some = [msgspec.structs.replace(report, windows=tuple(run), watermark_ms=-1) for run in runs[:-1]]
    return [encode(one) for one in (*some, msgspec.structs.replace(report, windows=tuple(runs[-1])))]


def activity_entry(offset: int, event: AnyControlEvent, *, counted: bool = True) -> tuple[bytes, bytes]:
    """Key and value, in the activity table, of the event at `offset` of the control log. `counted`: the log
    did not refuse it."""
    told = msgspec.to_builtins(for_people(event))
    return b"%05d" % (offset % ACTIVITY_KEEP), encode({"offset": offset, "counted": counted, **told})


def heartbeat_events(beat: Heartbeat) -> list[bytes]:
    """`beat` as one event, or as many as it takes to keep each below `MAX_EVENT_BYTES`."""
    whole = encode(beat)
    if len(whole) <= MAX_EVENT_BYTES:
        return [whole]
    runs = _runs([*beat.jobs, *beat.workloads, *beat.needs, *beat.troubles])
    parts = [
        msgspec.structs.replace(
            beat,
            jobs=[status for status in run if isinstance(status, JobStatus)],
            workloads=[status for status in run if isinstance(status, WorkloadStatus)],
            needs=[status for status in run if isinstance(status, LimitNeed)],
            troubles=[status for status in run if isinstance(status, WorkloadTrouble)],
            part=number,
            parts=len(runs),
        )
        for number, run in enumerate(runs)
    ]
    return [encode(part) for part in parts]


def snapshots_events(worker: str, at_ms: int, items: Sequence[SnapshotItem]) -> list[bytes]:
    """Snapshots as events below `MAX_EVENT_BYTES`, unless one of them alone is larger."""
    return [encode(Snapshots(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


def barriers_events(worker: str, at_ms: int, items: Sequence[BarrierItem]) -> list[bytes]:
    """Barriers as events below `MAX_EVENT_BYTES`, unless one item alone is larger."""
    return [encode(Barriers(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


def needed_events(worker: str, at_ms: int, items: Sequence[NeedItem]) -> list[bytes]:
    """What is asked for of lines, as events below `MAX_EVENT_BYTES`."""
    return [encode(PinRequests(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


def ended_events(worker: str, at_ms: int, items: Sequence[EndedItem]) -> list[bytes]:
    """What is known of lines without an owner, as events below `MAX_EVENT_BYTES`."""
    return [encode(EndedLines(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


def _runs(items: Iterable[Any]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    left = 0
    for item in items:
        size = len(encode(item)) + 1
        if size > left:
            runs.append([])
            left = MAX_EVENT_BYTES - _FRAME_BYTES
        runs[-1].append(item)
        left -= size
    return runs
