"""The load of a job and the capacity of a worker, in three dimensions: cpu, memory, network.

    measured ▲      ╭─╮                      the load that placement uses (═)
             │    ══╧═╧═══════════════╗      rises with the fast mean, within minutes,
             │   ╭╯   ╰─╮             ╚════  and falls only when no load was as high
             │ ──╯      ╰──────────────────  for one to two slow windows
             └─────────────────────────────▶ time

Rules
1. Up fast, down slow, as in uForwarder ("Fast scale up, slow scale down"). A load is its mean
   over `fast_s`, or the highest such mean in this slow window and the one before, if that is higher. The mean
   is exponentially weighted, so samples may come at any interval. Late growth makes messages wait; early
   shrinking moves jobs for nothing. Until a job was measured for `fast_s`, its load is the plain mean without
   a peak, because a new owner catches up first.
2. A job without a measurement gets the median of its topic's jobs in its workload, else of its workload's
   jobs, else the configured default.
3. Cpu and memory are measured for the whole process. Each job gets a share by its work; the idle process's
   part belongs to no job. The shares of `apportion` sum to the measured load minus the idle part.
4. An impossible figure (no number, negative, above `CEILING`) is ignored: the last valid one stays. `vector`
   gives every job at least `FLOOR`, so that placement does not count a thousand idle jobs as nothing.
5. A new owner measures a job from the start, while it catches up or before its traffic returns. So the load
   measured by the previous owner counts as a peak for another `SLOW_WINDOW_S` (`InheritedLoad`).

`tests/kernel/test_load.py` holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

import msgspec

# catching up after a move lasts seconds; a much shorter window would take that for a new level
FAST_WINDOW_S = 120.0
SLOW_WINDOW_S = 3600.0

# Cpu cost of a job's work in microseconds, measured by the benches dispatch-unary and dispatch-stream. Only
# the proportions matter.
CALL_COST, MESSAGE_COST, BYTE_COST = 27.0, 2.0, 0.001

Vector = tuple[float, float, float]  # cores, bytes, bytes/s


class Load(msgspec.Struct, frozen=True, gc=False):
    """A job's load or a worker's capacity: cores, bytes of memory, bytes per second over the network."""

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0
    network_bytes_per_s: float = 0.0


class JobWork(msgspec.Struct, frozen=True, gc=False):
    """A job's work in an interval: bytes read and sent, messages finished, calls made."""

    bytes: float = 0.0
    messages: float = 0.0
    calls: float = 0.0


DEFAULT_JOB = Load(0.005, 2 << 20, 10_000)
DEFAULT_WORKER = Load(1.0, 2 << 30, 125_000_000)  # one event loop, and a network of 1 Gbit/s
# A container is throttled when its CPU quota is used up in this share of the periods. A collection of
# garbage uses one up now and then, and delays nothing for long.
THROTTLED = 0.1
FLOOR = Load(0.0005, 256 << 10, 100)  # a fetch session, a tracker, a heartbeat's lines
CEILING = Load(1024.0, 1 << 44, 1e12)  # above any machine's
_LEAST_CPU, _LEAST_MEMORY, _LEAST_NETWORK = msgspec.structs.astuple(
    FLOOR
)  # read for every job of a placement
_MOST_CPU, _MOST_MEMORY, _MOST_NETWORK = msgspec.structs.astuple(CEILING)


def vector(load: Load) -> Vector:
    """The three figures of `load`, each limited to `FLOOR` .. `CEILING`."""
    cpu, memory, network = load.cpu_cores, load.memory_bytes, load.network_bytes_per_s
    if (
        _LEAST_CPU <= cpu <= _MOST_CPU
        and _LEAST_MEMORY <= memory <= _MOST_MEMORY
        and _LEAST_NETWORK <= network <= _MOST_NETWORK
    ):
        return cpu, memory, network
    if not FLOOR.cpu_cores <= cpu <= CEILING.cpu_cores:
        cpu = CEILING.cpu_cores if cpu > 1 else FLOOR.cpu_cores
    if not FLOOR.memory_bytes <= memory <= CEILING.memory_bytes:
        memory = CEILING.memory_bytes if memory > 1e9 else FLOOR.memory_bytes
    if not FLOOR.network_bytes_per_s <= network <= CEILING.network_bytes_per_s:
        network = CEILING.network_bytes_per_s if network > 1e9 else FLOOR.network_bytes_per_s
    return cpu, memory, network


