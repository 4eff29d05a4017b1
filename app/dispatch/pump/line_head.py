"""The head of a pump's line: reports it, and moves it away by `app.dispatch.model.head_of_line`."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from app.controllog.codec import HeadDecision, HeadStatus
from app.kernel.clock import now_ms

if TYPE_CHECKING:
    from app.dispatch.model.head_of_line import StashVerdict
    from app.dispatch.pump.partition import DispatchPump

CANDIDATE_S = 1.0  # younger heads are not reported; at full speed there is always one
KEEP_DECISIONS = 5  # of a workload and worker, in every heartbeat; incidents show older ones
UNSTASHABLE = "the definition allows no message to be moved away: dlq.enabled is false"


class HeadDecisions:
    """The messages of one workload that this worker moved away: their number, and the last of them."""

    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[HeadDecision] = deque(maxlen=KEEP_DECISIONS)

    def record(self, pump: DispatchPump, verdict: StashVerdict) -> None:
        self.count += 1
        self.last.append(
            HeadDecision(
                at_ms=now_ms(), topic=pump.job.topic, partition=pump.job.partition, offset=verdict.offset,
                rule=str(verdict.rule), reason=verdict.reason, age_s=round(verdict.age_s, 3),
            )
        )  # fmt: skip


def check_head_soon(pump: DispatchPump) -> None:
    """Checks the head once in this turn of the loop, after an acknowledgement left the tracker full."""
    if not pump.head_due:
        pump.head_due = True
        asyncio.get_running_loop().call_soon(_check_head, pump)


def _check_head(pump: DispatchPump) -> None:
    pump.head_due = False
    if not pump.draining and (verdict := _free_own_head(pump, pump.runtime.clock())):
        pump.unreported.append(verdict)


def free_head(pump: DispatchPump, now_s: float) -> StashVerdict | None:
    """Moves the message that blocks the partition away, if it may go, and returns the verdict.

    A verdict after an acknowledgement that was not reported yet is returned first.
    """
    if pump.backlog is not None and (verdict := free_head(pump.backlog.pump, now_s)):
        return verdict
    return pump.unreported.popleft() if pump.unreported else _free_own_head(pump, now_s)


def _free_own_head(pump: DispatchPump, now_s: float) -> StashVerdict | None:
    tracker, runtime, head = pump.tracker, pump.runtime, pump.head
    decision = runtime.head_decision(pump.tier)
    if decision is None or pump.closed or pump.paused:
        return None
    head.after_s, head.tokens = runtime.head_after_s, runtime.head_tokens
    found = head.evaluate(
        now_s,
        base=tracker.base,
        capacity=tracker.capacity,
        unfinished=tracker.unfinished,
        finished_above=tracker.tracked - tracker.unfinished,
        head_sent_s=_sent_s(pump),
        delivered=pump.delivered,
        serving=runtime.is_serving(pump.open.get(tracker.base), now_s),
    )
    if found is None or not pump.finish_by_operator(found.offset, replace(decision, reason=found.reason)):
        return None
    runtime.decisions.record(pump, found)
    return found


def candidate(pump: DispatchPump, now_s: float) -> HeadStatus | None:
    """The head that may go next, the backlog's first; None: there is none, or it is young and has room."""
    if pump.backlog is not None and (found := candidate(pump.backlog.pump, now_s)):
        return found
    tracker = pump.tracker
    if pump.closed or not tracker.unfinished:
        return None
    sent_s = _sent_s(pump)
    age_s = None if sent_s is None else max(0.0, pump.head.age_s(now_s, sent_s))
    if tracker.room and (age_s is None or age_s < CANDIDATE_S):
        return None
    why_not = pump.head.why_not
    if pump.runtime.head_decision(pump.tier) is None:
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


def _sent_s(pump: DispatchPump) -> float | None:
    """When the oldest unfinished message was first sent; None while the receiver does not have it.

    A suspect for the loss of its receiver waits for the messages before it. It is not to blame for that, so
    its age counts from its last sending, in its turn.
    """
    head = pump.tracker.base
    if head in pump.copying:
        return None
    if (delivery := pump.open.get(head)) is not None:
        if delivery.link is not None and delivery.link is not delivery.sent_to:
            return None  # it waits for another receiver than the last one
        if not delivery.first_sent_s:  # it waits here for its attempt, because no retry topic took it
            return delivery.started_s if pump.tracker.room <= 0 else None
        if delivery.suspicion is None or not delivery.suspicion.is_suspect:
            return delivery.first_sent_s
        link = delivery.link  # None before its next attempt
        return delivery.started_s if link is not None and link.is_turn_of(delivery) else None
    return next((batch.started_s for batch in pump.batches if batch.find(head) is not None), None)
