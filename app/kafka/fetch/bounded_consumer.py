"""Limits for aiokafka's consumers, of Faust and of the tools: `install` gives them our decoder.

aiokafka decompresses without limit (8 kB became 798 MB) and makes objects of any number of headers. It
hands over a whole response at once, up to a million records, and never yields to the event loop while it
has records. So its fetcher uses `app.kafka.fetch.decoder` instead.

Rules (tests/kafka/fetch/test_bounded_consumer.py)
1. A reader gets at most `TAKEN_RECORDS` records at once, and no more after `TAKEN_COST_BYTES` of objects.
   The batch stays open, so nothing is decoded or fetched twice. A reader that finds records buffered waits
   for its turn (`app.kafka.fetch.reader_turns`).
2. Records that cannot be decoded, or are beyond a limit, are skipped so that later ones arrive. Each batch
   logs its skipped offsets once.
3. A batch of more than `MAX_BATCH_RECORDS` is skipped too, because reading from a position decodes the
   records before it.
4. A wrong checksum is an error, as in aiokafka.
5. Recently skipped spans are remembered (`was_passed_over`), so that a caller can tell them from compaction.
6. All open batches together keep `KEPT_BYTES` decompressed. Beyond that, the least recently read batch is
   dropped and later decompressed again.
7. Records before the position are skipped in the portions of rule 1.
8. Records that a `check_by` function refuses are skipped and remembered too, without a log line.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import structlog
from aiokafka.consumer import consumer, fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.structs import TopicPartition

from app.kafka.fetch.decoder import BeyondBounds, OpenBatch
from app.kafka.fetch.decompression import MAX_DECOMPRESSED_BYTES
from app.kafka.fetch.reader_turns import ReaderTurns
from app.kafka.records.batch import MAX_BATCH_RECORDS, CorruptBatch, RecordBatch, is_sound, iter_batches
from app.kafka.records.checksum import crc32c
from app.kafka.records.record import PlacedRecord, Record

log = structlog.get_logger(__name__)

SPANS_REMEMBERED = 100  # per partition
Fetched = dict[Any, list[PlacedRecord]]  # by aiokafka's or Faust's named tuple of topic and partition
READERS = 5  # most readers of a partition in this process
TAKEN_RECORDS = 500  # a reader that does little with each takes some milliseconds
TAKEN_COST_BYTES = 1024 * 1024
KEPT_BYTES = 2 * MAX_DECOMPRESSED_BYTES


_passed_over = defaultdict[tuple[str, int], deque[tuple[int, int]]](lambda: deque(maxlen=SPANS_REMEMBERED))


def _remember(place: TopicPartition | None, start: int, end: int) -> None:
    """Remembers a skipped span (rule 5), if the place is known."""
    if place is None:
        return
    spans = _passed_over[place]
    for at in range(len(spans) - 1, max(-1, len(spans) - READERS), -1):  # several readers add spans
        begin, until = spans[at]
        if begin <= start <= until:
            spans[at] = begin, max(end, until)
            return
    spans.append((start, end))


def was_passed_over(topic: str, partition: int, start: int, end: int) -> bool:
    """Whether consumers of this process recently skipped records in spans that cover all of [start, end)."""
    at = start
    for begin, until in sorted(_passed_over.get((topic, partition), ())):
        if begin <= at < until:
            at = until
    return at >= end


class KeptBatches:
    """The open batches of all consumers of this process, in any thread (rule 6)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = WeakKeyDictionary[OpenBatch, int]()  # the last read batch is last

    def keep(self, batch: OpenBatch) -> None:
        """Registers a batch that was read and has records left."""
        with self._lock:
            self._bytes.pop(batch, None)
            self._bytes[batch] = batch.kept_bytes
            former = list(self._bytes.items())[:-1]
            kept_bytes = batch.kept_bytes + sum(size for _, size in former)
            for oldest, size in former:
                if kept_bytes <= KEPT_BYTES:
                    return
                oldest.drop()
                del self._bytes[oldest]
                kept_bytes -= size

    def forget(self, batch: OpenBatch) -> None:
        """Drops a batch that is read to its end."""
        batch.drop()
        with self._lock:
            self._bytes.pop(batch, None)


_kept = KeptBatches()


