"""The report of two regions counts each key once, with late and stale records and after a job is killed."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from app.archive.errors import ConcurrentCommit, InvalidArchive
from app.archive.log import Archive
from app.audit.folds.tier import PlanBounds
from spark.dashboard import daily, fold
from spark.dashboard.fold import Folded, fold_round
from spark.dashboard.page import page
from spark.dashboard.store import LOADS, STATE, UNREAD_MS, files_of, stored, tidy
from spark.dashboard.summary import summarize
from tests.spark.archiving import Frames
from tests.spark.conftest import HOUR_MS, NOON_MS
from tests.spark.regions import (
    CLOSED_MS,
    WIDTH_MS,
    Region,
    act,
    assignment,
    audit_plan,
    beat,
    latencies,
    line,
    run_of,
    status,
    tracker,
    window,
    workload,
)

NOW_MS = CLOSED_MS + HOUR_MS
JOB = "dispatch:billing/orders:orders:0"


def take(
    session: SparkSession, root: Path, region: Region, limit: int = 10_000, topic_id: str = "id-1"
) -> Folded:
    """Runs a round that folds the region's changelogs into its store."""
    name = region.topics.region
    archive = Archive.create(root / name, f"cluster-{name}")
    return fold_round(archive, Frames(session, region.rows, topic_id), name, limit, NOW_MS)


def report(session: SparkSession, root: Path) -> dict[str, Any]:
    """The report of all regions and dates."""
    daily.bring_up(session, root, daily.open_stores(root), NOW_MS, PlanBounds())
    return summarize(session, root, NOON_MS - 86_400_000, NOW_MS, NOW_MS)


def entries(session: SparkSession, root: Path, region: str) -> dict[tuple[str, str], bytes]:
    archive = Archive.open(root / region)
    found = stored(session, archive, files_of(archive.state(), STATE), STATE).collect()
    keys = [(row["table"], row["key"]) for row in found]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, [row["value"] for row in found], strict=True))


def two_regions(first: str = "east", second: str = "west") -> tuple[Region, Region]:
    """Regions where the west's copy lacks 3 of 40 records and the workload is deployed in the east only."""
    east, west = Region(first), Region(second)
    for number, (source_count, copy_count) in enumerate([(10, 10), (20, 17), (10, 10)]):
        start_ms = NOON_MS + number * WIDTH_MS
        measured = latencies(*[number * 10 + 5] * source_count)
        east.window(
            "orders",
            "regional",
            "east-regional",
            start_ms,
            window(source_count, position=number, measured=measured),
        )
        west.window(
            "orders",
            "aggregate",
            "west-aggregate",
            start_ms,
            window(copy_count, position=number, duplicates=1),
        )
    east.tier("orders", "regional", "east-regional")
    west.tier("orders", "aggregate", "west-aggregate")
    for region in (east, west):
        region.put("audit_plans", "audit:all", audit_plan())
    east.put("workloads", "billing/orders", workload("billing", "orders"))
    east.put("assignments", JOB, assignment(JOB, "w-1"))
    east.put("trackers", JOB, tracker(NOW_MS - 5000, 9))
    west.put("checkpoints", "east-to-west/orders/0", line(NOW_MS))
    east.put("activity", "00007", act(7, run_of("done", NOON_MS)))
    for number in range(4):
        east.beat(beat("w-1", NOON_MS + number * 500, status(JOB, 0.5, lag=3 + number)))
    return east, west


