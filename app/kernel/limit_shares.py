"""How the leader divides a limit among a region's workers, so that their sum never exceeds it once a record
exists.

    heartbeats: each worker's use and demand ──▶ `aims` ──▶ `step` ──▶ `LimitShares` in the control log
        ▲                                                                        │
        └───────── how far it has read the log ◀── the worker applies it ◀───────┘

Rules
1. A worker uses its grant in the newest record that it has read in the control log, and only while its lease
   holds. A worker that the record does not name uses nothing. Before the first record each worker uses its
   share of the jobs.
2. A record also holds the most that each worker may still use because of earlier records
   (`GrantedShare.most`). A heartbeat composed after the worker read the record lowers that to the grant; for
   slots, not below its calls in flight.
3. A record never raises the sum of `most` above the limit. So a worker gains only what another one has
   confirmed that it lost. A dead worker's part is free once the leader declares it dead, after its lease.
4. `aims` satisfies small demands first, and shares the rest by how many partitions with work a worker has.
   Every one of n workers keeps at least `1 / (IDLE_PART * n)` of the limit, and at least one part, so that an
   idle one can begin at once. The remainder is spread evenly.
5. Where a limit has fewer slots than there are workers, those with demand take turns.
6. Small changes are not worth a record: `is_worth` decides when to write the next one.

Units: a rate is divided into `WHOLE` parts, a number of calls in flight into slots. All amounts are integers,
so sums are exact (`tests/kernel/test_limit_shares.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp

import msgspec

WHOLE = 1_000_000  # parts of a rate
IDLE_PART = 100  # all workers' least parts together are one part in this many
HEADROOM = 1.25  # a worker below its limit may grow by a quarter before it needs more
WORTH_PART = 20  # a gain of a twentieth of the limit is worth a record;
WORTH_OWN = 4  # so is a quarter of the worker's grant
USED_OVER_S = 2.0  # the window over which use is averaged
WANTS_FOR_S = 1.5  # how long a worker wants more after a limit held it back: three heartbeats


class LimitGrant(msgspec.Struct, frozen=True, array_like=True):
    """A worker's part of a limit in a `LimitShares` record: parts of the rate and slots; `most_*`: rule 2."""

    parts: int
    most_parts: int
    slots: int
    most_slots: int


class LimitNeed(msgspec.Struct, frozen=True, array_like=True):
    """A worker's use of and demand for one workload's or route's limits, in its heartbeat.

    Attributes:
        key: The workload or route.
        used: The share of the rate used lately; 1.0 is the whole rate.
        wants: The rate held the worker back lately; `wants_slots`: the limit of calls in flight did.
        in_flight: Messages at the receiver with the most of them.
        weight: Partitions with work, at least 1.
    """

    key: str
    used: float = 0.0
    wants: bool = False
    in_flight: int = 0
    wants_slots: bool = False
    weight: int = 1


class WorkerShare(msgspec.Struct, frozen=True):
    """A worker's part of all limits of one workload or route.

    Attributes:
        jobs: Its part (0 to 1) of the jobs.
        topic: Its part (0 to 1) of the jobs on the workload's own topic. Only these catch up; retry topics
            do not.
        rate: Its part (0 to 1) of the rates.
        slots, of: Its calls in flight, out of how many; `of` 0: its part of the rates decides.
    """

    jobs: float = 0.0
    rate: float = 0.0
    slots: int = 0
    of: int = 0
    topic: float = 0.0

    def in_flight(self, limit: int) -> int:
        """How many of `limit` calls in flight this worker may have."""
        if self.of:
            return scaled(self.slots, self.of, limit)
        return max(1, round(limit * self.rate)) if self.rate > 0 else 0


ALL, NOTHING = WorkerShare(1.0, 1.0, topic=1.0), WorkerShare()


class LimitDemand(msgspec.Struct, frozen=True):
    """A worker's use of one limit, in the limit's unit; `more`: it would use more."""

    used: int = 0
    more: bool = False
    weight: int = 1


class GrantedShare(msgspec.Struct, frozen=True):
    """A worker's grant, and the most that it may use until it has read the record of it (rule 2)."""

    now: int = 0
    most: int = 0


