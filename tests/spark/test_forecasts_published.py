"""Forecasts by the hour: made, kept in a topic, and compared with what happened, against a plain model."""

from __future__ import annotations

import argparse
import csv
import io
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from app.archive.errors import BadOption
from app.sizing.forecasts import (
    HOUR_MS,
    HOURS_A_WEEK,
    FleetForecastRecord,
    Forecasts,
    Record,
    WorkloadForecastRecord,
    key,
)
from app.sizing.recommendation import RULES
from spark.jobs import size as job
from spark.sizing import compare, publish
from spark.sizing.report import SizingQuestion, size
from spark.sizing.scenarios import Scenario
from tests.spark.test_sizing_frames import BEGAN_H, JOBS, WEEKS, loads

END_H = BEGAN_H + WEEKS * HOURS_A_WEEK
END_MS = END_H * HOUR_MS


def records(session: SparkSession, made_ms: int, before_h: int = END_H) -> list[Record]:
    """What is published of the loads of all hours before that one."""
    known = loads(session).where(f"start_ms < {before_h * HOUR_MS}")
    found = size(known, SizingQuestion([Scenario("as it is")], publish_at_ms=made_ms), {})
    return msgspec.convert(found["forecasts"], list[Record])


def workers_at(hour: int) -> int:
    """By hand: at noon each job takes 0.3 of a core, so two fit on a worker up to its mark; at midnight one
    takes 0.5, and any other 0.1. One worker may be lost, and those that are left bear no more than 0.9."""
    return 3 if hour % 24 == 12 else 2


@pytest.mark.deep(minutes=0.2)
def test_each_hour_has_its_workers_and_what_a_worker_reads_is_that(session: SparkSession) -> None:
    made = records(session, END_MS - 60_000)
    fleet, workload = made
    assert isinstance(fleet, FleetForecastRecord)
    assert isinstance(workload, WorkloadForecastRecord)
    assert (fleet.region, fleet.group, fleet.from_hour, fleet.hours) == ("east", "", END_H, HOURS_A_WEEK)
    noons = {at for at, workers in enumerate(fleet.workers) if workers == 3}
    assert {(END_H + at) % 24 for at in noons} >= {12}
    assert all(workers == workers_at(END_H + at) for at, workers in enumerate(fleet.workers)
               if (END_H + at) % 24)  # fmt: skip
    assert fleet.error == pytest.approx(0, abs=1e-6)
    assert fleet.history_hours == WEEKS * HOURS_A_WEEK
    assert (workload.workload, workload.partitions, workload.partitions_now) == ("g/orders", 16, JOBS)
    assert set(workload.rates) == {600.0}
    forecasts = Forecasts("east")
    for at, value in publish.changes(made, publish.PublishedRecords({}, 0), END_MS):
        assert forecasts.accept(at, value, END_MS) == ""
    noon_h = END_H + (12 - END_H) % 24
    need = forecasts.need("", noon_h * HOUR_MS - 10 * 60_000)
    assert need is not None
    assert need.workers == 3


@pytest.mark.deep(minutes=0.1)
def test_a_little_history_says_that_its_error_is_not_known(session: SparkSession) -> None:
    made = records(session, END_MS, BEGAN_H + 30)
    assert [record.error for record in made] == [None, None]


def test_a_publication_takes_back_what_is_long_over_and_leaves_what_is_none(session: SparkSession) -> None:
    old, new = fleet(2, made_h=END_H - 1000), fleet(3, made_h=END_H)
    lately = fleet(4, made_h=END_H - 30)
    before = publish.published_records(
        [*((key(one), msgspec.json.encode(one)) for one in (old, lately)), (b"other", b"nonsense")]
    )
    assert before.bad == 1
    written = dict(publish.changes([new], before, END_MS))
    assert written == {key(new): msgspec.json.encode(new), key(old): None}


def fleet(workers: int, made_h: int, hours: int = 4, **fields: Any) -> FleetForecastRecord:
    known: dict[str, Any] = {
        "region": "east", "group": "", "made_ms": made_h * HOUR_MS, "from_hour": made_h,
        "history_hours": 400, "error": 0.1, "method": "by hand",
    }  # fmt: skip
    return FleetForecastRecord(**known | {"workers": (workers,) * hours} | fields)


def test_what_no_worker_would_take_is_refused_and_told_and_the_others_stay() -> None:
    longest, odd = fleet(2, made_h=END_H, group="g" * 512), fleet(2, made_h=END_H, group="g" * 513)
    wide = fleet(2, made_h=END_H, group="😀" * 512)  # its key has more than 2 kB
    none, far = workload(float("nan"), made_h=END_H), workload(1e300, made_h=END_H)
    good = workload(5.0, made_h=END_H)
    found, refused = publish.fit([odd, longest, none, far, wide, good])
    assert found == [longest, good]
    assert len(refused) == 4
    assert "`$.group`" in refused[0]
    assert "its key has more than 2,048 bytes" in refused[3]


