"""How large a workload should be, and when it may sleep: from what was measured, each figure with its reason.

Rules
1. Demand is the arriving rate, and what works the lag off within `catch_up_s`.
2. In flight: Little's law, messages in flight = rate x latency; with `headroom`, because both vary.
3. Partitions: demand with headroom over the most that one partition was seen to carry; with strict order, at
   most one message in flight each, 1 / latency. Never fewer than there are: Kafka cannot remove partitions.
4. Workers: what the load takes at the fill mark of placement, in the fullest dimension, and one more, so that
   one may be lost. A workload cannot use more workers than it has partitions.
5. The fleet: the sum of all loads over one worker's capacity, likewise with one to lose. This is the figure
   an autoscaler goes by; loads rise fast and fall slowly (`app.kernel.load`), so it does not flap.
6. A workload sleeps after `after_s` in which nothing arrived, nothing lagged and nothing was in flight, and
   wakes at the first sign of any. What is not known is no idleness, and no reason to wake: a sleeper whose
   cluster is away has nothing to do.

What was not measured, or cannot be, gives no figure: the value is None, and the reason says what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from app.kernel.load import Load, capacity_or_default, vector
from app.placement.model.fleet import DIMENSIONS, percent

MAX_PARTITIONS = 10_000  # of one topic; more is a mistake in a figure
MAX_IN_FLIGHT = 1_000_000
MAX_FIGURE = 1e15  # of anything that is measured here: what is above is none


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a workload; None, or what is no figure, is not known.

    Attributes:
        rate: messages that arrive a second.
        latency_s: mean time from push to answer.
        lag_messages: what waits in the log.
        partitions: of its topic, now.
        partition_ceiling: the most messages a second that one partition was seen to carry.
        load: of all its jobs together.
        ordered: strict order by partition: one message in flight each.
    """

    rate: float | None = None
    latency_s: float | None = None
    lag_messages: float | None = None
    partitions: int
    partition_ceiling: float | None = None
    load: Load | None = None
    ordered: bool = False


class SizingRules(msgspec.Struct, frozen=True):
    """What to leave room for.

    Attributes:
        headroom: factor over what is measured.
        fill: placement's mark, up to which a worker is given jobs.
        catch_up_s: within which a lag should be gone.
        spare_workers: how many may be lost at once.
    """

    headroom: float = 1.3
    fill: float = 0.75
    catch_up_s: float = 600.0
    spare_workers: int = 1


class Figure(msgspec.Struct, frozen=True):
    """A recommended number, and how it came about."""

    value: int | None
    why: str


class Recommendation(msgspec.Struct, frozen=True):
    """What a workload should have."""

    partitions: Figure
    in_flight: Figure
    workers: Figure


RULES = SizingRules()


def recommend(measured: Measured, worker: Load, rules: SizingRules = RULES) -> Recommendation:
    """The size of one workload, on workers with the capacity `worker`."""
    partitions = recommend_partitions(measured, rules)
    return Recommendation(partitions, _in_flight(measured, rules), _workers(measured, worker, rules))


def _in_flight(measured: Measured, rules: SizingRules = RULES) -> Figure:
    """Messages in flight, over all workers (rule 2)."""
    demand, told = _demand(measured, rules)
    latency_s = _figure(measured.latency_s)
    if demand is None or latency_s is None:
        return Figure(None, f"not known: {told if demand is None else 'the latency was not measured'}")
    value = _whole(demand * latency_s * rules.headroom, MAX_IN_FLIGHT)
    why = (
        f"{told} x {_short(latency_s * 1000)} ms until they are answered, x {rules.headroom:g} headroom "
        f"(Little's law)"
    )
    if measured.ordered and value > measured.partitions:
        return Figure(
            measured.partitions,
            f"{why} would be {value}, but in strict order each of {measured.partitions} partitions has one",
        )
    return Figure(value, why)


def recommend_partitions(measured: Measured, rules: SizingRules = RULES) -> Figure:
    """Partitions of its topic (rule 3)."""
    demand, told = _demand(measured, rules)
    latency_s, ceiling = _figure(measured.latency_s), _figure(measured.partition_ceiling)
    by = "the most that one was seen to carry"
    if measured.ordered and latency_s and (not ceiling or 1 / latency_s < ceiling):
        ceiling, by = 1 / latency_s, f"in strict order, one message each {_short(latency_s * 1000)} ms"
    if demand is None or not ceiling:
        missing = told if demand is None else "what one can carry was not measured, as none was at its limit"
        return Figure(None, f"not known: {missing}; there are {measured.partitions}")
    value = _whole(demand * rules.headroom / ceiling, MAX_PARTITIONS)
    why = f"{told} x {rules.headroom:g} headroom / {_short(ceiling)} a partition and second ({by})"
    if value <= measured.partitions:
        return Figure(measured.partitions, f"{why} needs {value}, and there are {measured.partitions}")
    return Figure(value, f"{why}; there are {measured.partitions}")


