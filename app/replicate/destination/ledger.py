"""What a replica has sent and what of it has come: the one place where its position moves.

    Sent, Sent, Sent, ...      in the source's order; each is acknowledged, or shows no record
    base, note                 as far as all of them are

Invariants: `base` never passes what is not acknowledged; the note is always of this base. What is taken
begins where what was taken before it ended: no offset is passed over unseen.
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
    """On its way; without a `copy`, there is nothing to see up to `source_end`, -1: it moves no position.

    `fetched` is released with it. `accounted`: of a former owner's copies, once they are behind. `lost`:
    offsets that the source has lost before they came.
    """

    source_end: int
    copy: VerbatimCopy | None = None
    future: asyncio.Future[int] | None = None
    fetched: FetchedBatches | None = None
    accounted: int = -1
    is_mended: bool = False
    lost: int = 0


class CopyLedger:
    """See the module.

    Args:
        acknowledged: takes what the destination has, the offset at which it begins (-1: it does not tell),
            and whether that moved the base.
        failed: takes what is refused, or cannot come any more, and why, once; nothing behind it moves.
        release: takes what was fetched, once all of it is finished.

    Attributes:
        base: all of the source below it is finished. version: grows with it, and with the note.
        note: for the successor; None until there is something of our own.
        in_flight, delivered: records. appended: batches. sent_to: of the source's offsets below.
        taken_to: what is taken next begins there.
        lost, lost_ms: offsets below the base that the source had lost, also to former owners; when the last.
        uncompared, begun_anew: as in the note.
        read_epoch: no record of the source that came was written in a later leader epoch; -1: not known.
        epochs: all that records were read in, also by former owners (`app.kafka.records.leader_epochs`).
        progress_s: when something came last, or began to be waited for; monotonic.
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
        # Records of our producer at or above the note's floor that are accounted for.
        self._accounted = 0
        self._pending: deque[SentBatch] = deque()

    def came(self, fetched: FetchedBatches) -> None:
        """It will be copied, unless it was."""
        self.read_epoch = max(self.read_epoch, fetched.leader_epoch)
        self.epochs = read_in(self.epochs, fetched.leader_epoch, fetched.start_offset)

    def take_next(self, copy: VerbatimCopy) -> None:
        """It is next to be appended, as far as it has no copy. Raises RecordsMissed: another was."""
        if copy.source_start != self.taken_to:
            raise RecordsMissed(
                f"[{copy.source_start}, {copy.source_end}) came to be copied, where what came before it "
                f"ended at {self.taken_to}: an internal error, by which records would be missed or come twice"
            )
        self.taken_to = copy.source_end

    def append(self, copy: VerbatimCopy, future: asyncio.Future[int]) -> None:
        """It was handed to the lane."""
        if not self.in_flight:
            self.progress_s = time.monotonic()
        self.appended += 1
        self.sent_to = max(self.sent_to, copy.source_end)
        self.in_flight += copy.record_count
        self._pending.append(SentBatch(copy.source_end, copy, future))
        future.add_done_callback(self._settle)

    def pass_over(self, sent: SentBatch) -> None:
        """Nothing of it is to be appended; what is before it may still be under way."""
        self.taken_to = max(self.taken_to, sent.source_end)
        self._pending.append(sent)
        self._settle()

    def instead(self, pieces: Sequence[VerbatimCopy], futures: Sequence[asyncio.Future[int]]) -> None:
        """These were handed to the lane in place of what failed; none: it is passed over."""
        gone = self._pending.popleft()
        assert gone.copy is not None, "only copies fail"
        self.in_flight += sum(piece.record_count for piece in pieces) - gone.copy.record_count
        sent = [
            SentBatch(piece.source_end, piece, future, is_mended=True)
            for piece, future in zip(pieces, futures, strict=True)
        ]
        self._pending.extendleft(reversed(sent or [SentBatch(gone.source_end)]))
        for future in futures:
            future.add_done_callback(self._settle)
        self._settle()

    def close(self) -> None:
        """Nothing moves any more."""
        self._pending.clear()
        self.in_flight = 0

    @property
    def head(self) -> VerbatimCopy | None:
        """The first batch that is not acknowledged."""
        return next((sent.copy for sent in self._pending if sent.copy is not None), None)

    @property
    def is_empty(self) -> bool:
        """Nothing is on its way."""
        return not self._pending

    def inherit(self, note: ReplicaHandover | None) -> None:
        """What the former owner left: its copies count on."""
        self.note = note
        self._accounted = 0 if note is None else note.passed

    def start_under(self, note: ReplicaHandover, *, goes_on: bool) -> None:
        """Another note: from now on copies go under its producer. Unless it `goes_on` where the former one
        was, none of that producer lie at or above its floor."""
        self.note = note
        self.version += 1
        if not goes_on:
            self._accounted = 0

    def raise_floor(self, floor: int, lineage: int) -> None:
        """Nothing is on its way: what will be, of this lineage, lies at or above `floor`."""
        if self.note is not None and self.is_empty and floor >= self.note.floor:
            # What lies behind the floor is numbered on from the stamp there.
            is_known = lineage == self.note.lineage and not self._accounted
            self._put_floor(floor, lineage, self.note.stamp if is_known else None)

    def lower_floor(self, floor: int) -> None:
        """The destination ends there: it has lost what was above."""
        if self.note is not None:
            self._put_floor(floor, self.note.lineage, None)

    def _put_floor(self, floor: int, lineage: int, stamp: ProducerStamp | None) -> None:
        assert self.note is not None, "there is something to speak of"
        now = msgspec.structs.replace(
            self.note, base=self.base, floor=floor, passed=0, lineage=lineage, stamp=stamp
        )
        if now != self.note:
            self.note, self._accounted = now, 0
            self.version += 1

    def owes(self, uncompared: int) -> None:
        """So many are not compared, which the note is to say."""
        self.version += uncompared != self.uncompared
        self.uncompared = uncompared

    def under(self, epoch: int) -> int:
        """What follows goes under this epoch of the producer: the version that says so."""
        if self.note is not None:
            self.note = msgspec.structs.replace(self.note, epoch=epoch)
        self.version += 1
        return self.version

    def _settle(self, _: object = None) -> None:
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
            self._settled(sent)
        if self.base != base:
            self.version += 1

    def _settled(self, sent: SentBatch) -> None:
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
