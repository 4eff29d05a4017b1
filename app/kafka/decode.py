"""Raw fetched batches to records, a chunk at a time.

Batches are decompressed and decoded one after the other, each only when its first record is asked for, by
aiokafka's C decoder; their checksums were checked when they came (`app.core.record_batch.take`). What
read_committed hides, what compaction took and control batches are skipped: `next_offset` moves over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from aiokafka.record.default_records import DefaultRecordBatch

from app.core.record import Record
from app.core.record_batch import Batch, Committed, CorruptBatch, iter_batches
from app.kafka.decompress import BOUNDED, decompressed

if TYPE_CHECKING:
    from app.kafka.fetched import Fetched


class UndecodableBatch(ValueError):
    """A batch of offsets [start, end) that cannot be decoded; `raw` are its bytes."""

    def __init__(self, start: int, end: int, raw: bytes, reason: str) -> None:
        super().__init__(f"offsets [{start}, {end}): {reason}")
        self.start = start
        self.end = end
        self.raw = raw


class RecordReader:
    """Reads the records of one `Fetched`, from the position that was asked for.

    Attributes:
        fetched: the response; the caller releases it when `exhausted`.
        next_offset: the next offset to be read; what was passed over lies below it.
        exhausted: everything in it has been read.
    """

    __slots__ = (
        "_batches",
        "_current",
        "_filter",
        "_records",
        "exhausted",
        "fetched",
        "next_offset",
    )

    def __init__(self, fetched: Fetched) -> None:
        self.fetched = fetched
        self.next_offset = fetched.start_offset
        self.exhausted = False
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
            for batch in self._batches:
                if not self._filter.shows(batch) or batch.header.next_offset <= self.next_offset:
                    self.next_offset = max(self.next_offset, batch.header.next_offset)
                    continue
                self._current = batch
                try:
                    packed = batch.header.compression in BOUNDED
                    decoded = DefaultRecordBatch(decompressed(batch) if packed else bytes(batch.data))
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
        start = max(self.next_offset, batch.header.base_offset)
        end = batch.header.next_offset
        self._current = None
        self.next_offset = max(self.next_offset, end)
        return UndecodableBatch(start, end, bytes(batch.data), f"{type(error).__name__}: {error}")
