"""Follows the limits of this worker's container (`app.worker.runtime.cgroups`), which may change meanwhile.

A throttled process looks idle: it uses less than a core, and its receivers seem slow. Only the count of
periods in which it used its quota up shows the cause.
"""

from __future__ import annotations

import asyncio
import time

from mode import Service

from app.kernel.rates import RateWindow
from app.worker.runtime.cgroups import ContainerSample, sample_container

SAMPLE_INTERVAL_S = 2.0


class ContainerWatch(Service):
    """The container's limits, as of the last sample.

    Attributes:
        limits: The last sample.
        cpu_throttled: The share of the last minute, 0 to 1, whose periods used up a CPU quota.
    """

    def __init__(self, limits: ContainerSample) -> None:
        super().__init__()
        self.limits = limits
        self.cpu_throttled = 0.0
        self._window = RateWindow()

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            self.see(await asyncio.to_thread(sample_container), time.monotonic())
            await self.sleep(SAMPLE_INTERVAL_S)

    def see(self, sample: ContainerSample, now_s: float) -> None:
        """Takes a sample at `now_s` (monotonic seconds)."""
        if len(sample.throttled_s) != len(self.limits.throttled_s):  # another cgroup, or another quota
            self._window = RateWindow()
        self.limits = sample
        self._window.sample(now_s, *sample.throttled_s)
        grown = self._window.growth()
        if grown is None:
            self.cpu_throttled = 0.0
            return
        passed_s, throttled_s = grown
        self.cpu_throttled = round(min(1.0, max(throttled_s, default=0.0) / passed_s), 3)
