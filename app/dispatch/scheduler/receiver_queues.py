"""The messages of a workload that wait for one receiver.

Rules (tests/dispatch/scheduler/test_crash_suspects.py, test_dead_letter_trials.py)
1. Held messages (the receiver was away) go first, with their attempts unchanged. Held and fresh messages
   alternate as probes, so that a message that is never taken does not hide a recovered receiver.
2. Withheld messages, which failed and may not be dead-lettered, are retried a few at a time
   (`app.dispatch.model.dead_letter_budget`, `app.dispatch.scheduler.dead_letter_trials`).
3. Suspects (`app.dispatch.model.crash_suspicion`) go last, a few at a time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from app.dispatch.model.crash_suspicion import MOST_AT_ONCE
from app.dispatch.model.dead_letter_budget import DeadLetterTrials
from app.dispatch.pump.receiver_backlog import ReceiverBacklog
from app.kernel.grpc_status import UNAVAILABLE

if TYPE_CHECKING:
    from app.dispatch.model.throughput_diagnosis import TargetStatus
    from app.dispatch.pump.delivery import Delivery
    from app.dispatch.push.receiver import Receiver


class ReceiverQueues:
    """The queues of one receiver.

    Attributes:
        held, withheld, suspects: The messages of rules 1, 2 and 3.
        trials, trials_out: The retries of withheld messages, and those that are on their way.
        suspects_out: The suspects on their way; `suspects_sent`: how many went together the last time.
        suspects_most: How many may go together.
        probe_held: The next probe is a held message.
    """

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.held = ReceiverBacklog()
        self.withheld = ReceiverBacklog()
        self.trials = DeadLetterTrials()
        self.trials_out: set[Delivery] = set()
        self.suspects: deque[Delivery] = deque()
        self.suspects_out: set[Delivery] = set()
        self.suspects_sent = 0
        self.suspects_most = 1
        self.probe_held = False

    @property
    def has_messages(self) -> bool:
        return bool(self.held or self.withheld or self.suspects)

    def hold(self, delivery: Delivery) -> None:
        """Keeps the message until the receiver is there."""
        suspicion = delivery.suspicion
        if suspicion is not None and suspicion.is_suspect:
            self.suspects.append(delivery)
        else:
            self.held.append(delivery)

    def withhold(self, delivery: Delivery, now_s: float) -> None:
        """Keeps a failed message until it may be tried again."""
        if not (self.withheld or self.trials_out):
            self.trials.withheld(now_s)
        self.withheld.append(delivery)

    @property
    def failed(self) -> int:
        """The number of withheld messages, including those that are being retried."""
        return len(self.withheld) + len(self.trials_out)

    def came_back(self, delivery: Delivery, now_s: float, *, taken: bool) -> None:
        """The delivery came back, answered or not sent."""
        if delivery in self.trials_out:
            self.trials_out.discard(delivery)
            self.trials.answered(now_s, taken=taken)

    def suspect_answered(self, delivery: Delivery, code: int) -> None:
        self.suspects_out.discard(delivery)
        if code == UNAVAILABLE:
            self.suspects_most = 0
        if not self.suspects_out:
            self.suspects_most = min(MOST_AT_ONCE, max(1, 2 * self.suspects_most))

    def is_turn_of(self, suspect: Delivery) -> bool:
        """Whether this suspect is in flight, or goes next."""
        out = self.suspects_out
        return suspect in out or (not out and bool(self.suspects) and self.suspects[0] is suspect)

    def status(self, now_s: float) -> TargetStatus:
        """The receiver's state for heartbeats."""
        held = len(self.held) + len(self.suspects) + len(self.withheld)
        return self.receiver.status(now_s, held)

    def take_all(self) -> list[Delivery]:
        """Empties the queues; returns what waited."""
        waited = [*self.held, *self.withheld, *self.suspects]
        self.held.clear()
        self.withheld.clear()
        self.suspects.clear()
        return waited
