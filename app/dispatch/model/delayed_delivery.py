"""Messages with a time of their own: the header `not-before`, and the queue in which they wait for it.

    push(due, offset) ──▶ heap by (due, offset) ──pop_due(now)──▶ due messages, the earliest first

Rules (tests/dispatch/model/test_delayed_delivery.py)
1. No message comes out before its time. Messages of the same millisecond come out by offset.
2. An offset is pushed once, because the tracker registers it once. A waiting message is unfinished, so the
   tracker's capacity bounds the queue.
3. Times are wall-clock milliseconds since 1970, as producers write them. A clock that is set back delays
   messages; it never delivers early.

Memory: an entry is one integer of due time and offset. A million entries take 48 MB with their heap; tuples
would take three times as much. `item` holds the record, where one is given.

A message that is due far ahead would block its partition's tracker, for up to 30 days. So it is copied to the
workload's topic of delayed messages, which has a partition for each of `LEVELS_MS`:

    due in 8 h ──▶ level 6 h ──6 h──▶ level 1 h ──1 h──▶ level 1 h ──1 h──▶ delivered, or lower levels

There it waits as in a retry tier, where only the first record of a partition is read, so a million records
take no memory. Its level is the longest that ends in time, so no level delays it. It waits for the rest in
memory like any other, and comes as exactly. Every level costs a copy: a day costs at most 30, and nearly none
while the levels' own trackers have room. This is the hierarchical timing wheel of Varghese and Lauck (1987),
with logs as slots.
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
MAX_DELAY_MS = 30 * 86_400_000  # the longest delay in a definition; more counts as a mistake
MAX_CHARS = 40  # the longest ISO-8601 time with microseconds and an offset has 35
LEVELS_MS = (10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, 24 * 3_600_000)
FAR_MS = LEVELS_MS[-1]  # a message due later never waits in its topic, where retention might delete it
MOST_ARRIVALS = 64


class Unit(NamedTuple):
    """Numbers below `below`, and not below the unit before, are of a unit with `per_ms` in a millisecond."""

    below: float
    per_ms: int


# A bound is the year 5138 in its own unit and 1973 in the next unit, so real times are unambiguous.
UNITS = (Unit(1e11, 0), Unit(1e14, 1), Unit(1e17, 1_000), Unit(inf, 1_000_000))
FRACTION_DIGITS = 9
_NUMBER = re.compile(rf"[0-9]+|[0-9]{{1,11}}\.[0-9]{{1,{FRACTION_DIGITS}}}")
_OFFSET_BITS = 63
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def level_of(wait_ms: int, levels: int | None = None) -> int | None:
    """The level, of the first `levels` (default all), for a message due in `wait_ms`: the longest that ends
    by then; None: all are too long."""
    level = bisect_right(LEVELS_MS[:levels], wait_ms) - 1
    return None if level < 0 else level


class DueQueue(Generic[Item]):
    """One for each job; for one thread."""

    __slots__ = ("_heap", "_items", "_removed")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._items: dict[int, Item] = {}
        self._removed: set[int] = set()  # still in the heap

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed)

    def __contains__(self, offset: int) -> bool:
        """Whether it waits here with an item."""
        return offset in self._items

    def __getitem__(self, offset: int) -> Item:
        return self._items[offset]

    @property
    def next_due_ms(self) -> int | None:
        """When the first is due; None: the queue is empty."""
        return self._heap[0] >> _OFFSET_BITS if self._heap else None

    def push(self, due_ms: int, offset: int, item: Item | None = None) -> None:
        """`due_ms`: milliseconds since 1970."""
        if offset in self._removed:
            self._drop_removed()  # otherwise its former entry would count for the new one
        heappush(self._heap, max(0, due_ms) << _OFFSET_BITS | offset)
        if item is not None:
            self._items[offset] = item

    def pop_due(self, now_ms: int, limit: int | None = None) -> list[tuple[int, Item | None]]:
        """Takes out at most `limit` due entries, the earliest first: offsets and their items."""
        heap, items = self._heap, self._items
        due: list[tuple[int, Item | None]] = []
        bound = now_ms + 1 << _OFFSET_BITS
        while heap and heap[0] < bound and (limit is None or len(due) < limit):
            offset = heappop(heap) & _OFFSET_MASK
            due.append((offset, items.pop(offset, None) if items else None))
            self._uncover()
        return due

    def remove(self, offset: int) -> Item | None:
        """Takes out the item at `offset`, due or not; None: none waits there."""
        item = self._items.pop(offset, None)
        if item is not None:
            self._removed.add(offset)
            if 2 * len(self._removed) > len(self._heap):
                self._drop_removed()
            self._uncover()
        return item

    def _uncover(self) -> None:
        """Drops removed entries from the top of the heap."""
        heap, taken = self._heap, self._removed
        while taken and heap[0] & _OFFSET_MASK in taken:
            taken.remove(heappop(heap) & _OFFSET_MASK)

    def _drop_removed(self) -> None:
        self._heap = [entry for entry in self._heap if entry & _OFFSET_MASK not in self._removed]
        heapify(self._heap)
        self._removed.clear()


class Arrivals:
    """When the log's end was first seen beyond an offset: the record was appended by then.

    At most `MOST_ARRIVALS` are kept. Beyond, every second one is dropped, and its offsets count with the
    next, which is later but never earlier. Ask in order of offsets, because passed ones are forgotten.
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
        """When the record was appended: its timestamp, unless negative or later than the record's first
        sight."""
        passed = bisect_right(self._ends, offset)
        del self._ends[:passed]
        del self._times_ms[:passed]
        if not self._ends or 0 <= timestamp_ms < self._times_ms[0]:
            return timestamp_ms
        return self._times_ms[0]


