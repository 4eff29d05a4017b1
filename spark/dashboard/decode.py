"""Decodes a changelog record to an entry of the store, and a heartbeat to loads. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from app.audit.folds.plan_terms import PlanTerms
from app.audit.folds.tier import TierKey
from app.audit.folds.window import WindowKey
from app.controllog.codec import (
    BadEvent,
    Heartbeat,
    checkpoint_line,
    control_event,
    heartbeat,
    incident,
    tier_record,
    tracker_record,
    window_record,
)
from app.controllog.events import AuditPut
from app.kernel.job import JobId
from app.kernel.load import Load
from switchyard.audit.model.latencies import CorruptLatencies, Latencies
from switchyard.audit.model.tally import UNTIMED
from switchyard.audit.model.totals import Totals

WINDOWS, TIERS, TRACKERS, CHECKPOINTS = "audit_windows", "audit_tiers", "trackers", "checkpoints"
WORKLOADS, ROUTES, ASSIGNMENTS, ACTIVITY = "workloads", "routes", "assignments", "activity"
PLANS = "audit_plans"
TABLES = (WINDOWS, TIERS, PLANS, TRACKERS, CHECKPOINTS, WORKLOADS, ROUTES, ASSIGNMENTS, ACTIVITY)
INCIDENTS = "incidents"  # a topic without keys, not a table
TIMELINE_EVENTS = frozenset(  # activity events of the timeline
    {"failover-run", "role-put", "alert-state", "claim", "drain", "moving", "operator-act", "paused"}
)
KEPT = (WINDOWS, ACTIVITY)  # the store keeps entries that these tables forget
UNDATED = "none"
BUCKET_MS, DAY_MS = 300_000, 86_400_000
MOST = 2**63 - 1  # the largest number in a column
LATEST_MS = 253_402_300_799_999  # the end of the year 9999, the last that Python's dates have

_activity = msgspec.json.Decoder(dict[str, object])


class DecodedRecord(NamedTuple):
    """A record's key, the date of its window or event, its position, and why it cannot be used ("")."""

    key: str = ""
    date: str = UNDATED
    position: int = -1
    reason: str = ""


def entry(table: str, key: bytes | None, value: bytes | None, offset: int) -> DecodedRecord:
    """Decodes the record at `offset` of `table`'s changelog; never raises for its content."""
    try:
        text = (key or b"").decode()
        if not text:
            return DecodedRecord(reason="no key")
        return _entry(table, text, value, offset)
    except UnicodeDecodeError:
        return DecodedRecord(reason="the key is not UTF-8")
    except BadEvent as error:
        return DecodedRecord(reason=f"the value is {error}"[:300])
    except CorruptLatencies as error:
        return DecodedRecord(reason=f"latencies: {error}"[:300])
    except RecursionError:
        return DecodedRecord(reason="the value is nested too deeply")
    except (ValueError, TypeError) as error:
        return DecodedRecord(reason=f"the key is not one of {table}: {error}"[:300])


def _entry(table: str, key: str, value: bytes | None, offset: int) -> DecodedRecord:
    match table:
        case "audit_windows":
            window = WindowKey.parse(key)
            date = date_of(window.start_ms)
            if max(window.width_ms, window.shard) > MOST:
                raise ValueError("its width or shard is too large")
            if value is None:
                return DecodedRecord(key, date, offset)
            record = window_record(value)
            _check(record.totals)
            _check(record.late)
            return DecodedRecord(key, date, _position(record.position))
        case "audit_tiers":
            TierKey.parse(key)
            return DecodedRecord(
                key, position=offset if value is None else _position(tier_record(value).position)
            )
        case "trackers":
            JobId.parse(key)
            return DecodedRecord(
                key, position=offset if value is None else _position(tracker_record(value).offset)
            )
        case "activity":
            return DecodedRecord(key, position=offset) if value is None else _act(value)
        case "checkpoints":
            if value is not None:
                checkpoint_line(value)
        case "audit_plans":
            if value is not None:
                plan_terms(value)
        case _:
            if value is not None:
                control_event(value)
    return DecodedRecord(key, position=offset)


def incident_entry(place: str, value: bytes | None, offset: int) -> DecodedRecord:
    """Decodes the incident at `offset`, under the unique key `place`; never raises for its content."""
    try:
        found = incident(value)
        at_ms = found.at_ms
        for time_ms in (at_ms, found.ended_ms):
            if not 0 <= time_ms <= LATEST_MS:
                raise BadEvent(f"not an incident: {time_ms} ms is not a valid time")
        return DecodedRecord(place, date_of(at_ms), offset)
    except BadEvent as error:
        return DecodedRecord(place, reason=f"the value is {error}"[:300])


def plan_terms(value: bytes) -> PlanTerms:
    """Decodes an audit plan of its table. Raises BadEvent."""
    event = control_event(value)
    if not isinstance(event, AuditPut):
        raise BadEvent("not an audit plan")
    try:
        return PlanTerms.of(event.definition)
    except ValueError as error:
        raise BadEvent(str(error)) from error


