"""The book of one stream: which delivery number is which message of which batch, and what may be sent.

    queue(batch) ──▶ waiting ──next_run, sent──▶ in flight (numbered) ──finish──▶ reported
                        └──────────── cancel, expire, lose ────────────────────────┘

Rules (tests/dispatch/push/stream/test_book.py)
1. Each index of a batch is reported exactly once. Later results for it are ignored.
2. Deliveries are numbered in the order of sending, from 0, without gaps.
3. No run beyond the credit in deliveries is offered for sending. Bytes are counted here, but the sender keeps
   to that credit, because only it knows the sizes (`encoder`).
4. Credit never shrinks, whatever the receiver says.

Pure: time is passed in. Ranges are half-open. A run is (batch, first index, end index).

Invariants: 0 <= next_number <= credit; waiting + in_flight = indexes queued and not reported.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import deque
from typing import Any, Generic, TypeVar

BatchT = TypeVar("BatchT")


class InFlightBatch:
    """A batch in the book. `first_unsent` is an index; `done` has one byte for each index; `later` has the
    deadlines of those that got more time, `latest_s` at most."""

    __slots__ = (
        "batch", "deadline_s", "done", "first_unsent", "later", "latest_s", "open_messages", "spans",
    )  # fmt: skip

    def __init__(self, batch: Any, count: int, deadline_s: float, latest_s: float) -> None:
        self.batch = batch  # None once all is reported: the entry may stay for long, its messages must not
        self.deadline_s = deadline_s
        self.latest_s = max(deadline_s, latest_s)
        self.later: dict[int, float] = {}
        self.done = bytearray(count)
        self.open_messages = count
        self.first_unsent = 0
        self.spans: list[tuple[int, int, int]] = []  # first number, end number, first index


class InFlightBatches(Generic[BatchT]):
    """The book of one stream.

    Attributes:
        next_number: The number of the next delivery.
        waiting: Queued messages that were not sent.
        in_flight: Sent messages without a result.
        credit: Deliveries with a lower number may be sent.
        unknown: Results so far for deliveries that were never made.
    """

    def __init__(self) -> None:
        self.next_number = self.waiting = self.in_flight = self.credit = 0
        self.unknown = 0
        self._bytes_credit = self._bytes_sent = 0
        self._entries: dict[int, InFlightBatch] = {}  # by identity of the batch
        self._queue: deque[InFlightBatch] = deque()
        self._firsts: list[int] = []  # first numbers of spans in flight, ascending
        self._spans: list[tuple[int, int, InFlightBatch]] = []  # end number, first index, entry
        self._deadlines: list[tuple[float, int, InFlightBatch]] = []
        self._queued = 0

    # -- in and out ------------------------------------------------------------------------------

    def queue(self, batch: BatchT, count: int, deadline_s: float, latest_s: float = 0.0) -> None:
        """Adds a batch of `count` messages, which may be renewed until `latest_s`. Raises ValueError: it is
        empty, or in the book already."""
        if count < 1 or id(batch) in self._entries:
            raise ValueError("a batch is queued once, and has at least one message")
        entry = InFlightBatch(batch, count, deadline_s, latest_s)
        self._entries[id(batch)] = entry
        self._queue.append(entry)
        self._queued += 1
        heapq.heappush(self._deadlines, (deadline_s, self._queued, entry))
        self.waiting += count

    def next_run(self) -> tuple[BatchT, int, int] | None:
        """The run to send next, within the credit; None: nothing waits, or there is no credit."""
        queue = self._queue
        while queue:
            entry = queue[0]
            done = entry.done
            start = done.find(0, entry.first_unsent) if entry.open_messages else -1
            if start < 0:
                queue.popleft()
                continue
            if self.credit <= self.next_number:
                return None
            entry.first_unsent = start
            end = done.find(1, start)
            if end < 0:
                end = len(done)
            return entry.batch, start, min(end, start + self.credit - self.next_number)
        return None

    def sent(self, count: int) -> None:
        """The first `count` messages of `next_run` were sent, numbered from `next_number`."""
        entry = self._queue[0]
        first, index = self.next_number, entry.first_unsent
        end = first + count
        assert 0 < count <= self.waiting
        assert end <= self.credit, "sent beyond the credit"
        entry.spans.append((first, end, index))
        self._firsts.append(first)
        self._spans.append((end, index, entry))
        entry.first_unsent = index + count
        self.next_number = end
        self.waiting -= count
        self.in_flight += count
        if entry.first_unsent >= len(entry.done):
            self._queue.popleft()

    # -- credit ----------------------------------------------------------------------------------

    @property
    def bytes_left(self) -> int:
        return max(0, self._bytes_credit - self._bytes_sent)

    def sent_bytes(self, size: int) -> None:
        self._bytes_sent += size

    def credited(self, deliveries: int, size: int) -> None:
        """The receiver takes this many deliveries and bytes in total, counted from the stream's start."""
        self.credit = max(self.credit, deliveries)
        self._bytes_credit = max(self._bytes_credit, size)

    # -- results ---------------------------------------------------------------------------------

    def unsent(self) -> list[tuple[BatchT, int, int]]:
        entries = [entry for entry in self._queue if entry.open_messages]
        return [(entry.batch, entry.first_unsent, len(entry.done)) for entry in entries]

    def unsent_of(self, batch: BatchT) -> tuple[int, int] | None:
        """The unsent indexes of one batch; None: it is not in the book."""
        entry = self._entries.get(id(batch))
        return None if entry is None else (entry.first_unsent, len(entry.done))

    def is_open(self, batch: BatchT, index: int) -> bool:
        entry = self._entries.get(id(batch))
        return entry is not None and not entry.done[index]

    def finish(self, start: int, end: int) -> list[tuple[BatchT, int, int]]:
        """The deliveries [start, end) have a result; returns the runs that are reported by it."""
        if start >= end:
            return []
        if end > self.next_number:
            self.unknown += end - max(start, self.next_number)
            end = self.next_number
        runs: list[tuple[BatchT, int, int]] = []
        firsts, spans = self._firsts, self._spans
        at = max(0, bisect_right(firsts, start) - 1)
        while at < len(firsts) and firsts[at] < end:
            first = firsts[at]
            span_end, index, entry = spans[at]
            low, high = max(start, first), min(end, span_end)
            if low < high:
                self._mark(entry, index + low - first, index + high - first, runs)
                if not entry.open_messages:
                    at = bisect_left(firsts, high)  # its spans are gone
                    continue
            at += 1
        return runs

    def renew(self, start: int, end: int, until_s: float) -> tuple[list[tuple[BatchT, int]], int]:
        """Gives the deliveries [start, end) that have no result until then.

        Returns:
            The batches and indexes of those that have more time by it, and how many spans and deliveries it
            looked at.
        """
        firsts, spans = self._firsts, self._spans
        renewed: list[tuple[BatchT, int]] = []
        at = max(0, bisect_right(firsts, start) - 1)
        looks = 1
        while at < len(firsts) and firsts[at] < end:
            first = firsts[at]
            span_end, index, entry = spans[at]
            at += 1
            looks += 1
            new_s, done = min(until_s, entry.latest_s), entry.done
            low, high = index + max(start, first) - first, index + min(end, span_end) - first
            while low < high and (low := done.find(0, low, high)) >= 0:
                looks += 1
                if new_s > entry.later.get(low, entry.deadline_s):
                    entry.later[low] = new_s
                    renewed.append((entry.batch, low))
                low += 1
        return renewed, looks

    def cancel(
        self, batch: BatchT, start: int, end: int
    ) -> tuple[list[tuple[BatchT, int, int]], list[tuple[int, int]]]:
        """Gives up [start, end); returns the runs to report, and the numbers to forget."""
        entry = self._entries.get(id(batch))
        if entry is None:
            return [], []
        runs: list[tuple[BatchT, int, int]] = []
        spans, first_unsent = list(entry.spans), entry.first_unsent
        self._mark(entry, max(0, start), min(end, len(entry.done)), runs)
        numbers = []
        for _, low, high in runs:
            for first, span_end, index in spans:
                inside = max(low, index), min(high, index + span_end - first, first_unsent)
                if inside[0] < inside[1]:
                    numbers.append((first + inside[0] - index, first + inside[1] - index))
        return runs, numbers

    def expire(self, now_s: float) -> tuple[list[tuple[BatchT, int, int]], list[tuple[int, int]]]:
        """Gives up every message whose deadline has passed; returns the same as `cancel`."""
        runs: list[tuple[BatchT, int, int]] = []
        numbers: list[tuple[int, int]] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            entry = heapq.heappop(self._deadlines)[2]
            if not entry.open_messages:
                continue
            done, start = entry.done, 0
            later = {at: until_s for at, until_s in entry.later.items() if until_s > now_s and not done[at]}
            for kept in (*sorted(later), len(done)):
                if start < kept:
                    more_runs, more_numbers = self.cancel(entry.batch, start, kept)
                    runs += more_runs
                    numbers += more_numbers
                start = kept + 1
            entry.later = later
            if later:
                self._queued += 1
                heapq.heappush(self._deadlines, (min(later.values()), self._queued, entry))
        return runs, numbers

    def next_deadline_s(self) -> float | None:
        """When `expire` is due, at the latest; None: never."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].open_messages:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def lose(self) -> tuple[list[tuple[BatchT, int, int]], list[tuple[BatchT, int, int]]]:
        """The stream ended: empties the book; returns the sent and the unsent runs, as they were queued."""
        sent: list[tuple[BatchT, int, int]] = []
        unsent: list[tuple[BatchT, int, int]] = []
        for entry in list(self._entries.values()):
            at = entry.first_unsent
            self._mark(entry, 0, at, sent)
            self._mark(entry, at, len(entry.done), unsent)
        self._queue.clear()
        self._deadlines.clear()
        return sent, unsent

    def _mark(self, entry: InFlightBatch, start: int, end: int, runs: list[tuple[BatchT, int, int]]) -> None:
        """Marks the indexes [start, end) as done; adds those that were not to `runs`."""
        done = entry.done
        while start < end:
            low = done.find(0, start, end)
            if low < 0:
                return
            high = done.find(1, low, end)
            if high < 0:
                high = end
            done[low:high] = b"\x01" * (high - low)
            count = high - low
            unsent = max(0, high - max(low, entry.first_unsent))
            self.waiting -= unsent
            self.in_flight -= count - unsent
            runs.append((entry.batch, low, high))
            entry.open_messages -= count
            if not entry.open_messages:
                self._forget(entry)
                return
            start = high

    def _forget(self, entry: InFlightBatch) -> None:
        del self._entries[id(entry.batch)]
        entry.batch = None
        for first, _, _ in entry.spans:
            at = bisect_left(self._firsts, first)
            del self._firsts[at]
            del self._spans[at]
        entry.spans = []
        self.next_deadline_s()