def recommend_fleet(loads: Iterable[Load], worker: Load, rules: SizingRules = RULES) -> Figure:
    """Workers for all jobs together (rule 5): the autoscaling signal."""
    total = [0.0, 0.0, 0.0]
    for load in loads:
        for dimension, amount in enumerate(vector(load)):
            total[dimension] += amount
    return _for_load(total, worker, rules)


def _workers(measured: Measured, worker: Load, rules: SizingRules) -> Figure:
    if measured.load is None:
        return Figure(None, "not known: the load of its jobs was not measured")
    total = vector(measured.load)
    rate, (demand, _) = _figure(measured.rate), _demand(measured, rules)
    more = demand / rate if demand and rate else 1.0
    needed = _for_load([amount * more for amount in total[:1]] + [*total[1:]], worker, rules)
    assert needed.value is not None, "a load always gives a number"
    why = needed.why if more < 1.01 else f"{needed.why}; cpu x {more:.2g} to work the lag off"
    if needed.value > measured.partitions:
        return Figure(
            measured.partitions, f"{why}; but no more than its {measured.partitions} partitions can have work"
        )
    return Figure(needed.value, why)


def _for_load(total: list[float], worker: Load, rules: SizingRules) -> Figure:
    capacity = vector(capacity_or_default(worker))
    shares = [amount / (have * rules.fill) for amount, have in zip(total, capacity, strict=True)]
    fullest = max(range(3), key=shares.__getitem__)
    value = _whole(shares[fullest], MAX_IN_FLIGHT) + rules.spare_workers
    what = (
        f"{_short(total[0])} cores",
        f"{_short(total[1] / (1 << 20))} MiB",
        f"{_short(total[2] / 1e6)} MB/s",
    )[fullest]
    return Figure(
        value,
        f"{what} of {DIMENSIONS[fullest]} fill {_short(shares[fullest])} workers to {percent(rules.fill)}, "
        f"and {rules.spare_workers} more may be lost",
    )


def _demand(measured: Measured, rules: SizingRules) -> tuple[float | None, str]:
    rate, lag = _figure(measured.rate), _figure(measured.lag_messages) or 0.0
    if rate is None:
        return None, "the rate was not measured"
    if not lag:
        return rate, f"{_short(rate)} messages/s"
    return rate + lag / rules.catch_up_s, (
        f"({_short(rate)} messages/s + a lag of {_short(lag)} over {_short(rules.catch_up_s)} s)"
    )


class Activity(msgspec.Struct, frozen=True):
    """What goes on in a workload now; None: not known."""

    arriving: float | None  # messages a second
    lag_messages: float | None
    in_flight: int | None


class Hibernation:
    """Whether a workload sleeps (rule 6).

    Args:
        after_s: of idleness; infinite = never.
        asleep: as it was found, by a new leader for example.

    Raises:
        ValueError: `after_s` is not above 0.
    """

    __slots__ = ("_idle_since_s", "after_s", "asleep")

    def __init__(self, after_s: float = 1800.0, *, asleep: bool = False) -> None:
        if not after_s > 0:
            raise ValueError(f"hibernation after {after_s} s must be above 0")
        self.after_s = after_s
        self.asleep = asleep
        self._idle_since_s: float | None = None

    def observe(self, activity: Activity, now_s: float) -> str:
        """Takes in what is known at `now_s` (monotonic seconds). Returns why it sleeps, "" if it does not."""
        told = (_figure(activity.arriving), _figure(activity.lag_messages), _figure(activity.in_flight))
        if any(figure for figure in told if figure is not None):
            self.asleep, self._idle_since_s = False, None
        elif None in told:
            self._idle_since_s = None
        else:
            if self._idle_since_s is None:
                self._idle_since_s = now_s
            self.asleep = self.asleep or now_s - self._idle_since_s >= self.after_s
        if not self.asleep:
            return ""
        return f"nothing arrived for {_short(self.after_s / 60)} minutes; it wakes with the first message"


def _figure(value: float | None) -> float | None:
    """The value when it can be one."""
    return value if value is not None and 0 <= value <= MAX_FIGURE else None


def _whole(value: float, most: int) -> int:
    return max(1, math.ceil(min(value, most) - 1e-9))


def _short(value: float) -> str:
    """A number for people: three digits, thousands apart."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
