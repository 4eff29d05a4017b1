"""Sizing: figures from measured load, each with its reason; idle workloads hibernate and wake at once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.load import Load
from app.sizing.recommendation import Activity, Hibernation, Measured, SizingRules, recommend, recommend_fleet

WORKER = Load(1.0, 2 << 30, 125e6)
KNOWN = Measured(
    rate=1000, latency_s=0.05, lag_messages=0, partitions=4, partition_ceiling=400, load=Load(1.8, 1e8, 1e6)
)
anything = st.none() | st.floats() | st.sampled_from([0.0, -1.0, 1e300, math.inf, math.nan])


def measured_with(**fields: object) -> Measured:
    return Measured(**{name: fields.get(name, getattr(KNOWN, name)) for name in Measured.__struct_fields__})


def test_in_flight_is_rate_times_latency_with_headroom() -> None:
    figure = recommend(KNOWN, WORKER).in_flight
    assert figure.value == 65
    assert figure.why == ("1,000 messages/s x 50 ms until they are answered, x 1.3 headroom (Little's law)")


def test_partitions_follow_from_the_measured_ceiling_and_never_become_fewer() -> None:
    assert recommend(measured_with(partition_ceiling=200), WORKER).partitions.value == 7
    fewer = recommend(measured_with(partitions=32), WORKER).partitions
    assert fewer.value == 32
    assert "needs 4, and there are 32" in fewer.why


def test_in_strict_order_latency_bounds_a_partition() -> None:
    strict = recommend(measured_with(ordered=True), WORKER)
    assert strict.partitions.value == 65  # 20 a second each
    assert strict.in_flight.value == 4
    assert "strict order" in strict.partitions.why


def test_a_workload_gets_one_worker_more_than_its_load_needs() -> None:
    figure = recommend(KNOWN, WORKER).workers
    assert figure.value == 4  # 1.8 cores / 0.75 = 2.4, and one
    assert "1.8 cores of cpu" in figure.why
    memory = recommend(measured_with(load=Load(0.1, 3 * (1 << 30), 0)), WORKER).workers
    assert memory.value == 3
    assert "memory" in memory.why


def test_no_more_workers_than_partitions_are_recommended() -> None:
    figure = recommend(measured_with(load=Load(30.0, 0, 0)), WORKER).workers
    assert figure.value == 4
    assert "no more than its 4 partitions" in figure.why


def test_a_lag_is_demand_too() -> None:
    lagging = recommend(measured_with(lag_messages=600_000), WORKER)
    assert lagging.in_flight.value == 130
    assert "a lag of 600,000 over 600 s" in lagging.in_flight.why
    assert (
        "to remove the lag"
        in recommend(measured_with(lag_messages=600_000, partitions=64), WORKER).workers.why
    )


def test_a_missing_measurement_gives_a_reason_instead_of_a_figure() -> None:
    unknown = recommend(Measured(partitions=3), WORKER)
    for figure in (unknown.partitions, unknown.in_flight, unknown.workers):
        assert figure.value is None
        assert "measured" in figure.why


@given(anything, anything, anything, anything, st.integers(1, 100), st.booleans())
def test_no_measurement_however_absurd_breaks_a_figure(
    rate: float | None, latency_s: float | None, lag: float | None, ceiling: float | None, partitions: int,
    ordered: bool,
) -> None:  # fmt: skip
    load = Load(rate or 0.0, latency_s or 0.0, lag or 0.0)
    measured = Measured(
        rate=rate, latency_s=latency_s, lag_messages=lag, partition_ceiling=ceiling, partitions=partitions,
        load=load, ordered=ordered,
    )  # fmt: skip
    whole = recommend(measured, load)
    assert whole.partitions.value is None or whole.partitions.value >= partitions
    assert whole.in_flight.value is None or whole.in_flight.value >= 1
    assert whole.workers.value is not None
    assert 1 <= whole.workers.value <= partitions


@given(st.lists(st.floats(0.01, 2), max_size=20), st.integers(0, 3))
def test_a_fleet_without_its_spare_workers_stays_below_the_fill_mark(cpu: list[float], spare: int) -> None:
    rules = SizingRules(spare_workers=spare)
    figure = recommend_fleet([Load(cores) for cores in cpu], WORKER, rules)
    assert figure.value is not None
    left = figure.value - spare
    assert left >= 1
    assert sum(cpu) <= left * rules.fill * WORKER.cpu_cores + 1e-6
    assert left == 1 or sum(cpu) > (left - 1) * rules.fill * WORKER.cpu_cores - 1e-6, (
        "a worker fewer would do"
    )


IDLE = Activity(0.0, 0, 0)


def test_an_idle_workload_hibernates_after_its_time_with_a_reason() -> None:
    rule = Hibernation(1800)
    assert [bool(rule.observe(IDLE, now_s)) for now_s in (0, 900, 1799, 1800, 5000)] == [
        False, False, False, True, True,
    ]  # fmt: skip
    assert "30 minutes" in rule.observe(IDLE, 5001)


@pytest.mark.parametrize(
    "sign", [Activity(0.1, 0, 0), Activity(0, 1, 0), Activity(0, 0, 1), Activity(None, 5, None)]
)
def test_any_sign_of_work_wakes_a_workload_at_once(sign: Activity) -> None:
    rule = Hibernation(60, asleep=True)
    assert rule.observe(IDLE, 0)
    assert rule.observe(sign, 1) == ""
    assert rule.observe(IDLE, 2) == "", "its idle time did not restart"
    assert rule.observe(IDLE, 61) == ""
    assert rule.observe(IDLE, 62)


def test_unknown_activity_neither_hibernates_nor_wakes_a_workload() -> None:
    unknown = Activity(0.0, None, 0)
    awake = Hibernation(60)
    assert not awake.observe(IDLE, 0)
    assert not awake.observe(unknown, 59)
    assert not awake.observe(IDLE, 61), "its idle time did not restart"
    assert Hibernation(60, asleep=True).observe(Activity(None, math.nan, None), 0)


def test_a_hibernation_time_must_be_positive() -> None:
    for after_s in (0, -1, math.nan):
        with pytest.raises(ValueError, match="hibernation"):
            Hibernation(after_s)
    assert not Hibernation(math.inf).observe(IDLE, 1e12)
