"""From fetched bytes to records that may be sent: decoded a chunk at a time, as the tracker has room.

    Fetched -> RecordReader -> tracker.fetched -> ready (a few hundred records)

Rules
1. Records are decoded only as the tracker has room, and while what is ready is small: `READY_BYTES`, or
   `READY_LEAST_BYTES` while those of all the worker's partitions take all that the budget has for them. The
   raw bytes wait. The fetch budget counts them, and what is decompressed or ready (keys and headers, too).
   Nor is more decoded while `HELD_BYTES` of decoded messages wait for their time or their turn, or, when
   those of all the worker's partitions are half its budget, more than `HELD_LEAST_BYTES`: what others hold
   stops nobody, and what is finished, or comes to its time, here makes it look again.
2. What an inherited snapshot says is finished is not shown again.
3. What is fetched begins where the last ended, or behind a gap that was told: anything else is a fault of
   ours, and must stop the job before it commits what was never seen.
4. A batch that cannot be decoded goes to the DLQ as it is, so that what follows can flow; so does a record
   beyond the bounds of `app.kafka.records.scan`. Until they are there, their bytes are held.
   A batch that may be too much for any worker is decoded once that is noted
   (`app.kafka.records.decode_risks`).
5. What was finished in another copy of the topic is not shown either
   (`app.dispatch.pump.remote_progress_filter`); what may be is held back, and all behind it.
"""

from __future__ import annotations

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
    from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
    from app.kafka.records.batch import BatchHeader
    from app.kernel.tracker import Tracker

CHUNK_RECORDS = 256  # decoded at once: long enough to be cheap, short enough not to hold the loop
READY_LOW = 64  # refilled below this many
READY_BYTES = 4 * 1024 * 1024  # no more is decoded while this much is ready
READY_LEAST_BYTES = 256 * 1024  # whatever the others have ready
# twice what begins to leave (`app.dispatch.pump.delayed_messages`), so that copying is no pause
HELD_BYTES = 32 * 1024 * 1024
HELD_LEAST_BYTES = 256 * 1024  # whatever the others hold


