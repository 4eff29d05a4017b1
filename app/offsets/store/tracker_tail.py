"""The tail of another region's tracker topic in the store, folded on top of its table's copy.

    switchyard-west-trackers-changelog ─copied─▶ TRACKERS ─┬─▶ `positions`
    switchyard-west-trackers           ─copied─▶ ENDS ─────┘

A table's writer may be tens of seconds late on a busy machine, the topic is not. So the topic's newer
events are folded here (`app.worker.tracker.fold`, rule 6). The folded records are stored by job with the
next offset, so a restarted worker continues there.

Rules
1. A tail begins `MARGIN_MS` before the newest record of the table's copy, by that record's timestamp, but at
   most `MAX_EVENTS` before the topic's end. The copy covers older events. The tail begins again when more
   than `MAX_EVENTS` have come since the last reading. The copy is read first: with one that is hours old, the
   tail would begin at that limit, too late to be joined with the table of a lost region.
2. A partition's tail is joined with its table once the copy is `MARGIN_MS` past the time from which the
   tail has all events. The margin covers clock differences and the writer's delay, because its records
   cover all events that it has folded. Each query checks this. Records folded before that are kept
   separately, by partition and job, and count from then on.
3. A region whose topic is not copied here (an older version) has no tail, only its table's copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.controllog import codec
from app.dispatch.definition import DISPATCH_JOBS
from app.kafka.client.unreadable_records import UnreadableRecords
from app.kernel.clock import now_ms
from app.kernel.fencing import TrackerRecord
from app.kernel.job import JobId
from app.offsets.store.records import ENDS, TRACKERS, ChangelogOrigin, ReadRecords, RegionStore
from app.worker.tracker.fold import CopyFold, RemoteJobRecord, together

log = structlog.get_logger(__name__)

MARGIN_MS = 60_000
MAX_EVENTS = 10_000  # in a partition's tail, when it begins
EARLY = "early"  # key prefix in `ENDS` of records before the join (rule 2); no job begins with it


def continues(
    origin: ChangelogOrigin,
    fresh: ChangelogOrigin,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> bool:
    """Whether the present log continues the stored offsets of a table or a tail."""
    if (origin.cluster, origin.topic_id) != (fresh.cluster, fresh.topic_id):
        return False
    return all(starts[at] <= origin.next_offsets.get(at.partition, starts[at]) <= ends[at] for at in ends)


def is_far_behind(origin: ChangelogOrigin, ends: Mapping[TopicPartition, int]) -> bool:
    """Whether a tail has to begin again, because more than `MAX_EVENTS` have come since it was read."""
    return any(end - origin.next_offsets.get(at.partition, end) > MAX_EVENTS for at, end in ends.items())


async def tail_beginning(
    fresh: ChangelogOrigin,
    consumer: AIOKafkaConsumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    table: ChangelogOrigin | None,
) -> ChangelogOrigin:
    """The `fresh` origin with a tail's first offsets, and the times from which it has all events. `table`:
    the origin of the table's copy, read to its end (rule 1). Raises KafkaError."""
    newest_ms = {} if table is None else table.newest_ms
    wanted = {at: newest_ms[at.partition] - MARGIN_MS for at in ends if at.partition in newest_ms}
    found = await consumer.offsets_for_times(wanted) if wanted else {}
    at_ms = now_ms()
    nexts: dict[int, int] = {}
    since: dict[int, int] = {}
    for at, end in ends.items():
        start, since_ms = starts[at], at_ms
        if at in wanted and (later := found.get(at)) is not None:
            # Events before the log's first one are not known.
            start = later.offset
            since_ms = wanted[at] if later.offset > starts[at] else later.timestamp
        elif at in wanted and end > starts[at]:
            start, since_ms = end, wanted[at]
        if start < end - MAX_EVENTS:
            start, since_ms = end - MAX_EVENTS, at_ms
        nexts[at.partition], since[at.partition] = start, since_ms
    return msgspec.structs.replace(fresh, next_offsets=nexts, since_ms=since)


def fold_tail(
    store: RegionStore,
    region: str,
    records: ReadRecords,
    origin: ChangelogOrigin,
) -> None:
    """Folds events into the store; `origin`: the next offsets behind them. Blocking."""
    table = store.origin(TRACKERS, region)
    changed: dict[bytes, bytes | None] = {}
    for at, read in records.items():
        early = f"{EARLY}/{at.partition}/"
        known, joined = partial(_remote_record, store, region, early), _is_joined(at.partition, table, origin)
        fold = CopyFold(DISPATCH_JOBS, known, joined=joined)
        unreadable = UnreadableRecords(
            "unreadable events of a region's tracker topic are skipped", region=region, partition=at.partition
        )
        for record in read:
            try:
                fold.apply(codec.tracker_event(record.value), record.offset)
            except codec.BadEvent as error:
                unreadable.add(record.offset, error)
        unreadable.report()
        rows = fold.records() | {early + job: known for job, known in fold.early().items()}
        changed |= {key.encode(): codec.encode(known) for key, known in rows.items()}
    store.write(ENDS, region, changed, origin)


def _is_joined(partition: int, table: ChangelogOrigin | None, origin: ChangelogOrigin) -> bool:
    """Rule 2."""
    if table is None or partition not in table.newest_ms or partition not in origin.since_ms:
        return False
    return table.newest_ms[partition] >= origin.since_ms[partition] + MARGIN_MS


def _remote_record(store: RegionStore, region: str, early: str, job: str) -> RemoteJobRecord:
    keys = (TRACKERS, job), (ENDS, job), (ENDS, early + job)
    return RemoteJobRecord(*(_read(store.record(table, region, key), region, job) for table, key in keys))


def positions(store: RegionStore, region: str, prefix: str) -> dict[str, TrackerRecord]:
    """By job, the positions of a region's jobs with this name prefix, from table and tail. Blocking."""
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
        if (known := together(copied, joined=True)) is not None:  # `early` is empty before the join
            found[job] = known
    return found


def _records(
    store: RegionStore, region: str, table: str, before: str, prefix: str
) -> dict[str, TrackerRecord]:
    """The records by job; `before` precedes the job in their keys."""
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
        log.error("the position of a region's job cannot be read", region=region, job=job, error=str(error))
        return None


def with_newest(origin: ChangelogOrigin, records: ReadRecords) -> ChangelogOrigin:
    """The origin with the timestamp of each partition's newest record, at most the present time."""
    newest, at_ms = dict(origin.newest_ms), now_ms()
    for at, read in records.items():
        times = [newest.get(at.partition, 0), *(record.timestamp for record in read)]
        newest[at.partition] = min(max(times), at_ms)
    return msgspec.structs.replace(origin, newest_ms=newest)
