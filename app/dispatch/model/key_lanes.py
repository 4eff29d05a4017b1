"""Ordering by key: each key has a lane, in which one message is out and the next ones wait.

    key a  ──●──○──○      ● with the receiver   ○ waits in its lane
    key b  ──●
    (none) ──●──●──●      no key, no order

Guarantee of `ordering: key`: the receiver gets a message only when every earlier one of its key is finished
(acknowledged, or in the DLQ). Earlier means by offset in the main topic's partition. So at most one
message of a key is with the receiver, through all its attempts. After kill -9 or a takeover, messages that
were not yet saved as finished are delivered again, in order: the receiver may see 1 2 1 2 3, never 2 1.
`ordering: partition` has one lane for all messages, with or without a key (`single`).

Retries: a failed message waits in its lane for the delay of its retry tier, and the messages behind it wait
too. A retry topic could not keep the order after a kill: a new owner does not know whether an earlier message
of the key waits there. The message leaves its lane acknowledged or, after its last attempt, for the
DLQ.

A waiting message may be withdrawn from its lane, to be finished without a delivery. The message that is out
and the order of the others stay the same.

Memory: a key is stored only while one of its messages is out; the tracker's capacity bounds the waiting ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")

ONE_LANE = b""


class LaneError(ValueError):
    """The caller broke the protocol: a programming error that stops the job before it breaks the order."""


class KeyLanes(Generic[Item]):
    """One for each job; for one thread. Items are never None.

    Args:
        single: All items are in one lane (`ordering: partition`).

    Attributes (read only):
        waiting: The number of items that wait for an earlier one of their key.
    """

    __slots__ = ("_lanes", "_single", "waiting")

    def __init__(self, *, single: bool = False) -> None:
        self._lanes: dict[bytes, deque[Item] | None] = {}  # None: one is out, none waits
        self._single = single
        self.waiting = 0

    @property
    def in_use(self) -> int:
        """The number of keys with a message out."""
        return len(self._lanes)

    def offer(self, key: bytes | None, item: Item) -> Item | None:
        """Takes the next message of the log. Returns it if it may go now; None: it waits."""
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
        """`offer` for each of `pairs`, in order; returns the items that may go now."""
        offer = self.offer
        return [item for key, item in pairs if offer(key, item) is not None]

    def finished(self, key: bytes | None) -> Item | None:
        """Ends the message that is out; returns the next of its lane, which is out from now on.

        Raises:
            LaneError: No message of `key` is out.
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
        """Takes the first waiting item that `is_wanted` out of its lane; None: there is none. Reads all
        items.

        It was never out, so do not call `finished` for it.
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
        following = map(self.finished, keys)
        return [item for item in following if item is not None]
