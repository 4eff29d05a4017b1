"""How a limit is divided among the workers of a region, so that the sum is never above it.

    heartbeats: what each worker uses and wants ──▶ `aims` ──▶ `step` ──▶ `LimitShares` in the control log
        ▲                                                                        │
        └───────── how far it has read the log ◀── the worker applies it ◀───────┘

Rules
1. A worker uses what the newest record that it has read in the control log grants it, and only while its
   lease holds. A worker that the record does not name uses nothing.
2. A record also says of each worker the most that it may still use because of earlier records
   (`GrantedShare.most`). A heartbeat that was composed behind the record ends that: from then on the grant is
   the most.
3. A record never raises the sum of these above the limit. So what one worker gains, another has lost before,
   and the leader has heard so. What a dead worker had is free once the leader counts it dead: its lease is
   over by then.
4. `aims` satisfies small needs first, then shares the rest among those that want more, by how many of their
   partitions have work. Idle workers keep `1 / IDLE_PART` of the limit together, so that
   they can begin at once. What nobody needs is spread evenly.
5. Where there are fewer calls in flight than workers, those that want one take turns.
6. Little is gained by small changes: `is_worth` says when a new record should be written.

Units: a rate is divided into `WHOLE` parts, a number of calls in flight into slots. All amounts are integers,
so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp

import msgspec

WHOLE = 1_000_000  # parts of a rate
IDLE_PART = 100  # all idle workers together keep one in so many parts
HEADROOM = 1.25  # a worker that is not held back may grow by a quarter before it has to ask
WORTH_PART = 20  # a gain of a twentieth of the limit is worth a record,
WORTH_OWN = 4  # and so is one of a quarter of what the worker has
USED_OVER_S = 2.0  # use is averaged over so long
WANTS_FOR_S = 1.5  # a worker that was held back wants more for so long: three heartbeats


class LimitGrant(msgspec.Struct, frozen=True, array_like=True):
    """What a record says of a worker: parts of the rate and slots; `most_*` by rule 2."""

    parts: int
    most_parts: int
    slots: int
    most_slots: int


class LimitNeed(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says of a limited workload or route in its heartbeat.

    Attributes:
        key: of the workload or route.
        used: of the rate, lately; 1.0 is the whole.
        wants: the rate held it back lately; `wants_slots`: the calls in flight did.
        in_flight: messages at the receiver that has the most of them.
        weight: partitions that have work, at least 1.
    """

    key: str
    used: float = 0.0
    wants: bool = False
    in_flight: int = 0
    wants_slots: bool = False
    weight: int = 1


class WorkerShare(msgspec.Struct, frozen=True):
    """What a worker may use of all limits of one workload or route.

    Attributes:
        jobs: its part (0 to 1) of the jobs. topic: of those that read the workload's own topic, which alone
            catch up: retry topics do not count there.
        rate: its part (0 to 1) of the rates.
        slots, of: so many of so many calls in flight; `of` 0: by its part of the rates.
    """

    jobs: float = 0.0
    rate: float = 0.0
    slots: int = 0
    of: int = 0
    topic: float = 0.0

    def in_flight(self, limit: int) -> int:
        """How many of `limit` calls in flight are this worker's."""
        if self.of:
            return scaled(self.slots, self.of, limit)
        return max(1, round(limit * self.rate)) if self.rate > 0 else 0


ALL, NOTHING = WorkerShare(1.0, 1.0, topic=1.0), WorkerShare()


class LimitDemand(msgspec.Struct, frozen=True):
    """What a worker needs of one limit, in the limit's unit; `more`: as much as it can get."""

    used: int = 0
    more: bool = False
    weight: int = 1


class GrantedShare(msgspec.Struct, frozen=True):
    """What a worker was granted, and the most that it may use until it has read that (rule 2)."""

    now: int = 0
    most: int = 0


def aims(total: int, wants: Mapping[str, LimitDemand], turn: int = 0) -> dict[str, int]:
    """What each worker should have of `total` (rules 4 and 5); the sum is `total` unless nobody is there.

    Args:
        turn: a number that grows with time; it decides who is first where there is not one for each.
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
    asked = {
        name: left if want.more else min(left, max(0, ceil(want.used * HEADROOM) - floor))
        for name, want in wants.items()
    }
    found, weights = {}, sum(max(1, want.weight) for want in wants.values())
    for name in sorted(names, key=lambda name: (asked[name] / max(1, wants[name].weight), name)):
        weight = max(1, wants[name].weight)
        given = min(asked[name], left * weight // weights)
        found[name] = floor + given
        left, weights = left - given, weights - weight
    for number, name in enumerate(names):
        found[name] += left // len(names) + (number < left % len(names))
    return found


def is_worth(
    total: int, wants: Mapping[str, LimitDemand], aimed: Mapping[str, int], held: Mapping[str, GrantedShare]
) -> bool:
    """Whether the aims differ from what is held by so much that a record should be written (rule 6)."""
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
    """The next record: as near to the aims as rule 3 allows. `held` is of all workers that are not dead."""
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
    """A grant of `amount` slots of `of` where the limit is `total` by now; sums stay within it."""
    return amount if of == total else amount * total // of if of > 0 else 0


class LimitUsage:
    """What is used of a limit by one worker, and whether it is held back. Times in monotonic seconds."""

    __slots__ = ("_at_s", "_short_s", "_sum")

    def __init__(self) -> None:
        self._sum, self._at_s = 0.0, 0.0
        self._short_s = float("-inf")

    def add(self, now_s: float, amount: float) -> None:
        """So much was used."""
        self._sum = self._sum * self._left(now_s) + amount
        self._at_s = now_s

    def short(self, now_s: float) -> None:
        """Something waits, and the limit is why."""
        self._short_s = now_s

    def per_s(self, now_s: float) -> float:
        """The mean over the last `USED_OVER_S`."""
        return self._sum * self._left(now_s) / USED_OVER_S

    def wants(self, now_s: float) -> bool:
        """Whether it was held back lately."""
        return now_s - self._short_s < WANTS_FOR_S

    def _left(self, now_s: float) -> float:
        return exp(min(0.0, self._at_s - now_s) / USED_OVER_S)
