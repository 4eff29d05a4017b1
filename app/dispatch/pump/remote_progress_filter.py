"""What ties a partition to other copies of its topic: what it has finished, told for who reads another copy,
and what was finished in another copy, which is not delivered again here.

    batch's header ──▶ trail ──▶ note of every snapshot ......▶ another region: frontier.finished
                  └──▶ over: all of it is finished there ──▶ passed over, without being decoded
                             some of it is ────────────────▶ as what an inherited snapshot says is finished

Both are off until somebody asks (`DispatchPump.remember`, `DispatchPump.pass_over`), and cost something per
batch, nothing per message.

A batch that may yet be found to be finished elsewhere, as the barriers of this copy are behind, is held back
for `UNDECIDED_HOLD_S` at most, or for as long as who asks will wait; the first that is delivered for that,
undecided, ends all holding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.offsets.model.producer_progress import ProducerProgress
from app.offsets.model.source_frontier import PassOver

if TYPE_CHECKING:
    from app.kafka.records.batch import BatchHeader
    from app.kernel.ranges import Snapshot
    from app.kernel.tracker import Tracker

UNDECIDED_HOLD_S = 3.0


class RemoteProgressFilter:
    """See the module.

    Attributes:
        passed_over: so many offsets of the partition were not delivered here.
        undecided: so many at most were, though they may be finished elsewhere, until nobody looked any more.
        role_epoch: the region's role when this began; -1: it has none.
    """

    __slots__ = (
        "_held_at",
        "_held_since_s",
        "_hold_s",
        "_hold_until_s",
        "over",
        "passed_over",
        "progress",
        "role_epoch",
        "undecided",
    )

    def __init__(self, progress: ProducerProgress | None = None, over: PassOver | None = None) -> None:
        self.progress = progress
        self.over = over
        self.passed_over = self.undecided = 0
        self.role_epoch = -1
        self._hold_s, self._hold_until_s = UNDECIDED_HOLD_S, 0.0
        self._held_at, self._held_since_s = -1, 0.0

    def twin(self) -> RemoteProgressFilter:
        """The same for who reads another part of the partition."""
        other = RemoteProgressFilter(self.progress, self.over)
        other.role_epoch = self.role_epoch
        other._hold_s, other._hold_until_s = self._hold_s, self._hold_until_s
        return other

    @property
    def wants_batches(self) -> bool:
        """Batches are to be shown to it."""
        return self.progress is not None or self.over is not None

    @property
    def carried(self) -> int:
        """Under which role all that was finished elsewhere is behind (`Progress.carried`)."""
        return self.role_epoch if self.over is None else -1

    @property
    def is_holding(self) -> bool:
        """A batch waits for more to be known of it."""
        return self._held_at >= 0

    def remember(self, tracker: Tracker, note: bytes, role_epoch: int) -> None:
        """Begins a trail behind a former owner's, of the same log."""
        self.role_epoch = role_epoch
        self.progress = ProducerProgress(tracker.base, note)
        if tracker.end > tracker.base:
            self.progress.lose(tracker.base, tracker.end)

    def note(self, snapshot: Callable[[], Snapshot], seen_to: int, reads: RemoteProgressFilter) -> bytes:
        """For a reader of another copy; b"" unless it remembers. `reads`: of who reads the lowest offsets."""
        return b"" if self.progress is None else self.progress.note(snapshot(), seen_to, reads.carried)

    def take_in(self, other: RemoteProgressFilter) -> None:
        """What was counted by who read another part, and has ended."""
        self.passed_over += other.passed_over
        self.undecided += other.undecided

    def pass_over(self, over: PassOver, hold_until_s: float | None) -> None:
        """What is known now; without `hold_until_s` (monotonic), what is undecided is held back as before."""
        self.over = over
        if hold_until_s is not None:
            self._hold_until_s = hold_until_s

    def hold_longer(self, until_s: float, hold_s: float) -> None:
        """Until then, a batch for so long: more is becoming known. Once something was delivered undecided,
        nothing is held back any more."""
        if self._hold_until_s:
            self._hold_s, self._hold_until_s = hold_s, max(until_s, self._hold_until_s)

    def wants(self, header: BatchHeader, tracker: Tracker, end: int | None) -> bool | None:
        """Whether anything of the batch is to be delivered; None: ask again.

        `end`: nothing from there on is this pump's.
        """
        start, stop = header.base_offset, header.next_offset
        over = self.over
        if (
            over is not None
            and over.lags
            and over.may_grow(start, stop, header.producer_id, header.producer_epoch)
        ):
            if self._holds(start):
                return None
            self.undecided += stop - start
        self._held_at = -1
        if self.progress is not None:
            self.progress.seen(
                start, stop, header.producer_id, header.producer_epoch, header.base_sequence, tracker.base
            )
        if over is None:
            return True
        if start >= over.until and not (over.lags and self._hold_until_s):
            self.over = None  # all that was finished elsewhere is behind
            return True
        ranges = over.ranges(start, stop, header.producer_id, header.producer_epoch, header.base_sequence)
        if not ranges:
            return True
        whole = ranges == [(start, stop)]
        if end is not None:
            ranges = [(first, min(last, end)) for first, last in ranges if first < end]
        self.passed_over += tracker.inherit(ranges)
        return not whole

    def _holds(self, start: int) -> bool:
        """Whether a batch of which more may come to be known waits for that."""
        now_s = time.monotonic()
        if start != self._held_at:
            self._held_at, self._held_since_s = start, now_s
        if now_s < min(self._hold_until_s, self._held_since_s + self._hold_s):
            return True
        self._hold_until_s = 0.0
        return False
