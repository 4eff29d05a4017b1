"""Whether a message may go to a receiver now; if not, has the workload look again when it may.

A receiver must have room (`app.dispatch.push.receiver`), and the workload's rates must allow the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.push.receiver import Receiver
    from app.dispatch.scheduler.fair_scheduler import FairScheduler
    from app.dispatch.scheduler.limits import WorkloadLimits
    from app.dispatch.scheduler.receiver_queues import ReceiverQueues

BUSY_PAUSE_S = 0.001


class SendGate:
    """The gate of one workload. `send` is called when messages may go that could not before."""

    def __init__(
        self,
        turns: FairScheduler,
        limits: WorkloadLimits,
        clock: Callable[[], float],
        send: Callable[[], None],
    ) -> None:
        self._turns = turns
        self._limits = limits
        self._clock = clock
        self._send = send
        self._is_send_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

    def room(self, receiver: Receiver, now_s: float) -> int:
        """How many messages may go to the receiver now; schedules the next look."""
        if wait_s := self._limits.rate_wait_s(now_s):
            self.call_at(now_s + wait_s)
            return 0
        room = receiver.room(now_s)
        if room <= 0:
            if receiver.fixed is not None and receiver.in_flight >= receiver.limit:
                self._limits.slot_usage.short(now_s)
            if wait_s := receiver.wait_s(now_s):
                self.call_at(now_s + wait_s)
        return max(0, room)

    def start(self, delivery: Delivery, receiver: Receiver, now_s: float) -> None:
        """Sends the message."""
        self._limits.spend((delivery.record,), now_s)
        delivery.start(receiver, now_s)

    def send_held(self, queues: ReceiverQueues, now_s: float) -> None:
        """Sends held messages to this receiver, as far as it has room."""
        held, receiver = queues.held, queues.receiver
        held.pop_all(attrgetter("draining"))  # the job's next owner delivers them
        for paused in held.pop_all(attrgetter("paused")):
            paused.pump.put_back(paused)
        while held and (room := self.room(receiver, now_s)):
            delivery = held.pop_next(lambda pump: self._turns.allowance(pump, room, receiver))
            if delivery is None:
                receiver.forgo(now_s)
                return
            queues.probe_held = False
            self.start(delivery, receiver, now_s)

    def call_at(self, at_s: float) -> None:
        """Calls `send` at that time or earlier."""
        if self._timer is not None and not self._timer.cancelled() and self._timer_at_s <= at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        wait_s = max(0.0, at_s - self._clock())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send()

    def send_soon(self, receiver: Receiver) -> None:
        """Calls `send` once for all results that arrive together. While a stream's receiver is busy, it also
        waits for those of the next moment, because larger runs cost both sides less."""
        if self._is_send_due:
            return
        self._is_send_due = True
        if receiver.streams and 2 * receiver.in_flight > receiver.limit:
            asyncio.get_running_loop().call_later(BUSY_PAUSE_S, self._send_due)
        else:
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_send_due = False
        self._send()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