def test_the_report_combines_two_regions(session: SparkSession, tmp_path: Path) -> None:
    east, west = two_regions()
    assert take(session, tmp_path, east).offsets == len(east.rows)
    assert take(session, tmp_path, west).quarantined == 0
    found = report(session, tmp_path)
    assert found["totals"] == {"records": 40, "missing": 3, "extra": 0, "topics": 1, "windows": 3}
    (pair,) = found["pairs"]
    assert pair["states"] == {"ok": 2, "lossy": 1}
    assert (pair["from_tier"], pair["to_tier"], pair["from_count"], pair["to_count"]) == (
        "regional", "aggregate", 40, 37,
    )  # fmt: skip
    first, second = found["tiers"]
    assert (first["tier"], first["duplicates"]) == ("aggregate", 3)
    assert first["p50_ms"] is None
    assert second["p50_ms"] == pytest.approx(15, rel=0.02)  # of 10 x 5, 20 x 15, 10 x 25
    assert second["p99_ms"] == pytest.approx(25, rel=0.02)
    (one,) = found["workloads"]
    assert (one["key"], one["owner"], one["lag_messages"], one["workers"]) == (
        "billing/orders", "billing-team", 6, 1,
    )  # fmt: skip
    assert one["core_hours"] == pytest.approx(0.5 * 300 / 3600, abs=1e-3)
    assert one["position_age_ms"] == 5000
    (owner,) = found["owners"]
    assert (owner["owner"], owner["records"], owner["missing"]) == ("billing-team", 40, 3)
    (ready,) = found["readiness"]
    assert not ready["ready"]
    assert ready["why"] == ["it is not deployed in west", "lossy windows of orders: 1"]
    assert [(one["kind"], one["what"]) for one in found["timeline"]] == [
        ("audit", "orders, regional to aggregate: lossy, 3 missing, 1 window"),
        ("failover", "f-1 to west: done: drill"),
    ]
    (worst,) = found["windows"]
    assert (worst["state"], worst["missing"], worst["start_ms"]) == ("lossy", 3, NOON_MS + WIDTH_MS)
    assert {part for part, rows in found.items() if rows == []} == {"untimed", "quarantine"}


@pytest.mark.deep(minutes=0.4)
def test_a_late_record_replaces_its_window_and_a_stale_one_does_not(
    session: SparkSession, tmp_path: Path
) -> None:
    east, west = two_regions()
    take(session, tmp_path, east)
    take(session, tmp_path, west)
    report(session, tmp_path)
    start_ms = NOON_MS + WIDTH_MS
    west.window("orders", "aggregate", "west-aggregate", start_ms, window(20, position=50))
    west.window(
        "orders", "aggregate", "west-aggregate", start_ms, window(11, position=4)
    )  # from a worker that was paused
    west.window("orders", "aggregate", "west-aggregate", NOON_MS, window(10, position=51, duplicates=1))
    take(session, tmp_path, west)
    key = "audit_windows", f"orders/aggregate/west-aggregate/{WIDTH_MS}/{start_ms}/0"
    assert msgspec.json.decode(bytes(entries(session, tmp_path, "west")[key]))["position"] == 50
    found = report(session, tmp_path)
    assert found["totals"]["missing"] == 0
    assert found["pairs"][0]["states"] == {"ok": 3}


@pytest.mark.deep(minutes=0.4)
def test_the_plan_says_which_windows_are_compared(session: SparkSession, tmp_path: Path) -> None:
    east, west = two_regions()
    for region in (east, west):
        region.put("audit_plans", "audit:all", audit_plan(window="2m"))
        take(session, tmp_path, region)
    found = report(session, tmp_path)
    assert (found["pairs"], found["totals"]["records"]) == ([], 40)
    for region in (east, west):
        region.put("audit_plans", "audit:all", audit_plan(tiers=["regional", "aggregate", "consumer"]))
        assert take(session, tmp_path, region).quarantined == 0
    pairs = report(session, tmp_path)["pairs"]  # the date is recent
    assert [(pair["region"], pair["from_tier"], pair["to_tier"], pair["states"]) for pair in pairs] == [
        ("east", "regional", "consumer", {"absent-audit": 3}),
        ("west", "aggregate", "consumer", {"absent-audit": 3}),
        ("west", "regional", "aggregate", {"lossy": 1, "ok": 2}),
    ]


@pytest.mark.deep(minutes=0.2)
def test_an_expired_window_stays_and_a_deleted_workload_is_gone(
    session: SparkSession, tmp_path: Path
) -> None:
    east, _ = two_regions()
    take(session, tmp_path, east)
    before = entries(session, tmp_path, "east")
    east.put("audit_windows", f"orders/regional/east-regional/{WIDTH_MS}/{NOON_MS}/0", None)
    east.put("workloads", "billing/orders", None)
    take(session, tmp_path, east)
    after = entries(session, tmp_path, "east")
    assert after.pop(("workloads", "billing/orders")) is None
    before.pop(("workloads", "billing/orders"))
    assert after == before
    assert report(session, tmp_path)["workloads"] == []


