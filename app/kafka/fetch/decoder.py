"""Decodes raw fetched batches into records, a chunk at a time.

Checksums were checked on arrival (`app.kafka.records.batch.take`). A batch is decompressed only when its
first record is needed. `app.kafka.records.scan` cuts off as many records as may be objects at once, and
aiokafka's C decoder makes the objects. Formats 0 and 1 are undecodable. Records that read_committed hides,
compacted records and control batches are skipped: `next_offset` moves past them.

Brokers do not check the offsets within an uncompressed batch (Kafka's LogValidator). So a producer may
write offsets that repeat, fall, or lie beyond the log's end. A record counts only if its offset is above
the previous one and leaves an offset of the batch for each record after it. From the first other record
on, the batch is undecodable (tests/kafka/fetch/test_odd_batches.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain, islice
from operator import attrgetter, lt
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatch

from app.kafka.fetch.decompression import MAX_DECOMPRESSED_BYTES, TooLarge, unpacked
from app.kafka.records.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAX_BATCH_RECORDS,
    BatchHeader,
    CorruptBatch,
    ReadCommittedFilter,
    RecordBatch,
    iter_batches,
    seal,
    why_unreadable,
)
from app.kafka.records.checksum import crc32c
from app.kafka.records.decode_risks import MOST_OWNERS, DecodeRisks, DecodeVerdict
from app.kafka.records.record import Record
from app.kafka.records.scan import (
    COPY_LIMITS,
    HEADER_COST_BYTES,
    RECORD_COST_BYTES,
    SHORT_BYTES,
    RecordLimits,
    cut,
    cut_short,
    lowest_delta,
)
from app.kafka.records.verbatim_copy import may_have_own_offsets, renumbered

if TYPE_CHECKING:
    from app.kafka.fetch.deliveries import FetchedBatches

CHUNK_RECORDS = 1024  # decoded at once when a whole batch is read
CHUNK_BYTES = 1024 * 1024  # most memory of the objects of a chunk, unless one record alone takes more
WHOLE_BYTES = SHORT_BYTES  # smaller batches cannot pass a limit, so they are decoded without a scan
# a batch that decompresses to more is noted first (`app.kafka.records.decode_risks`)
RISKY_BYTES = 32 * 1024 * 1024
_INT, _LENGTH_AT, _COUNT_AT = struct.Struct(">i"), 8, 57
_HEADERS_OF, _OFFSET_OF = attrgetter("headers"), attrgetter("offset")
_ATTRIBUTES_LOW_AT, _CODEC = 22, 0x07


class UndecodableBatch(ValueError):
    """Offsets [start, end) that cannot be decoded; `raw` has the batch's bytes. If only single records of a
    batch are beyond a limit, [start, end) covers only those."""

    def __init__(self, start: int, end: int, raw: bytes, reason: str) -> None:
        super().__init__(f"offsets [{start}, {end}): {reason}")
        self.start = start
        self.end = end
        self.raw = raw


class BeyondBounds(ValueError):
    """The record at `offset` is beyond a limit (`app.kafka.records.scan`) and must not be decoded; later ones
    may. `raw` is a batch with only this record, or the whole original batch if that is smaller."""

    def __init__(self, offset: int, raw: bytes, reason: str) -> None:
        super().__init__(f"the record at {offset} has {reason}")
        self.offset = offset
        self.raw = raw


class UnbelievableOffset(ValueError):
    """The next record's offset is impossible (see the module)."""


class RiskyBatch(ValueError):
    """The batch decompresses to more than `RISKY_BYTES`."""