def not_before_ms(headers: Iterable[Header], now_ms: int, is_heeded: bool = True) -> tuple[int | None, str]:
    """When a message may be delivered, by its last header `not-before`. A copy may have a time of its own
    (`POSTPONED_TO`, milliseconds); then the later of both counts.

    Shapes: ISO 8601 with an offset ("2031-05-01T12:00:00Z"), or a decimal number since 1970. Its size
    determines its unit (`UNITS`). Seconds may have a fraction.

    Args:
        is_heeded: The workload uses `not-before`; a copy's own time always counts.

    Returns: (time in ms, "") or (None, "") without the header; (None, why) if the header cannot be used: the
        message is then delivered at once, and the reason is shown.
    """
    value: bytes | None = None
    copy_due_ms: int | None = None
    for name, content in headers:
        if name == NOT_BEFORE and is_heeded:
            value = content
        elif name == POSTPONED_TO:
            copy_due_ms = _due_of_copy(content, now_ms + MAX_DELAY_MS)
    if value is None:
        return copy_due_ms, ""
    at_ms, problem = _read_ms(value, now_ms)
    return max((ms for ms in (at_ms, copy_due_ms) if ms is not None), default=None), problem


def _due_of_copy(content: bytes | None, latest_ms: int) -> int | None:
    """A copy's own time; None: it cannot be read, or is too late (anyone may write such a header)."""
    at_ms = int(content) if content and len(content) <= MAX_CHARS and content.isdigit() else None
    return None if at_ms is None or at_ms > latest_ms else at_ms


def _read_ms(value: bytes, now_ms: int) -> tuple[int | None, str]:
    if len(value) > MAX_CHARS:
        return None, f"{NOT_BEFORE}: {len(value)} bytes are too long for a time"
    text = value.decode("ascii", "replace").strip()
    at_ms = _number_ms(text) if _NUMBER.fullmatch(text) else _iso_ms(text)
    if at_ms is None:
        return None, f"{NOT_BEFORE}: {text!r} is neither a number since 1970 nor ISO-8601 with an offset"
    if at_ms > now_ms + MAX_DELAY_MS:
        days = (at_ms - now_ms) // 86_400_000
        return None, f"{NOT_BEFORE}: {text!r} is {days} days ahead; at most 30 are allowed"
    return at_ms, ""


def _number_ms(text: str) -> int:
    """Rounds up, as `_iso_ms` does."""
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
    if at.tzinfo is None:  # a guessed zone would deliver at the wrong hour
        return None
    # Rounded up, so that the message never comes before its time.
    return max(0, -((_EPOCH - at) // _MILLISECOND))