@pytest.mark.deep(minutes=0.1)
def test_a_fleet_whose_name_no_worker_would_take_ends_no_publication(session: SparkSession) -> None:
    east = loads(session).where(f"start_ms < {(BEGAN_H + 30) * HOUR_MS}")
    west = east.withColumn("region", f.lit("west")).withColumn("group", f.lit("g" * 513))
    asked = SizingQuestion([Scenario("as it is")], publish_at_ms=(BEGAN_H + 30) * HOUR_MS)
    found = size(east.union(west), asked, {})
    made = msgspec.convert(found["forecasts"], list[Record])
    assert sorted((one.region, one.name) for one in made) == [
        ("east", ""), ("east", "g/orders"), ("west", "g/orders"),
    ]  # fmt: skip
    assert found["refused"]["records"] == 1
    assert found["refused"]["first"][0].startswith("west, 'ggg")


def workload(*rates: float, made_h: int) -> WorkloadForecastRecord:
    return WorkloadForecastRecord(
        region="east", made_ms=made_h * HOUR_MS, from_hour=made_h, history_hours=400, error=0.1,
        method="by hand", workload="g/orders", rates=rates, margin=1.25, partitions=6, partitions_now=6,
        partitions_why="so",
    )  # fmt: skip


def test_what_happened_is_compared_with_the_newest_forecast_made_before_it(session: SparkSession) -> None:
    begins = END_H - 30  # an hour of which nothing is at noon or midnight until it says so
    began = begins - begins % 24 + 13  # 13:00 to 16:00: two workers are needed, and two are there
    first = fleet(5, made_h=began, hours=4)
    second = fleet(1, made_h=began + 2, hours=2, made_ms=(began + 2) * HOUR_MS - 1)  # from the third hour on
    late = fleet(9, made_h=began, hours=4, made_ms=(began + 4) * HOUR_MS + 1)  # when all was over
    rates = workload(400.0, 600.0, 900.0, made_h=began)
    found = compare.compare(loads(session), [late, second, first, rates], END_MS, RULES, 0.5)
    hours = [row for row in found["hours"] if row["kind"] == "fleet"]
    figures = [(row["forecast"], row["came"], row["there"]) for row in hours]
    assert figures == [(5, 2, 2), (5, 2, 2), (1, 2, 2), (1, 2, 2)]
    (row,) = found["fleets"]
    assert (row["hours"], row["forecast_peak"], row["needed_peak"], row["there_peak"]) == (4, 5, 2, 2)
    assert row["error"] == pytest.approx((3 + 3 + 1 + 1) / 8)
    assert (row["over_hours"], row["over_worker_hours"], row["over_cost"]) == (2, 6, 3.0)
    assert (row["under_hours"], row["under_worker_hours"], row["under_cost"]) == (2, 2, 1.0)
    assert (row["there_under_hours"], row["there_over_worker_hours"]) == (0, 0)
    (row,) = found["workloads"]
    assert (row["hours"], row["forecast_peak"], row["rate_peak"]) == (3, 1125.0, 600.0)
    assert row["error"] == pytest.approx((200 + 0 + 300) / 1800, abs=1e-4)
    assert row["above_margin_hours"] == 1  # 600 came, and 400 x 1.25 were forecast
    lines = list(csv.reader(io.StringIO(compare.csv_text(found))))
    assert lines[0] == list(compare.COLUMNS)
    assert len(lines) == 1 + 4 + 3
    assert "6 worker hours in 2 h" in compare.tables(found)


@pytest.mark.deep(minutes=0.1)
def test_without_a_past_forecast_that_is_said(session: SparkSession) -> None:
    for published in ([], [fleet(5, made_h=END_H)]):
        found = compare.compare(loads(session), published, END_MS, RULES, 0.0)
        assert found["hours"] == []
        assert "No past forecast yet" in compare.tables(found)


@pytest.mark.deep(minutes=0.1)
def test_only_what_was_measured_and_is_over_is_compared(session: SparkSession) -> None:
    ahead = fleet(5, made_h=END_H - 2, hours=6)
    found = compare.compare(loads(session), [ahead], END_MS - HOUR_MS, RULES, 0.0)
    assert len(found["hours"]) == 1
    gold = fleet(5, made_h=END_H - 2, group="gold")
    assert compare.compare(loads(session), [gold], END_MS, RULES, 0.0)["hours"] == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--publish"], "--publish needs --region"),
        (["--compare"], "--compare needs --region"),
        (["--region", "e=h:1"], "say --publish or --compare"),
        (["--publish", "--region", "e=h:1", "--region", "e=h:2"], "given twice"),
        (["--publish", "--region", "e=h:1", "--csv", "x"], "--csv is of --compare"),
        (["--publish", "--region", "e=h:1", "--weeks", "11"], "at most 10"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], told: str) -> None:
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    with pytest.raises(BadOption, match=told):
        job.run(parser.parse_args(["--loads", "there", *words]))