class OpenBatch:
    """The records of one batch, in order, a chunk at a time.

    `drop` may forget the decompressed bytes between two chunks; the next chunk decompresses the batch again.

    Attributes:
        left: Records not taken yet, by the batch's header.
        cost_bytes: About the memory of the last chunk's objects.
        is_trusted: Whether the batch may decompress to more than `RISKY_BYTES`.
    """

    __slots__ = (
        "__weakref__",
        "_at",
        "_fault",
        "_limits",
        "_next_offset",
        "_records",
        "_whole",
        "batch",
        "cost_bytes",
        "is_trusted",
        "left",
    )

    def __init__(
        self, batch: RecordBatch, *, is_trusted: bool = True, limits: RecordLimits = COPY_LIMITS
    ) -> None:
        self.batch = batch
        self._limits = limits
        self.is_trusted = is_trusted
        self.cost_bytes = 0
        self.left = max(0, batch.header.record_count)
        self._at = 0
        self._next_offset = batch.header.base_offset  # the lowest offset that the next record may have
        self._fault = ""  # of the next record
        self._records: bytes | memoryview | None = None
        self._whole: Iterator[Record] | None = None

    @property
    def kept_bytes(self) -> int:
        known = self._records
        return len(known) if isinstance(known, bytes) else 0

    def drop(self) -> None:
        self._records = None

    def take(self, most: int, most_bytes: int = CHUNK_BYTES) -> list[Record]:
        """The next records: at most `most`, and at least one while any are left.

        Raises:
            BeyondBounds: The next record is beyond a limit and was skipped.
            RiskyBatch: Nothing was taken. Set `is_trusted` to take the records anyway.
            ValueError, or any error of the decoder: The rest of the batch cannot be read.
        """
        if self._fault:
            raise UnbelievableOffset(self._fault)
        try:
            return self._believed(self._decoded(most, most_bytes))
        except BeyondBounds as error:
            self._fault = self._fault_of(error.offset, self.left)
            if self._fault:
                raise UnbelievableOffset(self._fault) from error
            self._next_offset = error.offset + 1
            raise

    def _believed(self, records: list[Record]) -> list[Record]:
        """The records before the first impossible offset. Raises UnbelievableOffset: there are none."""
        if not records:
            return records
        offsets = list(map(_OFFSET_OF, records))
        first, last = offsets[0], offsets[-1]
        rises = all(map(lt, offsets, islice(offsets, 1, None)))
        # If offsets rise, the last one leaves the least room for the records after it.
        if rises and self._next_offset <= first and last + self.left < self.batch.header.next_offset:
            self._next_offset = last + 1
            return records
        for index, record in enumerate(records):
            self._fault = self._fault_of(record.offset, self.left + len(records) - index - 1)
            if self._fault:
                if not index:
                    raise UnbelievableOffset(self._fault)
                self.left += len(records) - index
                return records[:index]
            self._next_offset = record.offset + 1
        return records

    def _fault_of(self, offset: int, left: int) -> str:
        """Why a record with `left` records after it cannot have this offset; "" if it can."""
        last = self.batch.header.next_offset - 1 - left
        if self._next_offset <= offset <= last:
            return ""
        return f"a record has offset {offset}; possible are {self._next_offset} to {last}"

    def _decoded(self, most: int, most_bytes: int) -> list[Record]:
        if self._whole is not None:
            return self._take_whole(self._whole, most)
        data = self._unpacked()
        if not self._at and len(data) <= WHOLE_BYTES:
            # aiokafka refuses to iterate a batch twice.
            self._whole = chain(DefaultRecordBatch(self._batch_of(data, self.left)))
            self._records = None
            return self._take_whole(self._whole, most)
        found = cut_short(data, self._at, self.left, most, most_bytes)
        if not found.records:
            found = cut(data, self._at, self.left, most, most_bytes, self._limits)
        start, self._at = self._at, found.end
        self.left -= found.records
        if not self.left and found.end != len(data):
            raise ValueError(f"{len(data) - found.end} bytes after the last record")
        if found.excess is not None:
            whole, offset = self.batch.data, self.batch.header.base_offset + found.excess.offset_delta
            is_small = HEADER_BYTES + found.end - start < len(whole)
            raw = self._batch_of(data[start : found.end], 1) if is_small else bytes(whole)
            raise BeyondBounds(offset, raw, found.excess.reason)
        if not found.records:
            self.cost_bytes = 0
            return []
        records: list[Record] = list(
            DefaultRecordBatch(self._batch_of(data[start : found.end], found.records))
        )
        if len(records) != found.records:
            raise ValueError(f"{len(records)} records were read instead of {found.records}")
        self.cost_bytes = found.cost_bytes or (
            found.end - start + len(records) * RECORD_COST_BYTES + _header_count(records) * HEADER_COST_BYTES
        )
        return records

    def _batch_of(self, records: bytes | memoryview, count: int) -> bytes:
        part = bytearray(self.batch.data[:HEADER_BYTES])
        part[_ATTRIBUTES_LOW_AT] &= ~_CODEC
        _INT.pack_into(part, _LENGTH_AT, HEADER_BYTES - LOG_OVERHEAD_BYTES + len(records))
        _INT.pack_into(part, _COUNT_AT, count)
        part += records
        seal(part, crc32c)
        return bytes(part)

    def _unpacked(self) -> bytes | memoryview:
        if (known := self._records) is not None:  # read once: another thread may drop it
            return known
        if why := why_unreadable(self.batch.header.magic):
            raise ValueError(why)
        codec, records = self.batch.header.compression, self.batch.data[HEADER_BYTES:]
        found: bytes | memoryview = records
        if codec:
            most_bytes = MAX_DECOMPRESSED_BYTES if self.is_trusted else RISKY_BYTES
            try:
                found = unpacked(codec, records, most_bytes)
            except TooLarge as error:
                if self.is_trusted:
                    raise
                raise RiskyBatch(str(error)) from error
        self._records = found
        return found

    def _take_whole(self, records: Iterator[Record], most: int) -> list[Record]:
        taken = list(islice(records, min(most, self.left)))
        if len(taken) < min(most, self.left):
            raise ValueError(f"{len(taken)} records were read instead of {self.left}")
        self.left -= len(taken)
        if not self.left:
            next(records, None)  # the decoder now checks for bytes after the last record
        headers = _header_count(taken) * HEADER_COST_BYTES
        self.cost_bytes = WHOLE_BYTES + len(taken) * RECORD_COST_BYTES + headers
        return taken


