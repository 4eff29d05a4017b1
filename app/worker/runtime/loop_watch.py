"""Reports an event loop that often stands still, each time too briefly for the loop guard to end the process.

Heartbeats, probes and deliveries are then late, and leases may lapse, although each stop looks harmless.

Rules
1. A timer measures how late it runs. The worker is not ready, and reports an incident, when the loop has
   stood still for `BUSY_SHARE` of the last `WINDOW_S`. Below that it is ready again. The next incident
   needs a time below `CALM_SHARE`.
2. Only time in which the loop's thread used CPU counts. A paused process, or one that got no core, did not
   stand still. So this watch does not see waits without CPU (a slow disk, a name server); the loop guard
   sees the long ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple

from mode import Service

from app.kernel.incidents import ReportIncident

WINDOW_S, BUCKET_S = 60.0, 5.0
BUSY_SHARE, CALM_SHARE = 0.5, 0.25
LOOP_SAMPLE_INTERVAL_S = 0.1
MIN_LATE_S = 0.02  # a timer that is less late is on time
REMEDY = (
    "the log lines before say what the worker reads or serves; if it happens again, print its stacks a few "
    "times (kill -PROF), and give it fewer jobs or more CPU"
)


class LoopBusy(NamedTuple):
    """The time for which the loop stood still within `WINDOW_S`, and the longest single stop; seconds."""

    still_s: float
    longest_s: float

    def __str__(self) -> str:
        return (
            f"the event loop stood still for {self.still_s:.0f} of the last {WINDOW_S:.0f} s, "
            f"at most {self.longest_s:.1f} s at a time"
        )


class LoopStops:
    """The stops of the last `WINDOW_S`, by `BUCKET_S`. All times in monotonic seconds."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, LoopBusy]] = deque()  # with their starts

    def record(self, now_s: float, late_s: float) -> None:
        if late_s < MIN_LATE_S:
            return
        if not self._buckets or now_s - self._buckets[-1][0] >= BUCKET_S:
            self._buckets.append((now_s, LoopBusy(0.0, 0.0)))
        began_s, (still_s, longest_s) = self._buckets[-1]
        self._buckets[-1] = began_s, LoopBusy(still_s + late_s, max(longest_s, late_s))

    def within_window(self, now_s: float) -> LoopBusy:
        """The stops of the window that ends at `now_s`."""
        while self._buckets and now_s - self._buckets[0][0] >= WINDOW_S:
            self._buckets.popleft()
        found = [stops for _, stops in self._buckets]
        still_s = min(WINDOW_S, sum(one.still_s for one in found))
        return LoopBusy(still_s, max((one.longest_s for one in found), default=0.0))


class LoopWatch(Service):
    """`subject`: of the incident."""

    def __init__(self, subject: str, report: ReportIncident) -> None:
        super().__init__()
        self._subject = subject
        self._report = report
        self._stops = LoopStops()
        self._is_reported = False

    def stops(self, now_s: float) -> LoopBusy:
        return self._stops.within_window(now_s)

    def trouble(self, now_s: float) -> LoopBusy | None:
        """The stops if they make this worker not ready, else None."""
        busy = self.stops(now_s)
        return busy if busy.still_s >= BUSY_SHARE * WINDOW_S else None

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            due_s, used_s = time.monotonic() + LOOP_SAMPLE_INTERVAL_S, time.thread_time()
            await asyncio.sleep(LOOP_SAMPLE_INTERVAL_S)
            now_s = time.monotonic()
            # CPU used before the timer was due delayed nothing.
            beyond_s = max(0.0, time.thread_time() - used_s - LOOP_SAMPLE_INTERVAL_S)
            self.look(now_s, min(now_s - due_s, beyond_s))

    def look(self, now_s: float, late_s: float) -> None:
        self._stops.record(now_s, late_s)
        busy = self.stops(now_s)
        if busy.still_s < CALM_SHARE * WINDOW_S:
            self._is_reported = False
        elif busy.still_s >= BUSY_SHARE * WINDOW_S and not self._is_reported:
            self._is_reported = True
            words = f"{busy}: its heartbeats, probes and deliveries come late, and its jobs may move"
            self._report("loop-busy", self._subject, words, REMEDY, lambda: not self._is_reported)
