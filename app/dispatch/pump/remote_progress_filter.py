"""Progress of a partition across copies: publishes its own, and passes over what other copies finished.

    batch's header ──▶ trail ──▶ note of every snapshot ......▶ another region: frontier.finished
                  └──▶ over: all of it is finished there ──▶ passed over, without being decoded
                             some of it is ────────────────▶ like what an inherited snapshot lists

Both are off until `DispatchPump.remember` and `DispatchPump.pass_over` switch them on. They cost time per
batch, none per message.

While this copy's offset syncs lag, a batch may yet turn out to be finished in another copy. It is held back
for `UNDECIDED_HOLD_S` at most, or for as long as the caller of `hold_longer` allows. The first batch that is
delivered undecided ends all holding.
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
    """The filter of one pump.

    Attributes:
        over: What other copies finished; None: nothing is known, or all of it is behind.
        passed_over: Offsets that were not delivered here.
        undecided: Offsets that were delivered here, though another copy may have finished them.
        role_epoch: The epoch of the region's role when this began; -1: it has none.
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

    def for_rest_of_partition(self) -> RemoteProgressFilter:
        """The filter of the pump that reads the rest of a split partition."""
        other = RemoteProgressFilter(self.progress, self.over)
        other.role_epoch = self.role_epoch
        other._hold_s, other._hold_until_s = self._hold_s, self._hold_until_s
        return other

    @property
    def wants_batches(self) -> bool:
        return self.progress is not None or self.over is not None

    @property
    def carried(self) -> int:
        """The role epoch whose progress in other copies is all behind (`Progress.carried`); -1: not yet."""
        return self.role_epoch if self.over is None else -1

    @property
    def is_holding(self) -> bool:
        return self._held_at >= 0

    def remember(self, tracker: Tracker, note: bytes, role_epoch: int) -> None:
        """Continues the trail in a former owner's note about the same log."""
        self.role_epoch = role_epoch
        self.progress = ProducerProgress(tracker.base, note)
        if tracker.end > tracker.base:
            self.progress.lose(tracker.base, tracker.end)

    def note(
        self, snapshot: Callable[[], Snapshot], seen_to: int, lowest_reader: RemoteProgressFilter
    ) -> bytes:
        """The note for other copies' readers. `lowest_reader`: the filter at the lowest offsets."""
        return (
            b"" if self.progress is None else self.progress.note(snapshot(), seen_to, lowest_reader.carried)
        )

    def add_counts(self, other: RemoteProgressFilter) -> None:
        self.passed_over += other.passed_over
        self.undecided += other.undecided

    def pass_over(self, over: PassOver, hold_until_s: float | None) -> None:
        """Takes what is known now, and holds back until `hold_until_s` (monotonic); None: as before."""
        self.over = over
        if hold_until_s is not None:
            self._hold_until_s = hold_until_s

    def hold_longer(self, until_s: float, hold_s: float) -> None:
        """Holds each batch for `hold_s` at most, until `until_s` (monotonic), because more is becoming known.

        It has no effect once a batch was delivered undecided.
        """
        if self._hold_until_s:
            self._hold_s, self._hold_until_s = hold_s, max(until_s, self._hold_until_s)

    def wants(self, header: BatchHeader, tracker: Tracker, end: int | None) -> bool | None:
        """Whether anything below `end` of the batch is to be delivered; None: not decided, ask again."""
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
            self.over = None  # all that other copies finished is behind
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
        """Whether the batch at `start` is held back until more is known."""
        now_s = time.monotonic()
        if start != self._held_at:
            self._held_at, self._held_since_s = start, now_s
        if now_s < min(self._hold_until_s, self._held_since_s + self._hold_s):
            return True
        self._hold_until_s = 0.0
        return False