def _header_count(records: list[Record]) -> int:
    return sum(map(len, map(_HEADERS_OF, records)))


def records_of(batch: RecordBatch) -> Iterator[Record]:
    """All records of a batch with the broker's offsets (`verbatim_copy`, rule 4), decoded in chunks.
    Iterating raises the errors of `OpenBatch.take`."""
    given = 0
    try:
        for records in _chunks(batch):
            yield from records
            given += len(records)
    except UnbelievableOffset:
        if not may_have_own_offsets(batch.header):
            raise
        yield from islice(chain.from_iterable(_chunks(renumbered(batch, crc32c))), given, None)


def _chunks(batch: RecordBatch) -> Iterator[list[Record]]:
    opened = OpenBatch(batch)
    yield opened.take(CHUNK_RECORDS)
    while opened.left:
        yield opened.take(CHUNK_RECORDS)


def lowest_timestamp(batch: RecordBatch) -> int:
    """The lowest timestamp (ms) of a batch's records, which its header does not have. Raises ValueError:
    there are too many records or bytes, or they cannot be read."""
    header = batch.header
    if not 0 < header.record_count <= MAX_BATCH_RECORDS:
        raise ValueError(f"the batch has {header.record_count} records; at most {MAX_BATCH_RECORDS} are read")
    records = batch.data[HEADER_BYTES:]
    data = unpacked(header.compression, records) if header.compression else bytes(records)
    return header.first_timestamp_ms + lowest_delta(data, header.record_count)


