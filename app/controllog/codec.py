"""The codec of all control topics: JSON by msgspec, typed on both sides.

JSON, because Spark and people read the changelogs too. Decoding untrusted bytes raises `BadEvent` only, so
an agent counts the record, reports it and continues.
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
from app.kernel.broker_throttle import BrokerThrottle
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
# Workers write no larger records: the topics take batches of 2 MiB, and producers send records of 2 MB.
MAX_READ_BYTES = 2 * 1024 * 1024
MAX_EVENT_BYTES = 900_000  # below the default limit of brokers and producers, 1 MB
ACTIVITY_KEEP = 10_000  # events in the activity table
TRACKER_CAPACITY = 10_000  # the default; msgspec leaves out a field with this object
MIN_INTEGER, MAX_INTEGER = -(1 << 63), (1 << 63) - 1  # the integers that Spark, JVMs and orjson read
MAX_LANE = (1 << 64) - 1  # a lane of an audit's fingerprint
# As many digits as MAX_INTEGER has, or one more than a lane has: only such numbers are checked one by one.
_LONG_NUMBER, _LONG_LANE = (re.compile(rb"[:,\[]\s*-?[0-9]{%d}" % digits) for digits in (19, 21))
_FRAME_BYTES = 2_000  # an event without its items

T = TypeVar("T")


class BadEvent(ValueError):
    """The bytes are not an event of this control topic."""


class CopyingStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A replica's report on its copies; counts are records since this owner began.

    Attributes:
        halted: Why copying stopped until an operator acts; "" while it runs.
        stuck: Offsets [start, end) of the source that wait for an operator.
        encoded: Delivered records whose batches were encoded again; the others are verbatim.
        left_out: Records that had been in the destination before (`app.replicate.destination.copy_headers`).
        lost: Offsets that the source dropped before they were copied, under any owner. Some may have had
            no record.
        lost_ms: When the last ones were found missing; 0: none.
        compared, differing: Copies read back, and those that differ
            (`app.replicate.destination.verification`).
        uncompared: Copies that a route which compares all could not read back, under any owner.
        begun_anew: How often the source was truncated or recreated, under any owner.
        destination_losses: How often the destination was, and lost acknowledged records.
        limited: The route's limits, or routes of a higher priority, hold it back now.
        rate: Records per second; below 0: not known.
        barrier: The newest offset sync: next offsets of source and copy, and its time.
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
    """The owner's report on a job, twice a second.

    Offsets are next offsets (half-open); -1: not known. `used` and `capacity` are the tracker's, `load` is
    the job's part of the worker's load. Only replicas have `copying`.

    Attributes:
        ready: Messages that could be sent now.
        behind: Messages that wait for an earlier one of their key.
        postponed: Messages that wait for their delivery time; the first one's is `due_ms`.
        backoff: Messages that wait for their next attempt.
        outgoing: Messages on their way to a retry topic or the DLQ.
        passed_over: Messages finished in another copy of the topic
            (`app.dispatch.pump.remote_progress_filter`).
        trouble_from: What found the trouble (`app.kernel.troubles.TroubleSource`); "": the pump itself, or
            there is none. Replicas have none.
        buffered_bytes: Bytes that were fetched and wait.
        throttles: The delays by brokers' quotas that hold it up.
        arriving, ceiling: Messages per second (`app.kernel.rates`); below 0: not known.
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
    trouble_from: str = ""
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
    throttles: list[BrokerThrottle] = []


class HeadStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that holds back its partition's offset, and why it was not moved away yet.

    `tracker_used` is the share of the tracker in use, `unfinished_share` the unfinished part of that (both
    0 to 1), as the thresholds use them. `age_s` None: no receiver has the message.
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
    """A worker's report on a workload and its receivers.

    Attributes:
        breaker, limit: The main target's.
        in_flight, held: All targets' together.
        targets: Every receiver, the main one first.
        rate_messages, rate_bytes: This worker's shares of the rates, per second; 0 without a rate.
        tokens_messages, tokens_bytes: The tokens left of them; below 0: a debt.
        blocked: Why this worker may not send: "lease", "snapshots" or "".
        budget_used: The share of the worker's memory for fetched messages in use, 0 to 1.
        cpu_throttled: As in `Heartbeat`.
        stashed: Messages moved away because they blocked their partition. `decisions` are the last of them.
        heads: Messages that may be moved next, the oldest first, and `more_heads` beyond the list.
        withheld: Messages that failed and may not be dead-lettered yet
            (`app.dispatch.model.dead_letter_budget`).
        withheld_by: By status, the answers that would have dead-lettered one; `withheld_last` is the newest.
        letters: Dead letters that may be written now; below 0: no limit.
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
    cpu_throttled: float = 0
    stashed: int = 0
    decisions: list[HeadDecision] = []
    heads: list[HeadStatus] = []
    more_heads: int = 0
    withheld: int = 0
    withheld_by: dict[str, int] = {}
    withheld_last: str = ""
    letters: float = -1


class WorkloadTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A present problem of a workload as a whole, with its remedy (`app.dispatch.topics.catalog`)."""

    key: str
    why: str


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is alive: its id, its web address, and the state of its jobs.

    A large heartbeat comes in `parts` events; this is number `part`.

    Attributes:
        presence: The worker's name for `app.failover.run.presence`.
        place: Whether it shares its loopback addresses with other workers
            (`app.worker.members.advertised_address`); "": an older version.
        read: The next offset of the control log, up to which it has applied all events.
        needs: Its demand for limits (`app.kernel.limit_shares`).
        unsaved: It has not saved progress for a while (`app.worker.runtime.save_watch`).
        troubles: Problems that the leader reports.
        clock_ahead_s: The host's clock minus the brokers' (`app.worker.members.host_clock`); None: not known.
        seals: The version of its seals (`app.controllog.seals.VERSION`); 0: it writes none.
        cpu_throttled: The share of the last minute, 0 to 1, whose periods used up a CPU quota of its
            container.
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
    cpu_throttled: float = 0


class IncidentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that a person must know of, with its remedy. `app.controllog.incident_log` reads them.

    Attributes:
        lasts: It is a state, whose end is another record; False: an event of one moment.
        ended_ms: When the state ended; 0: this record is the report.
        ended_why: Why it ended, if not because the problem is over.
    """

    at_ms: int
    worker: str
    kind: str
    subject: str
    message: str
    remedy: str = ""
    lasts: bool = False
    ended_ms: int = 0
    ended_why: str = ""


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
    """`lanes`: the event may have fingerprints, whose integers have 64 bits without a sign."""
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
    """Whether `found` has an integer that other readers cannot read. Raises RecursionError."""
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
    """A report as events below `MAX_EVENT_BYTES`, each with some of its windows.

    Only the last one has the source's watermark, so that no window closes before all have arrived.
    """
    whole = encode(report)
    if len(whole) <= MAX_EVENT_BYTES:
        return [whole]
    runs = _runs(report.windows)
    some = [msgspec.structs.replace(report, windows=tuple(run), watermark_ms=-1) for run in runs[:-1]]
    return [encode(one) for one in (*some, msgspec.structs.replace(report, windows=tuple(runs[-1])))]


def activity_entry(offset: int, event: AnyControlEvent, *, counted: bool = True) -> tuple[bytes, bytes]:
    """Key and value in the activity table for the event at `offset` of the control log; `counted` as in
    `ControlState.apply`."""
    fields = msgspec.to_builtins(for_people(event))
    return b"%05d" % (offset % ACTIVITY_KEEP), encode({"offset": offset, "counted": counted, **fields})


def heartbeat_events(beat: Heartbeat) -> list[bytes]:
    """A heartbeat as events below `MAX_EVENT_BYTES`."""
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
    """Snapshots as events below `MAX_EVENT_BYTES`, unless one snapshot alone is larger."""
    return [encode(Snapshots(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


def barriers_events(worker: str, at_ms: int, items: Sequence[BarrierItem]) -> list[bytes]:
    """Offset syncs as events below `MAX_EVENT_BYTES`, unless one item alone is larger."""
    return [encode(Barriers(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


def needed_events(worker: str, at_ms: int, items: Sequence[NeedItem]) -> list[bytes]:
    """Requests for pinned offset syncs, as events below `MAX_EVENT_BYTES`."""
    return [encode(PinRequests(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


def ended_events(worker: str, at_ms: int, items: Sequence[EndedItem]) -> list[bytes]:
    """Offset ranges of lines without an owner, as events below `MAX_EVENT_BYTES`."""
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