def valid_or(load: Load, fallback: Load) -> Load:
    """`load`, with impossible figures replaced by those of `fallback`."""
    return Load(
        _valid(load.cpu_cores, CEILING.cpu_cores, fallback.cpu_cores),
        _valid(load.memory_bytes, CEILING.memory_bytes, fallback.memory_bytes),
        _valid(load.network_bytes_per_s, CEILING.network_bytes_per_s, fallback.network_bytes_per_s),
    )


def capacity_or_default(measured: Load, default: Load = DEFAULT_WORKER) -> Load:
    """A worker's capacity: `measured`, with the default for each figure that is impossible or 0."""
    sound = valid_or(measured, default)
    return Load(
        sound.cpu_cores or default.cpu_cores,
        sound.memory_bytes or default.memory_bytes,
        sound.network_bytes_per_s or default.network_bytes_per_s,
    )


class SmoothedLoad:
    """One job's load over time (rule 1).

    Args:
        initial: The load before the first sample, weighted as if measured for `fast_s`; None: not known.
        fast_s: The time constant of the mean, in seconds.
        slow_s: How long a peak counts, in seconds: at least this, at most twice this.

    Raises:
        ValueError: A window is not above 0, or the slow one is shorter than the fast one.
    """

    __slots__ = ("_at_s", "_fast", "_peak", "_peak_before", "_seen_s", "_window_s", "fast_s", "slow_s")

    def __init__(
        self, initial: Load | None = None, *, fast_s: float = FAST_WINDOW_S, slow_s: float = SLOW_WINDOW_S
    ) -> None:
        if not 0 < fast_s <= slow_s < math.inf:
            raise ValueError(f"windows: fast_s {fast_s} must be above 0 and at most slow_s {slow_s}")
        self.fast_s, self.slow_s = fast_s, slow_s
        self._fast = None if initial is None else valid_or(initial, DEFAULT_JOB)
        self._peak = self._peak_before = Load()
        self._at_s = self._window_s = -math.inf
        self._seen_s = 0.0 if initial is None else fast_s

    @property
    def fast(self) -> Load:
        """The fast mean: the job's present load."""
        return self._fast or Load()

    @property
    def load(self) -> Load:
        """The load that placement uses."""
        return _highest(self.fast, self._peak, self._peak_before)

    def sample(self, measured: Load, now_s: float) -> Load:
        """Takes a measurement at `now_s` (monotonic seconds). Returns the new load."""
        if not math.isfinite(now_s):
            return self.load
        before = self._fast
        sound = valid_or(measured, before or DEFAULT_JOB)
        if before is None:
            self._fast = sound
        else:
            passed_s = self.fast_s if self._at_s == -math.inf else max(0.0, now_s - self._at_s)
            self._seen_s = min(self.fast_s, self._seen_s + passed_s)
            new = -math.expm1(-passed_s / self.fast_s)
            if self._seen_s < self.fast_s and passed_s:
                new = max(new, passed_s / self._seen_s)
            self._fast = Load(
                before.cpu_cores + new * (sound.cpu_cores - before.cpu_cores),
                before.memory_bytes + new * (sound.memory_bytes - before.memory_bytes),
                before.network_bytes_per_s + new * (sound.network_bytes_per_s - before.network_bytes_per_s),
            )
        self._at_s = max(self._at_s, now_s)
        if self._at_s - self._window_s >= self.slow_s:
            stale = self._at_s - self._window_s >= 2 * self.slow_s
            self._peak_before = Load() if stale else self._peak
            self._peak, self._window_s = Load(), self._at_s
        self._peak = _highest(self._peak, self._fast) if self._seen_s >= self.fast_s else self._fast
        return self.load