class RecordReader:
    """Reads the records of one `FetchedBatches`, from the fetch position on.

    Args:
        wants: Gets the header of each batch with visible records. True decodes it, False skips it
            undecoded, None leaves it for a later call.
        risks: Decides about batches that may kill the worker; None: all are decoded.
        limits: The most headers that a record may have.

    Attributes:
        fetched: The response; the caller releases it when `exhausted`.
        next_offset: The next offset to read; skipped offsets are below it.
        exhausted: Whether the whole response has been read.
        held: The next batch, if `wants` returned None for it.
        cost_bytes: About the memory of the last records' objects.
        codec: Kafka's number of the last opened batch's compression.
        batch_at: The base offset of the last batch that was looked at; -1: none.
        is_waiting: Whether `risks` deferred the batch.
    """

    __slots__ = (
        "_batches",
        "_current",
        "_filter",
        "_limits",
        "_risks",
        "_wants",
        "batch_at",
        "codec",
        "cost_bytes",
        "exhausted",
        "fetched",
        "held",
        "is_waiting",
        "next_offset",
    )

    def __init__(
        self, fetched: FetchedBatches, wants: Callable[[BatchHeader], bool | None] | None = None,
        risks: DecodeRisks | None = None, limits: RecordLimits = COPY_LIMITS,
    ) -> None:  # fmt: skip
        self.fetched = fetched
        self._wants = wants
        self._risks = risks
        self._limits = limits
        self.is_waiting = False
        self.next_offset = fetched.start_offset
        self.exhausted = False
        self.held: RecordBatch | None = None
        self._batches: Iterator[RecordBatch] = iter_batches(fetched.data)
        self._filter = ReadCommittedFilter(fetched.aborted)
        self._current: OpenBatch | None = None
        self.cost_bytes = self.codec = 0
        self.batch_at = -1

    def read(self, limit: int) -> list[Record]:
        """The next records of one batch, at most `limit`; [] if the batch had none to show (see `exhausted`).
        Raises UndecodableBatch: the batch was skipped. Reading can continue after it."""
        if self.fetched.damage and not self.exhausted:
            raise self._damaged()
        if self._current is None and not self._open_next():
            if self.held is not None:
                return []
            self.exhausted = True
            self.next_offset = max(self.next_offset, self.fetched.next_offset)
            return []
        opened, start = self._current, self.next_offset
        if opened is None:
            return []
        header = opened.batch.header
        try:
            records = self._take(opened, limit)
            if self.is_waiting:
                return []
        except BeyondBounds as error:
            self._keep_or_close(opened)
            return self._pass_over(error, opened)
        except Exception as error:
            self._close(opened)
            raise self._undecodable(opened.batch, error) from error
        self._keep_or_close(opened)
        self.cost_bytes = opened.cost_bytes
        if self._current is None:
            self.next_offset = max(start, header.next_offset)
        elif records:
            self.next_offset = records[-1].offset + 1
            if self.next_offset >= header.next_offset:
                self._close(opened)
        if records and records[0].offset < start:
            records = [record for record in records if record.offset >= start]
            self.next_offset = max(self.next_offset, start)
        return records

    def _take(self, opened: OpenBatch, limit: int) -> list[Record]:
        """The next records of the batch; none while it waits. Raises the errors of `OpenBatch.take`."""
        self.is_waiting = False
        risks = self._risks
        try:
            return opened.take(limit)
        except RiskyBatch:
            assert risks is not None, "without risks, all batches are trusted"
        offset = opened.batch.header.base_offset
        verdict = risks.verdict(offset)
        self.is_waiting = verdict is DecodeVerdict.WAIT
        if self.is_waiting:
            return []
        if verdict is DecodeVerdict.STASH:
            raise ValueError(f"{MOST_OWNERS} workers died while they decoded this batch")
        opened.is_trusted = True
        try:
            return opened.take(limit)
        finally:
            risks.ended(offset)

    def close(self) -> None:
        """Stops reading and releases all bytes."""
        if self._current is not None:
            self._close(self._current)
        self.fetched.release()

    def _keep_or_close(self, opened: OpenBatch) -> None:
        if not opened.left:
            self._close(opened)
        elif opened.kept_bytes:
            budget = self.fetched.budget
            if budget is None:
                opened.drop()
            else:
                budget.keep(opened)

    def _close(self, opened: OpenBatch) -> None:
        self._current = None
        if (budget := self.fetched.budget) is not None:
            budget.forget(opened)

    def _pass_over(self, error: BeyondBounds, opened: OpenBatch) -> list[Record]:
        """Skips only this record, if the batch can have its offset here."""
        batch, offset = opened.batch, error.offset
        if offset < self.next_offset:
            return []
        if offset >= batch.header.next_offset:
            self._close(opened)
            raise self._undecodable(batch, error) from error
        self.next_offset = offset + 1 if opened.left else batch.header.next_offset
        raise UndecodableBatch(offset, offset + 1, error.raw, str(error)) from error

    def _open_next(self) -> bool:
        """Opens the next batch with visible records; False if none is left."""
        try:
            held, self.held = self.held, None
            for batch in self._batches if held is None else chain((held,), self._batches):
                header = batch.header
                self.batch_at = header.base_offset
                is_shown = batch is held or self._filter.shows(batch)
                wanted: bool | None = is_shown and header.next_offset > self.next_offset
                if wanted and self._wants is not None:
                    wanted = self._wants(header)
                if wanted is None:
                    self.held = batch
                    return False
                if not wanted:
                    self.next_offset = max(self.next_offset, header.next_offset)
                    continue
                if self._risks is not None and (why := self._risks.why_given_up(self.batch_at)):
                    raise self._undecodable(batch, ValueError(why))
                self.codec = header.compression
                self._current = OpenBatch(batch, is_trusted=self._risks is None, limits=self._limits)
                return True
        except CorruptBatch as error:
            start, self.next_offset = self.next_offset, max(self.next_offset, self.fetched.next_offset)
            self._batches, self.batch_at = iter(()), -1
            raise UndecodableBatch(start, self.next_offset, bytes(self.fetched.data), str(error)) from error
        return False

    def _damaged(self) -> UndecodableBatch:
        """The whole response, because a damaged header cannot be trusted."""
        fetched = self.fetched
        self.next_offset, self.exhausted = fetched.next_offset, True
        return UndecodableBatch(
            fetched.start_offset, fetched.next_offset, bytes(fetched.data), fetched.damage
        )

    def _undecodable(self, batch: RecordBatch, error: Exception) -> UndecodableBatch:
        start = max(self.next_offset, batch.header.base_offset)
        end = batch.header.next_offset
        self._current = None
        self.next_offset = max(self.next_offset, end)
        return UndecodableBatch(start, end, bytes(batch.data), f"{type(error).__name__}: {error}")
