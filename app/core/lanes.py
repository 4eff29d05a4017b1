"""Ordering by key: a lane a key, in which one message is out and the next waits; keys run side by side.

    key a  ──●──○──○      ● with the receiver   ○ waits in its lane
    key b  ──●
    (none) ──●──●──●      no key, no order

The guarantee of `ordering: key`: a message is given to the receiver only when every earlier one of its
key (by offset in the main topic's partition) is finished, that is acknowledged or in the DLQ. At most one
message of a key is with the receiver at a time, its attempts included. After kill -9 or a takeover what
was not yet saved as finished is delivered again, in order: the receiver may see 1 2 1 2 3, never 2 1.
`ordering: partition` is the same with one lane for everything, keyed or not (`single`).

Across retries
--------------
A message that moves to a retry topic leaves its lane, and those behind must not overtake it. They follow
it: its key is *parked* here, and while it is, messages of that key are moved on to the same retry topic
instead of being delivered. There they stand behind it, and the retry tier's job, which has lanes of its
own, keeps them in order; if the first moves on to the second tier, they follow again.

    main    1 2 3   1 fails, moves to tier 0, key parked: 2, 3 follow     park at main: 3
    tier 0  1 2 3   1 is acknowledged, 2 is acknowledged, ...             unpark at main, one each

What the caller must do:

1. `offer` a message when it is read, in the order of the log. When it comes out (at once or by
   `finished`) and its key `is_parked`: copy it to the next topic, do not deliver it.
2. A move is: copy acknowledged by all in-sync replicas, `park`, mark finished, `finished`, in this order.
   The next of the lane comes out only then, so that copies of a key are appended in order.
3. A message that is finished in tier t (acknowledged or in the DLQ) is `unpark`ed at the main job and
   at every tier before t: it has moved through all of them.
4. Attempts within a tier are made in place: the message waits out its delay in its lane. It must not be
   appended to its own topic again, where it would stand behind messages that came from before meanwhile.
5. A retry topic has as many partitions as the main topic, and a copy keeps its partition number. The jobs of
   one partition number (main and tiers) are placed on one worker, which shares their lanes.
6. Followers need no delay of their own: with a header `switchyard-follows: 1` the tier delivers them as
   soon as the one before is finished. Without, a key in steady use would stay parked for ever.
7. After a takeover, before the first delivery: read the retry topics' partitions from their trackers'
   bases to the end, and `park` the key of each unfinished record at every job before its topic. Nothing
   else needs to be saved: rule 2 sees to it that whatever was marked finished by a move is in there.
   A copy written just before a kill is a repetition, and follows the original, so order still holds.

Memory: keys are kept as bytes only while a message of theirs is out; what waits is bounded by the
tracker's capacity. Parked keys are kept as 64-bit hashes with a count. Should two keys share a hash, one of
them takes the way through the retry topic without need; order is never at risk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")

ONE_LANE = b""


class LaneError(ValueError):
    """The caller broke the rules: a programming error that must stop the job, before it breaks order."""


class Lanes(Generic[Item]):
    """See the module. One a job, used from one thread. Items are never None.

    Args:
        single: everything is in one lane (`ordering: partition`).

    Attributes (read only):
        waiting: items that wait for an earlier one of their key.
        parked: messages that have moved on and are not finished.
    """

    __slots__ = ("_lanes", "_parked", "_single", "parked", "waiting")

    def __init__(self, *, single: bool = False) -> None:
        self._lanes: dict[bytes, deque[Item] | None] = {}  # None: one is out, nothing waits
        self._parked: dict[int, int] = {}
        self._single = single
        self.waiting = 0
        self.parked = 0

    @property
    def in_use(self) -> int:
        """Keys of which a message is out."""
        return len(self._lanes)

    @property
    def parked_keys(self) -> int:
        """Keys of which a message has moved on and is not finished."""
        return len(self._parked)

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

    def finished_many(self, keys: Iterable[bytes | None]) -> list[Item]:
        """`finished` for each of `keys`. Returns those whose turn it is now."""
        following = map(self.finished, keys)
        return [item for item in following if item is not None]

    def clear(self) -> None:
        """Forgets everything: the job has stopped or moved."""
        self._lanes.clear()
        self._parked.clear()
        self.waiting = self.parked = 0

    # -- moved on to a retry topic ---------------------------------------------------------------

    def park(self, key: bytes | None, messages: int = 1) -> None:
        """So many messages of `key` have moved on: later ones follow. Without a key nothing follows."""
        if self._single:
            key = ONE_LANE
        elif key is None:
            return
        number = hash(key)
        self._parked[number] = self._parked.get(number, 0) + messages
        self.parked += messages

    def is_parked(self, key: bytes | None) -> bool:
        """Whether a message of `key` must follow instead of being delivered."""
        if not self._parked:
            return False
        if self._single:
            return True
        return key is not None and hash(key) in self._parked

    def unpark(self, key: bytes | None) -> bool:
        """A message of `key` that had moved on is finished. Returns whether the key is free now.

        Raises:
            LaneError: none had moved on, or all of them were finished before.
        """
        if self._single:
            key = ONE_LANE
        elif key is None:
            return True
        number = hash(key)
        count = self._parked.get(number, 0)
        if not count:
            raise LaneError(f"unparked key {key[:40]!r}, but no message of it has moved on")
        self.parked -= 1
        if count > 1:
            self._parked[number] = count - 1
            return False
        del self._parked[number]
        return True
