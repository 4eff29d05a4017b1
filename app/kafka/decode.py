"""Raw fetched batches to records, a chunk at a time.

Batches are decompressed and decoded one after the other, each only when its first record is asked for, by
aiokafka's C decoder; their checksums were checked when they came (`app.core.record_batch.take`). Legacy
messages (`app.core.legacy_batch`) are decoded here: aiokafka's own decompresses them without bound. What
read_committed hides, what compaction took and control batches are skipped: `next_offset` moves over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from aiokafka.codec import snappy_decode
from aiokafka.record.default_records import DefaultRecordBatch

from app.core.legacy_batch import Message, messages, unwrapped
from app.core.record import Record
from app.core.record_batch import MAGIC, Batch, BatchHeader, Committed, CorruptBatch, iter_batches
from app.kafka.decompress import BOUNDED, decompressed, unpacked

if TYPE_CHECKING:
    from app.kafka.fetched import Fetched


SNAPPY = 2  # its codec


class UndecodableBatch(ValueError):
    """A batch of offsets [start, end) that cannot be decoded; `raw` are its bytes."""

    def __init__(self, start: int, end: int, raw: bytes, reason: str) -> None:
        super().__init__(f"offsets [{start}, {end}): {reason}")
        self.start = start
        self.end = end
        self.raw = raw


class LegacyRecord(NamedTuple):
    """A record of format 0 or 1; in the first it has no timestamp: -1."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def records_of(batch: Batch) -> Iterable[Record]:
    """All records of a batch. Raises whatever the decoder does, here or while they are read."""
    if batch.header.magic < MAGIC:
        return _legacy_records(batch.data)
    packed = batch.header.compression in BOUNDED
    return DefaultRecordBatch(decompressed(batch) if packed else bytes(batch.data))


def _legacy_records(data: memoryview) -> Iterator[Record]:
    for message in messages(data):
        for one in _unwrapped(message) if message.codec else [message]:
            yield LegacyRecord(one.offset, one.timestamp, one.key, one.value)


def _unwrapped(message: Message) -> list[Message]:
    codec, packed = message.codec, message.value or b""
    if codec in BOUNDED:
        return unwrapped(message, list(messages(unpacked(codec, packed))))
    if codec != SNAPPY:
        raise ValueError(f"codec {codec} is not known")
    return unwrapped(message, list(messages(snappy_decode(packed))))


class RecordReader:
    """Reads the records of one `Fetched`, from the position that was asked for.

    Args:
        wants: is shown the header of each batch that has records to show; one that it does not want is passed
            over without being decoded. None: it does not know yet, and is to be asked again.

    Attributes:
        fetched: the response; the caller releases it when `exhausted`.
        next_offset: the next offset to be read; what was passed over lies below it.
        exhausted: everything in it has been read.
        held: the batch of which it is not known whether it is wanted, if reading stands before one.
    """

    __slots__ = (
        "_batches",
        "_current",
        "_filter",
        "_records",
        "_wants",
        "exhausted",
        "fetched",
        "held",
        "next_offset",
    )

    def __init__(self, fetched: Fetched, wants: Callable[[BatchHeader], bool | None] | None = None) -> None:
        self.fetched = fetched
        self._wants = wants
        self.next_offset = fetched.start_offset
        self.exhausted = False
        self.held: Batch | None = None
        self._batches: Iterator[Batch] = iter_batches(fetched.data)
        self._filter = Committed(fetched.aborted)
        self._current: Batch | None = None
        self._records: Iterator[Record] = iter(())

    def read(self, limit: int) -> list[Record]:
        """The next at most `limit` records, of one batch; [] when a batch had none to show (see `exhausted`).

        Raises:
            UndecodableBatch: the batch is passed over; reading may go on behind it.
        """
        if self.fetched.damage and not self.exhausted:
            raise self._damaged()
        if self._current is None and not self._open_next():
            if self.held is not None:
                return []
            self.exhausted = True
            self.next_offset = max(self.next_offset, self.fetched.next_offset)
            return []
        batch = self._current
        if batch is None:
            return []
        start = self.next_offset
        try:
            records = list(islice(self._records, limit))
        except Exception as error:
            raise self._undecodable(batch, error) from error
        if len(records) < limit:
            self._current = None
            self.next_offset = max(start, batch.header.next_offset)
        else:
            self.next_offset = records[-1].offset + 1
            if self.next_offset >= batch.header.next_offset:
                self._current = None
        if records and records[0].offset < start:
            records = [record for record in records if record.offset >= start]
            self.next_offset = max(self.next_offset, start)
        return records

    def _open_next(self) -> bool:
        """Opens the next batch that shows records; False when there is none left."""
        try:
            held, self.held = self.held, None
            for batch in self._batches if held is None else chain((held,), self._batches):
                header = batch.header
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
                self._current = batch
                try:
                    decoded = records_of(batch)
                except Exception as error:
                    raise self._undecodable(batch, error) from error
                self._records = chain(decoded)  # iterating the batch itself a second time is refused
                return True
        except CorruptBatch as error:
            start, self.next_offset = self.next_offset, max(self.next_offset, self.fetched.next_offset)
            self._batches = iter(())
            raise UndecodableBatch(start, self.next_offset, bytes(self.fetched.data), str(error)) from error
        return False

    def _damaged(self) -> UndecodableBatch:
        """All of the response: its header says nothing that could be believed."""
        fetched = self.fetched
        self.next_offset, self.exhausted = fetched.next_offset, True
        return UndecodableBatch(
            fetched.start_offset, fetched.next_offset, bytes(fetched.data), f"damaged: {fetched.damage}"
        )

    def _undecodable(self, batch: Batch, error: Exception) -> UndecodableBatch:
        # Where the first message lies that a legacy one wraps is not known.
        known = batch.header.base_offset if batch.header.magic == MAGIC else 0
        start = max(self.next_offset, known)
        end = batch.header.next_offset
        self._current = None
        self.next_offset = max(self.next_offset, end)
        return UndecodableBatch(start, end, bytes(batch.data), f"{type(error).__name__}: {error}")
