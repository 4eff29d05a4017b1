"""The report sums up regions, copies, groups and hours, and keeps apart what must not be added."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.dashboard import summary
from spark.dashboard.page import page
from spark.dashboard.summary import summarize
from spark.dashboard.times import iso
from switchyard.audit.model.places import place_of
from switchyard.audit.model.tally import UNTIMED
from tests.spark.conftest import HOUR_MS, NOON_MS
from tests.spark.regions import WIDTH_MS, Region, audit_plan, latencies, window, workload
from tests.spark.test_dashboard import NOW_MS, report, take, two_regions


@pytest.mark.deep(minutes=1.3)
def test_every_regions_aggregate_has_a_row_of_its_own_and_loss_is_added_up(
    session: SparkSession, tmp_path: Path
) -> None:
    east, west = two_regions()
    east.window("orders", "aggregate", "east-aggregate", NOON_MS, window(8, position=7))
    east.tier("orders", "aggregate", "east-aggregate")
    for region in (east, west):
        take(session, tmp_path, region)
    found = report(session, tmp_path)
    assert [(pair["region"], pair["states"], pair["missing"]) for pair in found["pairs"]] == [
        ("east", {"lossy": 3}, 32), ("west", {"lossy": 1, "ok": 2}, 3),
    ]  # fmt: skip
    assert found["totals"]["missing"] == 35
    assert {(one["region"], one["start_ms"]) for one in found["windows"]} == {
        *(("east", NOON_MS + number * WIDTH_MS) for number in range(3)), ("west", NOON_MS + WIDTH_MS),
    }  # fmt: skip


@pytest.mark.deep(minutes=0.1)
def test_groups_and_copies_are_lines_of_their_own(session: SparkSession, tmp_path: Path) -> None:
    east, west = two_regions()
    for group, count in (("billing", 7), ("mail", 9)):
        place = place_of("east-regional", group)
        east.window("orders", "consumer", place, NOON_MS, window(count, position=5, measured=latencies(5)))
    east.window("orders", "aggregate", "east-aggregate", NOON_MS, window(10, position=7))
    for region in (east, west):
        take(session, tmp_path, region)
    found = report(session, tmp_path)
    assert {one["topic"] for one in found["series"]} == {"orders"}
    assert {one["place"]: one["points"] for one in found["series"]} == {
        "aggregate east-aggregate": [[NOON_MS, 10]], "aggregate west-aggregate": [[NOON_MS, 37]],
        "regional east-regional": [[NOON_MS, 40]],
        "consumer billing of east-regional": [[NOON_MS, 7]],
        "consumer mail of east-regional": [[NOON_MS, 9]],
    }  # fmt: skip
    assert {row["name"]: row["records"] for row in found["tiers"]}["consumer mail of east-regional"] == 9
    assert {row["key"]: row["delivered"] for row in found["workloads"]} == {"billing/orders": 7}
    html = page(found)
    assert "consumer mail of east-regional</span>" in html
    assert "consumer mail of east-regional p50</text>" in html


@pytest.mark.deep(minutes=0.7)
def test_a_long_time_is_drawn_in_steps_and_the_report_counts_what_it_leaves_out(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "MOST_POINTS", 3)
    monkeypatch.setattr(summary, "MOST_LINES", 1)
    monkeypatch.setattr(summary, "MOST_PLACES", 1)
    monkeypatch.setattr(summary, "MOST_WINDOWS", 2)
    east = Region("east")
    for hours_ago, count in ((10, 1), (9, 2), (4, 4), (0, 8)):
        start_ms = NOON_MS - hours_ago * HOUR_MS
        east.window("orders", "regional", "east-regional", start_ms, window(count, position=hours_ago))
        east.window("orders", "aggregate", "east-aggregate", start_ms, window(0, position=hours_ago))
    for tier in ("regional", "aggregate"):
        east.tier("orders", tier, f"east-{tier}")
    east.put("audit_plans", "audit:all", audit_plan())
    take(session, tmp_path, east)
    found = report(session, tmp_path)
    (line,) = found["series"]
    assert line["step_ms"] == 4 * HOUR_MS
    points = [[(start_ms - NOON_MS) // HOUR_MS, count] for start_ms, count in line["points"]]
    assert points == [[-10, 3], [-6, 4], [-2, 8]]
    assert len(found["windows"]) == 2
    assert found["cut"] == {"series": 1, "tiers": 1, "windows": 2}
    html = page(found)
    assert "2 less severe rows are not shown" in html
    assert "at most 8 records in 4 h" in html


@pytest.mark.deep(minutes=0.4)
def test_a_groups_deliveries_count_for_the_workload_of_the_region_that_counted_them(
    session: SparkSession, tmp_path: Path
) -> None:
    regions = two_regions()
    place = place_of("east-regional", "billing")
    for region, count, took_ms in zip(regions, (7, 5), (5, 90), strict=True):
        region.put("workloads", "billing/orders", workload("billing", "orders"))
        counted = window(count, position=5, duplicates=1, measured=latencies(*[took_ms] * count))
        region.window("orders", "consumer", place, NOON_MS, counted)
        take(session, tmp_path, region)
    found = report(session, tmp_path)
    assert [(row["region"], row["delivered"], row["duplicates"], row["p50_ms"]) for row in
            found["workloads"]] == [
        ("east", 7, 1, pytest.approx(5, rel=0.02)), ("west", 5, 1, pytest.approx(90, rel=0.02)),
    ]  # fmt: skip
    (owner,) = found["owners"]
    assert (owner["delivered"], owner["duplicates"], owner["not_ready"]) == (12, 2, 2)
    assert owner["p50_ms"] == pytest.approx(5, rel=0.02)
    (row,) = [row for row in found["traffic"] if row["tier"] == "consumer"]
    assert row["records"] == 12
    assert "Deliveries by workload" in page(found)


@pytest.mark.deep(minutes=0.8)
def test_traffic_and_verdicts_cover_the_same_hours_and_untimed_records_are_listed(
    session: SparkSession, tmp_path: Path
) -> None:
    east, west = two_regions()
    east.window("orders", "regional", "east-regional", UNTIMED, window(4, position=9))
    for region in (east, west):
        take(session, tmp_path, region)
    whole = report(session, tmp_path)
    inside = summarize(session, tmp_path, NOON_MS + WIDTH_MS, NOON_MS + WIDTH_MS + 1, NOW_MS)
    for found in (whole, inside):
        assert found["totals"] == {"records": 40, "missing": 3, "extra": 0, "topics": 1, "windows": 3}
        (row,) = found["untimed"]
        assert (row["topic"], row["cluster"], row["records"]) == ("orders", "east-regional", 4)
    assert (inside["from"], inside["to"]) == (iso(NOON_MS), iso(NOON_MS + HOUR_MS))
    assert "Records without a time" in page(whole)
    none = summarize(session, tmp_path, NOON_MS + HOUR_MS, NOON_MS + 2 * HOUR_MS, NOW_MS)
    assert (none["totals"]["records"], none["totals"]["windows"]) == (0, 0)
