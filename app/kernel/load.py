"""What a job takes and what a worker has, in three dimensions: cpu, memory, network.

    measured ▲      ╭─╮                      the load that placement goes by (═)
             │    ══╧═╧═══════════════╗      rises with the fast mean, within minutes,
             │   ╭╯   ╰─╮             ╚════  and falls only when nothing as high was seen
             │ ──╯      ╰──────────────────  for one to two slow windows
             └─────────────────────────────▶ time

Rules
1. Up fast, down slow (seed uForwarder, "Fast scale up, slow scale down"): a load is the higher of its mean of
   the last `fast_s` (exponentially weighted, so that samples may come at any interval) and of the highest
   such mean in this slow window and the one before. Scaled up too late, messages wait; scaled down too early,
   jobs move for nothing. Until `fast_s` was seen of a job, its load is the plain mean, and no peak is kept:
   whoever takes a job over catches up first.
2. A job that was never measured is taken for the median of what is known of its topic in its workload, else
   of its workload, else for a configured default.
3. A process is measured as a whole (its cpu and memory are), and its jobs get shares by the work that they
   did. What the process takes without any job belongs to none.
4. What cannot be true (no number, negative, above `CEILING`) is as if it had not been measured: the last true
   figure stays. Nothing of it reaches placement, where `vector` also gives every job `FLOOR` at least, so
   that a thousand idle jobs are not taken for none.
5. Who gets a job begins to measure it anew, while it catches up or before its traffic is back. What was known
   of it before is a peak like any other: it counts for `SLOW_WINDOW_S` longer (`InheritedLoad`).

Invariant: the shares of `apportion` sum to what was measured less what the process takes idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

import msgspec

# catching up after a move lasts seconds: much shorter and it would pass for a new level
FAST_WINDOW_S = 120.0
SLOW_WINDOW_S = 3600.0

# Relative cost in cpu of what a job does, in microseconds as the benches show them (make bench
# NAME=dispatch-unary, dispatch-stream); only their proportion counts.
CALL_COST, MESSAGE_COST, BYTE_COST = 250.0, 2.0, 0.001

Vector = tuple[float, float, float]  # cores, bytes, bytes/s


class Load(msgspec.Struct, frozen=True, gc=False):
    """What a job takes, or what a worker has: cores, bytes of memory, bytes a second over the network."""

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0
    network_bytes_per_s: float = 0.0


class JobWork(msgspec.Struct, frozen=True, gc=False):
    """What a job did in some time: bytes it read and sent, messages it finished, calls it made."""

    bytes: float = 0.0
    messages: float = 0.0
    calls: float = 0.0


DEFAULT_JOB = Load(0.005, 2 << 20, 10_000)
DEFAULT_WORKER = Load(1.0, 2 << 30, 125_000_000)  # one event loop, and a network of 1 Gbit/s
FLOOR = Load(0.0005, 256 << 10, 100)  # a fetch session, a tracker, a heartbeat's lines
CEILING = Load(1024.0, 1 << 44, 1e12)  # no machine there is has more
_LEAST_CPU, _LEAST_MEMORY, _LEAST_NETWORK = msgspec.structs.astuple(FLOOR)  # placement asks for every job
_MOST_CPU, _MOST_MEMORY, _MOST_NETWORK = msgspec.structs.astuple(CEILING)


def vector(load: Load) -> Vector:
    """The three figures, each from its floor to its ceiling, whatever `load` says."""
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


def true_or(load: Load, instead: Load) -> Load:
    """`load`, with what cannot be true of it replaced by what `instead` says."""
    return Load(
        _true(load.cpu_cores, CEILING.cpu_cores, instead.cpu_cores),
        _true(load.memory_bytes, CEILING.memory_bytes, instead.memory_bytes),
        _true(load.network_bytes_per_s, CEILING.network_bytes_per_s, instead.network_bytes_per_s),
    )


def capacity_or_default(measured: Load, default: Load = DEFAULT_WORKER) -> Load:
    """What a worker has: `measured`, and the default where that is no capacity (nor is none at all)."""
    sound = true_or(measured, default)
    return Load(
        sound.cpu_cores or default.cpu_cores,
        sound.memory_bytes or default.memory_bytes,
        sound.network_bytes_per_s or default.network_bytes_per_s,
    )


class SmoothedLoad:
    """One job's load over time (rule 1).

    Args:
        initial: the load until the first sample, and as good as seen for `fast_s`; None: not known.
        fast_s: time constant of the mean, in seconds.
        slow_s: a peak is remembered for this long at least, for twice as long at most.

    Raises:
        ValueError: a window is not above 0, or the slow one is shorter than the fast one.
    """

    __slots__ = ("_at_s", "_fast", "_peak", "_peak_before", "_seen_s", "_window_s", "fast_s", "slow_s")

    def __init__(
        self, initial: Load | None = None, *, fast_s: float = FAST_WINDOW_S, slow_s: float = SLOW_WINDOW_S
    ) -> None:
        if not 0 < fast_s <= slow_s < math.inf:
            raise ValueError(f"windows: fast_s {fast_s} must be above 0 and at most slow_s {slow_s}")
        self.fast_s, self.slow_s = fast_s, slow_s
        self._fast = None if initial is None else true_or(initial, DEFAULT_JOB)
        self._peak = self._peak_before = Load()
        self._at_s = self._window_s = -math.inf
        self._seen_s = 0.0 if initial is None else fast_s

    @property
    def fast(self) -> Load:
        """The fast mean alone: what the job takes just now."""
        return self._fast or Load()

    @property
    def load(self) -> Load:
        """What to place by."""
        return _highest(self.fast, self._peak, self._peak_before)

    def sample(self, measured: Load, now_s: float) -> Load:
        """Takes one measurement at `now_s` (monotonic seconds). Returns the load from now on."""
        if not math.isfinite(now_s):
            return self.load
        before = self._fast
        sound = true_or(measured, before or DEFAULT_JOB)
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
    """What was known of a job when its owner changed, and until when it counts (rule 5).

    Args:
        epoch: the new owner's.
        before: the load until now; None: not known.
        now_s: monotonic seconds.
    """

    __slots__ = ("_before", "_until_s", "epoch")

    def __init__(
        self, epoch: int, before: Load | None, now_s: float, *, slow_s: float = SLOW_WINDOW_S
    ) -> None:
        self.epoch = epoch
        self._before = None if before is None else true_or(before, Load())
        self._until_s = now_s + slow_s

    def load(self, measured: Load, now_s: float) -> Load:
        """What to place by when the owner says `measured`."""
        if self._before is not None and now_s >= self._until_s:
            self._before = None
        return measured if self._before is None else _highest(measured, self._before)


def with_estimates(
    jobs: Iterable[str], known: Mapping[str, Load], default: Load = DEFAULT_JOB
) -> dict[str, Load]:
    """The load of every job: as known, else estimated from its siblings (rule 2)."""
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
        if (siblings := [true_or(load, default) for load in members])
    }
    for job in unknown:
        loads[job] = next((medians[family] for family in _families(job) if family in medians), default)
    return loads


def apportion(process: Load, work: Mapping[str, JobWork], idle: Load | None = None) -> dict[str, Load]:
    """Every job's share of what its process took while the jobs did `work` (rule 3).

    Cpu is shared by what calls, messages and bytes cost, memory and network by bytes. Where nothing was done,
    or nothing credible was told, all share alike.

    Args:
        process: measured of the whole process over the same time.
        idle: what a process takes without jobs, which is nobody's; None = nothing.
    """
    if not work:
        return {}
    whole, nobodys = true_or(process, Load()), true_or(idle or Load(), Load())
    cpu = max(0.0, whole.cpu_cores - nobodys.cpu_cores)
    memory = max(0.0, whole.memory_bytes - nobodys.memory_bytes)
    network = max(0.0, whole.network_bytes_per_s - nobodys.network_bytes_per_s)
    by_cost = _shares(
        [
            _told(one.calls) * CALL_COST + _told(one.messages) * MESSAGE_COST + _told(one.bytes) * BYTE_COST
            for one in work.values()
        ]
    )
    by_bytes = _shares([_told(one.bytes) for one in work.values()])
    return {
        job: Load(cpu * cost, memory * size, network * size)
        for job, cost, size in zip(work, by_cost, by_bytes, strict=True)
    }


def _families(job: str) -> tuple[str, str]:
    """Its workload's topic and its workload, as prefixes of the job's name."""
    topic = job.rpartition(":")[0]
    return topic, topic.rpartition(":")[0]


def _shares(amounts: list[float]) -> list[float]:
    total = sum(amounts)
    return [amount / total for amount in amounts] if total > 0 else [1 / len(amounts)] * len(amounts)


def _told(amount: float) -> float:
    """A count, 0 when it is none; capped so that no sum of them overflows."""
    return min(amount, 1e18) if amount > 0 else 0.0


def _true(figure: float, ceiling: float, instead: float) -> float:
    return figure if 0 <= figure <= ceiling else instead


def _highest(*loads: Load) -> Load:
    return Load(
        max(load.cpu_cores for load in loads),
        max(load.memory_bytes for load in loads),
        max(load.network_bytes_per_s for load in loads),
    )
