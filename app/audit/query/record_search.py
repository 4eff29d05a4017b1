"""A topic's records of a time, by the event time of its audit plan: found by the time index, and read.

    index, broker --parts_of--> [start, end) of each partition --RangeReader--> records of that time

Rules
1. All returned records are of that time: the reader checks each record's event time.
2. If the event time is the record's timestamp, the broker says where a part begins; else the audit's index
   does. The index says where it ends, if it expects only late records of that time. Without the index a part
   ends at the log's end, and begins at its start unless the broker says where. So only records that come late
   during the reading are left out.
3. The reading is bounded by records, bytes and time. `why` says which bound ended it, and `positions` where.
4. Records that retention has deleted are read from the cluster's archive, if it has one. Below the log's
   start the archive is read, from there on the log, even if the start moves meanwhile. So each record is read
   once. Records that neither has are counted as lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from app.audit.query.time_index import TimeIndex
from app.kafka.client.cluster import EARLIEST, LATEST, READ_COMMITTED, ClusterClient, ClusterUnreachable
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.fetch.offsets_at_time import offsets_at
from app.kafka.records.record import Record, size_of
from app.kernel.ranges import Range, Ranges, outside
from switchyard.audit.model.spans import NO_SPAN

CHUNK_RECORDS = 500
FETCH_BYTES = 1024 * 1024
WAIT_MS = 200
READ_STALL_TIMEOUT_S = 10.0  # without records from the broker, before the log's end

BoundSource = Literal["audit", "timestamps", "log"]
TimeOf = Callable[[Record], int]


class EventTimeRange(NamedTuple):
    """Event times [from_ms, before_ms)."""

    from_ms: int
    before_ms: int


class SearchLimits(NamedTuple):
    """Bounds of one reading."""

    records: int
    nbytes: int
    seconds: float


class FoundRecord(NamedTuple):
    """A record, and its event time."""

    partition: int
    time_ms: int
    record: Record


class ArchivedTopic(Protocol):
    """An archived topic. `spans`: partition -> the offsets that the archive has."""

    @property
    def spans(self) -> Mapping[int, Ranges]: ...

    def read(self, partition: int, span: Range, timestamps: Range | None) -> AsyncIterator[Sequence[Record]]:
        """Yields the records of these offsets, by offset, some at a time. It may leave out records with other
        `timestamps`."""
        ...


class SearchRange(NamedTuple):
    """The offsets [start, end) of a partition that may have records of the time; `by` is the source of the
    bounds. `gone`: such offsets that the log has deleted, if they are known. `archived`: those of them in the
    archive."""

    partition: int
    start: int
    end: int
    by: BoundSource
    gone: Range = NO_SPAN
    archived: Ranges = ()

    @property
    def lost(self) -> int:
        """The number of gone offsets that the archive does not have."""
        return self.gone[1] - self.gone[0] - sum(end - start for start, end in self.archived)


async def parts_of(
    client: ClusterClient,
    topic: str,
    times: EventTimeRange,
    index: TimeIndex | None,
    *,
    by_timestamp: bool,
    archive: ArchivedTopic | None = None,
) -> list[SearchRange]:
    """The parts to read (rules 2 and 4). `by_timestamp`: the event time is the record's timestamp. Raises
    LookupError: there is no such topic; ClusterUnreachable, KafkaError: a leader does not answer."""
    count = await client.partitions(topic)
    if count is None:
        raise LookupError(f"there is no topic {topic} in {client.name}")
    wanted = [(topic, partition) for partition in range(count)]
    starts = await client.offsets(wanted, EARLIEST)
    firsts = await offsets_at(client, wanted, times.from_ms) if by_timestamp else {}
    ends = await client.offsets(wanted, LATEST, READ_COMMITTED)
    found = []
    for at in wanted:
        if at not in starts or at not in ends or (by_timestamp and at not in firsts):
            raise ClusterUnreachable(f"{client.name}: the leader of {topic}-{at[1]} does not answer")
        log = starts[at], max(starts[at], ends[at])
        part = _part(at[1], log, firsts.get(at), times, index)
        spans = () if archive is None else archive.spans.get(at[1], ())
        found.append(_with_archive(part, log[0], spans, is_known=_is_known(index, at[1], times)))
    return found


def _with_archive(part: SearchRange, log_start: int, spans: Ranges, *, is_known: bool) -> SearchRange:
    """The part with its archived offsets. Without the index (`is_known`), all offsets from the archive's
    first one to the log's start may be of the time."""
    gone = part.gone
    if not is_known and spans and spans[0][0] < log_start:
        gone = spans[0][0], log_start
    return part._replace(gone=gone, archived=tuple(_within(spans, gone)))


