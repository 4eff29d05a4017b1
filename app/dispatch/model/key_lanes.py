"""Ordering by key: a lane a key, in which one message is out and the next waits; keys run side by side.

    key a  ──●──○──○      ● with the receiver   ○ waits in its lane
    key b  ──●
    (none) ──●──●──●      no key, no order

The guarantee of `ordering: key`: a message is given to the receiver only when every earlier one of its
key (by offset in the main topic's partition) is finished, that is acknowledged or in the DLQ. At most one
message of a key is with the receiver at a time, its attempts included. After kill -9 or a takeover what
was not yet saved as finished is delivered again, in order: the receiver may see 1 2 1 2 3, never 2 1.
`ordering: partition` is the same with one lane for everything, keyed or not (`single`).

Across retries: a message that fails waits for its next attempt in its lane, for as long as the retry tier it
would have gone to delays it, and those behind it wait too. In a retry topic it could not be kept in order
after a kill: whether an earlier message of the key still waits there would have to be known before the first
delivery. It leaves its lane acknowledged or, its attempts used up, for the DLQ.

Out of turn: what waits may be taken out of its lane, to be ended without a delivery. The one that is out, and
the order of those that wait, stay as they are.

Memory: keys are kept as bytes only while a message of theirs is out; what waits is bounded by the
tracker's capacity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")

ONE_LANE = b""


class LaneError(ValueError):
    """The caller broke the rules: a programming error that must stop the job, before it breaks order."""


class KeyLanes(Generic[Item]):
    """See the module. One a job, used from one thread. Items are never None.

    Args:
        single: everything is in one lane (`ordering: partition`).

    Attributes (read only):
        waiting: items that wait for an earlier one of their key.
    """

    __slots__ = ("_lanes", "_single", "waiting")

    def __init__(self, *, single: bool = False) -> None:
        self._lanes: dict[bytes, deque[Item] | None] = {}  # None: one is out, nothing waits
        self._single = single
        self.waiting = 0

    @property
    def in_use(self) -> int:
        """Keys of which a message is out."""
        return len(self._lanes)

    # -- one out, the next waits -----------------------------------------------------------------

    def offer(self, key: bytes | None, item: Item) -> Item | None:
        """The next message in the log. Returns it when it is its turn, None when it waits."""
        if self._single:
            key = ONE_LANE
        elif key is None:
            return item
        lanes = self._lanes
        if key not in lanes:
            lanes[key] = None
            return item
        queue = lanes[key]
        if queue is None:
            lanes[key] = deque((item,))
        else:
            queue.append(item)
        self.waiting += 1
        return None

    def offer_many(self, pairs: Iterable[tuple[bytes | None, Item]]) -> list[Item]:
        """`offer` for each of `pairs`, in order. Returns those whose turn it is."""
        offer = self.offer
        return [item for key, item in pairs if offer(key, item) is not None]

    def finished(self, key: bytes | None) -> Item | None:
        """The message that was out is finished here. Returns the next of its lane, which is out from now on.

        Raises:
            LaneError: no message of `key` is out.
        """
        if self._single:
            key = ONE_LANE
        elif key is None:
            return None
        lanes = self._lanes
        try:
            queue = lanes[key]
        except KeyError:
            raise LaneError(f"finished a message of key {key[:40]!r}, but none is out") from None
        if queue is None:
            del lanes[key]
            return None
        item = queue.popleft()
        if not queue:
            lanes[key] = None
        self.waiting -= 1
        return item

    def withdraw(self, is_wanted: Callable[[Item], bool]) -> Item | None:
        """Takes the first waiting item that is wanted out of its lane; None when there is none.

        It never was out: its end must not be told to `finished`. Takes a look at all that waits.
        """
        for key, queue in self._lanes.items():
            for index, item in enumerate(queue or ()):
                if is_wanted(item):
                    assert queue is not None
                    del queue[index]
                    if not queue:
                        self._lanes[key] = None
                    self.waiting -= 1
                    return item
        return None

    def finished_many(self, keys: Iterable[bytes | None]) -> list[Item]:
        """`finished` for each of `keys`. Returns those whose turn it is now."""
        following = map(self.finished, keys)
        return [item for item in following if item is not None]
