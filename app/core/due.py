"""Messages that are due at a time of their own: the header `not-before`, and a queue in order of time.

    push(due, offset) ──▶ heap by (due, offset) ──pop_due(now)──▶ what is due, the earliest first

Rules
1. Nothing comes out before its time. What is due at the same millisecond comes out by offset.
2. At most `capacity` wait. `push` says False beyond: pause the partition, as for any other full buffer.
3. An offset is pushed once; the tracker registers it once.

Memory: an entry is one integer of due time and offset. Measured, a million of them take 48 MB with
their heap, a tuple each would take three times that; and no decoded record is among them. `item` is for
what is cheap and shared, such as the raw batch that the record lies in; items are kept beside, only where
given.

What the pump must do for a million delayed messages:
- Decode a batch, look at the headers, push (due, offset) and let the record go. Keep the raw batch only
  while the fetch budget has room; else fetch it again by offset when it is due (`offset` is all that
  takes), a whole batch at a time, as neighbours are often due together.
- A delayed message is unfinished in the tracker. Its window is the bound: when the tracker is full of
  delayed messages the partition waits for the first of them. Where that is not wanted, what is due later
  than the longest retry tier is copied to that tier instead, and counts as finished here.
- One timer, for `next_due_ms`; `pop_due` with a limit, so that a flood of due messages takes turns.
- Delays are by the wall clock, in milliseconds since 1970: what the producer wrote means that. A clock
  that is set back delays; it never delivers early.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from app.core.retry_headers import Header

Item = TypeVar("Item")

NOT_BEFORE = "not-before"
MAX_DELAY_MS = 30 * 86_400_000  # as long as any delay in a definition; beyond it is taken for a mistake
MAX_CHARS = 40  # the longest ISO-8601 time with microseconds and an offset has 35
CAPACITY = 1_000_000

_OFFSET_BITS = 63
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class DueQueue(Generic[Item]):
    """See the module. One a job, used from one thread.

    Args:
        capacity: how many may wait.
    """

    __slots__ = ("_heap", "_items", "capacity")

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity {capacity} holds no message; give at least 1")
        self.capacity = capacity
        self._heap: list[int] = []
        self._items: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def room(self) -> int:
        """How many more may be pushed."""
        return self.capacity - len(self._heap)

    @property
    def next_due_ms(self) -> int | None:
        """When the first is due, None when nothing waits."""
        return self._heap[0] >> _OFFSET_BITS if self._heap else None

    def push(self, due_ms: int, offset: int, item: Item | None = None) -> bool:
        """Waits for `due_ms`, milliseconds since 1970. Returns False when there is no room."""
        if len(self._heap) >= self.capacity:
            return False
        heappush(self._heap, max(0, due_ms) << _OFFSET_BITS | offset)
        if item is not None:
            self._items[offset] = item
        return True

    def pop_due(self, now_ms: int, limit: int | None = None) -> list[tuple[int, Item | None]]:
        """Takes out what is due at `now_ms`, the earliest first, at most `limit`: offsets and their items."""
        heap, items = self._heap, self._items
        if not heap or heap[0] >> _OFFSET_BITS > now_ms:
            return []
        due: list[tuple[int, Item | None]] = []
        bound = now_ms + 1 << _OFFSET_BITS
        while heap and heap[0] < bound and (limit is None or len(due) < limit):
            offset = heappop(heap) & _OFFSET_MASK
            due.append((offset, items.pop(offset, None) if items else None))
        return due

    def discard_below(self, base: int) -> int:
        """Forgets offsets below `base` (skipped, reset). Returns how many. Takes a pass over all of it."""
        before = len(self._heap)
        self._heap = [entry for entry in self._heap if entry & _OFFSET_MASK >= base]
        heapify(self._heap)
        self._items = {offset: item for offset, item in self._items.items() if offset >= base}
        return before - len(self._heap)


def not_before_ms(headers: Iterable[Header], now_ms: int) -> tuple[int | None, str]:
    """When a message may be delivered, by its header `not-before`; the last one counts, as in Kafka.

    Shapes: milliseconds since 1970 in decimal, or ISO-8601 with an offset ("2031-05-01T12:00:00Z").

    Returns: (time in ms, "") or (None, "") without the header; (None, why) when it says nothing that can
        be kept: the message is then delivered at once, and the reason is shown.
    """
    value: bytes | None = None
    for name, content in headers:
        if name == NOT_BEFORE:
            value = content
    if value is None:
        return None, ""
    if len(value) > MAX_CHARS:
        return None, f"{NOT_BEFORE}: {len(value)} bytes are no time"
    text = value.decode("ascii", "replace").strip()
    at_ms = int(text) if value.strip().isdigit() else _iso_ms(text)
    if at_ms is None:
        return None, f"{NOT_BEFORE}: {text!r} is neither milliseconds since 1970 nor ISO-8601 with an offset"
    if at_ms > now_ms + MAX_DELAY_MS:
        days = (at_ms - now_ms) // 86_400_000
        return None, f"{NOT_BEFORE}: {text!r} is {days} days ahead; at most 30 are kept"
    return at_ms, ""


def _iso_ms(text: str) -> int | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:  # whose noon? Better told than guessed
        return None
    # Rounded up: "not before" is kept to the millisecond.
    return max(0, -((_EPOCH - at) // _MILLISECOND))
