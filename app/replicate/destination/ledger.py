"""Keeps what a replica has sent and what was acknowledged; the only place where its position moves.

    SentBatch, SentBatch, ...  in the source's order; each is acknowledged, or has no record
    base, note                 advance when everything below is finished

Invariants (tests/replicate/destination/test_ledger.py): `base` never passes a batch that is not acknowledged.
The note always belongs to this base. A batch begins where the one before it ended, so no offset is skipped
unseen.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from app.kafka.append.pending_batch import stamp_of
from app.kafka.fetch.deliveries import FetchedBatches
from app.kafka.records.leader_epochs import Epochs, read_in
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import RecordsMissed, VerbatimCopy
from app.kernel.clock import now_ms
from app.replicate.destination.handover import ReplicaHandover


class SentBatch(NamedTuple):
    """A batch on its way. Without a `copy`, no record up to `source_end` is to be copied; -1: no position
    moves.

    Attributes:
        fetched: Released when this batch is finished.
        accounted: The former owner's records that are accounted for from here on; -1: no change.
        is_mended: It replaces a refused batch.
        lost: Offsets that the source lost before they were fetched.
    """

    source_end: int
    copy: VerbatimCopy | None = None
    future: asyncio.Future[int] | None = None
    fetched: FetchedBatches | None = None
    accounted: int = -1
    is_mended: bool = False
    lost: int = 0


class CopyLedger:
    """The batches of one replica that were sent.

    Args:
        acknowledged: Takes a batch, its base offset (-1: the broker does not say), and whether the base
            moved.
        failed: Takes a batch that cannot arrive, and the error, once it is the first unfinished one.
        release: Takes a fetched response once all of it is finished.

    Attributes:
        base: All of the source below it is finished.
        version: Grows with the base and with the note.
        note: For the successor; None until a former owner's is inherited or a producer is chosen.
        in_flight, delivered: Records.
        appended: Batches.
        sent_to, taken_to: The end of the source offsets that were sent; where the next batch begins.
        lost, lost_ms, uncompared, begun_anew: As in the note; former owners' counts are included.
        read_epoch, epochs: As in the note, of all fetched records.
        progress_s: When something was last acknowledged, or the wait for it began; monotonic.
    """

    def __init__(
        self,
        base: int,
        acknowledged: Callable[[SentBatch, int, bool], None],
        failed: Callable[[SentBatch, BaseException], None],
        release: Callable[[FetchedBatches], None],
    ) -> None:
        self.base = self.sent_to = self.taken_to = base
        self.note: ReplicaHandover | None = None
        self.version = 0
        self.read_epoch = -1
        self.epochs: Epochs = ()
        self.in_flight = self.delivered = self.appended = 0
        self.lost = self.lost_ms = 0
        self.uncompared = self.begun_anew = 0
        self.progress_s = time.monotonic()
        self._acknowledged = acknowledged
        self._failed = failed
        self._release = release
        self._failing: SentBatch | None = None
        # This producer's records at or above the note's floor that are accounted for.
        self._accounted = 0
        self._pending: deque[SentBatch] = deque()

    def record_fetched(self, fetched: FetchedBatches) -> None:
        """Notes the leader epoch of a response that will be copied."""
        self.read_epoch = max(self.read_epoch, fetched.leader_epoch)
        self.epochs = read_in(self.epochs, fetched.leader_epoch, fetched.start_offset)

    def take_next(self, copy: VerbatimCopy) -> None:
        """Checks that the copy is next in the source's order. Raises RecordsMissed if it is not."""
        if copy.source_start != self.taken_to:
            raise RecordsMissed(
                f"[{copy.source_start}, {copy.source_end}) is next to be copied, but the batch before it "
                f"ended at {self.taken_to}: an internal error that would skip or repeat records"
            )
        self.taken_to = copy.source_end

    def append(self, copy: VerbatimCopy, future: asyncio.Future[int]) -> None:
        if not self.in_flight:
            self.progress_s = time.monotonic()
        self.appended += 1
        self.sent_to = max(self.sent_to, copy.source_end)
        self.in_flight += copy.record_count
        self._pending.append(SentBatch(copy.source_end, copy, future))
        future.add_done_callback(self._settle_head)

    def pass_over(self, sent: SentBatch) -> None:
        """Adds offsets with nothing to append; batches before them may still be on their way."""
        self.taken_to = max(self.taken_to, sent.source_end)
        self._pending.append(sent)
        self._settle_head()

    def replace_failed(self, pieces: Sequence[VerbatimCopy], futures: Sequence[asyncio.Future[int]]) -> None:
        """Replaces the failed batch by pieces that were handed to the lane; without pieces, skips it."""
        failed = self._pending.popleft()
        assert failed.copy is not None, "only copies fail"
        self.in_flight += sum(piece.record_count for piece in pieces) - failed.copy.record_count
        sent = [
            SentBatch(piece.source_end, piece, future, is_mended=True)
            for piece, future in zip(pieces, futures, strict=True)
        ]
        self._pending.extendleft(reversed(sent or [SentBatch(failed.source_end)]))
        for future in futures:
            future.add_done_callback(self._settle_head)
        self._settle_head()

    def close(self) -> None:
        self._pending.clear()
        self.in_flight = 0

    @property
    def head(self) -> VerbatimCopy | None:
        """The first batch that is not acknowledged."""
        return next((sent.copy for sent in self._pending if sent.copy is not None), None)

    @property
    def is_empty(self) -> bool:
        return not self._pending

    def inherit(self, note: ReplicaHandover | None) -> None:
        """Takes the former owner's note, whose copies stay accounted for."""
        self.note = note
        self._accounted = 0 if note is None else note.passed

    def start_under(self, note: ReplicaHandover, *, continues: bool) -> None:
        """Sets the note of a new producer. Unless it `continues`, none of its records lie at or above the
        floor."""
        self.note = note
        self.version += 1
        if not continues:
            self._accounted = 0

    def raise_floor(self, floor: int, lineage: int) -> None:
        """Raises the floor while nothing is in flight: later copies, of this lineage, lie at or above it."""
        if self.note is not None and self.is_empty and floor >= self.note.floor:
            # Records behind the floor continue the numbers of the stamp there.
            is_known = lineage == self.note.lineage and not self._accounted
            self._put_floor(floor, lineage, self.note.stamp if is_known else None)

    def lower_floor(self, floor: int) -> None:
        """Lowers the floor to the end of a destination that has lost records above it."""
        if self.note is not None:
            self._put_floor(floor, self.note.lineage, None)

    def _put_floor(self, floor: int, lineage: int, stamp: ProducerStamp | None) -> None:
        assert self.note is not None, "the caller has checked"
        note = msgspec.structs.replace(
            self.note, base=self.base, floor=floor, passed=0, lineage=lineage, stamp=stamp
        )
        if note != self.note:
            self.note, self._accounted = note, 0
            self.version += 1

    def set_uncompared(self, uncompared: int) -> None:
        """Sets the number of copies that are not compared, for the note."""
        self.version += uncompared != self.uncompared
        self.uncompared = uncompared

    def change_epoch(self, epoch: int) -> int:
        """Sets the epoch of the producer's next batches; returns the ledger's version that holds it."""
        if self.note is not None:
            self.note = msgspec.structs.replace(self.note, epoch=epoch)
        self.version += 1
        return self.version

    def _settle_head(self, _: object = None) -> None:
        pending, base = self._pending, self.base
        while pending:
            sent, future = pending[0], pending[0].future
            if future is not None:
                if not future.done() or future.cancelled():
                    break
                error = future.exception()
                if error is not None:
                    if sent is not self._failing:
                        self._failing = sent
                        self._failed(sent, error)
                    break
            pending.popleft()
            self._finish(sent)
        if self.base != base:
            self.version += 1

    def _finish(self, sent: SentBatch) -> None:
        base_offset = -1
        moves = sent.source_end > self.base
        if sent.accounted >= 0:
            self._accounted = sent.accounted
        if sent.lost:
            self.lost, self.lost_ms = self.lost + sent.lost, now_ms()
        if sent.copy is not None and sent.future is not None:
            count, base_offset = sent.copy.record_count, sent.future.result()
            self.in_flight -= count
            self.delivered += count
            self._accounted += count
            self.progress_s = time.monotonic()
        if moves:
            self.base, self.progress_s = sent.source_end, time.monotonic()
            if self.note is not None:
                floor, stamp = self.note.floor, self.note.stamp
                if base_offset >= 0 and sent.copy is not None:
                    floor, self._accounted = base_offset + sent.copy.record_count, 0
                    stamp = stamp_of(base_offset)
                self.note = msgspec.structs.replace(
                    self.note, base=self.base, floor=floor, passed=self._accounted, stamp=stamp
                )
        if sent.copy is not None:
            self._acknowledged(sent, base_offset, moves)
        if sent.fetched is not None:
            self._release(sent.fetched)
