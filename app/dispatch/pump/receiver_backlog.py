"""What waits for its receiver, in turn by pump: one whose messages hang must not keep another's waiting.

Its bytes count as held by its pump (`app.dispatch.pump.intake`), so that waiting fills no memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from app.kafka.records.record import size_of

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.pump.partition import DispatchPump


class ReceiverBacklog:
    """See the module. Each pump's stay in order."""

    def __init__(self) -> None:
        self._queues: dict[DispatchPump, deque[Delivery]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Delivery]:
        return chain.from_iterable(self._queues.values())

    def count(self, pump: DispatchPump) -> int:
        """How many of the pump's there are."""
        return len(self._queues.get(pump, ()))

    def append(self, delivery: Delivery) -> None:
        """Keeps it, behind its pump's."""
        self._queues.setdefault(delivery.pump, deque()).append(delivery)
        self._count += 1
        delivery.pump.hold(size_of(delivery.record))

    def pop_next(self, may: Callable[[DispatchPump], object]) -> Delivery | None:
        """The first of the next pump that `may`; None when none may."""
        for pump, queue in self._queues.items():
            if may(pump):
                del self._queues[pump]
                delivery = queue.popleft()
                self._count -= 1
                pump.hold(-size_of(delivery.record))
                if queue:
                    self._queues[pump] = queue  # behind the others
                return delivery
        return None

    def remove(self, delivery: Delivery) -> None:
        """Takes it out."""
        queue = self._queues[delivery.pump]
        queue.remove(delivery)
        self._count -= 1
        delivery.pump.hold(-size_of(delivery.record))
        if not queue:
            del self._queues[delivery.pump]

    def pop_all(self, which: Callable[[DispatchPump], object]) -> list[Delivery]:
        """Takes out what the pumps have that `which` names."""
        taken: list[Delivery] = []
        for pump in [pump for pump in self._queues if which(pump)]:
            taken += self._queues.pop(pump)
        self._count -= len(taken)
        for delivery in taken:
            delivery.pump.hold(-size_of(delivery.record))
        return taken

    def clear(self) -> None:
        """Keeps nothing."""
        self.pop_all(lambda _: True)


def taken(
    queues: Iterable[ReceiverBacklog | deque[Delivery]], pump: DispatchPump, offset: int
) -> Delivery | None:
    """Takes the pump's message at `offset` out of them; None: it waits in none."""
    for queue in queues:
        for delivery in queue:
            if delivery.pump is pump and delivery.record.offset == offset:
                queue.remove(delivery)
                return delivery
    return None
