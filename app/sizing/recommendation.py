"""Recommends the size of a workload, and decides when it may sleep, from measurements. Each figure has a
reason.

Rules
1. Demand is the arriving rate, plus the rate that removes the lag within `catch_up_s`.
2. In flight: Little's law, messages in flight = rate x latency; with `headroom`, because both vary.
3. Partitions: demand with headroom, divided by the highest throughput measured of one partition. In strict
   order a partition has one message in flight, so its throughput is 1 / latency. Never fewer than there
   are, because Kafka cannot remove partitions.
4. Workers: the load at placement's fill mark, in the fullest dimension, plus one that may be lost. Cpu grows
   by the demand over the arriving rate, if both are known. A workload cannot use more workers than it has
   partitions.
5. The fleet: the sum of all loads, sized as in rule 4, plus one that may be lost; never fewer than two. An
   autoscaler follows this figure. Loads rise fast and fall slowly (`app.kernel.load`), so it does not flap.
6. A workload sleeps after `after_s` in which no message arrived, lagged or was in flight, and wakes at the
   first sign of any. An unknown figure neither counts as idle nor wakes it: while its cluster is
   unreachable, a sleeping workload has no work.

A figure without a measurement is None, and its reason says what is missing. An unknown lag counts as none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from app.kernel.load import Load, capacity_or_default, vector
from app.placement.model.fleet import DIMENSIONS, percent

MAX_PARTITIONS = 10_000  # of one topic; more comes from a wrong figure
MAX_IN_FLIGHT = 1_000_000
MAX_FIGURE = 1e15  # a higher measurement is invalid


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a workload; None, or an impossible figure, is not known.

    Attributes:
        rate: Messages that arrive per second.
        latency_s: Mean time from a call to its answer.
        lag_messages: Messages that wait in the log.
        partitions: The topic's partitions now.
        partition_ceiling: The most messages per second that one partition carried.
        load: The load of all its jobs.
        ordered: Strict order by partition: each has one message in flight.
    """

    rate: float | None = None
    latency_s: float | None = None
    lag_messages: float | None = None
    partitions: int
    partition_ceiling: float | None = None
    load: Load | None = None
    ordered: bool = False


class SizingRules(msgspec.Struct, frozen=True):
    """The room to leave.

    Attributes:
        headroom: Factor over the measurement.
        fill: Placement's fill mark for workers.
        catch_up_s: The time in which a lag should disappear.
        spare_workers: How many workers may be lost at once.
    """

    headroom: float = 1.3
    fill: float = 0.75
    catch_up_s: float = 600.0
    spare_workers: int = 1


class Figure(msgspec.Struct, frozen=True):
    """A recommended number and its reason."""

    value: int | None
    why: str


class Recommendation(msgspec.Struct, frozen=True):
    """The recommended size of a workload."""

    partitions: Figure
    in_flight: Figure
    workers: Figure


RULES = SizingRules()


def recommend(measured: Measured, worker: Load, rules: SizingRules = RULES) -> Recommendation:
    """The size of one workload, on workers with the capacity `worker`."""
    partitions = recommend_partitions(measured, rules)
    return Recommendation(partitions, _in_flight(measured, rules), _workers(measured, worker, rules))


def _in_flight(measured: Measured, rules: SizingRules = RULES) -> Figure:
    """The messages in flight, over all workers (rule 2)."""
    demand, words = _demand(measured, rules)
    latency_s = _figure(measured.latency_s)
    if demand is None or latency_s is None:
        return Figure(None, f"not known: {words if demand is None else 'the latency was not measured'}")
    value = _whole(demand * latency_s * rules.headroom, MAX_IN_FLIGHT)
    why = (
        f"{words} x {_short(latency_s * 1000)} ms until they are answered, x {rules.headroom:g} headroom "
        f"(Little's law)"
    )
    if measured.ordered and value > measured.partitions:
        return Figure(
            measured.partitions,
            f"{why} would be {value}, but in strict order each of {measured.partitions} partitions has one",
        )
    return Figure(value, why)


def recommend_partitions(measured: Measured, rules: SizingRules = RULES) -> Figure:
    """The partitions of the topic (rule 3)."""
    demand, words = _demand(measured, rules)
    latency_s, ceiling = _figure(measured.latency_s), _figure(measured.partition_ceiling)
    by = "the highest throughput measured of one"
    if measured.ordered and latency_s and (not ceiling or 1 / latency_s < ceiling):
        ceiling, by = 1 / latency_s, f"in strict order, one message each {_short(latency_s * 1000)} ms"
    if demand is None or not ceiling:
        missing = (
            words
            if demand is None
            else "the throughput of one was not measured, because none was at its limit"
        )
        return Figure(None, f"not known: {missing}; there are {measured.partitions}")
    value = _whole(demand * rules.headroom / ceiling, MAX_PARTITIONS)
    why = f"{words} x {rules.headroom:g} headroom / {_short(ceiling)} a partition and second ({by})"
    if value <= measured.partitions:
        return Figure(measured.partitions, f"{why} needs {value}, and there are {measured.partitions}")
    return Figure(value, f"{why}; there are {measured.partitions}")


def recommend_fleet(loads: Iterable[Load], worker: Load, rules: SizingRules = RULES) -> Figure:
    """The workers for all jobs together (rule 5): the signal for autoscaling."""
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
    why = needed.why if more < 1.01 else f"{needed.why}; cpu x {more:.2g} to remove the lag"
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
    """A workload's present activity; None: not known."""

    arriving: float | None  # messages a second
    lag_messages: float | None
    in_flight: int | None


class Hibernation:
    """Whether a workload sleeps (rule 6).

    Args:
        after_s: The idle time after which it sleeps; infinite: never.
        asleep: The state that a new leader, for example, has found.

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
        """Takes the activity at `now_s` (monotonic seconds). Returns why the workload sleeps, "" if it
        does not."""
        figures = (_figure(activity.arriving), _figure(activity.lag_messages), _figure(activity.in_flight))
        if any(figure for figure in figures if figure is not None):
            self.asleep, self._idle_since_s = False, None
        elif None in figures:
            self._idle_since_s = None
        else:
            if self._idle_since_s is None:
                self._idle_since_s = now_s
            self.asleep = self.asleep or now_s - self._idle_since_s >= self.after_s
        if not self.asleep:
            return ""
        return f"nothing arrived for {_short(self.after_s / 60)} minutes; it wakes with the first message"


def _figure(value: float | None) -> float | None:
    """The value, if it is possible."""
    return value if value is not None and 0 <= value <= MAX_FIGURE else None


def _whole(value: float, most: int) -> int:
    return max(1, math.ceil(min(value, most) - 1e-9))


def _short(value: float) -> str:
    """A number for people: three digits, or thousands with separators."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
