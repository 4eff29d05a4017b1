"""How many workers a fleet needs, how many partitions a workload needs, and the command's options."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from app.kernel.load import Load
from app.sizing.recommendation import SizingRules
from spark.__main__ import main
from spark.jobs import report as report_job
from spark.jobs import size as size_job
from spark.sizing.advice import JobNeed, workload_rows
from spark.sizing.fleets import Fleet, need_of

WORKER = Load(1.0, 1e10, 1e9)


def fleet(jobs: int, cpu: float) -> Fleet:
    """A fleet of equal jobs, on workers of one core."""
    loads = {f"dispatch:g/orders:orders:{number}": Load(cpu, 1e6, 1000.0) for number in range(jobs)}
    return Fleet("east", "", loads, WORKER, 3)


def test_a_fleet_has_enough_workers_to_bear_the_loss_of_one() -> None:
    found = need_of(fleet(30, 0.1))
    # 7 jobs of 0.1 are 0.7, 8 above the fill mark: five workers; of four, three are left with 9.
    assert found.workers == 5
    assert found.level == pytest.approx(0.6)
    assert found.level_lost == pytest.approx(0.8)
    assert found.moved == 6


@pytest.mark.parametrize("jobs", [1, 7, 8, 40, 333])
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_the_least_number_is_enough_and_above_the_bound(jobs: int, spare: int) -> None:
    found = need_of(fleet(jobs, 0.1), spare=spare)
    assert found.workers is not None
    held, left = math.ceil(jobs / 7), math.ceil(jobs / 9) + spare  # 0.7 fits below 0.75, 0.9 below 0.9
    assert found.workers == max(held, left)
    assert found.level <= 0.75 + 1e-9
    assert found.level_lost <= 0.9 + 1e-9


def test_a_job_that_no_worker_can_carry_is_named() -> None:
    found = need_of(fleet(1, 0.8))
    assert found.workers is None
    assert "dispatch:g/orders:orders:0 alone takes 80% of a worker's cpu" in found.why


def need(job: str, cpu: float, arriving: float | None = None, ceiling: float | None = None) -> JobNeed:
    return JobNeed("east", "", job, Load(cpu, 1e6, 1000.0), arriving, ceiling)


def test_partitions_follow_from_the_busiest_measured_hours() -> None:
    needs = [need(f"dispatch:g/orders:orders:{number}", 0.1, 500.0, 400.0) for number in range(4)]
    retry = need("dispatch:g/orders:orders.retry:0", 0.1, 1.0)
    (row,) = workload_rows([*needs, retry], WORKER, SizingRules())
    assert row["partitions_now"] == 4
    assert row["partitions"] == 7  # 2000 x 1.3 / 400
    assert row["workers"] == 2


def test_a_job_that_moved_to_another_isolation_group_counts_once() -> None:
    one = need("dispatch:g/orders:orders:0", 0.6, 500.0, 400.0)
    moved = one._replace(group="gold", load=Load(0.1, 1e6, 1000.0))
    (alone,) = workload_rows([one], WORKER, SizingRules())
    assert workload_rows([one, moved], WORKER, SizingRules()) == [alone]


def test_the_command_refuses_options_that_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["size"]) == 2
    assert main(["size", "--loads", str(tmp_path), "--spare", "-1"]) == 2
    assert "--spare -1: give 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "option", "instead"),
    [
        *(("size", option, instead) for option, instead in size_job.REMOVED.items()),
        *(("report", option, instead) for option, instead in report_job.REMOVED.items()),
    ],
)
@pytest.mark.parametrize("value", [[], ["2"]])
def test_an_option_of_an_earlier_version_is_refused_with_its_replacement(
    job: str, option: str, instead: str, value: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([job, "--from-store", "there", option, *value])
    assert ended.value.code == 2
    assert f"{option} was removed: {instead}" in capsys.readouterr().err
