"""The copied end of another region's tracker topic: folded on top of its table's copy, in the store.

    switchyard-west-trackers-changelog ─copied─▶ TRACKERS ─┬─▶ `position`, `positions`
    switchyard-west-trackers           ─copied─▶ ENDS ─────┘

A table's writer may be tens of seconds behind on a busy machine; the topic itself is not. What it says above
the table is folded here (`app.worker.tracker.fold`, rule 6), and kept by job, with the offset that was read
to: a worker that begins again goes on there.

Rules
1. What is read first, or after more than `MAX_EVENTS` have come, begins `MARGIN_MS` before the newest record
   of the table's copy, by the time at which it was written, and `MAX_EVENTS` before the end at the most: of
   what is older the table's copy has to tell. So it is read behind that copy, not beside it: by a time that
   is hours old it would begin above all that is needed, and never be joined with a region that is lost.
2. A partition's end and table are joined once the table's copy has come `MARGIN_MS` past the time since
   which all is read. The margin is for clocks, and for what the table's writer writes late: its records are
   of all that it has folded by then. That is asked when somebody asks, not when an event was read: what came
   before they were joined is kept beside, by partition and job, and counts from then on.
3. A region whose topic is not copied here (an older one) has no end: its table's copy is all there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.controllog import codec
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kernel.clock import now_ms
from app.kernel.fencing import TrackerRecord
from app.kernel.job import JobId, Kind
from app.offsets.store.records import ENDS, TRACKERS, ChangelogOrigin, RegionStore
from app.worker.tracker.fold import CopyFold, RemoteJobRecord, together

log = structlog.get_logger(__name__)

MARGIN_MS = 60_000
MAX_EVENTS = 10_000  # of a partition
PREFIX = f"{Kind.DISPATCH.value}:"
EARLY = "early"  # before a key of `ENDS`, with the partition: no job begins so


def goes_on(
    origin: ChangelogOrigin,
    fresh: ChangelogOrigin,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> bool:
    """Whether what was read of a table, or of its end, is the beginning of what is there now."""
    if (origin.cluster, origin.topic_id) != (fresh.cluster, fresh.topic_id):
        return False
    return all(starts[at] <= origin.next_offsets.get(at.partition, starts[at]) <= ends[at] for at in ends)


def lies_far_behind(origin: ChangelogOrigin, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether so much has come since it was read that it is read anew, from where the table's copy ends."""
    return any(end - origin.next_offsets.get(at.partition, end) > MAX_EVENTS for at, end in ends.items())


async def beginning(
    fresh: ChangelogOrigin,
    consumer: AIOKafkaConsumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    table: ChangelogOrigin | None,
) -> ChangelogOrigin:
    """The `fresh` origin with where reading begins, and since when all is read (rule 1). `table`: how far its
    copy was read: to its end, or this begins later than it could. Raises KafkaError."""
    newest_ms = {} if table is None else table.newest_ms
    wanted = {at: newest_ms[at.partition] - MARGIN_MS for at in ends if at.partition in newest_ms}
    found = await consumer.offsets_for_times(wanted) if wanted else {}
    at_ms = now_ms()
    nexts: dict[int, int] = {}
    since: dict[int, int] = {}
    for at, end in ends.items():
        start, since_ms = starts[at], at_ms
        if at in wanted and (lately := found.get(at)) is not None:
            # Of what was before the first one that there is, nothing is known.
            start = lately.offset
            since_ms = wanted[at] if lately.offset > starts[at] else lately.timestamp
        elif at in wanted and end > starts[at]:
            start, since_ms = end, wanted[at]
        if start < end - MAX_EVENTS:
            start, since_ms = end - MAX_EVENTS, at_ms
        nexts[at.partition], since[at.partition] = start, since_ms
    return msgspec.structs.replace(fresh, next_offsets=nexts, since_ms=since)


def fold_in(
    store: RegionStore, region: str, records: Mapping[TopicPartition, Iterable[Any]], origin: ChangelogOrigin
) -> None:
    """Folds what was read into the store; `origin`: how far that is. Blocking, as the store."""
    table = store.origin(TRACKERS, region)
    changed: dict[bytes, bytes | None] = {}
    for at, read in records.items():
        early = f"{EARLY}/{at.partition}/"
        known, joined = partial(_copied, store, region, early), _is_joined(at.partition, table, origin)
        fold = CopyFold(PREFIX, known, joined=joined)
        unreadable = UnreadableRecords(
            "events of a region's tracker topic are passed over", region=region, partition=at.partition
        )
        for record in read:
            try:
                fold.apply(codec.tracker_event(record.value), record.offset)
            except codec.BadEvent as error:
                unreadable.add(record.offset, error)
        unreadable.report()
        told = fold.records() | {early + job: known for job, known in fold.early().items()}
        changed |= {key.encode(): codec.encode(known) for key, known in told.items()}
    store.write(ENDS, region, changed, origin)


def _is_joined(partition: int, table: ChangelogOrigin | None, origin: ChangelogOrigin) -> bool:
    """Rule 2."""
    if table is None or partition not in table.newest_ms or partition not in origin.since_ms:
        return False
    return table.newest_ms[partition] >= origin.since_ms[partition] + MARGIN_MS


def _copied(store: RegionStore, region: str, early: str, job: str) -> RemoteJobRecord:
    keys = (TRACKERS, job), (ENDS, job), (ENDS, early + job)
    return RemoteJobRecord(*(_read(store.record(table, region, key), region, job) for table, key in keys))


def positions(store: RegionStore, region: str, prefix: str) -> dict[str, TrackerRecord]:
    """How far a region's jobs are whose names begin so, by all that was read. Blocking."""
    tables, ends = (_records(store, region, table, "", prefix) for table in (TRACKERS, ENDS))
    early: dict[str, TrackerRecord] = {}
    table, end = (store.origin(one, region) for one in (TRACKERS, ENDS))
    if end is not None:
        for partition in end.next_offsets:
            if _is_joined(partition, table, end):
                early |= _records(store, region, ENDS, f"{EARLY}/{partition}/", prefix)
    found: dict[str, TrackerRecord] = {}
    for job in {**tables, **ends}:
        copied = RemoteJobRecord(tables.get(job), ends.get(job), early.get(job))
        if (known := together(copied, joined=True)) is not None:  # or there is none that came early
            found[job] = known
    return found


def _records(
    store: RegionStore, region: str, table: str, before: str, prefix: str
) -> dict[str, TrackerRecord]:
    """By job; `before` stands before it in the key."""
    found: dict[str, TrackerRecord] = {}
    for key, value in store.records(table, region, before + prefix):
        job = key.removeprefix(before)
        if (record := _read(value, region, job)) is not None:
            found[job] = record
    return found


def _read(value: bytes | None, region: str, job: str) -> TrackerRecord | None:
    if value is None:
        return None
    try:
        JobId.parse(job)
        return codec.tracker_record(value)
    except ValueError as error:
        log.error("a region's position cannot be read", region=region, job=job, error=str(error))
        return None


def with_newest(origin: ChangelogOrigin, records: Mapping[TopicPartition, Iterable[Any]]) -> ChangelogOrigin:
    """The origin with the time of the newest record of each partition, which is none that is yet to come."""
    newest, at_ms = dict(origin.newest_ms), now_ms()
    for at, read in records.items():
        times = [newest.get(at.partition, 0), *(record.timestamp for record in read)]
        newest[at.partition] = min(max(times), at_ms)
    return msgspec.structs.replace(origin, newest_ms=newest)
