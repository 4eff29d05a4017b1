"""The head of the line: the message that holds a partition's offset back, and when it has to go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.core.head_of_line import Verdict
    from app.pump.dispatch import DispatchPump


def free_head(pump: DispatchPump, now_s: float) -> Verdict | None:
    """Moves the message that blocks the others out of their way, when there is one and it may go
    (`app.core.head_of_line`)."""
    if pump.backlog is not None and (verdict := free_head(pump.backlog.pump, now_s)):
        return verdict
    tracker, runtime, head = pump.tracker, pump.runtime, pump.head
    decision = runtime.head_decision(pump.tier)
    if decision is None or pump.closed or pump.paused:
        return None
    head.after_s, head.tokens = runtime.head_after_s, runtime.head_tokens
    found = head.look(
        now_s,
        base=tracker.base,
        capacity=tracker.capacity,
        unfinished=tracker.unfinished,
        finished_above=tracker.capacity - tracker.room - tracker.unfinished,
        head_sent_s=_sent_s(pump),
        delivered=pump.delivered,
        serving=runtime.is_serving(pump.open.get(tracker.base), now_s),
    )
    if found is None or not pump.conclude(found.offset, replace(decision, reason=found.reason)):
        return None
    return found


def _sent_s(pump: DispatchPump) -> float | None:
    """When the oldest unfinished message was first sent; None while the receiver does not have it."""
    head = pump.tracker.base
    if head in pump.copying:
        return None
    if (delivery := pump.open.get(head)) is not None:
        return delivery.first_sent_s
    return next((batch.started_s for batch in pump.batches if batch.find(head) is not None), None)
