"""Retries withheld messages: those that failed and may not be dead-lettered yet
(`app.dispatch.model.dead_letter_budget`).

While the breaker is closed, fresh messages continue, and each one that is taken earns a part of a dead
letter. While it is not closed, withheld and fresh messages alternate as probes. Only a fresh one shows
whether the receiver fails every message or a few in a row.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

from app.dispatch.model.dead_letter_budget import spelled

if TYPE_CHECKING:
    from app.dispatch.model.dead_letter_budget import DeadLetterBudget
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.scheduler.receiver_queues import ReceiverQueues
    from app.dispatch.scheduler.receivers import Receivers
    from app.dispatch.scheduler.send_gate import SendGate

MAX_CODES = 20  # gRPC's, and one for all numbers that gRPC does not define
OTHER = "OTHER"
MAX_WHY_CHARS = 300  # in every heartbeat
TRIAL_POLL_INTERVAL_S = 0.1
INCIDENT_REPEAT_S = 600.0


class WithheldDeadLetters:
    """How messages of one workload fail on this worker.

    Attributes:
        by_code: Number of answers, by status, after which a message was withheld.
        last: The newest of them, for people; "" before the first.
    """

    __slots__ = ("_receivers", "_reported_s", "by_code", "last")

    def __init__(self, receivers: Receivers) -> None:
        self.by_code: Counter[str] = Counter()
        self.last = ""
        self._receivers = receivers
        self._reported_s = float("-inf")

    @property
    def count(self) -> int:
        """The number of withheld messages, including those that are being retried."""
        return self._receivers.failed

    def record_withheld(self, delivery: Delivery, code: str, why: str) -> None:
        has_room = code in self.by_code or len(self.by_code) < MAX_CODES
        self.by_code[code if has_room else OTHER] += 1
        origin = delivery.message_origin()
        self.last = f"{origin.topic}-{origin.partition} offset {origin.offset}: {why}"[:MAX_WHY_CHARS]

    def incident_message(self, now_s: float) -> str:
        """The message of an incident that is due; "": none is due."""
        if not (count := self.count):
            self._reported_s = float("-inf")
            return ""
        if now_s < self._reported_s + INCIDENT_REPEAT_S:
            return ""
        self._reported_s = now_s
        return f"{count} messages failed and are withheld: {spelled(self.by_code)}; the last: {self.last}"


def send_withheld(
    queues: ReceiverQueues, gate: SendGate, budget: DeadLetterBudget, has_fresh: bool, now_s: float
) -> None:
    """Sends the messages that may go now, and schedules the next attempt.

    Args:
        has_fresh: Fresh messages wait for this receiver, too.
    """
    withheld, trials, receiver = queues.withheld, queues.trials, queues.receiver
    withheld.pop_all(attrgetter("draining"))  # their next owner delivers them
    for paused in withheld.pop_all(attrgetter("paused")):
        paused.pump.put_back(paused)
    if receiver.closed:
        allowed = trials.room(now_s, budget.available(now_s))
    elif queues.held or (has_fresh and not queues.probe_held):
        return
    else:
        allowed = 1
        queues.probe_held = False
    while withheld and allowed > 0 and gate.room(receiver, now_s):
        delivery = withheld.pop_next(lambda _: True)
        assert delivery is not None
        queues.trials_out.add(delivery)
        trials.sent()
        allowed -= 1
        gate.start(delivery, receiver, now_s)
    if withheld and receiver.closed and not trials.out:
        gate.call_at(
            min(
                max(trials.next_at_s, now_s + TRIAL_POLL_INTERVAL_S),
                now_s + max(TRIAL_POLL_INTERVAL_S, budget.wait_s(now_s)),
            )
        )
