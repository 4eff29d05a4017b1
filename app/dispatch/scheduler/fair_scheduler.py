"""Shares one receiver between a workload's pumps, by turns and by a bound on each pump's messages in flight.

Turns alone are not fair: a pump whose messages hang would in the end hold all of the receiver's places. So a
pump has at most `FREE_ROOM_FACTOR` times as many in flight as there are free places (dynamic thresholds:
Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). One hanging
pump takes 10/11 of all places, n of them 10/(10n + 1) each, and a place always stays free for the others. No
history or timer is needed, and a single pump has no bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery, DeliveryPump
    from app.dispatch.push.receiver import Receiver

FREE_ROOM_FACTOR = 10


def fair_allowance(room: int, in_flight: int) -> int:
    """How many more messages a pump with `in_flight` may send, while `room` places are free.

    The last of them leaves while the pump has less than `FREE_ROOM_FACTOR` times the free places in flight.
    At least 1 for a pump with nothing in flight, if there is room.
    """
    return max(0, (FREE_ROOM_FACTOR * (room + 1) - in_flight) // (FREE_ROOM_FACTOR + 1))


class FairScheduler:
    """The pumps that have messages to send, in turn; falsy: none has."""

    def __init__(self) -> None:
        self._queue: deque[DeliveryPump] = deque()
        self._members: WeakSet[DeliveryPump] = WeakSet()

    def __len__(self) -> int:
        return len(self._queue)

    def join(self, pump: DeliveryPump) -> None:
        """`pump` shares from now on."""
        self._members.add(pump)

    def leave(self, pump: DeliveryPump) -> None:
        self._members.discard(pump)

    def offer(self, pump: DeliveryPump) -> None:
        """`pump` has messages ready, and waits for its turn."""
        if not pump.in_turn:
            pump.in_turn = True
            self._queue.append(pump)

    def allowance(self, pump: DeliveryPump, room: int, receiver: Receiver) -> int:
        """How many messages the pump may send to this receiver, at most `room`. A probe needs no share."""
        if len(self._members) < 2 or receiver.probes:
            return room
        return min(room, fair_allowance(receiver.free, receiver.out[pump]))

    def first(self, room: int, receiver: Receiver) -> tuple[DeliveryPump, int] | None:
        """The next pump that may send to this receiver, and how many; None: there is none."""
        queue = self._queue
        for _ in range(len(queue)):
            if allowance := self.allowance(queue[0], room, receiver):
                return queue[0], allowance
            queue.rotate(-1)
        return None

    def took(self) -> None:
        """The first pump has used its turn."""
        self._queue.rotate(-1)

    def done(self) -> None:
        """The first pump has no more messages."""
        self._queue.popleft().in_turn = False

    def next(self, may: Callable[[DeliveryPump], bool]) -> Delivery | None:
        """The next message of a pump for which `may` is true, regardless of shares; None: there is none."""
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
