"""Traces a workload on this worker: where its messages wait (`app.dispatch.model.latency_trace`).

It looks at saved and committed progress every `TICK_S`, or more seldom with more than a hundred partitions,
so that this costs the event loop 2 % at most. These two stages are only so exact.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import msgspec

from app.dispatch.model.latency_trace import LOOP, STAGES, Durations, PartitionTrace
from app.dispatch.pump.partition import DispatchPump
from app.kernel.clock import now_ms

TICK_S = 0.005
TICK_PER_PUMP_S = 50e-6  # of the time between two looks
SAME_CLOCK_S = 0.01  # less than this is how the brokers' time is rounded


class WorkerTrace(msgspec.Struct):
    """The stages of one worker's partitions, by their names.

    Attributes:
        gone: Partitions whose job ended here, or began to catch up, during the trace.
        unanswered: Messages that were fetched, and had no answer when the trace ended.
    """

    worker: str
    partitions: int
    gone: int
    unanswered: int
    stages: dict[str, Durations]


async def trace(
    worker: str,
    pumps: Iterable[DispatchPump],
    committed: Callable[[str], int],
    seconds: float,
    is_wanted: Callable[[], bool] = lambda: True,
) -> WorkerTrace:
    """Traces these pumps for `seconds`, while `is_wanted` and while one of them runs here.

    A pump that starts meanwhile is not traced.

    Args:
        committed: The offset that was committed last for a job.
    """
    stages = {name: Durations() for name in STAGES}
    wall_s = _wall_s()
    traced = [
        (pump, str(pump.job), PartitionTrace(stages, wall_s, pump.tracker.end))
        for pump in pumps
        if pump.is_main and pump.trace is None
    ]
    for pump, _, noted in traced:
        pump.trace_by(noted)
    tick_s = max(TICK_S, TICK_PER_PUMP_S * len(traced))
    try:
        until_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < until_s and is_wanted():
            await asyncio.sleep(tick_s)
            now_s = time.monotonic()
            stages[LOOP].note(now_s - began_s - tick_s)
            for pump, job, noted in traced:
                noted.forget(pump.tracker.base)
                noted.saved(pump.snapshot_version, now_s)
                noted.committed(committed(job), now_s)
            if all(_is_gone(pump) for pump, _, _ in traced):
                break
    finally:
        for pump, _, _ in traced:
            pump.trace_by(None)
    gone = sum(_is_gone(pump) for pump, _, _ in traced)
    unanswered = sum(pump.tracker.unfinished for pump, _, _ in traced if not _is_gone(pump))
    return WorkerTrace(worker, len(traced), gone, unanswered, stages)


def _is_gone(pump: DispatchPump) -> bool:
    """Whether it ended, or became the backlog of another (`DispatchPump.split`)."""
    return pump.closed or pump.draining or pump.allowance is not None


def _wall_s() -> float:
    """Wall-clock time less monotonic time, in seconds; the brokers' if the host's is off by over a second."""
    host_s, shown_s = time.time(), now_ms() / 1000
    return (host_s if abs(host_s - shown_s) < SAME_CLOCK_S else shown_s) - time.monotonic()
