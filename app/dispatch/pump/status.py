"""The state of a dispatch job as the heartbeat reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.controllog.codec import JobStatus

if TYPE_CHECKING:
    from app.dispatch.pump.intake import MessageIntake
    from app.dispatch.pump.partition import DispatchPump
    from app.dispatch.pump.ready_queue import ReadyQueue


def status_of(pump: DispatchPump, intake: MessageIntake, queue: ReadyQueue) -> JobStatus:
    """The pump's state, without its backlog's."""
    tracker = pump.tracker
    return JobStatus(
        job=str(pump.job),
        epoch=pump.epoch,
        state=pump.state,
        committed=tracker.base,
        fetched=tracker.end,
        high_watermark=pump.high_watermark,
        in_flight=pump.in_flight,
        unfinished=tracker.unfinished,
        oldest_ms=intake.oldest_ms(),
        delivered=pump.delivered,
        retried=pump.retried,
        dead_lettered=pump.dead_lettered,
        outgoing=len(pump.copying),
        passed_over=intake.remote_progress.passed_over,
        trouble=pump.trouble or queue.risk(),
        **queue.status_fields(),
    )
