"""aiokafka's consumers decode with bounds, too: Faust's own, and those of the tools.

aiokafka decompresses a batch without bound (8 kB became 798 MB), makes objects of however many headers a
record has, and hands on all of a response at once. `install` gives its fetcher our own decoder
(`app.kafka.fetch.decoder`).

Rules
1. Of one response no more than `RESPONSE_COST_BYTES` of objects are handed on, but one record at least; the
   rest is fetched again.
2. What cannot be decoded, or is beyond a bound, is passed over, so that what follows comes. It is logged with
   its offsets, once a batch.
3. A batch of more than `MAX_BATCH_RECORDS` is passed over as well: records before a position are read again.
4. A checksum that does not match is an error, as with aiokafka's own.
5. What was passed over lately is remembered (`was_passed_over`): who knows that there was a record at each
   offset does not take that for compaction.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import structlog
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException

from app.kafka.fetch.decoder import CHUNK_RECORDS, BeyondBounds, OpenBatch
from app.kafka.records import legacy_format
from app.kafka.records.batch import CHECKED_FROM, MAGIC, CorruptBatch, RecordBatch, iter_batches
from app.kafka.records.checksum import crc32c
from app.kafka.records.record import Record
from app.kafka.records.scan import MAX_BATCH_RECORDS

log = structlog.get_logger(__name__)

SPANS_REMEMBERED = 100  # of a partition
RESPONSE_COST_BYTES = 32 * 1024 * 1024  # many times what a response brings where nobody means harm


_passed_over = defaultdict[Any, deque[tuple[int, int]]](lambda: deque(maxlen=SPANS_REMEMBERED))


def was_passed_over(topic: str, partition: int, start: int, end: int) -> bool:
    """Whether all offsets of [start, end) lie in spans of which a consumer of this process could not read
    all records lately."""
    at = start
    for begin, upto in sorted(_passed_over.get((topic, partition), ())):
        if begin <= at < upto:
            at = upto
    return at >= end


class OldRecord(NamedTuple):
    """A record of format 0 or 1, as aiokafka wants it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int | None = None
    checksum: int | None = None


class BoundedRecords:
    """The batches of a response, in the place of aiokafka's `MemoryRecords`.

    Attributes:
        place: topic and partition, for the log. start_offset: nothing below it is wanted.
        cost_bytes: of what was handed on, as objects.
    """

    def __init__(self, data: bytes) -> None:
        self.place: Any = None
        self.start_offset = self.cost_bytes = 0
        self._size_bytes = len(data)
        self._batches = iter_batches(data)
        self._next: RecordBatch | CorruptBatch | None = None
        self._advance()

    def size_in_bytes(self) -> int:
        return self._size_bytes

    def has_next(self) -> bool:
        return self._next is not None and self.cost_bytes < RESPONSE_COST_BYTES

    def next_batch(self) -> BoundedBatch | None:
        """Raises: CorruptRecordException: what follows is no batch."""
        batch = self._next
        if isinstance(batch, CorruptBatch):
            raise CorruptRecordException(f"{self.place}: {batch}") from batch
        self._advance()
        return None if batch is None else BoundedBatch(self, batch)

    def _advance(self) -> None:
        try:
            self._next = next(self._batches, None)
        except CorruptBatch as error:  # the reader's to be told, not the fetcher's
            self._next = error


class BoundedBatch:
    """One of them, in the place of aiokafka's. Iterated once."""

    def __init__(self, response: BoundedRecords, batch: RecordBatch) -> None:
        header = batch.header
        self.base_offset, self.next_offset = header.base_offset, header.next_offset
        self.producer_id = header.producer_id if header.magic == MAGIC else None
        self.is_control_batch = header.magic == MAGIC and header.is_control
        self.is_transactional = header.magic == MAGIC and header.is_transactional
        self._response = response
        self._batch = batch
        self._records = self._read()

    def validate_crc(self) -> bool:
        header, data = self._batch.header, self._batch.data
        if header.magic == MAGIC:
            return crc32c(data[CHECKED_FROM:]) == header.crc & 0xFFFFFFFF
        at, sound = 0, True
        while at < len(data):
            end = at + legacy_format.LOG_OVERHEAD_BYTES + legacy_format.HEAD.unpack_from(data, at)[1]
            sound, at = sound and legacy_format.is_sound(data[at:end]), end
        return sound

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._records)

    def _read(self) -> Iterator[Any]:
        response, opened, end = self._response, OpenBatch(self._batch), self.next_offset
        at, unread, why = max(response.start_offset, self.base_offset), 0, ""
        while True:
            try:
                if opened.left > MAX_BATCH_RECORDS:
                    raise ValueError(
                        f"{opened.left} records; at most {MAX_BATCH_RECORDS} are read of a batch"
                    )
                records = [one for one in opened.take(CHUNK_RECORDS) if one.offset >= response.start_offset]
            except BeyondBounds as error:
                records = []
                if error.offset >= response.start_offset:
                    unread, why, at = unread + 1, str(error), error.offset + 1
            except Exception as error:  # noqa: BLE001 - decoders raise what they like; it is passed over (rule 2)
                self._log_unreadable(at, end, end - at, f"{type(error).__name__}: {error}")
                return
            for record in records:
                yield _as_aiokafka_has_it(record)
            if records:
                response.cost_bytes += opened.cost_bytes
                at = records[-1].offset + 1
            if not opened.left or response.cost_bytes >= RESPONSE_COST_BYTES:
                break
        if opened.left:
            self.next_offset = at  # rule 1
        if unread:
            self._log_unreadable(self.base_offset, at, unread, why)

    def _log_unreadable(self, start: int, end: int, count: int, why: str) -> None:
        if self._response.place is not None:
            _passed_over[tuple(self._response.place)].append((start, end))
        log.error(
            "records cannot be read and are passed over",
            topic=getattr(self._response.place, "topic", ""),
            partition=getattr(self._response.place, "partition", -1),
            start=start,
            end=end,
            records=count,
            why=why,
        )


def _as_aiokafka_has_it(record: Record) -> Any:
    if hasattr(record, "timestamp_type"):
        return record
    return OldRecord(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))


class BoundedPartition(fetcher.PartitionRecords):
    """aiokafka's own, whose response knows where it is wanted from."""

    def __init__(self, tp: Any, records: BoundedRecords, aborted: Any, fetch_offset: int, *more: Any) -> None:
        records.place, records.start_offset = tp, fetch_offset
        super().__init__(tp, records, aborted, fetch_offset, *more)  # type: ignore[no-untyped-call]


def install() -> None:
    """All consumers that this process makes have these bounds."""
    module: Any = fetcher
    module.MemoryRecords = BoundedRecords
    module.PartitionRecords = BoundedPartition