class InheritedLoad:
    """A job's load under its previous owner, for as long as it counts (rule 5).

    Args:
        epoch: The new owner's epoch.
        before: The load so far; None: not known.
        now_s: Monotonic seconds.
    """

    __slots__ = ("_before", "_until_s", "epoch")

    def __init__(
        self, epoch: int, before: Load | None, now_s: float, *, slow_s: float = SLOW_WINDOW_S
    ) -> None:
        self.epoch = epoch
        self._before = None if before is None else valid_or(before, Load())
        self._until_s = now_s + slow_s

    def load(self, measured: Load, now_s: float) -> Load:
        """The load that placement uses when the new owner reports `measured`."""
        if self._before is not None and now_s >= self._until_s:
            self._before = None
        return measured if self._before is None else _highest(measured, self._before)


def with_estimates(
    jobs: Iterable[str], known: Mapping[str, Load], default: Load = DEFAULT_JOB
) -> dict[str, Load]:
    """The load of every job: the known one, else an estimate from its siblings (rule 2)."""
    loads: dict[str, Load] = {}
    unknown: list[str] = []
    for job in jobs:
        load = known.get(job)
        if load is None:
            unknown.append(job)
        else:
            loads[job] = load
    if not unknown:
        return loads
    families: dict[str, list[Load]] = {family: [] for job in unknown for family in _families(job)}
    for job, load in known.items():
        for family in _families(job):
            if family in families:
                families[family].append(load)
    medians = {
        family: Load(
            median(load.cpu_cores for load in siblings),
            median(load.memory_bytes for load in siblings),
            median(load.network_bytes_per_s for load in siblings),
        )
        for family, members in families.items()
        if (siblings := [valid_or(load, default) for load in members])
    }
    for job in unknown:
        loads[job] = next((medians[family] for family in _families(job) if family in medians), default)
    return loads


def apportion(process: Load, work: Mapping[str, JobWork], idle: Load | None = None) -> dict[str, Load]:
    """Each job's share of the process's load while the jobs did `work` (rule 3).

    Cpu is shared by the cost of calls, messages and bytes; memory and network by bytes. Without work, or
    without valid counts, all jobs get the same share.

    Args:
        process: The load of the whole process over the same interval.
        idle: The load of a process without jobs; None: 0.
    """
    if not work:
        return {}
    whole, unowned = valid_or(process, Load()), valid_or(idle or Load(), Load())
    cpu = max(0.0, whole.cpu_cores - unowned.cpu_cores)
    memory = max(0.0, whole.memory_bytes - unowned.memory_bytes)
    network = max(0.0, whole.network_bytes_per_s - unowned.network_bytes_per_s)
    by_cost = _shares(
        [
            _count(one.calls) * CALL_COST
            + _count(one.messages) * MESSAGE_COST
            + _count(one.bytes) * BYTE_COST
            for one in work.values()
        ]
    )
    by_bytes = _shares([_count(one.bytes) for one in work.values()])
    return {
        job: Load(cpu * cost, memory * size, network * size)
        for job, cost, size in zip(work, by_cost, by_bytes, strict=True)
    }


def _families(job: str) -> tuple[str, str]:
    """The prefixes of the job's name that name its workload's topic, and its workload."""
    topic = job.rpartition(":")[0]
    return topic, topic.rpartition(":")[0]


def _shares(amounts: list[float]) -> list[float]:
    total = sum(amounts)
    return [amount / total for amount in amounts] if total > 0 else [1 / len(amounts)] * len(amounts)


def _count(amount: float) -> float:
    """A valid count, else 0; limited so that no sum overflows."""
    return min(amount, 1e18) if amount > 0 else 0.0


def _valid(figure: float, ceiling: float, fallback: float) -> float:
    return figure if 0 <= figure <= ceiling else fallback


def _highest(*loads: Load) -> Load:
    return Load(
        max(load.cpu_cores for load in loads),
        max(load.memory_bytes for load in loads),
        max(load.network_bytes_per_s for load in loads),
    )
