"""What a reader of a log may be told instead of reading it: by another reader, or by who writes it.

    another reader:  [start, end) that it has fetched    -> the follower takes it, waits, or reads itself
    a writer:        acknowledged batches, in their order -> those that the follower's position goes on with

Rules
1. Whatever is told goes on exactly where the follower has come, or it reads for itself: nothing is taken
   twice and nothing passed over, whatever is lost, repeated or cut on the way.
2. What a writer was told is acknowledged counts only where the log still has it. Batches are of a leader's
   epoch if they were sent once it was known to lead in it, and it did so still after they were acknowledged:
   epochs only grow. Then they are what a fetch in that epoch would have shown; whatever else was acknowledged
   is dropped.
3. Memory is bounded: of a writer's batches the last `MOST_ROWS` are kept, and of each its header only.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

MOST_ROWS = 8_192
NOT_KNOWN = -1


class SharedReadOffer(Enum):
    """What a follower does with what another reader has fetched."""

    MISSES = "it reads for itself"
    WAITS = "it has all of it: what follows comes from the same reader"
    TAKES = "it goes on with it"


def offered(next_offset: int, start: int, end: int, *, is_whole: bool) -> SharedReadOffer:
    """What a follower that is to go on at `next_offset` does with [start, end); empty: nothing is there yet.
    `is_whole`: it is not to be begun in the middle."""
    if next_offset == end:
        return SharedReadOffer.WAITS
    if next_offset == start or (start < next_offset < end and not is_whole):
        return SharedReadOffer.TAKES
    return SharedReadOffer.MISSES


class AppendedBatch(msgspec.Struct, frozen=True, gc=False):
    """An acknowledged batch [base_offset, next_offset): its header as it was sent, and when it was there."""

    base_offset: int
    next_offset: int
    head: bytes
    at_ms: int


class AppendedBatches:
    """Batches that one writer has appended to a partition, one behind the other (rules 2 and 3).

    A round: `ask`, whether the leader leads in the epoch that the follower knows; `confirmed`, or `stop`;
    `take`.

    Attributes:
        epoch: of the leader; `NOT_KNOWN`: none was asked about.
        end: where the last batch ends; -1: there is none.
    """

    __slots__ = ("_confirmed", "_first", "_mark", "_most_rows", "_rows", "_since", "end", "epoch")

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self.epoch = NOT_KNOWN
        self.end = -1
        self._most_rows = most_rows
        self._rows: deque[AppendedBatch] = deque()
        self._first = 0  # the number of the first row; they are numbered as they come
        self._mark = self._confirmed = (
            0  # numbers: below the former the round asks, below the latter it is known
        )
        self._since: int | None = (
            None  # what was sent of the writer's own source from there on is of the epoch
        )

    def acknowledged(self, source_start: int, row: AppendedBatch) -> None:
        """The log has it, at an offset below 0 if nobody tells where; it begins there in the writer's source,
        of which it sends one part after the other."""
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
    def is_begun(self) -> bool:
        """What is sent now may be taken later."""
        return self._since is not None

    @property
    def is_full(self) -> bool:
        """Soon, at least: what is in it should be taken."""
        return 2 * len(self._rows) >= self._most_rows

    def ask(self, epoch: int) -> None:
        """A round begins; the follower's position is of a log whose leader leads in this epoch."""
        if epoch != self.epoch:
            self.stop()
        self.epoch = epoch
        self._mark = self._first + len(self._rows)

    def confirmed(self, sent_to: int) -> None:
        """The leader led in this epoch after `ask`. `sent_to`: what the writer has sent until now is of its
        source's offsets below."""
        self._confirmed = self._mark
        if self._since is None:
            self._since = sent_to

    def take(self, position: int) -> list[AppendedBatch]:
        """What is known, and goes on at `position`; it is not kept here any more."""
        rows = self._rows
        while rows and self._first < self._confirmed and rows[0].next_offset <= position:
            rows.popleft()
            self._first += 1
        if not rows or self._first >= self._confirmed:
            return []
        if rows[0].base_offset < position:  # in the middle of a batch
            self.drop()
        if not rows or rows[0].base_offset != position:
            return []
        taken = [rows.popleft() for _ in range(self._confirmed - self._first)]
        self._first += len(taken)
        return taken

    def goes_on_at(self, position: int) -> bool:
        """Whether what follows `position` is here, or comes next."""
        start = self._rows[0].base_offset if self._rows else self.end
        return 0 <= start <= position <= self.end

    def drop(self) -> None:
        """Forgets the batches; those that come may be taken."""
        self._first += len(self._rows)
        self._rows.clear()
        self.end = -1

    def stop(self) -> None:
        """Forgets all: a further round has to begin anew."""
        self.drop()
        self.epoch, self._since = NOT_KNOWN, None
