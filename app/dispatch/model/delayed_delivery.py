"""Messages that are due at a time of their own: the header `not-before`, and where they wait for it.

    push(due, offset) ──▶ heap by (due, offset) ──pop_due(now)──▶ what is due, the earliest first

Rules
1. Nothing comes out before its time. What is due at the same millisecond comes out by offset.
2. An offset is pushed once; the tracker registers it once. What waits is unfinished there, and its capacity
   is the bound: the queue has none of its own.
3. Delays are by the wall clock, in milliseconds since 1970: what the producer wrote means that. A clock
   that is set back delays; it never delivers early.

Memory: an entry is one integer of due time and offset. Measured, a million of them take 48 MB with
their heap, a tuple each would take three times that. `item` is for the record; items are kept beside, only
where given.

What is due far ahead would hold its partition's tracker, and with it the partition, for up to 30 days. So it
is copied to the workload's topic of delayed messages, which has a partition for each of `LEVELS_MS`:

    due in 8 h ──▶ level 6 h ──6 h──▶ level 1 h ──1 h──▶ level 1 h ──1 h──▶ delivered, or lower levels

A record of a level waits there as in a retry tier: only the first of a partition is looked at, so that a
million of them take no memory. The level is the longest that is over in time, so no level makes it late;
the last part of its time it waits in memory like any other, and comes as exactly. Every level costs a copy:
a day at most 30 of them, and next to none while the levels' own trackers have room.
This is the hierarchical timing wheel of Varghese and Lauck (1987), its slots being logs.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

from app.dispatch.model.retry_headers import POSTPONED_TO, Header

Item = TypeVar("Item")

NOT_BEFORE = "not-before"
MAX_DELAY_MS = 30 * 86_400_000  # as long as any delay in a definition; beyond it is taken for a mistake
MAX_CHARS = 40  # the longest ISO-8601 time with microseconds and an offset has 35
LEVELS_MS = (10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, 24 * 3_600_000)
FAR_MS = LEVELS_MS[-1]  # never waits in place: the log must not expire what has only been read
MOST_ARRIVALS = 64


class Unit(NamedTuple):
    """Numbers `below` this, and not below the one before, are of a unit of which there are so many a ms."""

    below: float
    per_ms: int


# A bound is the year 5138 in its own unit and 1973 in the unit that follows. Nobody means either.
UNITS = (Unit(1e11, 0), Unit(1e14, 1), Unit(1e17, 1_000), Unit(inf, 1_000_000))
FRACTION_DIGITS = 9
_NUMBER = re.compile(rf"[0-9]+|[0-9]{{1,11}}\.[0-9]{{1,{FRACTION_DIGITS}}}")
_OFFSET_BITS = 63
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def level_of(wait_ms: int, levels: int | None = None) -> int | None:
    """Which of the first `levels` (all) a message waits at that is due in `wait_ms`: the longest that is over
    by then; None when it is due too soon for any."""
    level = bisect_right(LEVELS_MS[:levels], wait_ms) - 1
    return None if level < 0 else level


class DueQueue(Generic[Item]):
    """See the module. One a job, used from one thread."""

    __slots__ = ("_heap", "_items", "_taken")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._items: dict[int, Item] = {}
        self._taken: set[int] = set()  # still in the heap

    def __len__(self) -> int:
        return len(self._heap) - len(self._taken)

    def __contains__(self, offset: int) -> bool:
        """Whether it waits here with an item."""
        return offset in self._items

    def __getitem__(self, offset: int) -> Item:
        return self._items[offset]

    @property
    def next_due_ms(self) -> int | None:
        """When the first is due, None when nothing waits."""
        return self._heap[0] >> _OFFSET_BITS if self._heap else None

    def push(self, due_ms: int, offset: int, item: Item | None = None) -> None:
        """Waits for `due_ms`, milliseconds since 1970."""
        if offset in self._taken:
            self._drop_taken()  # it comes again: its former entry must not stand for it
        heappush(self._heap, max(0, due_ms) << _OFFSET_BITS | offset)
        if item is not None:
            self._items[offset] = item

    def pop_due(self, now_ms: int, limit: int | None = None) -> list[tuple[int, Item | None]]:
        """Takes out what is due at `now_ms`, the earliest first, at most `limit`: offsets and their items."""
        heap, items = self._heap, self._items
        due: list[tuple[int, Item | None]] = []
        bound = now_ms + 1 << _OFFSET_BITS
        while heap and heap[0] < bound and (limit is None or len(due) < limit):
            offset = heappop(heap) & _OFFSET_MASK
            due.append((offset, items.pop(offset, None) if items else None))
            self._uncover()
        return due

    def remove(self, offset: int) -> Item | None:
        """Takes out the one at `offset`, due or not; None when it does not wait here with an item."""
        item = self._items.pop(offset, None)
        if item is not None:
            self._taken.add(offset)
            if 2 * len(self._taken) > len(self._heap):
                self._drop_taken()
            self._uncover()
        return item

    def _uncover(self) -> None:
        """The first of the heap is one that waits."""
        heap, taken = self._heap, self._taken
        while taken and heap[0] & _OFFSET_MASK in taken:
            taken.remove(heappop(heap) & _OFFSET_MASK)

    def _drop_taken(self) -> None:
        self._heap = [entry for entry in self._heap if entry & _OFFSET_MASK not in self._taken]
        heapify(self._heap)
        self._taken.clear()


class Arrivals:
    """When the log was first seen to reach beyond an offset: no record was appended later than that, whatever
    its timestamp says.

    At most `MOST_ARRIVALS` are kept: beyond, every other one goes, and its offsets count as seen with the
    next, later but never earlier. What has been passed is forgotten: ask in order of offsets.
    """

    __slots__ = ("_ends", "_times_ms")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times_ms: list[int] = []

    def __len__(self) -> int:
        return len(self._ends)

    def note(self, end: int, at_ms: int) -> None:
        """The log reached up to `end`, half-open, at `at_ms` or before."""
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times_ms.append(at_ms)
        if len(self._ends) > MOST_ARRIVALS:
            del self._ends[:-1:2]
            del self._times_ms[:-1:2]

    def appended_ms(self, offset: int, timestamp_ms: int) -> int:
        """When the record was appended: what its timestamp says, unless that is a time at which it had been
        seen already, or none."""
        passed = bisect_right(self._ends, offset)
        del self._ends[:passed]
        del self._times_ms[:passed]
        if not self._ends or 0 <= timestamp_ms < self._times_ms[0]:
            return timestamp_ms
        return self._times_ms[0]


def not_before_ms(headers: Iterable[Header], now_ms: int, is_heeded: bool = True) -> tuple[int | None, str]:
    """When a message may be delivered, by its header `not-before`; the last one counts, as in Kafka. A copy
    may tell a time of its own beside (`POSTPONED_TO`, milliseconds): the later of the two counts.

    Shapes: ISO-8601 with an offset ("2031-05-01T12:00:00Z"), or a decimal number since 1970. Its size says
    its unit (`UNITS`): no unit's times of 1973 to 5138 are another's. Seconds may have a fraction.

    Args:
        is_heeded: the workload heeds `not-before`; a copy's own time counts all the same.

    Returns: (time in ms, "") or (None, "") without the header; (None, why) when it says nothing that can
        be kept: the message is then delivered at once, and the reason is shown.
    """
    value: bytes | None = None
    told_ms: int | None = None
    for name, content in headers:
        if name == NOT_BEFORE and is_heeded:
            value = content
        elif name == POSTPONED_TO:
            told_ms = _due_of_copy(content, now_ms + MAX_DELAY_MS)
    if value is None:
        return told_ms, ""
    at_ms, problem = _read_ms(value, now_ms)
    return max((ms for ms in (at_ms, told_ms) if ms is not None), default=None), problem


def _due_of_copy(content: bytes | None, latest_ms: int) -> int | None:
    """What a copy tells; what cannot be is as good as nothing: anybody may have written it."""
    at_ms = int(content) if content and len(content) <= MAX_CHARS and content.isdigit() else None
    return None if at_ms is None or at_ms > latest_ms else at_ms


def _read_ms(value: bytes, now_ms: int) -> tuple[int | None, str]:
    if len(value) > MAX_CHARS:
        return None, f"{NOT_BEFORE}: {len(value)} bytes are no time"
    text = value.decode("ascii", "replace").strip()
    at_ms = _number_ms(text) if _NUMBER.fullmatch(text) else _iso_ms(text)
    if at_ms is None:
        return None, f"{NOT_BEFORE}: {text!r} is neither a number since 1970 nor ISO-8601 with an offset"
    if at_ms > now_ms + MAX_DELAY_MS:
        days = (at_ms - now_ms) // 86_400_000
        return None, f"{NOT_BEFORE}: {text!r} is {days} days ahead; at most 30 are kept"
    return at_ms, ""


def _number_ms(text: str) -> int:
    """Rounded up, as `_iso_ms` does."""
    whole, _, fraction = text.partition(".")
    if fraction or int(whole) < UNITS[0].below:
        return int(whole) * 1000 + -(-int(fraction.ljust(FRACTION_DIGITS, "0")) // 1_000_000)
    per_ms = next(unit.per_ms for unit in UNITS[1:] if int(whole) < unit.below)
    return -(-int(whole) // per_ms)


def _iso_ms(text: str) -> int | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:  # whose noon? Better told than guessed
        return None
    # Rounded up: "not before" is kept to the millisecond.
    return max(0, -((_EPOCH - at) // _MILLISECOND))