class MessageIntake:
    """See the module. `on_undecodable` is given what rule 4 speaks of, and its unfinished offsets.

    Attributes:
        expected: the offset that the next response has to begin at, at most.
        held_bytes: of decoded messages that wait for their time or their turn (`hold`).
        remote_progress: what ties it to other copies.
        risks: what may end the worker.
        limits: what a record may have at most.
        fault: what ended the reading; the job has to begin again.
        codec: Kafka's number of the compression seen last; 0: of its batches none was compressed.
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
        self._budget: ByteBudget | None = None
        self._tracker = tracker
        self._on_undecodable = on_undecodable
        self._readers: deque[RecordReader] = deque()
        self.expected = tracker.end
        self.fault: JobFault | None = None
        self._end: int | None = None
        self._chunks: deque[tuple[int, int]] = deque()  # (offset behind, bytes) of what is ready
        self._ready_bytes = 0
        self._ages: deque[tuple[int, int]] = deque()

    @property
    def is_low(self) -> bool:
        """Few records are ready, and more may be decoded."""
        if not self.ready:
            self._settle()
        return len(self.ready) < READY_LOW and bool(self._readers) and not self.is_held_up

    @property
    def is_held_up(self) -> bool:
        """So much waits for its time or its turn that no more is decoded."""
        if self.held_bytes < HELD_LEAST_BYTES:
            return False
        return self.held_bytes >= HELD_BYTES or (self._budget is not None and self._budget.holds_much)

    def hold(self, size: int) -> None:
        """So many bytes more wait for their time or their turn; below 0: fewer."""
        self.held_bytes += size
        if self._budget is not None:
            self._budget.held_bytes += size

    def end_at(self, end: int) -> None:
        """Takes nothing at or above offset `end`."""
        self._end = end

    @property
    def has_ended(self) -> bool:
        """Everything below its end has been read."""
        return self._end is not None and self._tracker.end >= self._end

    def accept(self, fetched: FetchedBatches) -> None:
        """Takes a fetched response; its bytes go back to the budget once all of it is decoded.

        Raises:
            LookupError: something between it and the last is missing (rule 3).
        """
        if fetched.start_offset > self.expected:
            fetched.release()
            raise LookupError(f"expected offset {self.expected}, and {fetched.start_offset} was fetched")
        self._budget = self._budget or fetched.budget
        self.expected = max(self.expected, fetched.next_offset)
        self.arrivals.note(max(fetched.next_offset, fetched.high_watermark), now_ms())
        if fetched.next_offset <= self._tracker.end or self.has_ended:
            fetched.release()
        else:
            reader = RecordReader(
                fetched, self._wants if self.remote_progress.wants_batches else None, self.risks, self.limits
            )
            # What is fetched again, for others who count it, is not decoded again.
            reader.next_offset = max(reader.next_offset, self._tracker.end)
            self._readers.append(reader)

    def _wants(self, header: BatchHeader) -> bool | None:
        return self.remote_progress.wants(header, self._tracker, self._end)

    def skip(self, end: int) -> None:
        """The log lost what lies below `end`: nothing there can ever be delivered."""
        self.expected = max(self.expected, end)
        # What waits undecoded comes first; the next `fetched` behind the gap counts it.
        if not self._readers and end > self._tracker.end:
            self._tracker.skip(self._tracker.end, end)

    def refill(self, wanted: int = READY_LOW) -> None:
        """Decodes until `wanted` records are ready, as far as there are any and the tracker has room."""
        readers = self._readers
        while readers and len(self.ready) < wanted and self.fault is None:
            room = min(self._tracker.room, CHUNK_RECORDS)
            if room <= 0 or self.is_held_up or self._is_full():
                break
            reader = readers[0]
            try:
                self._read_some(reader, room)
            except Exception as error:  # noqa: BLE001 - whatever it is: nothing behind it may be taken for read
                self.fault = JobFault(reader.batch_at, error)
                break
            if reader.held is not None or reader.is_waiting:
                break
            if reader.exhausted or self.has_ended:
                readers.popleft().close()

    def _read_some(self, reader: RecordReader, room: int) -> None:
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

    def _is_full(self) -> bool:
        """Rule 1: so much is ready that no more is decoded."""
        self._settle()
        if self._ready_bytes < READY_LEAST_BYTES:
            return False
        return self._ready_bytes >= READY_BYTES or (self._budget is not None and self._budget.readies_much)

    def _settle(self) -> None:
        """Chunks of which nothing is ready any more do not count any more."""
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
        # All of the batch at once, whatever room there is: none of it takes a call's place.
        tracker.capacity += end - start
        try:
            shown = tracker.fetched(start, end) if end > start else []
        finally:
            tracker.capacity -= end - start
        if shown:
            self.hold(len(error.raw))
            self._on_undecodable(error, shown)

    def stashed(self, error: UndecodableBatch) -> None:
        """What could not be decoded is safe in the DLQ."""
        self.hold(-len(error.raw))

    def oldest_ms(self) -> int:
        """Append time of about the oldest unfinished message (its chunk's first), -1 when all is done."""
        ages, base = self._ages, self._tracker.base
        while ages and ages[0][0] <= base:
            ages.popleft()
        return ages[0][1] if ages and not self._tracker.idle else -1

    @property
    def buffered_bytes(self) -> int:
        """Of fetched responses that are not decoded to their end."""
        return sum(reader.fetched.nbytes for reader in self._readers)

    def close(self) -> None:
        """Gives back all bytes; nothing more is ready."""
        self.ready.clear()
        self._settle()
        self.risks.withdraw()
        while self._readers:
            self._readers.popleft().close()
        if self._budget is not None:
            self._budget.held_bytes -= self.held_bytes
            self._budget = None


def runs_of(records: list[Record]) -> list[tuple[int, int]]:
    """Contiguous runs of offsets, half-open."""
    runs: list[tuple[int, int]] = []
    start = previous = records[0].offset
    for record in records[1:]:
        if record.offset != previous + 1:
            runs.append((start, previous + 1))
            start = record.offset
        previous = record.offset
    runs.append((start, previous + 1))
    return runs