def _act(value: bytes) -> DecodedRecord:
    """The key is the offset in the control log, because the table uses its own keys again."""
    try:
        fields = _activity.decode(value)
    except msgspec.DecodeError as error:
        raise BadEvent(f"not an entry of the activity: {error}") from error
    offset, at_ms = fields.get("offset"), fields.get("at_ms")
    if not isinstance(offset, int) or not isinstance(at_ms, int):
        raise BadEvent("not an entry of the activity: it has no offset, or no at_ms")
    if not 0 <= offset <= MOST:
        raise BadEvent(f"not an entry of the activity: offset {offset} is not an offset")
    if fields.get("event") in TIMELINE_EVENTS:
        control_event(value)
    return DecodedRecord(f"{offset:020}", date_of(at_ms), offset)


def is_refused(value: bytes) -> bool:
    """Whether the control log refused the event of an activity entry; False if the entry does not say."""
    return _activity.decode(value).get("counted") is False


def _position(offset: int) -> int:
    """The position that a record carries; -1 if it carries none. Raises BadEvent."""
    if not -1 <= offset <= MOST:
        raise BadEvent(f"not a record of a table: position {offset} is not an offset")
    return offset


def date_of(at_ms: int) -> str:
    """The UTC date of a time; `UNDATED` for records without one.

    Raises:
        ValueError: The time is before 1970 or after the year 9999.
    """
    if at_ms == UNTIMED:
        return UNDATED
    if not 0 <= at_ms <= LATEST_MS:
        raise ValueError(f"{at_ms} ms is not a valid time")
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def dates(from_ms: int, to_ms: int) -> list[str]:
    """The UTC dates that overlap [from_ms, to_ms)."""
    first, last = from_ms // DAY_MS, max(from_ms, to_ms - 1) // DAY_MS
    return [date_of(day * DAY_MS) for day in range(max(0, first), min(last, LATEST_MS // DAY_MS) + 1)]


def _check(totals: Totals) -> None:
    if min(totals.count, totals.nbytes, totals.duplicates) < 0:
        raise BadEvent("not a record of a window: a count is negative")
    if max(totals.count, totals.nbytes, totals.duplicates) > MOST:
        raise BadEvent("not a record of a window: a count is too large")
    Latencies.from_bytes(totals.latencies)


class JobLoad(msgspec.Struct):
    """A job's load on a worker in five minutes. The `_sum` fields add up `samples`, `arriving_sum` the
    `rated` ones with an arrival rate. Without a job (""): the worker's capacity."""

    samples: int = 0
    cpu_sum: float = 0.0
    cpu_max: float = 0.0
    memory_max: float = 0.0
    network_sum: float = 0.0
    network_max: float = 0.0
    rated: int = 0
    arriving_sum: float = 0.0
    arriving_max: float = 0.0
    ceiling_max: float = 0.0
    lag_max: int = -1
    lag_last: int = -1
    last_ms: int = -1

    def add(self, load: Load, at_ms: int) -> None:
        self.samples += 1
        self.cpu_sum += load.cpu_cores
        self.cpu_max = max(self.cpu_max, load.cpu_cores)
        self.memory_max = max(self.memory_max, load.memory_bytes)
        self.network_sum += load.network_bytes_per_s
        self.network_max = max(self.network_max, load.network_bytes_per_s)
        self.last_ms = max(self.last_ms, at_ms)


Loads = dict[tuple[str, str, int, str], JobLoad]  # job, worker, start of the five minutes, group


def add_heartbeat(found: Loads, value: bytes | None) -> str:
    """Adds a heartbeat; returns why it cannot be used, or ""."""
    try:
        beat = heartbeat(value)
    except BadEvent as error:
        return f"the value is {error}"[:300]
    except RecursionError:
        return "the value is nested too deeply"
    if any(max(job.committed, job.high_watermark) > MOST for job in beat.jobs):
        return "an offset of the heartbeat is too large"
    if not 0 <= beat.at_ms <= LATEST_MS:
        return f"the heartbeat's time, {beat.at_ms} ms, is not valid"
    _take(found, beat)
    return ""


def _take(found: Loads, beat: Heartbeat) -> None:
    start_ms = beat.at_ms - beat.at_ms % BUCKET_MS
    found.setdefault(("", beat.worker, start_ms, beat.group), JobLoad()).add(beat.capacity, beat.at_ms)
    for job in beat.jobs:
        seen = found.setdefault((job.job, beat.worker, start_ms, beat.group), JobLoad())
        is_newest = beat.at_ms >= seen.last_ms
        if job.load is not None:
            seen.add(job.load, beat.at_ms)
        if job.arriving >= 0:
            seen.rated += 1
            seen.arriving_sum += job.arriving
            seen.arriving_max = max(seen.arriving_max, job.arriving)
        seen.ceiling_max = max(seen.ceiling_max, job.ceiling)
        if job.committed >= 0 and job.high_watermark >= 0:
            lag = max(0, job.high_watermark - job.committed)
            seen.lag_max = max(seen.lag_max, lag)
            if is_newest:
                seen.lag_last = lag
        seen.last_ms = max(seen.last_ms, beat.at_ms)


def load_rows(found: Loads) -> Iterable[tuple[str | int | float, ...]]:
    """The rows of `frames.LOAD` without the date."""
    for (job, worker, start_ms, group), seen in found.items():
        yield (job, worker, group, start_ms, *msgspec.structs.astuple(seen))