def aims(total: int, wants: Mapping[str, LimitDemand], turn: int = 0) -> dict[str, int]:
    """Each worker's intended part of `total` (rules 4 and 5). The parts sum to `total`, unless there are
    no workers.

    Args:
        turn: A number that grows with time; it decides which worker is first where slots are scarce.
    """
    names = sorted(wants)
    if len(names) > total:
        start = turn % len(names)
        rotated = names[start:] + names[:start]
        first = sorted(rotated, key=lambda name: not wants[name].more)[:total]
        return {name: int(name in first) for name in names}
    if not names:
        return {}
    floor = max(1, total // (IDLE_PART * len(names)))
    left = total - floor * len(names)
    demands = {
        name: left if want.more else min(left, max(0, ceil(want.used * HEADROOM) - floor))
        for name, want in wants.items()
    }
    found, weights = {}, sum(max(1, want.weight) for want in wants.values())
    for name in sorted(names, key=lambda name: (demands[name] / max(1, wants[name].weight), name)):
        weight = max(1, wants[name].weight)
        given = min(demands[name], left * weight // weights)
        found[name] = floor + given
        left, weights = left - given, weights - weight
    for number, name in enumerate(names):
        found[name] += left // len(names) + (number < left % len(names))
    return found


def is_worth(
    total: int, wants: Mapping[str, LimitDemand], aimed: Mapping[str, int], held: Mapping[str, GrantedShare]
) -> bool:
    """Whether `aimed` differs enough from `held` for a new record (rule 6)."""
    if sum(one.now for one in held.values()) > total:
        return True
    for name, want in wants.items():
        now = held[name].now if name in held else 0
        gain = aimed[name] - now
        if gain <= 0:
            continue
        if now == 0 and (want.more or len(wants) <= total):
            return True
        if len(wants) == 1 or (want.more and gain >= max(1, min(total // WORTH_PART, now // WORTH_OWN))):
            return True
    return False


def step(total: int, aimed: Mapping[str, int], held: Mapping[str, GrantedShare]) -> dict[str, GrantedShare]:
    """The next record: as close to `aimed` as rule 3 allows. `held` has all workers that are not dead."""
    granted = {
        name: min(aimed.get(name, 0), held[name].most if name in held else 0) for name in {*aimed, *held}
    }
    free = total - sum(one.most for one in held.values())
    for name in sorted(aimed, key=lambda name: (granted[name], name)):
        more = min(max(0, free), aimed[name] - granted[name])
        granted[name] += more
        free -= more
    made = {
        name: GrantedShare(amount, max(amount, held[name].most if name in held else 0))
        for name, amount in granted.items()
    }
    return {name: one for name, one in made.items() if one.most}


def scaled(amount: int, of: int, total: int) -> int:
    """A grant of `amount` of `of` slots, after the limit changed to `total`; the sum stays within `total`."""
    return amount if of == total else amount * total // of if of > 0 else 0


class LimitUsage:
    """One worker's use of a limit, and whether the limit holds it back. Times are monotonic seconds."""

    __slots__ = ("_at_s", "_short_s", "_sum")

    def __init__(self) -> None:
        self._sum, self._at_s = 0.0, 0.0
        self._short_s = float("-inf")

    def add(self, now_s: float, amount: float) -> None:
        """Counts `amount` as used."""
        self._sum = self._sum * self._left(now_s) + amount
        self._at_s = now_s

    def short(self, now_s: float) -> None:
        """Notes that work waits because of the limit."""
        self._short_s = now_s

    def per_s(self, now_s: float) -> float:
        """The mean use per second over the last `USED_OVER_S`."""
        return self._sum * self._left(now_s) / USED_OVER_S

    def wants(self, now_s: float) -> bool:
        """Whether the limit held the worker back within the last `WANTS_FOR_S`."""
        return now_s - self._short_s < WANTS_FOR_S

    def _left(self, now_s: float) -> float:
        return exp(min(0.0, self._at_s - now_s) / USED_OVER_S)
