"""Tells of an event loop that stands still often, each time too short for the loop guard to end the process.

Heartbeats, probes and deliveries come late then, and leases may lapse, while each single stop looks harmless.

Rules
1. A timer looks how late it comes. The worker is not ready, and says so in an incident, once the loop has
   stood still for `BUSY_SHARE` of the last `WINDOW_S`. It is ready again below that; the next incident comes
   after it was below `CALM_SHARE`.
2. Only time in which its thread took CPU counts: one that was paused, or got no core, did not stand still. So
   what waits without CPU (a slow disk, a name server) is not seen here: the loop guard sees long waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mode import Service

WINDOW_S, BUCKET_S = 60.0, 5.0
BUSY_SHARE, CALM_SHARE = 0.5, 0.25
LOOP_SAMPLE_INTERVAL_S = 0.1
LEAST_S = 0.02  # a timer that comes so late is on time
REMEDY = (
    "see in the lines before what it reads or serves; if it goes on, ask for its stacks some times "
    "(kill -PROF), and give it fewer jobs, or more CPU"
)

Report = Callable[[str, str, str, str], None]  # an incident: kind, subject, message, remedy


class LoopBusy(NamedTuple):
    """How long the loop stood still within `WINDOW_S`, and the longest time of those; seconds."""

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
        self._buckets: deque[tuple[float, LoopBusy]] = deque()  # when each began

    def record(self, now_s: float, late_s: float) -> None:
        """A timer came so late, now."""
        if late_s < LEAST_S:
            return
        if not self._buckets or now_s - self._buckets[-1][0] >= BUCKET_S:
            self._buckets.append((now_s, LoopBusy(0.0, 0.0)))
        began_s, (still_s, longest_s) = self._buckets[-1]
        self._buckets[-1] = began_s, LoopBusy(still_s + late_s, max(longest_s, late_s))

    def within_window(self, now_s: float) -> LoopBusy:
        """Those of the window that ends now."""
        while self._buckets and now_s - self._buckets[0][0] >= WINDOW_S:
            self._buckets.popleft()
        found = [stops for _, stops in self._buckets]
        still_s = min(WINDOW_S, sum(one.still_s for one in found))
        return LoopBusy(still_s, max((one.longest_s for one in found), default=0.0))


class LoopWatch(Service):
    """See the module. `subject`: of the incident."""

    def __init__(self, subject: str, report: Report) -> None:
        super().__init__()
        self._subject = subject
        self._report = report
        self._stops = LoopStops()
        self._has_told = False

    def stops(self, now_s: float) -> LoopBusy:
        """How long it stood still lately."""
        return self._stops.within_window(now_s)

    def trouble(self, now_s: float) -> LoopBusy | None:
        """The same, if that is why this worker is not ready."""
        busy = self.stops(now_s)
        return busy if busy.still_s >= BUSY_SHARE * WINDOW_S else None

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            due_s, used_s = time.monotonic() + LOOP_SAMPLE_INTERVAL_S, time.thread_time()
            await asyncio.sleep(LOOP_SAMPLE_INTERVAL_S)
            now_s = time.monotonic()
            # What was used before it was due held nobody up.
            beyond_s = max(0.0, time.thread_time() - used_s - LOOP_SAMPLE_INTERVAL_S)
            self.look(now_s, min(now_s - due_s, beyond_s))

    def look(self, now_s: float, late_s: float) -> None:
        """A timer came so late."""
        self._stops.record(now_s, late_s)
        busy = self.stops(now_s)
        if busy.still_s < CALM_SHARE * WINDOW_S:
            self._has_told = False
        elif busy.still_s >= BUSY_SHARE * WINDOW_S and not self._has_told:
            self._has_told = True
            words = f"{busy}: its heartbeats, probes and deliveries come late, and its jobs may move"
            self._report("loop-busy", self._subject, words, REMEDY)
