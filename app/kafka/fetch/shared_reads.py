"""Decides what a follower of a log may take from another reader, or from a writer, instead of fetching.

    another reader:  [start, end) that it has fetched   -> the follower takes it, waits, or fetches itself
    a writer:        acknowledged batches, in order     -> those that continue the follower's position

Rules (tests/kafka/fetch/test_shared_reads.py)
1. Shared offsets must continue exactly at the follower's position; otherwise it fetches. So nothing is
   taken twice or skipped, even if offers are lost, repeated or cut.
2. A writer's acknowledged batches count only while the log still has them. They were sent once the leader
   was known to lead in an epoch, and it still led in that epoch after they were acknowledged. Epochs only
   grow, so a fetch in that epoch would have returned these batches. All other batches are dropped.
3. Memory is bounded: only the headers of a writer's last `MOST_ROWS` batches are kept.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

MOST_ROWS = 8_192
NOT_KNOWN = -1


class SharedReadOffer(Enum):
    """A follower's answer to offsets that another reader has fetched."""

    MISSES = "it fetches itself"
    WAITS = "it has all of the offer and expects the next one"
    TAKES = "it continues with the offer"


def offered(next_offset: int, start: int, end: int, *, is_whole: bool) -> SharedReadOffer:
    """The answer of a follower at `next_offset` to [start, end), which is empty if the log has no more yet.
    `is_whole`: the offer must not be taken from its middle."""
    if next_offset == end:
        return SharedReadOffer.WAITS
    if next_offset == start or (start < next_offset < end and not is_whole):
        return SharedReadOffer.TAKES
    return SharedReadOffer.MISSES


class AppendedBatch(msgspec.Struct, frozen=True, gc=False):
    """An acknowledged batch [base_offset, next_offset): its header as sent, and when it was in the log."""

    base_offset: int
    next_offset: int
    head: bytes
    at_ms: int


class AppendedBatches:
    """Contiguous batches that one writer has appended to a partition (rules 2 and 3).

    A round: `begin_round`, then `confirm` if the leader still leads in that epoch, otherwise `stop`; `take`.

    Attributes:
        epoch: The leader's epoch; `NOT_KNOWN`: no round has begun.
        end: The end offset of the last batch; -1: there is none.
    """

    __slots__ = ("_confirmed", "_first", "_mark", "_most_rows", "_rows", "_since", "end", "epoch")

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self.epoch = NOT_KNOWN
        self.end = -1
        self._most_rows = most_rows
        self._rows: deque[AppendedBatch] = deque()
        self._first = 0  # the number of the first row; rows are numbered as they come
        self._mark = self._confirmed = 0  # the round asks about rows below `_mark`; it confirmed the others
        self._since: int | None = None  # source offset from which on batches were sent in the epoch

    def acknowledged(self, source_start: int, row: AppendedBatch) -> None:
        """The log has the batch, at a negative offset if its place is not known. `source_start` is its first
        offset in the writer's source, which the writer sends in order."""
        if self._since is None or source_start < self._since:
            return
        if row.base_offset != self.end or row.base_offset < 0:
            self.drop()
        if row.base_offset < 0:
            return
        self._rows.append(row)
        self.end = row.next_offset
        if len(self._rows) > self._most_rows:
            self._rows.popleft()
            self._first += 1

    @property
    def is_collecting(self) -> bool:
        """Whether batches that are sent now may be taken later."""
        return self._since is not None

    @property
    def is_full(self) -> bool:
        """Whether it is half full, so that its batches should be taken."""
        return 2 * len(self._rows) >= self._most_rows

    def begin_round(self, epoch: int) -> None:
        """Begins a round; `epoch` is the leader epoch of the follower's log."""
        if epoch != self.epoch:
            self.stop()
        self.epoch = epoch
        self._mark = self._first + len(self._rows)

    def confirm(self, sent_to: int) -> None:
        """The leader led in the epoch after `begin_round`; the writer has sent its source below `sent_to`."""
        self._confirmed = self._mark
        if self._since is None:
            self._since = sent_to

    def take(self, position: int) -> list[AppendedBatch]:
        """Removes and returns the confirmed batches that continue at `position`."""
        rows = self._rows
        while rows and self._first < self._confirmed and rows[0].next_offset <= position:
            rows.popleft()
            self._first += 1
        if not rows or self._first >= self._confirmed:
            return []
        if rows[0].base_offset < position:  # the position is in the middle of a batch
            self.drop()
        if not rows or rows[0].base_offset != position:
            return []
        taken = [rows.popleft() for _ in range(self._confirmed - self._first)]
        self._first += len(taken)
        return taken

    def continues_at(self, position: int) -> bool:
        """Whether the batch after `position` is here or comes next."""
        start = self._rows[0].base_offset if self._rows else self.end
        return 0 <= start <= position <= self.end

    def drop(self) -> None:
        """Forgets the batches; later ones may still be taken."""
        self._first += len(self._rows)
        self._rows.clear()
        self.end = -1

    def stop(self) -> None:
        """Forgets all; a new round has to begin."""
        self.drop()
        self.epoch, self._since = NOT_KNOWN, None
