"""The pumps of a workload that have something to send, in turn, and how much of a receiver each may hold.

A pump whose messages hang would in the end hold every place that a receiver has, however fair the turns. So
one holds at most `FREE_ROOM_FACTOR` times as much as is free (dynamic thresholds: Choudhury and Hahne,
"Dynamic queue length thresholds for shared-memory packet switches", 1998): alone 10/11 of all, n of them
10/(10n + 1) each, and there is always a place for one that has none. No history, no timer, nothing to pay for
a pump without siblings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.pump.partition import DispatchPump
    from app.dispatch.scheduler.receiver import ReceiverLink

FREE_ROOM_FACTOR = 10


def fair_allowance(room: int, in_flight: int) -> int:
    """How many more a pump may send that has `in_flight` out, while `room` places are free: the last of them
    leaves while it holds less than `FREE_ROOM_FACTOR` times what is free. At least 1 with nothing out and any
    room."""
    return max(0, (FREE_ROOM_FACTOR * (room + 1) - in_flight) // (FREE_ROOM_FACTOR + 1))


class FairScheduler:
    """See the module; falsy when no pump has anything to send."""

    def __init__(self) -> None:
        self._queue: deque[DispatchPump] = deque()
        self._members: WeakSet[DispatchPump] = WeakSet()

    def __len__(self) -> int:
        return len(self._queue)

    def join(self, pump: DispatchPump) -> None:
        """`pump` is one of those that share."""
        self._members.add(pump)

    def leave(self, pump: DispatchPump) -> None:
        """It is closed."""
        self._members.discard(pump)

    def offer(self, pump: DispatchPump) -> None:
        """`pump` has messages ready; it takes its turn."""
        if not pump.in_turn:
            pump.in_turn = True
            self._queue.append(pump)

    def most(self, pump: DispatchPump, room: int, link: ReceiverLink) -> int:
        """How many messages it may send to this receiver, of `room`. A single probe is nobody's share."""
        if len(self._members) < 2 or not link.breaker.closed:
            return room
        return min(room, fair_allowance(room, link.out[pump]))

    def first(self, room: int, link: ReceiverLink) -> tuple[DispatchPump, int] | None:
        """The next pump that may send to this receiver, and how much; None: none may, or none is there."""
        queue = self._queue
        for _ in range(len(queue)):
            if most := self.most(queue[0], room, link):
                return queue[0], most
            queue.rotate(-1)
        return None

    def took(self) -> None:
        """The first has had its turn."""
        self._queue.rotate(-1)

    def done(self) -> None:
        """The first has nothing (more) to send."""
        self._queue.popleft().in_turn = False

    def next(self, may: Callable[[DispatchPump], bool]) -> Delivery | None:
        """The next message of the pumps that `may`, in turn, whatever their share; None: none now."""
        for _ in range(len(self._queue)):
            if not may(self._queue[0]):
                self.took()
                continue
            delivery = self._queue[0].next_delivery()
            if delivery is not None:
                self.took()
                return delivery
            self.done()
        return None
