"""From fetched bytes to records that may be sent: decoded in chunks, as the tracker has room.

    FetchedBatches -> RecordReader -> tracker.fetched -> ready (a few hundred records)

Rules
1. Three bounds stop decoding: the tracker's room, `READY_BYTES` of ready records, and `HELD_BYTES` of decoded
   messages that wait for their time or turn. When the ready records of all partitions use up their budget,
   the second is `READY_LEAST_BYTES`. When waiting messages of all partitions use half of the fetch budget,
   the third is `HELD_LEAST_BYTES`. So no partition is stopped by what others hold. The fetch budget counts
   raw, decompressed and ready bytes, with keys and headers.
2. Offsets that an inherited snapshot lists as finished are not shown again.
3. A response begins at or below the end of the last one, or behind a gap that was reported (`skip`). One that
   begins later is a fault of Switchyard's and stops the job before it commits offsets that it never read.
4. A batch that cannot be decoded goes to the DLQ as raw bytes, so that the messages behind it flow. So does a
   record beyond the limits of `app.kafka.records.scan`. Their bytes are held until the DLQ has them.
   A batch whose decompression may kill the worker is decoded once that is noted
   (`app.kafka.records.decode_risks`).
5. Messages that were finished in another copy of the topic are not shown either. A batch that may have been
   is held back, with everything behind it (`app.dispatch.pump.remote_progress_filter`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.dispatch.model.delayed_delivery import Arrivals
from app.dispatch.pump.remote_progress_filter import RemoteProgressFilter
from app.kafka.fetch.decoder import RecordReader, UndecodableBatch
from app.kafka.records.decode_risks import DecodeRisks
from app.kafka.records.record import Record
from app.kafka.records.scan import COPY_LIMITS
from app.kernel.clock import now_ms
from app.kernel.job import JobFault

if TYPE_CHECKING:
    from app.dispatch.model.latency_trace import PartitionTrace
    from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
    from app.kafka.records.batch import BatchHeader
    from app.kernel.tracker import Tracker

CHUNK_RECORDS = 256  # decoded at once: long enough to be cheap, short enough not to block the event loop
READY_LOW = 64  # fewer ready records are refilled
READY_BYTES = 4 * 1024 * 1024
READY_LEAST_BYTES = 256 * 1024  # always allowed, so that each partition proceeds
# Twice `delayed_messages.POSTPONED_BYTES`, so that reading continues while messages are copied.
HELD_BYTES = 32 * 1024 * 1024
HELD_LEAST_BYTES = 256 * 1024  # always allowed, so that each partition proceeds


class MessageIntake:
    """One pump's responses and ready records. `on_undecodable` takes batches and offset ranges by rule 4.

    Attributes:
        expected: The next response begins at this offset or below.
        held_bytes: Decoded messages that wait for their time or turn (`hold`).
        remote_progress: The filter of rule 5.
        risks: The batches that may kill the worker (rule 4).
        limits: The largest record that is decoded.
        fault: Why the reading stopped; the job has to start again.
        codec: Kafka's number of the last compression seen; 0: no batch was compressed.
        trace: Notes when chunks became ready; None: no trace runs.
    """

    __slots__ = (
        "_ages",
        "_budget",
        "_chunks",
        "_end",
        "_on_undecodable",
        "_readers",
        "_ready_bytes",
        "_tracker",
        "arrivals",
        "codec",
        "expected",
        "fault",
        "held_bytes",
        "limits",
        "ready",
        "remote_progress",
        "risks",
        "trace",
    )  # fmt: skip

    def __init__(
        self, tracker: Tracker, on_undecodable: Callable[[UndecodableBatch, list[tuple[int, int]]], None]
    ) -> None:
        self.ready: deque[Record] = deque()
        self.arrivals = Arrivals()
        self.held_bytes = 0
        self.remote_progress = RemoteProgressFilter()
        self.risks = DecodeRisks()
        self.limits = COPY_LIMITS
        self.codec = 0
        self.trace: PartitionTrace | None = None
        self._budget: ByteBudget | None = None
        self._tracker = tracker
        self._on_undecodable = on_undecodable
        self._readers: deque[RecordReader] = deque()
        self.expected = tracker.end
        self.fault: JobFault | None = None
        self._end: int | None = None
        self._chunks: deque[tuple[int, int]] = deque()  # (end offset, bytes) of ready chunks
        self._ready_bytes = 0
        self._ages: deque[tuple[int, int]] = deque()

    @property
    def is_low(self) -> bool:
        """Few records are ready, and more may be decoded."""
        if not self.ready:
            self._drop_taken_chunks()
        return len(self.ready) < READY_LOW and bool(self._readers) and not self.is_held_up

    @property
    def is_held_up(self) -> bool:
        """Waiting messages use so many bytes that no more are decoded (rule 1)."""
        if self.held_bytes < HELD_LEAST_BYTES:
            return False
        return self.held_bytes >= HELD_BYTES or (self._budget is not None and self._budget.holds_much)

    def hold(self, size: int) -> None:
        """Counts bytes that begin to wait for their time or turn; negative: that have stopped waiting."""
        self.held_bytes += size
        if self._budget is not None:
            self._budget.held_bytes += size

    def end_at(self, end: int) -> None:
        """Ignores everything from offset `end` on."""
        self._end = end

    @property
    def has_ended(self) -> bool:
        return self._end is not None and self._tracker.end >= self._end

    def accept(self, fetched: FetchedBatches) -> None:
        """Takes a fetched response; its bytes return to the budget once all of it is decoded.

        Raises:
            LookupError: Offsets between it and the last response are missing (rule 3).
        """
        if fetched.start_offset > self.expected:
            fetched.release()
            raise LookupError(
                f"the next response must begin at offset {self.expected}; it begins at {fetched.start_offset}"
            )
        self._budget = self._budget or fetched.budget
        self.expected = max(self.expected, fetched.next_offset)
        self.arrivals.note(max(fetched.next_offset, fetched.high_watermark), now_ms())
        if fetched.next_offset <= self._tracker.end or self.has_ended:
            fetched.release()
        else:
            reader = RecordReader(
                fetched,
                self._should_decode if self.remote_progress.wants_batches else None,
                self.risks,
                self.limits,
            )
            # An audit may have had these offsets fetched again; they are not decoded twice.
            reader.next_offset = max(reader.next_offset, self._tracker.end)
            self._readers.append(reader)

    def _should_decode(self, header: BatchHeader) -> bool | None:
        return self.remote_progress.wants(header, self._tracker, self._end)

    def skip(self, end: int) -> None:
        """The log lost everything below `end`; it can never be delivered."""
        self.expected = max(self.expected, end)
        # Undecoded responses come first; the next chunk behind the gap makes the tracker skip it.
        if not self._readers and end > self._tracker.end:
            self._tracker.skip(self._tracker.end, end)

    def refill(self, wanted: int = READY_LOW) -> None:
        """Decodes until `wanted` records are ready, as far as the bounds of rule 1 allow."""
        readers = self._readers
        while readers and len(self.ready) < wanted and self.fault is None:
            room = min(self._tracker.room, CHUNK_RECORDS)
            if room <= 0 or self.is_held_up or self._has_enough_ready():
                break
            reader = readers[0]
            try:
                self._decode_chunk(reader, room)
            except Exception as error:  # noqa: BLE001 - after any error, nothing behind it may count as read
                self.fault = JobFault(reader.batch_at, error)
                break
            if reader.held is not None or reader.is_waiting:
                break
            if reader.exhausted or self.has_ended:
                readers.popleft().close()

    def _decode_chunk(self, reader: RecordReader, room: int) -> None:
        tracker = self._tracker
        try:
            records = reader.read(room)
            if records and records[0].offset < tracker.end:
                records = [record for record in records if record.offset >= tracker.end]
        except UndecodableBatch as error:
            self._undecodable(error)
            records = []
        if self._end is not None and reader.next_offset > self._end:
            records = [record for record in records if record.offset < (self._end or 0)]
        if records:
            self.codec = reader.codec or self.codec
            self._register(records, reader.cost_bytes)
            if self.trace is not None:
                self.trace.ready(records[-1].offset + 1, reader.fetched.fetched_s, time.monotonic())
        read = reader.next_offset if self._end is None else min(reader.next_offset, self._end)
        if read > tracker.end:
            tracker.skip(tracker.end, read)

    def _register(self, records: list[Record], cost_bytes: int) -> None:
        tracker, ready = self._tracker, self.ready
        first, last = records[0].offset, records[-1].offset
        self._chunks.append((last + 1, cost_bytes))
        self._count_ready(cost_bytes)
        self._ages.append((last + 1, records[0].timestamp))
        dense = last - first + 1 == len(records)
        runs = [(first, last + 1)] if dense else runs_of(records)
        shown = [span for start, end in runs for span in tracker.fetched(start, end)]
        if sum(end - start for start, end in shown) == len(records):
            ready.extend(records)
            return
        spans = iter(shown)
        start, end = next(spans, (0, 0))
        for record in records:
            while end <= record.offset and end:
                start, end = next(spans, (0, 0))
            if start <= record.offset < end:
                ready.append(record)

    def _has_enough_ready(self) -> bool:
        self._drop_taken_chunks()
        if self._ready_bytes < READY_LEAST_BYTES:
            return False
        return self._ready_bytes >= READY_BYTES or (self._budget is not None and self._budget.readies_much)

    def _drop_taken_chunks(self) -> None:
        """Stops counting chunks whose records have all been taken."""
        chunks, ready = self._chunks, self.ready
        while chunks and (not ready or chunks[0][0] <= ready[0].offset):
            self._count_ready(-chunks.popleft()[1])

    def _count_ready(self, size: int) -> None:
        self._ready_bytes += size
        if self._budget is not None:
            self._budget.ready_bytes += size

    def _undecodable(self, error: UndecodableBatch) -> None:
        tracker = self._tracker
        if self.remote_progress.progress is not None:
            self.remote_progress.progress.lose(error.start, error.end)
        start = max(error.start, tracker.end)
        end = max(error.end, start)
        # The whole batch is registered at once, because the receiver gets none of its messages.
        shown = tracker.fetched(start, end, beyond_room=True) if end > start else []
        if shown:
            self.hold(len(error.raw))
            self._on_undecodable(error, shown)

    def stashed(self, error: UndecodableBatch) -> None:
        self.hold(-len(error.raw))

    def oldest_ms(self) -> int:
        """About the oldest unfinished message's append time (its chunk's first); -1: all is finished."""
        ages, base = self._ages, self._tracker.base
        while ages and ages[0][0] <= base:
            ages.popleft()
        return ages[0][1] if ages and not self._tracker.idle else -1

    @property
    def buffered_bytes(self) -> int:
        """Bytes of responses that are not completely decoded."""
        return sum(reader.fetched.nbytes for reader in self._readers)

    def close(self) -> None:
        """Gives back all bytes; nothing more is ready."""
        self.ready.clear()
        self._drop_taken_chunks()
        self.risks.withdraw()
        while self._readers:
            self._readers.popleft().close()
        if self._budget is not None:
            self._budget.held_bytes -= self.held_bytes
            self._budget = None


def runs_of(records: list[Record]) -> list[tuple[int, int]]:
    """The contiguous runs of the records' offsets, half-open."""
    runs: list[tuple[int, int]] = []
    start = previous = records[0].offset
    for record in records[1:]:
        if record.offset != previous + 1:
            runs.append((start, previous + 1))
            start = record.offset
        previous = record.offset
    runs.append((start, previous + 1))
    return runs
