"""Rows of windows and differences, from several workers' books, with tiers in order."""

from __future__ import annotations

from typing import Any

from app.audit.definition import AuditPlan
from app.audit.folds.collector import Collector
from app.audit.folds.tier import CloseWindows, PlanBounds
from app.audit.query.view import BookShare, RegionCounts, WindowQuery, joined, verdict_rows, window_rows
from switchyard.audit.model.reports import Increment, Report, Scope, report_id
from switchyard.audit.model.tally import RecordArrays, Tally
from tests.audit.query.arrays import numbers

WIDTH_MS = 60_000
NOW_MS = 10 * WIDTH_MS
HOME, AWAY = ("regional", "east-regional"), ("aggregate", "east")


def audit_plan(**spec: Any) -> AuditPlan:
    return AuditPlan.model_validate(
        {
            "apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": "all"},
            "spec": {"topics": ["orders"], "window": "1m", **spec},
        }
    )  # fmt: skip


PLAN = audit_plan()


class Region:
    """The folded reports of tiers."""

    def __init__(self) -> None:
        self.collector, self.position = Collector(), 0

    def apply(self, event: Any) -> None:
        self.collector.apply(event, self.position)
        self.position += 1

    def report(
        self, tier: tuple[str, str], *times_ms: int, partition: int = 0, complete_ms: int = -1,
        width_ms: int = WIDTH_MS,
    ) -> None:  # fmt: skip
        """Reports a source with these counts, at the end of all windows."""
        scope, tally = Scope("orders", *tier, width_ms), Tally(width_ms)
        tally.add(RecordArrays(numbers(times_ms), numbers([10] * len(times_ms))))
        windows = tuple(Increment(start, totals) for start, totals in tally.totals().items())
        name = f"{tier[1]}/{partition}"
        self.apply(
            Report(
                report_id(scope, name, 0, 0, 1, final=True),
                *scope,
                name,
                NOW_MS,
                windows,
                part=0,
                upto=1,
                final=True,
                watermark_ms=NOW_MS,
                shard=partition // 8,
                complete_ms=complete_ms,
            )
        )

    def close(self, tier: tuple[str, str]) -> None:
        self.apply(CloseWindows("orders", *tier, NOW_MS - WIDTH_MS, NOW_MS))

    @property
    def known(self) -> RegionCounts:
        return RegionCounts(self.collector.windows, self.collector.tiers)

    def verdicts(self, plan: AuditPlan = PLAN, unseen: tuple[str, ...] = ()) -> list[tuple[int, str, Any]]:
        rows = verdict_rows(self.known, NOW_MS, lambda *_: plan, lambda _: list(unseen))
        return [(row["start_ms"] // WIDTH_MS, row["state"], row["missing"] or row["extra"]) for row in rows]


def counted_at_both(*, lost: int = 0) -> Region:
    region = Region()
    times_ms = [WIDTH_MS + number for number in range(20)]
    region.report(HOME, *times_ms)
    region.report(AWAY, *times_ms[lost:])
    return region


def test_a_window_is_one_row_for_all_shards_of_a_cluster() -> None:
    region = Region()
    region.report(HOME, 5, 70_000, 70_001, complete_ms=30_000)
    region.report(HOME, 70_002, partition=9)
    rows = window_rows(region.known, NOW_MS, lambda *_: PlanBounds())

    shown = [(row["start_ms"], row["count"], row["bytes"], row["state"], row["complete"]) for row in rows]
    assert shown == [(60_000, 3, 30, "provisional", True), (0, 1, 10, "provisional", False)]
    region.close(HOME)
    assert {row["state"] for row in window_rows(region.known, NOW_MS, lambda *_: PlanBounds())} == {"closed"}


def test_tiers_are_compared_once_both_have_closed_a_window() -> None:
    region = counted_at_both(lost=2)
    assert region.verdicts() == [(1, "provisional", 2)]
    region.close(HOME)
    region.close(AWAY)
    assert region.verdicts() == [(1, "lossy", 2)]


def test_equal_tiers_are_ok() -> None:
    assert counted_at_both().verdicts() == [(1, "ok", 0)]


def test_a_window_that_was_not_counted_from_its_beginning_is_not_compared() -> None:
    region = counted_at_both()
    region.report(HOME, 2 * WIDTH_MS, partition=1, complete_ms=2 * WIDTH_MS)
    for tier in (HOME, AWAY):
        region.close(tier)
    assert region.verdicts() == [(2, "lossy", 1)], "window 1 may lack what had gone before"


def test_windows_of_a_former_width_are_not_compared() -> None:
    region = counted_at_both(lost=2)
    for tier in (HOME, AWAY):
        region.close(tier)
    assert region.verdicts(audit_plan(window="2m")) == []


def test_extra_records_at_an_aggregate_cluster_say_nothing_while_a_source_is_uncounted() -> None:
    region = counted_at_both()
    region.report(AWAY, WIDTH_MS, partition=1)
    for tier in (HOME, AWAY):
        region.close(tier)
    assert region.verdicts() == [(1, "duplicated", 1)]
    assert region.verdicts(unseen=("west-regional",)) == [(1, "absent-audit", 1)]
    lost = counted_at_both(lost=1)
    for tier in (HOME, AWAY):
        lost.close(tier)
    assert lost.verdicts(unseen=("west-regional",)) == [(1, "lossy", 1)]


def test_a_cluster_that_is_no_longer_counted_takes_part_in_its_own_windows_only() -> None:
    region, gone = counted_at_both(), ("regional", "west-regional")
    region.report(gone, WIDTH_MS)
    region.report(AWAY, WIDTH_MS, partition=1)
    for tier in (HOME, AWAY, gone):
        region.close(tier)
    region.report(HOME, 9 * WIDTH_MS, partition=2)  # the newest window, which is closed by those that count
    region.report(AWAY, 9 * WIDTH_MS, partition=2)
    for tier in (HOME, AWAY):
        region.apply(CloseWindows("orders", *tier, NOW_MS, NOW_MS))

    def plan_of(cluster: str, _: str) -> AuditPlan | None:
        return None if cluster == "west-regional" else PLAN

    rows = verdict_rows(region.known, NOW_MS, plan_of, lambda _: [])
    assert [(row["start_ms"] // WIDTH_MS, row["state"], row["from_count"]) for row in rows] == [
        (9, "ok", 1), (1, "ok", 21),
    ]  # fmt: skip
    assert verdict_rows(region.known, NOW_MS, lambda *_: None, lambda _: []) == []


def test_a_tier_that_only_the_plan_names_is_absent_not_lossy() -> None:
    region = Region()
    region.report(HOME, WIDTH_MS)
    region.close(HOME)

    assert region.verdicts() == []
    assert region.verdicts(audit_plan(tiers=["regional", "consumer"])) == [(1, "absent-audit", 1)]


def test_the_book_that_has_read_furthest_counts_for_its_partition() -> None:
    old, new = Region(), Region()
    for region in (old, new):
        region.report(HOME, 1)
    new.report(HOME, 2, partition=1)

    def share(region: Region, **next_offsets: int) -> BookShare:
        known = {int(name[1:]): offset for name, offset in next_offsets.items()}
        windows = {str(key): record for key, record in region.collector.windows.items()}
        return BookShare(known, windows, {str(key): record for key, record in region.collector.tiers.items()})

    shares = [share(old, p3=1, p4=9), share(new, p3=2)]
    for some in (shares, shares[::-1]):
        found = joined(some, lambda _: 3)
        assert [record.totals.count for record in found.windows.values()] == [2]
        assert joined(some, lambda _: 4).windows == old.collector.windows
        assert joined(some, lambda _: 5) == RegionCounts({}, {})


def test_a_query_selects_windows_by_place_and_time() -> None:
    region = counted_at_both()
    (home, away) = sorted(region.collector.windows, key=lambda key: key.tier, reverse=True)

    assert WindowQuery().means(home)
    assert WindowQuery(tier="regional").means(home)
    assert not WindowQuery(tier="regional").means(away)
    assert not WindowQuery(cluster="east-regional").means(away)
    assert WindowQuery(from_ms=WIDTH_MS, before_ms=WIDTH_MS + 1).means(home)
    assert not WindowQuery(before_ms=WIDTH_MS).means(home)
    assert WindowQuery(from_ms=NOW_MS).means(next(iter(region.collector.tiers)))


BILLING, MAIL = ("consumer", "east-regional:billing"), ("consumer", "east:mail")


def test_each_group_is_compared_separately_with_the_cluster_that_it_reads() -> None:
    region = counted_at_both()
    times_ms = [WIDTH_MS + number for number in range(20)]
    region.report(BILLING, *times_ms)
    region.report(MAIL, *times_ms[3:])
    for tier in (HOME, AWAY, BILLING, MAIL):
        region.close(tier)

    def shown(plan_of: Any) -> list[tuple[str, Any, str, int]]:
        rows = verdict_rows(region.known, NOW_MS, plan_of, lambda _: [])
        return [(row["from_tier"], row["group"], row["state"], row["missing"]) for row in rows]

    both = [("regional", None, "ok", 0), ("regional", "billing", "ok", 0), ("aggregate", "mail", "lossy", 3)]
    assert shown(lambda *_: PLAN) == both
    gone = shown(lambda cluster, _: None if cluster == MAIL[1] else PLAN)
    assert gone == both[:2], "who does not consume it any more lacks nothing"
    only = shown(lambda cluster, _: None if cluster == "east" else PLAN)
    assert ("regional", "mail", "lossy", 3) in only, "its own cluster is not counted"


def test_a_clients_counts_of_consumed_records_are_one_tier_over_all_clusters() -> None:
    region = counted_at_both()
    region.report(("consumer", "east"), *[WIDTH_MS + number for number in range(12)])
    region.report(("consumer", "west"), *[WIDTH_MS + number for number in range(8)])
    region.report(MAIL, WIDTH_MS)
    for tier in (HOME, AWAY, ("consumer", "east"), ("consumer", "west"), MAIL):
        region.close(tier)
    rows = verdict_rows(region.known, NOW_MS, lambda *_: PLAN, lambda _: [])
    shown = [(row["to_tier"], row["group"], row["state"]) for row in rows]
    assert shown == [("aggregate", None, "ok"), ("consumer", None, "ok"), ("consumer", "mail", "lossy")]


def test_a_tier_with_other_windows_is_absent_not_lossy() -> None:
    region, client = Region(), ("consumer", "east")
    region.report(HOME, *range(WIDTH_MS, WIDTH_MS + 20))
    region.report(client, *range(WIDTH_MS, WIDTH_MS + 20), width_ms=10_000)
    region.close(HOME)
    region.close(client)
    (row,) = verdict_rows(region.known, NOW_MS, lambda *_: PLAN, lambda _: [])
    assert (row["state"], row["absent"]) == ("absent-audit", ["consumer"])
    assert (
        row["remark"] == "consumer also counts in windows of 10000 ms; those of 60000 ms lack these records"
    )


def test_windows_of_another_time_do_not_prevent_a_comparison() -> None:
    region = counted_at_both(lost=2)
    region.report(AWAY, 5, 125_000, partition=1, width_ms=30_000)
    region.close(HOME)
    region.close(AWAY)
    assert region.verdicts() == [(1, "lossy", 2)]
    region.report(AWAY, 95_000, partition=2, width_ms=30_000)
    assert region.verdicts() == [(1, "absent-audit", 2)]