class BoundedRecords:
    """The batches of a response; replaces aiokafka's `MemoryRecords`.

    Attributes:
        place: Topic and partition, for the log.
        start_offset: The position; records below it are skipped.
        cost_bytes: About the memory of all objects decoded so far.
    """

    def __init__(self, data: bytes) -> None:
        self.place: TopicPartition | None = None
        self.start_offset = self.cost_bytes = 0
        self._size_bytes = len(data)
        self._first: BoundedBatch | None = None
        self._batches = iter_batches(data)
        self._next: RecordBatch | CorruptBatch | None = None
        self._advance()

    def size_in_bytes(self) -> int:
        return self._size_bytes

    def has_next(self) -> bool:
        return self._next is not None

    def next_batch(self) -> BoundedBatch | None:
        """Raises CorruptRecordException: the next bytes are no batch."""
        batch = self._next
        if isinstance(batch, CorruptBatch):
            raise CorruptRecordException(f"{self.place}: {batch}") from batch
        self._advance()
        if batch is None:
            return None
        first, self._first = self._first, None
        return first or BoundedBatch(self, batch)

    def passes_over(self) -> bool:
        """Skips some records before the position, before the first batch is taken; whether more may
        follow."""
        batch = self._next
        if self._first is None:
            if not isinstance(batch, RecordBatch) or batch.header.base_offset >= self.start_offset:
                return False
            self._first = BoundedBatch(self, batch)
            if not self._first.validate_crc():  # `next_batch`'s caller reports it
                return False
        return self._first.passes_over()

    def _advance(self) -> None:
        try:
            self._next = next(self._batches, None)
        except CorruptBatch as error:  # raised to the reader, not to the fetcher
            self._next = error


class BoundedBatch:
    """A batch of a response; replaces aiokafka's. It can be iterated once."""

    def __init__(self, response: BoundedRecords, batch: RecordBatch) -> None:
        header = batch.header
        self.base_offset, self.next_offset = header.base_offset, header.next_offset
        self.producer_id = header.producer_id
        self.is_control_batch = header.is_control
        self.is_transactional = header.is_transactional
        self._response = response
        self._batch = batch
        self._records = self._read()
        self._seen: Record | None = None  # the next record, if `passes_over` has already read it

    def validate_crc(self) -> bool:
        return is_sound(self._batch, crc32c)

    def __iter__(self) -> Iterator[Record]:
        return self

    def __next__(self) -> Record:
        record, self._seen = self._seen, None
        while record is None:
            record = next(self._records)
        return record

    def passes_over(self) -> bool:
        """Skips some records before the position; whether more may follow."""
        if self._seen is None:
            try:
                self._seen = next(self._records)
            except StopIteration:
                return False
        return self._seen is None

    def _read(self) -> Iterator[Record | None]:
        """The records; None after a portion that lies before the position."""
        response, opened, end = self._response, OpenBatch(self._batch), self.next_offset
        at, unread, why = max(response.start_offset, self.base_offset), 0, ""
        while True:
            records: list[Record] = []
            try:
                if opened.left > MAX_BATCH_RECORDS:
                    raise ValueError(
                        f"the batch has {opened.left} records; at most {MAX_BATCH_RECORDS} are read"
                    )
                found = opened.take(TAKEN_RECORDS, TAKEN_COST_BYTES)
                records = [record for record in found if record.offset >= response.start_offset]
            except BeyondBounds as error:
                if error.offset >= response.start_offset:
                    unread, why, at = unread + 1, str(error), error.offset + 1
                    _remember(response.place, self.base_offset, at)  # before later records are handed over
            except Exception as error:  # noqa: BLE001 - decoders raise any error; rule 2
                _kept.forget(opened)
                self._log_unreadable(at, end, end - at, f"{type(error).__name__}: {error}")
                return
            if opened.left:
                _kept.keep(opened)
            else:
                _kept.forget(opened)
            response.cost_bytes += opened.cost_bytes
            yield from records
            if records:
                at = records[-1].offset + 1
            if not opened.left:
                break
            if not records:
                yield None
        if unread:
            self._log_unreadable(self.base_offset, at, unread, why)

    def _log_unreadable(self, start: int, end: int, count: int, why: str) -> None:
        _remember(self._response.place, start, end)
        log.error(
            "records cannot be read and are skipped",
            topic=getattr(self._response.place, "topic", ""),
            partition=getattr(self._response.place, "partition", -1),
            start=start,
            end=end,
            records=count,
            why=why,
        )


