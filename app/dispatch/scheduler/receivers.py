"""The receivers of a workload, and which message goes to which: its target, or with isolation one of several.

A changed definition may name other receivers. The former ones stay until the last message in flight has ended
(`old`), and what waits for them goes back to its pumps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.dispatch.model.receiver_routing import Fallbacks, ReceiverRouting, RoutingRefusal, Unmatched
from app.dispatch.push.receiver import Receiver, ReceiverClients
from app.dispatch.scheduler.receiver_queues import ReceiverQueues
from app.kernel.limit_shares import ALL, WorkerShare

if TYPE_CHECKING:
    from app.dispatch.definition import Workload
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.pump.receiver_backlog import ReceiverBacklog
    from app.dispatch.push.metadata import SenderRole
    from app.kernel.lease import Lease


class Receivers:
    """The receivers of one workload on one worker, with the messages that wait for each.

    Args:
        on_room: Is called when a receiver may have room again.

    Attributes:
        by_address: Those of the present definition, the main one first.
        main: That of `spec.target`.
        old: Those of former definitions, until they are idle.
        routing: Which target a message has; None: the definition has no isolation.
        fallbacks: Where messages go while their target is away.
    """

    main: ReceiverQueues

    def __init__(
        self,
        workload: Workload,
        clients: ReceiverClients,
        lease: Lease,
        clock: Callable[[], float],
        on_room: Callable[[], None],
    ) -> None:
        self.by_address: dict[str, ReceiverQueues] = {}
        self.old: list[ReceiverQueues] = []
        self.fallbacks = Fallbacks({}, 0.0)
        self._clients = clients
        self._lease = lease
        self._clock = clock
        self._on_room = on_room
        self._role: SenderRole | None = None
        self._share = ALL
        self._apply(workload)

    def change(self, former: Workload, workload: Workload) -> list[Delivery]:
        """Applies a changed definition. Returns the waiting messages, which may have other targets now."""
        if _connection_key(workload) != _connection_key(former):
            self.old += self.by_address.values()
            self.by_address = {}
        self._apply(workload)
        waited: list[Delivery] = []
        for queues in self.by_address.values():
            queues.trials.reset()  # withheld messages may succeed now
            if workload.spec.isolation != former.spec.isolation:
                waited += queues.take_all()
        for queues in list(self.old):
            waited += queues.take_all()
            self.close_when_idle(queues.receiver)
        return waited

    def _apply(self, workload: Workload) -> None:
        self.routing = _routing(workload)
        self.fallbacks = _fallbacks(workload).kept(self.fallbacks)
        target = workload.spec.target.address
        addresses = [target] if self.routing is None else self.routing.addresses
        for address in addresses:
            if address in self.by_address:
                self.by_address[address].receiver.change(workload)
            else:
                self.by_address[address] = ReceiverQueues(self._new(workload, address))
        for address in [address for address in self.by_address if address not in addresses]:
            self.old.append(self.by_address.pop(address))
        self.main = self.by_address[target]

    def _new(self, workload: Workload, address: str) -> Receiver:
        receiver = Receiver(
            workload, address, self._clients, self._clock, self._on_room,
            lambda: self._lease.may_push(self._clock()),
        )  # fmt: skip
        receiver.share = self._share
        receiver.announce_role(self._role)
        return receiver

    def announce_role(self, role: SenderRole | None) -> None:
        """Tells receivers this region's role from now on; None: the workload has no role."""
        self._role = role
        for queues in [*self.by_address.values(), *self.old]:
            queues.receiver.announce_role(role)

    def apply_share(self, share: WorkerShare) -> None:
        """Gives each receiver this worker's share of the limits."""
        self._share = share
        for queues in self.by_address.values():
            queues.receiver.share = share

    # -- whose a message is ------------------------------------------------------------------------

    def of(self, delivery: Delivery) -> ReceiverQueues | None:
        """The queues of the receiver that has the message, or that it waits for.

        None: it has no receiver now, or one of a former definition that was idle and is closed.
        """
        receiver = delivery.receiver
        if receiver is None:
            return None
        queues = self.by_address.get(receiver.address)
        if queues is not None and queues.receiver is receiver:
            return queues
        return next((old for old in self.old if old.receiver is receiver), None)

    def chosen_for(self, delivery: Delivery) -> ReceiverQueues | None:
        """The receiver of a message by the present definition; None: no target may have it."""
        if self.routing is None:
            return self.main
        chosen = self.routing.choose(delivery.record.headers)
        return None if isinstance(chosen, RoutingRefusal) else self.by_address[chosen]

    def waiting(self) -> Iterable[ReceiverBacklog | deque[Delivery]]:
        """The queues of messages that wait for a receiver."""
        for queues in self.by_address.values():
            yield from (queues.held, queues.withheld, queues.suspects)

    # -- numbers -----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return sum(queues.receiver.in_flight for queues in self.by_address.values())

    @property
    def most_in_flight(self) -> int:
        """The messages in flight at the receiver that has most of them."""
        return max(queues.receiver.in_flight for queues in [*self.by_address.values(), *self.old])

    @property
    def failed(self) -> int:
        """The number of withheld messages, including those that are being retried."""
        return sum(queues.failed for queues in self.by_address.values())

    # -- the end -----------------------------------------------------------------------------------

    def close_when_idle(self, receiver: Receiver) -> None:
        """Closes the receiver if it belongs to a former definition and has nothing in flight."""
        if not self.old or receiver.in_flight:
            return
        for queues in self.old:
            if queues.receiver is receiver:
                self.old.remove(queues)
                asyncio.get_running_loop().create_task(receiver.close())
                return

    async def close(self) -> None:
        """Ends the connections; the pumps must be closed already."""
        for queues in [*self.by_address.values(), *self.old]:
            queues.take_all()
            await queues.receiver.close()


def _connection_key(workload: Workload) -> tuple[object, ...]:
    """The part of a definition that connections depend on."""
    target = workload.spec.target
    connections = target.connections, target.max_connection_age, target.keepalive
    fixed = {name: one for name, one in workload.metadata_sources().items() if not one.header}
    how = target.transport, target.tls, target.contract, workload.method(), fixed
    return target.address, target.zones, connections, how


def _fallbacks(workload: Workload) -> Fallbacks:
    isolation = workload.spec.isolation
    if isolation is None:
        return Fallbacks({}, 0.0)
    zones = {(target.environment, target.zone): target.address for target in isolation.targets}
    named = {
        target.address: zones[target.environment, target.fallback]
        for target in isolation.targets
        if target.fallback is not None and (target.environment, target.fallback) in zones
    }
    return Fallbacks(named, isolation.fallback_after)


def _routing(workload: Workload) -> ReceiverRouting | None:
    isolation = workload.spec.isolation
    if isolation is None:
        return None
    return ReceiverRouting(
        workload.spec.target.address,
        zone=isolation.zone,
        environment=isolation.environment,
        targets=[(target.environment, target.zone, target.address) for target in isolation.targets],
        unmatched=Unmatched(isolation.unmatched),
        production=isolation.production,
    )
