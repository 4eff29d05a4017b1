"""Measures the worker's capacity and use and each job's share, smoothed, for heartbeats.

The process is measured as a whole, and its use is divided by the work of the jobs (`app.kernel.load`). The
interpreter, Faust and its tables belong to no job: `IDLE_CPU`, and the memory before the first job.
"""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from app.controllog.codec import JobStatus
from app.kernel.load import DEFAULT_WORKER, THROTTLED, JobWork, Load, SmoothedLoad, apportion
from app.kernel.rates import JobRates
from app.worker.jobs.pump import Pump
from app.worker.runtime.container_watch import ContainerWatch

SAMPLE_S = 2.0
IDLE_CPU = 0.03  # cores that a worker without jobs uses
FLOWING = ("flowing", "emptying")  # states of jobs that make progress
FULL = 0.9  # of its CPU: above it, the worker limits its jobs
CORES = 1.0  # one event loop cannot use more


class Meter:
    """Measures its own process.

    Attributes:
        container: The limits of its container.
        used: The use of the process between the last two samples.
    """

    def __init__(
        self, cpu: float | None, memory: int | None, network: int | None, container: ContainerWatch
    ) -> None:
        self.container = container
        self._cpu, self._memory = cpu, memory
        self._network = network or _network_bytes_per_s()
        self._machine_bytes = psutil.virtual_memory().total
        self.used = Load()
        self.loads: dict[str, Load] = {}
        self.rates: dict[str, JobRates] = {}
        self._process = psutil.Process()
        self._smoothed: dict[str, SmoothedLoad] = {}
        self._done: dict[str, JobWork] = {}
        self._at_s = float("-inf")
        self._cpu_s = 0.0
        self._idle = Load(IDLE_CPU, self._process.memory_info().rss)

    @property
    def capacity(self) -> Load:
        """The worker's capacity as configured, else what its machine and container give it now."""
        limits = self.container.limits
        return Load(
            self._cpu or round(min(CORES, limits.cpu_cores), 4),
            self._memory or min(self._machine_bytes, limits.memory_bytes),
            self._network,
        )

    def sample(self, pumps: Mapping[str, Pump], statuses: Mapping[str, JobStatus], now_s: float) -> None:
        """Measures, unless the last sample is less than `SAMPLE_S` old; takes a fraction of a millisecond.

        Each pump has a status.
        """
        passed_s = now_s - self._at_s
        if passed_s < SAMPLE_S:
            return
        times, memory_bytes = self._process.cpu_times(), self._process.memory_info().rss
        cpu_s = times.user + times.system
        done = {job: pump.work() for job, pump in pumps.items()}
        work = {job: _since(self._done.get(job), now) for job, now in done.items()}
        if self._at_s > float("-inf"):
            network = sum(one.bytes for one in work.values()) / passed_s
            self.used = _short(Load((cpu_s - self._cpu_s) / passed_s, memory_bytes, network))
            if not pumps:
                self._idle = Load(IDLE_CPU, memory_bytes)
            for job, load in apportion(self.used, work, self._idle).items():
                self._smoothed.setdefault(job, SmoothedLoad()).sample(load, now_s)
        self.rates = {job: self.rates.get(job) or JobRates() for job in pumps}
        full = (
            self.used.cpu_cores >= FULL * self.capacity.cpu_cores or self.container.cpu_throttled >= THROTTLED
        )
        for job in pumps:
            _sample_rates(self.rates[job], statuses[job], done[job].messages, full, now_s)
        self._smoothed = {job: one for job, one in self._smoothed.items() if job in pumps}
        self.loads = {job: _short(one.load) for job, one in self._smoothed.items()}
        self._at_s, self._cpu_s, self._done = now_s, cpu_s, done


def _sample_rates(rates: JobRates, status: JobStatus, finished: float, full: bool, now_s: float) -> None:
    unread = max(0, status.high_watermark - status.fetched)
    waiting = unread + status.ready + status.behind
    alone = status.state in FLOWING and not status.postponed and (full or not status.ready)
    rates.sample(now_s, status.high_watermark, finished, waiting, alone)


def _short(load: Load) -> Load:
    """Rounded, because every heartbeat has it."""
    return Load(round(load.cpu_cores, 4), round(load.memory_bytes), round(load.network_bytes_per_s))


def _since(before: JobWork | None, now: JobWork) -> JobWork:
    if before is None or now.bytes < before.bytes:  # a new pump of the job
        return now
    return JobWork(now.bytes - before.bytes, now.messages - before.messages, now.calls - before.calls)


def _network_bytes_per_s() -> float:
    """The fastest interface's rate, if it gives one."""
    speeds = [stats.speed for name, stats in psutil.net_if_stats().items() if name != "lo" and stats.isup]
    megabits_per_s = max(speeds, default=0)
    return megabits_per_s * 125_000 or DEFAULT_WORKER.network_bytes_per_s
