"""Sizing from a history of loads as frames: from measured hours to the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import InvalidArchive
from app.archive.log import Archive
from spark.__main__ import main
from spark.dashboard import frames
from spark.dashboard.fold import fold_round
from spark.dashboard.store import LOADS, files_of, stored
from spark.jobs import size as job
from spark.sizing.history import HOURLY, LOAD, busiest, hourly
from spark.sizing.report import size, tables
from spark.topics import Range
from tests.spark.archiving import Frames
from tests.spark.conftest import HOUR_MS, NOON_MS
from tests.spark.regions import Region, beat, status

WEEKS, JOBS = 3, 6
BEGAN_H = NOON_MS // HOUR_MS
ORDERS = "dispatch:g/orders:orders:{}"


def cores(hour: int, number: int) -> float:
    """The cores that a job uses: 0.1, at noon 0.3; the last job uses 0.5 at midnight."""
    at_noon = hour % 24 == 12
    return 0.3 if at_noon else 0.5 if number == JOBS - 1 and hour % 24 == 0 else 0.1


def loads(session: SparkSession) -> DataFrame:
    """Loads of three weeks, hour by hour, and two workers of one core each."""
    rows = []
    for hour in range(BEGAN_H, BEGAN_H + WEEKS * 168):
        at_ms = hour * HOUR_MS
        for number in range(JOBS):
            cpu = cores(hour, number)
            measured = (10, 10 * cpu, cpu, 1e6, 1e5, 2e4, 10, 1000.0, 120.0, 50.0, 5, 5, at_ms + 1)
            rows.append(
                ("2025-11-22", ORDERS.format(number), f"w-{number % 2}", "", at_ms, *measured, "east")
            )
        for worker in ("w-0", "w-1"):
            capacity = (10, 10.0, 1.0, 2e9, 1e9, 1e8, 0, 0.0, 0.0, 0.0, -1, -1, at_ms + 1)
            rows.append(("2025-11-22", "", worker, "", at_ms, *capacity, "east"))
    return session.createDataFrame(rows, LOAD)


def test_a_fleet_is_sized_by_its_busiest_measured_hour_and_shows_its_past(session: SparkSession) -> None:
    found = size(loads(session))
    (fleet,) = found["fleets"]
    assert fleet["cores"] == pytest.approx(0.3 * JOBS)  # all at noon, not the one at midnight
    assert (fleet["jobs"], fleet["workers_now"]) == (JOBS, 2)
    assert fleet["hour"].endswith("T12:00Z")
    assert fleet["workers"] == 3  # two jobs a worker; one lost leaves three of 0.3 each on two
    assert fleet["level"] == pytest.approx(0.6)
    assert fleet["level_after_loss"] == pytest.approx(0.9)
    assert [one["workers_needed"] for one in found["past"]] == [3, 3, 3]
    assert [one["workers_then"] for one in found["past"]] == [2, 2, 2]
    (workload,) = found["workloads"]
    assert (workload["partitions_now"], workload["partitions"]) == (JOBS, 16)  # 600 x 1.3 / 50
    jobs = {one["job"]: one for one in found["jobs"]}
    assert {one["cpu"] for one in jobs.values()} == {0.3}
    assert jobs[ORDERS.format(0)]["network"] == 10_000
    json.dumps(found)
    assert "Past weeks" in tables(found)


@pytest.mark.deep(minutes=0.5)
def test_jobs_that_are_gone_for_a_week_need_nothing_and_stay_in_the_past(session: SparkSession) -> None:
    end_h = BEGAN_H + WEEKS * 168 - 1  # the last hour
    expired, recent = ORDERS.format(0), ORDERS.format(1)
    known = loads(session).where(
        f"(job != '{expired}' or start_ms <= {(end_h - 168) * HOUR_MS})"
        f" and (job != '{recent}' or start_ms <= {(end_h - 167) * HOUR_MS})"
    )
    found = size(known)
    jobs = {one["job"] for one in found["jobs"]}
    assert expired not in jobs
    assert recent in jobs
    assert found["fleets"][0]["jobs"] == JOBS - 1
    first, *_ = found["past"]
    assert first["workers_needed"] == 3, "the past week lacks jobs that ran then"


def test_a_fleet_is_sized_by_its_busiest_hour_of_cpu_and_of_network(session: SparkSession) -> None:
    hours = [  # cpu, network, arriving, memory, ceiling
        ("east", "", "a", 0, 0.5, 1.0, 10.0, 5.0, 0.0),  # the hour of most cpu
        ("east", "", "a", 1, 0.1, 9.0, 20.0, 7.0, 0.0),  # the hour of most network
        ("east", "", "b", 1, 0.2, 3.0, None, 4.0, 8.0),
        ("east", "", "c", 2, 0.1, 1.0, 99.0, 9.0, 0.0),  # in neither hour
    ]
    found = {row["job"]: row for row in busiest(session.createDataFrame(hours, HOURLY)).collect()}
    figures = ("week", "hour", "cpu", "network", "memory", "arriving", "ceiling")
    assert {job: tuple(row[name] for name in figures) for job, row in found.items()} == {
        "a": (0, 0, 0.5, 9.0, 7.0, 20.0, 0.0),
        "b": (0, 0, None, 3.0, 4.0, None, 8.0),
        "c": (0, 0, None, None, None, 99.0, 0.0),
    }


def loads_of_hour(
    hour: int, topic: str, jobs: int, cpu: float, workers: int, region: str
) -> list[tuple[object, ...]]:
    """Load rows of one hour: `jobs` jobs of `cpu` cores each, and `workers` workers of one core."""
    at_ms = (BEGAN_H + hour) * HOUR_MS
    measured = (10, 10 * cpu, cpu, 1e6, 1e5, 2e4, 10, 1000.0, 120.0, 50.0, 5, 5, at_ms + 1)
    capacity = (10, 10.0, 1.0, 2e9, 1e9, 1e8, 0, 0.0, 0.0, 0.0, -1, -1, at_ms + 1)
    names = [f"dispatch:g/{topic}:{topic}:{number}" for number in range(jobs)]
    return [
        *(("2025-11-22", name, "w-0", "", at_ms, *measured, region) for name in names),
        *(("2025-11-22", "", f"w-{number}", "", at_ms, *capacity, region) for number in range(workers)),
    ]


@pytest.mark.deep(minutes=0.3)
def test_each_week_has_its_own_busiest_hour_and_a_region_its_own_weeks(session: SparkSession) -> None:
    rows = [
        *loads_of_hour(0, "orders", 4, 0.2, 2, "east"),
        *loads_of_hour(168, "orders", 4, 0.3, 3, "east"),  # the busiest of the weeks
        *loads_of_hour(336, "orders", 4, 0.2, 2, "east"),
        *loads_of_hour(337, "bills", 2, 0.2, 1, "west"),  # a new region
    ]
    found = size(session.createDataFrame(rows, LOAD))
    first, second, third, last = (hour_words(BEGAN_H + hour) for hour in (0, 168, 336, 337))
    past = ("hour", "region", "workers_then", "workers_needed")
    assert [tuple(one[name] for name in past) for one in found["past"]] == [
        (first, "east", 2, 2), (second, "east", 3, 3), (third, "east", 2, 2), (last, "west", 1, 2),
    ]  # fmt: skip
    now = ("hour", "region", "workers_now", "workers")
    assert [tuple(one[name] for name in now) for one in found["fleets"]] == [
        (third, "east", 2, 2), (last, "west", 1, 2),
    ]  # fmt: skip


@pytest.mark.deep(minutes=0.1)
def test_hours_of_a_job_do_not_depend_on_how_its_loads_were_cut(session: SparkSession) -> None:
    whole = Region("east")
    for second in range(0, 1200, 60):
        whole.beat(beat("w-1", NOON_MS + second * 1000, status("dispatch:g/a:a:0", 0.1 + second / 6000)))
    at_once = frames.loads(Frames(session, whole.rows).read(_all_heartbeats(whole)))
    halves = [Region("east"), Region("east")]
    for number, half in enumerate(halves):
        half.rows = whole.rows[number * 7 : 7 + number * 13]
    parts = [frames.loads(Frames(session, half.rows).read(_all_heartbeats(whole))) for half in halves]
    hours_at_once, hours_in_parts = (
        [row.asDict() for row in hourly(_in_east(found)).collect()]
        for found in (at_once, parts[0].union(parts[1]))
    )
    assert len(hours_at_once) == 1
    assert hours_at_once[0] == pytest.approx(hours_in_parts[0])
    assert hours_at_once[0]["cpu"] == pytest.approx(0.195)  # of twenty samples from 0.1 to 0.29


@pytest.mark.deep(minutes=0.8)
def test_the_store_of_the_dashboard_is_a_history(session: SparkSession, tmp_path: Path) -> None:
    east = Region("east")
    for number in range(4):
        east.beat(beat("w-1", NOON_MS + number * HOUR_MS, status("dispatch:g/a:a:0", 0.2)))
    archive = Archive.create(tmp_path / "east", "c")
    for _ in range(3):
        fold_round(archive, Frames(session, east.rows), "east", 2, NOON_MS)
    kept = stored(session, archive, files_of(archive.state(), LOADS), LOADS)
    found = size(_in_east(kept))
    assert [job["job"] for job in found["jobs"]] == ["dispatch:g/a:a:0"]
    assert found["fleets"][0]["cores"] == pytest.approx(0.2)


@pytest.mark.deep(minutes=0.6)
def test_sizing_without_any_load_is_refused(session: SparkSession) -> None:
    with pytest.raises(InvalidArchive, match="no job's load is known"):
        size(session.createDataFrame([], LOAD))


@pytest.mark.deep(minutes=0.2)
def test_the_command_reads_parquet(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.common, "session", lambda _name, _options: session)
    loads(session).where(f"start_ms < {(BEGAN_H + 30) * HOUR_MS}").write.parquet(str(tmp_path / "loads"))
    answer = tmp_path / "size.json"
    assert main(["size", "--loads", str(tmp_path / "loads"), "--json", str(answer)]) == 0
    assert json.loads(answer.read_text())["fleets"][0]["jobs"] == JOBS
    assert "Past weeks" in capsys.readouterr().err


def hour_words(hour: int) -> str:
    """The hour as the report writes it."""
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H:00Z")


def _in_east(found: DataFrame) -> DataFrame:
    return found.withColumn("region", f.lit("east"))


def _all_heartbeats(region: Region) -> tuple[Range, ...]:
    return (Range(region.topics.heartbeats.name, 0, 0, len(region.rows)),)