@pytest.mark.deep(minutes=0.2)
def test_a_bad_record_is_quarantined_with_its_reason(session: SparkSession, tmp_path: Path) -> None:
    east, _ = two_regions()
    good = len(east.rows)
    corrupt = window(1, position=99, measured=b"\x07\x01\x00\x00")
    east.window("orders", "regional", "east-regional", NOON_MS, corrupt)
    east.put("audit_windows", "orders/regional", window(1, position=98))
    east.put("audit_tiers", "orders/regional/east-regional/0", b"{")
    east.put("workloads", "billing/orders", b"\xff\xfe")
    east.put("trackers", "no job", tracker(NOON_MS, 1))
    done = take(session, tmp_path, east)
    assert (done.offsets, done.quarantined) == (good + 5, 5)
    found = {
        (row["table"], row["reason"].split(":")[0]): row["count"]
        for row in report(session, tmp_path)["quarantine"]
    }
    assert found == {
        ("audit_windows", "latencies"): 1,
        ("audit_windows", "the key is not one of audit_windows"): 1,
        ("audit_tiers", "the value is not a record of a tier"): 1,
        ("workloads", "the value is not a control event"): 1,
        ("trackers", "the key is not one of trackers"): 1,
    }


@pytest.mark.deep(minutes=0.2)
@pytest.mark.parametrize("at", ["write", "commit"])
def test_a_killed_round_changes_nothing_and_is_repeated(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    east, _ = two_regions()
    take(session, tmp_path, east, limit=9)
    before = entries(session, tmp_path, "east")
    with monkeypatch.context() as patch:
        patch.setattr(*((fold.frames, "loads") if at == "write" else (Archive, "commit")), killed)
        with pytest.raises(Killed):
            take(session, tmp_path, east, limit=100)
    assert entries(session, tmp_path, "east") == before
    while take(session, tmp_path, east, limit=9).offsets:
        pass
    found = report(session, tmp_path)
    assert found["totals"]["records"] == 40
    assert found["workloads"][0]["core_hours"] == pytest.approx(0.5 * 300 / 3600, abs=1e-3)


@pytest.mark.deep(minutes=0.2)
def test_only_dates_with_new_records_are_computed_again(session: SparkSession, tmp_path: Path) -> None:
    east, _ = two_regions()
    old_ms = NOON_MS - 10 * 86_400_000
    east.window("orders", "regional", "east-regional", old_ms, window(5, position=60))
    take(session, tmp_path, east)
    stores = daily.open_stores(tmp_path)
    assert daily.bring_up(session, tmp_path, stores, NOW_MS, PlanBounds()) == ["2025-11-12", "2025-11-22"]
    assert daily.bring_up(session, tmp_path, stores, NOW_MS, PlanBounds()) == ["2025-11-22"]
    east.window("orders", "regional", "east-regional", old_ms, window(6, position=61))
    take(session, tmp_path, east)
    stores = daily.open_stores(tmp_path)
    later_ms = NOW_MS + 86_400_000 * 9
    assert daily.bring_up(session, tmp_path, stores, later_ms, PlanBounds()) == ["2025-11-12", "2025-11-22"]
    assert daily.bring_up(session, tmp_path, stores, later_ms, PlanBounds()) == []
    found = summarize(session, tmp_path, 0, NOW_MS, NOW_MS)
    assert found["totals"]["records"] == 46


@pytest.mark.deep(minutes=0.2)
def test_of_two_jobs_that_compute_the_same_dates_only_one_commits(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, _ = two_regions()
    take(session, tmp_path, east)
    stores = daily.open_stores(tmp_path)
    commit = Archive.commit

    def other_first(archive: Archive, change: Any) -> Any:
        monkeypatch.setattr(Archive, "commit", commit)
        daily.bring_up(session, tmp_path, stores, NOW_MS, PlanBounds())
        return archive.commit(change)

    monkeypatch.setattr(Archive, "commit", other_first)
    with pytest.raises(ConcurrentCommit):
        daily.bring_up(session, tmp_path, stores, NOW_MS, PlanBounds())
    assert summarize(session, tmp_path, 0, NOW_MS, NOW_MS)["totals"]["records"] == 40


@pytest.mark.deep(minutes=0.2)
def test_a_recreated_changelog_takes_precedence_over_the_deleted_one(
    session: SparkSession, tmp_path: Path
) -> None:
    east, recreated = Region("east"), Region("east")
    east.window("orders", "regional", "east-regional", NOON_MS, window(5, position=1000))
    recreated.window("orders", "regional", "east-regional", NOON_MS, window(7, position=3))
    take(session, tmp_path, east)
    take(session, tmp_path, recreated, topic_id="id-2")
    assert report(session, tmp_path)["totals"]["records"] == 7


@pytest.mark.deep(minutes=0.2)
def test_a_cluster_that_both_regions_count_counts_once(session: SparkSession, tmp_path: Path) -> None:
    regions = Region("east"), Region("west")
    for region, count in zip(regions, (9, 10), strict=True):
        region.window("orders", "aggregate", "west-aggregate", NOON_MS, window(count, position=1))
        region.window("orders", "proxy-client", "shop", NOON_MS, window(count, position=2))
        take(session, tmp_path, region)
    found = {row["tier"]: row["records"] for row in report(session, tmp_path)["tiers"]}
    assert found == {"aggregate": 10, "proxy-client": 19}


@pytest.mark.deep(minutes=0.1)
def test_many_files_of_loads_are_joined_and_the_replaced_ones_are_deleted_an_hour_later(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "MOST_FILES", 2)
    east = Region("east")
    for number in range(4):
        east.beat(beat("w-1", NOON_MS + number * 500, status(JOB, 0.5, lag=number)))
        take(session, tmp_path, east)
    archive = Archive.open(tmp_path / "east")
    files = files_of(archive.state(), LOADS)
    existing = set((tmp_path / "east" / LOADS).rglob("*.parquet"))
    assert (len(files), len(existing)) == (2, 4)
    assert tidy(archive, NOW_MS + UNREAD_MS - 1) == 0
    assert tidy(archive, NOW_MS + UNREAD_MS) == 2
    assert {tmp_path / "east" / file.path for file in files} < existing
    kept = [row for row in stored(session, archive, files, LOADS).collect() if row["job"]]
    assert sum(row["samples"] for row in kept) == 4
    assert max((row["last_ms"], row["lag_last"]) for row in kept)[1] == 3


@pytest.mark.deep(minutes=0.1)
def test_a_round_without_bad_records_works_under_adaptive_execution(
    session: SparkSession, tmp_path: Path
) -> None:
    east, _ = two_regions()
    session.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        assert take(session, tmp_path, east).quarantined == 0
    finally:
        session.conf.set("spark.sql.adaptive.enabled", "false")


def test_a_report_without_a_store_names_the_command_that_makes_one(
    session: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArchive, match="python -m spark dashboard"):
        summarize(session, tmp_path, 0, 1, 1)


class Reader(HTMLParser):
    """Collects the tags of a page and the addresses that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


@pytest.mark.deep(minutes=0.2)
def test_the_page_fetches_nothing_and_escapes_the_data_that_it_shows(
    session: SparkSession, tmp_path: Path
) -> None:
    east, west = two_regions()
    east.put("workloads", "billing/orders", workload("billing", "orders", "<script>alert(1)</script>"))
    take(session, tmp_path, east)
    take(session, tmp_path, west)
    html = page(report(session, tmp_path))
    reader = Reader()
    reader.feed(html)
    assert "script" not in reader.tags
    assert "&lt;script&gt;" in html
    assert reader.fetched == []
    assert "http://" not in html
    assert "https://" not in html
    assert "prefers-color-scheme: dark" in html
    assert reader.tags.count("svg") == 2
