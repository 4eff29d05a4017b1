"""Forecasts of series that are known, fleets that are known to fit or not, and a history from heartbeats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from app.kernel.load import Load
from app.sizing.recommendation import SizingRules
from spark.__main__ import main
from spark.sizing.advice import JobNeed, Prices, cost_rows, monthly, workload_rows
from spark.sizing.forecast import HOURS_A_WEEK, MOST_GROWTH, forecast
from spark.sizing.scenarios import Fleet, Scenario, answer, changed

WORKER = Load(1.0, 1e10, 1e9)


def busy(hour: int) -> float:
    """Ten by night, thirty at noon of workdays."""
    return 10 + (20 if hour % 24 == 12 and hour // 24 % 7 < 5 else 0)


def test_a_series_that_repeats_is_forecast_exactly() -> None:
    found = forecast([busy(hour) for hour in range(4 * HOURS_A_WEEK)], 0, HOURS_A_WEEK)
    assert found.hours == pytest.approx([busy(hour) for hour in range(HOURS_A_WEEK)])
    assert found.margin == pytest.approx(1)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.method == "hour of the week x trend over weeks"


def test_a_trend_goes_on_and_one_odd_week_does_not_turn_it() -> None:
    weeks = 6
    values = [(1 + 0.1 * (hour // HOURS_A_WEEK)) * busy(hour) for hour in range(weeks * HOURS_A_WEEK)]
    expected = [(1 + 0.1 * weeks) * busy(hour) for hour in range(HOURS_A_WEEK)]
    assert forecast(values, 0, HOURS_A_WEEK).hours == pytest.approx(expected)
    for hour in range(2 * HOURS_A_WEEK, 3 * HOURS_A_WEEK):
        values[hour] *= 50
    assert forecast(values, 0, HOURS_A_WEEK).hours == pytest.approx(expected, rel=0.1)


def test_growth_ends_somewhere_and_nothing_falls_below_nothing() -> None:
    week = [1.0] * HOURS_A_WEEK
    up = forecast([*week, *[10.0] * HOURS_A_WEEK], 0, 50 * HOURS_A_WEEK)
    assert max(up.hours) <= MOST_GROWTH * 10 * (1 + 1e-9)
    down = forecast([*[10.0] * HOURS_A_WEEK, *week], 0, 50 * HOURS_A_WEEK)
    assert min(down.hours) == 0


def test_the_margin_covers_as_many_hours_as_asked() -> None:
    values = [10.0 + (10 if hour % 100 == 0 else 0) for hour in range(4 * HOURS_A_WEEK)]
    assert forecast(values, 0, 1, 0.95).margin == pytest.approx(1, abs=0.02)
    assert forecast(values, 0, 1, 1.0).margin == pytest.approx(2, rel=0.02)


def test_little_history_says_so() -> None:
    assert forecast([5.0] * 10, 0, 3).method == "flat (less than two days of history)"
    assert forecast([5.0] * 60, 0, 3).method == "hour of the day (less than a week of history)"
    assert forecast([5.0] * 29 + [10.0], 0, 3).busiest == pytest.approx(10)
    gaps: list[float | None] = [None, 4.0, None, 6.0]
    assert forecast(gaps, 0, 2).hours == pytest.approx([5, 5])
    with pytest.raises(ValueError, match="without a measured hour"):
        forecast([None], 0, 1)
    assert forecast([0.0] * 400, 0, 3).hours == [0, 0, 0]


def fleet(jobs: int, cpu: float, *, region: str = "east", workers: int = 3) -> Fleet:
    """Jobs alike, on workers of one core."""
    return Fleet(
        region,
        "",
        {f"dispatch:g/orders:orders:{n}": Load(cpu, 1e6, 1000.0) for n in range(jobs)},
        WORKER,
        workers,
    )


def test_so_many_workers_as_bear_the_loss_of_one() -> None:
    found = answer(fleet(30, 0.1), Scenario("as it is"))
    # 7 jobs of 0.1 are 0.7, 8 above the fill mark: five workers; of four, three are left with 9.
    assert found.workers == 5
    assert found.level == pytest.approx(0.6)
    assert found.level_lost == pytest.approx(0.8)
    assert found.moved == 6


@pytest.mark.parametrize("jobs", [1, 7, 8, 40, 333])
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_the_least_number_is_enough_and_above_the_bound(jobs: int, spare: int) -> None:
    found = answer(fleet(jobs, 0.1), Scenario("as it is"), spare=spare)
    assert found.workers is not None
    held, left = math.ceil(jobs / 7), math.ceil(jobs / 9) + spare  # 0.7 fits below 0.75, 0.9 below 0.9
    assert found.workers == max(held, left)
    assert found.level <= 0.75 + 1e-9
    assert found.level_lost <= 0.9 + 1e-9


def test_a_zone_that_is_lost_needs_more_than_a_worker() -> None:
    found = answer(fleet(90, 0.1), Scenario("zone", "zone", zones=3))
    assert found.workers == 15  # ten are left, and nine jobs each is all they bear
    assert found.level_lost == pytest.approx(0.9)
    assert found.moved >= 30


def test_a_job_that_no_worker_can_carry_is_told() -> None:
    found = answer(fleet(1, 0.8), Scenario("as it is"))
    assert found.workers is None
    assert "dispatch:g/orders:orders:0 alone takes 80% of a worker's cpu" in found.why


def test_a_topic_doubled_and_a_region_more() -> None:
    given = [fleet(10, 0.1), fleet(10, 0.1, region="west")]
    doubled = changed(Scenario("x", "topic", "orders", 2.0), given)
    assert {load.cpu_cores for one in doubled for load in one.jobs.values()} == {0.2}
    with pytest.raises(ValueError, match="'other'"):
        changed(Scenario("x", "topic", "other", 2.0), given)
    more = {one.region: one for one in changed(Scenario("x", "region", "east"), given)}
    assert set(more) == {"east", "west", "new-east"}
    # The two that are there copy ten partitions of the new one; the new one ten of each.
    assert {name: len(one.jobs) for name, one in more.items()} == {"east": 20, "west": 20, "new-east": 30}
    assert {name: one.workers for name, one in more.items()} == {"east": 3, "west": 3, "new-east": 0}


def need(job: str, cpu: float, arriving: float | None = None, ceiling: float | None = None) -> JobNeed:
    return JobNeed("east", "", job, Load(cpu, 1e6, 1000.0), arriving, ceiling)


def test_partitions_by_the_busiest_hour_to_come() -> None:
    needs = [need(f"dispatch:g/orders:orders:{n}", 0.1, 500.0, 400.0) for n in range(4)]
    (row,) = workload_rows(
        [*needs, need("dispatch:g/orders:orders.retry:0", 0.1, 1.0)], WORKER, SizingRules()
    )
    assert row["partitions_now"] == 4
    assert row["partitions"] == 7  # 2000 x 1.3 / 400
    assert row["workers"] == 2


def test_the_shares_of_a_fleet_cost_what_it_costs() -> None:
    needs = [need("dispatch:g/a:a:0", 0.3), need("dispatch:g/b:b:0", 0.1), need("replicate:r:a:0", 0.0)]
    prices = Prices(worker_hour=0.5, network_gb=0.1)
    means = {("east", one.job): 1e6 for one in needs}
    fleet_of = {("east", ""): 4}
    owners = {("east", "g/a"): "ann"}
    rows = cost_rows(needs, fleet_of, {("east", ""): WORKER}, means, prices, owners)
    assert sum(row["workers"] for row in rows) == pytest.approx(4, abs=0.01)
    assert sum(row["cost"] for row in rows) == pytest.approx(monthly(4, 3e6, prices), abs=0.05)
    assert rows[0]["name"] == "g/a"
    assert rows[0]["owner"] == "ann"


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size"]) == 2
    for options in (["--double", "orders*x"], ["--lose-zone", "1"], ["--spare", "-1"], ["--price-gb", "-1"]):
        assert main(["size", "--loads", str(tmp_path), *options]) == 2
    assert "--double orders*x: give TOPIC or TOPIC*FACTOR" in capsys.readouterr().err