def _is_known(index: TimeIndex | None, partition: int, times: EventTimeRange) -> bool:
    return index is not None and index.knows(partition, times.from_ms)


def _within(ranges: Iterable[Range], span: Range) -> list[Range]:
    """The parts of the normal `ranges` that are in the span."""
    return outside(outside(ranges, *span), *span)


def _part(
    partition: int, log: Range, first: int | None, times: EventTimeRange, index: TimeIndex | None
) -> SearchRange:
    start, end = log
    if first is not None:
        start = end if first < 0 else min(first, end)
    if index is None or not _is_known(index, partition, times):
        return SearchRange(partition, start, end, "log" if first is None else "timestamps")
    by: BoundSource = "audit" if first is None else "timestamps"
    span = index.between(partition, *times)
    if first is None:
        start = max(log[0], index.end(partition) if span == NO_SPAN else span[0])
    if index.marks_ms.get(partition, -1) >= times.before_ms:
        by, end = "audit", min(end, span[1])
    gone = (span[0], min(span[1], log[0])) if span[0] < min(span[1], log[0]) else NO_SPAN
    return SearchRange(partition, start, max(start, end), by, gone)


class RangeReader:
    """Reads the parts.

    Attributes:
        positions: Partition -> the offset below which everything was read.
        lost: Offsets that may have been of the time, and are neither in the log nor in the archive.
        records, nbytes: Read.
        found: Records of the time.
        why: The bound that ended the reading; "": everything was read.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        parts: Sequence[SearchRange],
        times: EventTimeRange,
        time_of: TimeOf,
        limits: SearchLimits,
        archive: ArchivedTopic | None = None,
        *,
        by_timestamp: bool = False,
    ) -> None:
        self.positions = {
            part.partition: part.archived[0][0] if part.archived else part.start for part in parts
        }
        self.lost = sum(part.lost for part in parts)
        self.records = self.nbytes = self.found = 0
        self.why: Literal["", "records", "bytes", "time"] = ""
        self._client = client
        self._topic = topic
        self._parts = {part.partition: part for part in parts if part.start < part.end}
        self._archived = [part for part in parts if part.archived]
        self._skipped: list[tuple[int, Range]] = []
        self._timestamps = (times.from_ms, times.before_ms) if by_timestamp else None
        self._times = times
        self._time_of = time_of
        self._limits = limits
        self._archive = archive
        self._began_s = self._moved_s = time.monotonic()

    async def pieces(self) -> AsyncIterator[list[FoundRecord]]:
        """Yields the records, by offset in each partition; archived ones come first. Raises KafkaError,
        OSError; TimeoutError: the broker returned nothing for `READ_STALL_TIMEOUT_S`."""
        for part in self._archived:
            for span in part.archived:
                async for piece in self._read_archive(part.partition, span):
                    yield piece
                if self._is_enough():
                    return
            self.positions[part.partition] = part.start
        if self._parts:
            async for piece in self._read_log():
                yield piece

    async def _read_archive(self, partition: int, span: Range) -> AsyncIterator[list[FoundRecord]]:
        assert self._archive is not None, "only an archive has archived spans"
        async for records in self._archive.read(partition, span, self._timestamps):
            found = self._select(partition, span[1], records)
            self.positions[partition] = records[-1].offset + 1
            yield self._limit(found)
            if self._is_enough():
                return

    async def _read_log(self) -> AsyncIterator[list[FoundRecord]]:
        consumer = AIOKafkaConsumer(
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=FETCH_BYTES,
            **self._client.spec.aiokafka_options(),
        )
        await consumer.start()
        await asyncio.sleep(0)  # its tasks begin; stopping it before would cancel this task
        try:
            left = {TopicPartition(self._topic, partition): part for partition, part in self._parts.items()}
            consumer.assign(list(left))
            for at, part in left.items():
                consumer.seek(at, part.start)
            self._moved_s = time.monotonic()
            while left and not self._is_enough():
                found = await self._fetch(consumer, left)
                async for piece in self._read_skipped():
                    yield piece
                if found:
                    yield found
        finally:
            await stop_consumer(consumer)

    async def _fetch(
        self, consumer: AIOKafkaConsumer, left: dict[TopicPartition, SearchRange]
    ) -> list[FoundRecord]:
        """Reads on, and removes finished partitions from `left`."""
        try:
            fetched = await consumer.getmany(*left, timeout_ms=WAIT_MS, max_records=CHUNK_RECORDS)
        except OffsetOutOfRangeError:  # retention deleted the offset
            begins = await consumer.beginning_offsets(list(left))
            for at, part in left.items():
                position = self.positions[at.partition]
                if position < begins[at]:
                    self._skipped.append((at.partition, (position, min(begins[at], part.end))))
                    self.positions[at.partition] = begins[at]
                consumer.seek(at, self.positions[at.partition])
            fetched = {}
        moved, found = False, list[FoundRecord]()
        for at, part in list(left.items()):
            records: Sequence[Record] = fetched.get(at, ())
            found += self._select(part.partition, part.end, records)
            position = records[-1].offset + 1 if records else await consumer.position(at)
            moved = moved or position > self.positions[at.partition]
            self.positions[at.partition] = min(part.end, max(self.positions[at.partition], position))
            if self.positions[at.partition] >= part.end:
                del left[at]
                consumer.pause(at)
        now_s = time.monotonic()
        if moved or not left:
            self._moved_s = now_s
        elif now_s - self._moved_s > READ_STALL_TIMEOUT_S:
            raise TimeoutError(f"{self._client.name} returns no records of {self._topic}")
        return self._limit(found)

    async def _read_skipped(self) -> AsyncIterator[list[FoundRecord]]:
        """Reads offsets from the archive that the log deleted during the reading. If a bound ends that, the
        position goes back to the first unread offset."""
        for partition, span in self._skipped:
            for archived in self._archived_ranges(partition, span):
                if not self._is_enough():
                    async for piece in self._read_archive(partition, archived):
                        yield piece
            if not self._is_enough():
                self.positions[partition], self._moved_s = span[1], time.monotonic()
            elif self.positions[partition] >= span[1]:
                self.positions[partition] = span[0]
        self._skipped.clear()

    def _archived_ranges(self, partition: int, span: Range) -> list[Range]:
        """The archived part of offsets that the log deleted during the reading; the rest is lost."""
        spans = () if self._archive is None else self._archive.spans.get(partition, ())
        found = _within(spans, span)
        self.lost += span[1] - span[0] - sum(end - start for start, end in found)
        return found

    def _select(self, partition: int, end: int, records: Sequence[Record]) -> list[FoundRecord]:
        found = []
        for record in records:
            if record.offset >= end:
                break
            self.records += 1
            self.nbytes += size_of(record)
            time_ms = self._time_of(record)
            if self._times.from_ms <= time_ms < self._times.before_ms:
                found.append(FoundRecord(partition, time_ms, record))
        return found

    def _limit(self, found: list[FoundRecord]) -> list[FoundRecord]:
        """As many of the found records as the bound allows."""
        wanted = found[: self._limits.records - self.found]
        self.found += len(wanted)
        for partition, _, record in reversed(found[len(wanted) :]):
            self.why = "records"
            self.positions[partition] = min(self.positions[partition], record.offset)
        return wanted

    def _is_enough(self) -> bool:
        if not self.why:
            if self.found >= self._limits.records:
                self.why = "records"
            elif self.nbytes >= self._limits.nbytes:
                self.why = "bytes"
            elif time.monotonic() - self._began_s >= self._limits.seconds:
                self.why = "time"
        return bool(self.why)
