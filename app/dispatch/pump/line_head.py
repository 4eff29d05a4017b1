"""The head of a pump's line: reports it, and moves it away by `app.dispatch.model.head_of_line`."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from app.controllog.codec import HeadDecision, HeadStatus
from app.dispatch.model.head_of_line import HeadOfLineDetector
from app.dispatch.pump.operator_finish import finish_by_operator
from app.kernel.clock import now_ms

if TYPE_CHECKING:
    from app.dispatch.model.head_of_line import StashVerdict
    from app.dispatch.pump.delivery import DeliveryPump
    from app.kernel.job import JobId

CANDIDATE_S = 1.0  # younger heads are not reported; at full speed there is always one
KEEP_DECISIONS = 5  # of a workload and worker, in every heartbeat; incidents show older ones
MAX_UNREPORTED = 100  # more are not reported, but counted; each copy's headers say why it was moved
UNSTASHABLE = "the definition allows no message to be moved away: dlq.enabled is false"


class HeadDecisions:
    """The messages of one workload that this worker moved away: their number, and the last of them."""

    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[HeadDecision] = deque(maxlen=KEEP_DECISIONS)

    def record(self, job: JobId, verdict: StashVerdict) -> None:
        self.count += 1
        self.last.append(
            HeadDecision(
                at_ms=now_ms(), topic=job.topic, partition=job.partition, offset=verdict.offset,
                rule=str(verdict.rule), reason=verdict.reason, age_s=round(verdict.age_s, 3),
            )
        )  # fmt: skip


class LineHead:
    """The head of one pump's line.

    Attributes:
        unreported: Heads that were moved away after acknowledgements.
        is_check_due: The head is checked in this turn of the loop.
    """

    __slots__ = ("_pump", "detector", "is_check_due", "unreported")

    def __init__(self, pump: DeliveryPump) -> None:
        self._pump = pump
        self.is_check_due = False
        self.detector = HeadOfLineDetector(pump.runtime.settings.head_limits, pump.runtime.head_tokens)
        self.unreported: deque[StashVerdict] = deque(maxlen=MAX_UNREPORTED)

    def check_soon(self) -> None:
        """Checks the head once in this turn of the loop, after an acknowledgement left the tracker full."""
        if not self.is_check_due:
            self.is_check_due = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self.is_check_due = False
        if not self._pump.draining and (verdict := self._free(self._pump.runtime.clock())):
            self.unreported.append(verdict)

    def free(self, now_s: float) -> StashVerdict | None:
        """Moves the message that blocks the partition away, if it may go, and returns the verdict.

        A verdict after an acknowledgement that was not reported yet is returned first.
        """
        if self.unreported:
            return self.unreported.popleft()
        pump = self._pump
        return None if pump.tracker.idle and pump.delivered == self.detector.delivered else self._free(now_s)

    def _free(self, now_s: float) -> StashVerdict | None:
        pump, head = self._pump, self.detector
        tracker, runtime = pump.tracker, pump.runtime
        decision = runtime.settings.head_decision(pump.tier)
        if decision is None or pump.closed or pump.paused:
            return None
        head.limits, head.tokens = runtime.settings.head_limits, runtime.head_tokens
        found = head.evaluate(
            now_s,
            base=tracker.base,
            capacity=tracker.limit,
            unfinished=tracker.unfinished,
            finished_above=tracker.tracked - tracker.unfinished,
            head_sent_s=self._sent_s(),
            delivered=pump.delivered,
            serving=runtime.is_serving(pump.open.get(tracker.base), now_s),
            renewed=self._is_renewed(),
        )
        if found is None or not finish_by_operator(
            pump, found.offset, replace(decision, reason=found.reason)
        ):
            return None
        runtime.head_moved(pump.job, found)
        return found

    def candidate(self, now_s: float) -> HeadStatus | None:
        """The head that may go next; None: there is none, or it is young and has room."""
        pump, tracker = self._pump, self._pump.tracker
        if pump.closed or not tracker.unfinished:
            return None
        sent_s = self._sent_s()
        age_s = None if sent_s is None else max(0.0, self.detector.age_s(now_s, sent_s))
        if tracker.room and (age_s is None or age_s < CANDIDATE_S):
            return None
        why_not = self.detector.why_not
        if pump.runtime.settings.head_decision(pump.tier) is None:
            why_not = UNSTASHABLE
        elif pump.paused:
            why_not = "its partition is paused"
        return HeadStatus(
            topic=pump.job.topic,
            partition=pump.job.partition,
            offset=tracker.base,
            age_s=None if age_s is None else round(age_s, 3),
            tracker_used=round(tracker.utilisation, 4),
            unfinished_share=round(tracker.unfinished_share, 4),
            why_not=why_not,
        )

    def _is_renewed(self) -> bool:
        pump, head = self._pump, self._pump.tracker.base
        if (delivery := pump.open.get(head)) is not None:
            return delivery.is_renewed
        return any(batch.renewed and batch.find(head) in batch.renewed for batch in pump.batches)

    def _sent_s(self) -> float | None:
        """When the oldest unfinished message was first sent; None while the receiver does not have it.

        A suspect for the loss of its receiver waits for the messages before it. It is not to blame for that,
        so its age counts from its last sending, in its turn.
        """
        pump, head = self._pump, self._pump.tracker.base
        if head in pump.copying:
            return None
        if (delivery := pump.open.get(head)) is not None:
            if delivery.receiver is not None and delivery.receiver is not delivery.sent_to:
                return None  # it waits for another receiver than the last one
            if not delivery.first_sent_s:  # it waits here for its attempt, because no retry topic took it
                return delivery.started_s if pump.tracker.room <= 0 else None
            if delivery.suspicion is None or not delivery.suspicion.is_suspect:
                return delivery.first_sent_s
            return delivery.started_s if pump.runtime.is_turn_of(delivery) else None
        return next((batch.started_s for batch in pump.batches if batch.find(head) is not None), None)
