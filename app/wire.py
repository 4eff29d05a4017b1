"""What crosses a control topic: JSON by msgspec, typed on both sides.

JSON, because Spark and people read the changelogs too. Decoding untrusted bytes raises one error
only, `BadEvent`, so that an agent can count it, tell it, and go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from app.core.control import AnyControlEvent
from app.core.fencing import SnapshotItem, Snapshots, TakeoverAnswer, TrackerEvent, TrackerRecord

MAX_EVENT_BYTES = 900_000  # below what brokers and producers take unless told otherwise: 1 MB
ACTIVITY_KEEP = 10_000  # events that the activity table remembers
_FRAME_BYTES = 2_000  # of an event without its items

T = TypeVar("T")


class BadEvent(ValueError):
    """Bytes on a control topic that are not an event of it."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the owner of a job says of it, twice a second.

    Offsets are next offsets (half-open); `-1` is unknown.
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
    trouble: str = ""


class WorkloadStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says of a workload's receiver as it sees it."""

    key: str
    breaker: str
    in_flight: int
    limit: int
    held: int = 0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker lives: who, where its web address is, and what it does.

    `member` is the worker's member id in Faust's consumer group, with which the leader can remove it
    from there as soon as it is dead. One that is too large comes in `parts`, of which this is the `part`th.
    """

    worker: str
    at_ms: int
    started_ms: int
    url: str
    state: str
    term: int
    member: str = ""
    jobs: list[JobStatus] = []
    workloads: list[WorkloadStatus] = []
    part: int = 0
    parts: int = 1


class Incident(msgspec.Struct, frozen=True, kw_only=True):
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
_incident = msgspec.json.Decoder(Incident)

encode = msgspec.json.encode


def _decode(decoder: msgspec.json.Decoder[T], what: str, data: bytes | None) -> T:
    try:
        return decoder.decode(data or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvent(f"not a {what}: {error}; {len(data or b'')} bytes, ignored") from error


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


def incident(data: bytes | None) -> Incident:
    """Raises `BadEvent`."""
    return _decode(_incident, "incident", data)


def activity_entry(offset: int, event: AnyControlEvent) -> tuple[bytes, bytes]:
    """Key and value, in the activity table, of the event at `offset` of the control log."""
    return b"%05d" % (offset % ACTIVITY_KEEP), encode({"offset": offset, **msgspec.to_builtins(event)})


def heartbeat_events(beat: Heartbeat) -> list[bytes]:
    """`beat` as one event, or as many as it takes to keep each below `MAX_EVENT_BYTES`."""
    whole = encode(beat)
    if len(whole) <= MAX_EVENT_BYTES:
        return [whole]
    runs = _runs([*beat.jobs, *beat.workloads])
    parts = [
        msgspec.structs.replace(
            beat,
            jobs=[status for status in run if isinstance(status, JobStatus)],
            workloads=[status for status in run if isinstance(status, WorkloadStatus)],
            part=number,
            parts=len(runs),
        )
        for number, run in enumerate(runs)
    ]
    return [encode(part) for part in parts]


def snapshots_events(worker: str, at_ms: int, items: Sequence[SnapshotItem]) -> list[bytes]:
    """Snapshots as events below `MAX_EVENT_BYTES`, unless one of them alone is larger."""
    return [encode(Snapshots(worker=worker, at_ms=at_ms, items=run)) for run in _runs(items)]


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