class BoundedPartition(fetcher.PartitionRecords):
    """aiokafka's class, whose response knows its partition and position."""

    def __init__(
        self, tp: TopicPartition, records: BoundedRecords, aborted: object, fetch_offset: int, *more: object
    ) -> None:
        records.place, records.start_offset = tp, fetch_offset
        self.response = records
        super().__init__(tp, records, aborted, fetch_offset, *more)  # type: ignore[no-untyped-call]


class BoundedResult(fetcher.FetchResult):
    """aiokafka's class with the limits of rule 1. `waits`: records are left although none were returned
    (rules 7 and 8)."""

    waits = False
    checks: ClassVar[list[Callable[[PlacedRecord], bool]]] = []

    def getall(self, max_records: int | None = None) -> list[PlacedRecord]:
        """The next records. Raises the errors of reading them."""
        part = self._partition_records
        if not self.check_assignment(self._topic_partition) or part is None:  # type: ignore[no-untyped-call]
            return []
        self.waits = part.response.passes_over()
        if self.waits:
            return []
        most = TAKEN_RECORDS if max_records is None else min(max_records, TAKEN_RECORDS)
        most_cost_bytes = part.response.cost_bytes + TAKEN_COST_BYTES
        found: list[PlacedRecord] = []
        for record in part:
            found.append(record)
            if len(found) >= most or part.response.cost_bytes > most_cost_bytes:
                self._update_position()  # type: ignore[no-untyped-call]
                break
        else:
            self._update_position()  # type: ignore[no-untyped-call]
            self._partition_records = None
        return self._counted(found) if self.checks else found

    def _counted(self, found: list[PlacedRecord]) -> list[PlacedRecord]:
        """Removes refused records (rule 8)."""
        counted = []
        for record in found:
            if any(refuses(record) for refuses in self.checks):
                _remember(self._topic_partition, record.offset, record.offset + 1)
            else:
                counted.append(record)
        self.waits = bool(found) and not counted
        return counted


class BoundedFetcher(fetcher.Fetcher):
    """aiokafka's class, whose reader takes turns with other readers (rule 1)."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self.turns = ReaderTurns()

    async def fetched_records(
        self, partitions: Collection[tuple[str, int]], timeout: float = 0, max_records: int | None = None
    ) -> Fetched:
        """The next records of these partitions, or of all if there are none named. Raises KafkaError."""
        while not self._closed:
            await self.wait_for_turn()
            if found := await self.take(partitions, max_records):
                return found
            if not self.passes_over(partitions):
                return await self.take(partitions, max_records, timeout) if timeout else {}
        return {}

    async def wait_for_turn(self) -> None:
        if self._records:
            await self.turns.wait()

    async def take(
        self, partitions: Collection[tuple[str, int]] | None, max_records: int | None, timeout: float = 0
    ) -> Fetched:
        """The buffered records; waits up to `timeout` seconds for some. Raises KafkaError."""
        most = TAKEN_RECORDS if max_records is None else min(max_records, TAKEN_RECORDS)
        self.turns.begin()  # decoding counts as part of the turn
        found: Fetched = await super().fetched_records(partitions, timeout, most)  # type: ignore[no-untyped-call]
        for part in found:
            if part in self._records:  # after the other partitions with records
                self._records[part] = self._records.pop(part)
        if timeout:
            self.turns.begin()  # waiting does not count
        return found

    def passes_over(self, partitions: Collection[tuple[str, int]]) -> bool:
        """Whether records of these partitions, or of any if there are none named, wait although the last
        `take` returned none (rules 7 and 8)."""
        return any(
            isinstance(result, BoundedResult) and result.waits
            for part, result in self._records.items()
            if not partitions or part in partitions
        )


def check_by(refuses: Callable[[PlacedRecord], bool]) -> None:
    """Makes all readers of this process skip records for which `refuses` is true; it runs in their
    threads."""
    BoundedResult.checks[:] = [refuses]


def install() -> None:
    """Gives all future consumers of this process these limits."""
    module: Any = fetcher
    module.MemoryRecords = BoundedRecords
    module.PartitionRecords = BoundedPartition
    module.FetchResult = BoundedResult
    user: Any = consumer
    user.Fetcher = BoundedFetcher
