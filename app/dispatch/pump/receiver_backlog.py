"""Messages that wait for their receiver. Pumps take turns, so that hanging messages of one delay no other.

Their bytes count as held by their pump (`app.dispatch.pump.intake`), so that waiting messages are bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from app.kafka.records.record import size_of

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery, DeliveryPump


class ReceiverBacklog:
    """A queue for each pump, in that pump's order."""

    def __init__(self) -> None:
        self._queues: dict[DeliveryPump, deque[Delivery]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Delivery]:
        return chain.from_iterable(self._queues.values())

    def count(self, pump: DeliveryPump) -> int:
        return len(self._queues.get(pump, ()))

    def append(self, delivery: Delivery) -> None:
        """Keeps the delivery behind its pump's others."""
        self._queues.setdefault(delivery.pump, deque()).append(delivery)
        self._count += 1
        delivery.pump.hold(size_of(delivery.record))

    def pop_next(self, can_send: Callable[[DeliveryPump], object]) -> Delivery | None:
        """The first delivery of the next pump that `can_send`; None: there is none."""
        for pump, queue in self._queues.items():
            if can_send(pump):
                del self._queues[pump]
                delivery = queue.popleft()
                self._count -= 1
                pump.hold(-size_of(delivery.record))
                if queue:
                    self._queues[pump] = queue  # behind the others
                return delivery
        return None

    def remove(self, delivery: Delivery) -> None:
        queue = self._queues[delivery.pump]
        queue.remove(delivery)
        self._count -= 1
        delivery.pump.hold(-size_of(delivery.record))
        if not queue:
            del self._queues[delivery.pump]

    def pop_all(self, matches: Callable[[DeliveryPump], object]) -> list[Delivery]:
        """Takes out the deliveries of all pumps for which `matches` is true."""
        removed: list[Delivery] = []
        for pump in [pump for pump in self._queues if matches(pump)]:
            removed += self._queues.pop(pump)
        self._count -= len(removed)
        for delivery in removed:
            delivery.pump.hold(-size_of(delivery.record))
        return removed

    def clear(self) -> None:
        self.pop_all(lambda _: True)


def take_waiting(
    queues: Iterable[ReceiverBacklog | deque[Delivery]], pump: DeliveryPump, offset: int
) -> Delivery | None:
    """Takes the pump's message at `offset` out of the queues; None: it waits in none."""
    for queue in queues:
        for delivery in queue:
            if delivery.pump is pump and delivery.record.offset == offset:
                queue.remove(delivery)
                return delivery
    return None
