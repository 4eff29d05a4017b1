"""A record of a table's changelog as an entry of the store, and a heartbeat as loads. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from app.core.audit.count import UNTIMED
from app.core.audit.latencies import CorruptLatencies, Latencies
from app.core.audit.tiers import TierKey
from app.core.audit.totals import Totals
from app.core.audit.windows import WindowKey
from app.core.job import JobId
from app.core.load import Load
from app.wire import (
    BadEvent,
    Heartbeat,
    checkpoint_line,
    control_event,
    heartbeat,
    tier_record,
    tracker_record,
    window_record,
)

WINDOWS, TIERS, TRACKERS, CHECKPOINTS = "audit_windows", "audit_tiers", "trackers", "checkpoints"
WORKLOADS, ROUTES, ASSIGNMENTS, ACTIVITY = "workloads", "routes", "assignments", "activity"
TABLES = (WINDOWS, TIERS, TRACKERS, CHECKPOINTS, WORKLOADS, ROUTES, ASSIGNMENTS, ACTIVITY)
KEPT = (WINDOWS, ACTIVITY)  # what the tables forget of them stays here
UNDATED = "none"
BUCKET_MS = 300_000
LATEST_MS = 253_402_300_799_999  # the last day of the year 9999: no calendar goes beyond

_activity = msgspec.json.Decoder(dict[str, object])


class Entry(NamedTuple):
    """What a record is: its key, the date of its window, its position, and why it cannot be used ("")."""

    key: str = ""
    date: str = UNDATED
    position: int = -1
    reason: str = ""


def entry(table: str, key: bytes | None, value: bytes | None, offset: int) -> Entry:
    """The record at `offset` of `table`'s changelog; never raises for what it holds."""
    try:
        text = (key or b"").decode()
        if not text:
            return Entry(reason="no key")
        return _entry(table, text, value, offset)
    except UnicodeDecodeError:
        return Entry(reason="the key is no UTF-8")
    except BadEvent as error:
        return Entry(reason=f"the value is {error}"[:300])
    except CorruptLatencies as error:
        return Entry(reason=f"latencies: {error}"[:300])
    except (ValueError, TypeError) as error:
        return Entry(reason=f"the key is not one of {table}: {error}"[:300])


def _entry(table: str, key: str, value: bytes | None, offset: int) -> Entry:
    match table:
        case "audit_windows":
            window = WindowKey.parse(key)
            date = date_of(window.start_ms)
            if value is None:
                return Entry(key, date, offset)
            record = window_record(value)
            _check(record.totals)
            _check(record.late)
            return Entry(key, date, record.position)
        case "audit_tiers":
            TierKey.parse(key)
            return Entry(key, position=offset if value is None else tier_record(value).position)
        case "trackers":
            JobId.parse(key)
            return Entry(key, position=offset if value is None else tracker_record(value).offset)
        case "activity":
            return Entry(key, position=offset) if value is None else _act(value)
        case "checkpoints":
            if value is not None:
                checkpoint_line(value)
        case _:
            if value is not None:
                control_event(value)
    return Entry(key, position=offset)


def _act(value: bytes) -> Entry:
    """By its offset in the control log: its key in the table is used again."""
    try:
        told = _activity.decode(value)
    except msgspec.DecodeError as error:
        raise BadEvent(f"not an entry of the activity: {error}") from error
    offset, at_ms = told.get("offset"), told.get("at_ms")
    if not isinstance(offset, int) or not isinstance(at_ms, int):
        raise BadEvent("not an entry of the activity: it has no offset, or no at_ms")
    return Entry(f"{offset:020}", date_of(at_ms), offset)


def date_of(at_ms: int) -> str:
    """The UTC date of a time; `UNDATED` of records without one.

    Raises:
        ValueError: no calendar has it.
    """
    if at_ms == UNTIMED:
        return UNDATED
    if not 0 <= at_ms <= LATEST_MS:
        raise ValueError(f"{at_ms} ms is no time")
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _check(totals: Totals) -> None:
    if min(totals.count, totals.nbytes, totals.duplicates) < 0:
        raise BadEvent("not a record of a window: a count below 0")
    Latencies.from_bytes(totals.latencies)


class JobLoad(msgspec.Struct):
    """What heartbeats said of a job on a worker in five minutes; sums over `samples`, of rates over those
    that told one. Without a job (""): what the worker has."""

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
        """One more sample."""
        self.samples += 1
        self.cpu_sum += load.cpu_cores
        self.cpu_max = max(self.cpu_max, load.cpu_cores)
        self.memory_max = max(self.memory_max, load.memory_bytes)
        self.network_sum += load.network_bytes_per_s
        self.network_max = max(self.network_max, load.network_bytes_per_s)
        self.last_ms = max(self.last_ms, at_ms)


Loads = dict[tuple[str, str, int, str], JobLoad]  # job, worker, start of the five minutes, group


def add_heartbeat(found: Loads, value: bytes | None) -> str:
    """Takes a heartbeat in; why it cannot be used, or ""."""
    try:
        beat = heartbeat(value)
    except BadEvent as error:
        return f"the value is {error}"[:300]
    if not 0 <= beat.at_ms <= LATEST_MS:
        return f"a heartbeat of {beat.at_ms} ms"
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
    """As rows of `frames.LOAD` without region and date."""
    for (job, worker, start_ms, group), seen in found.items():
        yield (job, worker, group, start_ms, *msgspec.structs.astuple(seen))
