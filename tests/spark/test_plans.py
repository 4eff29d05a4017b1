"""Which tiers a report compares: the plans of the regions that receive their reports decide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.audit.definition import AuditPlan
from app.audit.folds.plan_terms import PlanTerms
from app.audit.folds.tier import Closing, SourceStatus, TierRecord
from app.audit.folds.tier_pairs import Pair, TierPlace
from app.audit.folds.window import WindowRecord
from spark.dashboard.plans import Comparer, Plans, compared
from switchyard.audit.model.totals import Totals

WIDTH_MS, HOUR_MS = 600_000, 3_600_000
START_MS = 100 * HOUR_MS
NOW_MS = START_MS + HOUR_MS
HOME, WEST, ALL = ("regional", "east-regional"), ("regional", "west-regional"), ("aggregate", "all")
WEB, BILLING = ("proxy-client", "east-regional"), ("consumer", "east-regional:billing")
EAST, WESTERN = ("aggregate", "east-aggregate"), ("aggregate", "west-aggregate")
CLIENTS = ("proxy-client", "proxy-server", "consumer")
CONSUMED = {("east", "billing/orders"): "east-regional"}


def terms(**spec: Any) -> PlanTerms:
    definition = {
        "apiVersion": "switchyard/v1",
        "kind": "AuditPlan",
        "metadata": {"name": "all"},
        "spec": {"topics": ["orders"], "window": "10m", **spec},
    }
    return PlanTerms.of(AuditPlan.model_validate(definition).to_wire())


def tier(heard_ms: int = NOW_MS) -> TierRecord:
    closing = Closing(NOW_MS, 10**6, NOW_MS)
    return TierRecord({"reader": SourceStatus(heard_ms, heard_ms)}, (closing,), position=10**6)


def pairs_of(
    counts: dict[TierPlace, int],
    plans: Sequence[tuple[str, PlanTerms]],
    reporting: dict[TierPlace, TierRecord] | None = None,
) -> list[Pair]:
    """The pairs of a window with these counts. By default region east has reports of all places until now."""
    known = reporting or dict.fromkeys(counts, tier())
    by = {("orders", place): {"east"} for place in known}
    return [pair for _, pair in pairs_by_region(counts, plans, by, known)]


def pairs_by_region(
    counts: dict[TierPlace, int],
    plans: Sequence[tuple[str, PlanTerms]],
    reporting: dict[tuple[str, TierPlace], set[str]],
    known: dict[TierPlace, TierRecord] | None = None,
) -> list[tuple[str, Pair]]:
    """Pairs with the region that compares them. `reporting`: Regions with reports, by topic and place."""
    tiers: dict[str, dict[TierPlace, list[TierRecord]]] = {}
    for topic, place in reporting:
        tiers.setdefault(topic, {})[place] = [(known or {}).get(place, tier())]
    topics = compared(tiers, reporting, Plans(plans, CONSUMED), 120_000)
    windows = [
        (region, place, WindowRecord(totals=Totals(count=count)))
        for place, count in counts.items()
        for region in sorted(reporting.get(("orders", place), {"east"}))[: None if place[0] in CLIENTS else 1]
        if count
    ]
    return list(Comparer(topics, {}, NOW_MS).pairs("orders", START_MS, WIDTH_MS, windows))


def verdicts(pairs: Sequence[Pair]) -> list[tuple[str, str, str, str, int]]:
    return [
        (pair.from_tier, pair.to_tier, pair.group, pair.verdict.state.value, pair.verdict.missing)
        for pair in pairs
    ]


def test_a_tier_that_the_plan_names_and_never_reports_is_absent_and_not_lossy() -> None:
    plan = terms(tiers=["regional", "aggregate"])
    assert verdicts(pairs_of({HOME: 10}, [("east", plan)])) == [
        ("regional", "aggregate", "", "absent-audit", 10)
    ]
    assert pairs_of({HOME: 10}, [("east", terms())]) == []


def test_windows_of_a_former_width_are_not_compared() -> None:
    assert pairs_of({HOME: 10, ALL: 9}, [("east", terms(window="1h"))]) == []
    assert verdicts(pairs_of({HOME: 10, ALL: 9}, [("east", terms())])) == [
        ("regional", "aggregate", "", "lossy", 1)
    ]


def test_a_cluster_that_no_plan_counts_any_more_counts_in_its_own_windows_only() -> None:
    plans = [("east", terms(clusters=["east-regional", "aggregate"]))]
    assert verdicts(pairs_of({HOME: 10, WEST: 5, ALL: 14}, plans)) == [
        ("regional", "aggregate", "", "lossy", 1)
    ]
    assert pairs_of({WEST: 5}, plans, {HOME: tier(), WEST: tier(), ALL: tier()})[0].from_count == 5
    (pair,) = pairs_of({HOME: 10, ALL: 12}, plans, {HOME: tier(), WEST: tier(), ALL: tier()})
    assert (pair.verdict.state.value, pair.verdict.absent) == ("absent-audit", ("west-regional",))


def test_groups_are_compared_where_a_plan_counts_what_they_finish() -> None:
    counts = {HOME: 10, BILLING: 8}
    assert verdicts(pairs_of(counts, [("east", terms())])) == [
        ("regional", "consumer", "billing", "lossy", 2)
    ]
    assert pairs_of(counts, [("east", terms(tiers=["regional"]))]) == []
    assert pairs_of(counts, [("west", terms())]), "the west has no reports of it, so its plan does not count"


def test_a_client_that_stopped_reporting_long_ago_lacks_no_records() -> None:
    old = {WEB: tier(START_MS - 2 * HOUR_MS), HOME: tier()}
    assert pairs_of({HOME: 10}, [("east", terms())], old) == []
    recent = {WEB: tier(START_MS), HOME: tier()}
    assert [pair.from_tier for pair in pairs_of({HOME: 10}, [("east", terms())], recent)] == ["proxy-client"]


def test_a_topic_without_a_plan_is_compared_between_the_tiers_that_report() -> None:
    assert verdicts(pairs_of({HOME: 10, ALL: 9}, [])) == [("regional", "aggregate", "", "lossy", 1)]
    assert pairs_of({HOME: 10}, [], {HOME: tier(), ALL: tier(START_MS - 2 * HOUR_MS)}) == []


def test_a_tier_whose_record_is_gone_still_has_its_windows() -> None:
    (pair,) = pairs_of({HOME: 10, ALL: 9}, [("east", terms())], {HOME: tier()})
    assert (pair.from_count, pair.to_count, pair.is_closed) == (10, 9, False)


BOTH = {
    ("orders", HOME): {"east", "west"}, ("orders", WEST): {"east", "west"},
    ("orders", EAST): {"east"}, ("orders", WESTERN): {"west"},
}  # fmt: skip
NAMED = [
    ("east", terms(clusters=["east-regional", "west-regional", "east-aggregate"])),
    ("west", terms(clusters=["east-regional", "west-regional", "west-aggregate"])),
]


@pytest.mark.parametrize(
    ("arrived", "states"),
    [
        ((100, 100), [("east", "ok", 0, 0), ("west", "ok", 0, 0)]),
        ((50, 50), [("east", "lossy", 50, 0), ("west", "lossy", 50, 0)]),
        ((100, 97), [("east", "ok", 0, 0), ("west", "lossy", 3, 0)]),
        ((105, 95), [("east", "duplicated", 0, 5), ("west", "lossy", 5, 0)]),
    ],
)
def test_each_regions_aggregate_is_compared_with_all_that_it_copies(
    arrived: tuple[int, int], states: list[tuple[str, str, int, int]]
) -> None:
    counts = {HOME: 60, WEST: 40, EAST: arrived[0], WESTERN: arrived[1]}
    found = pairs_by_region(counts, NAMED, BOTH)
    assert [
        (region, pair.verdict.state.value, pair.verdict.missing, pair.verdict.extra) for region, pair in found
    ] == states
    assert {(pair.from_tier, pair.to_tier, pair.from_count) for _, pair in found} == {
        ("regional", "aggregate", 100)
    }


def test_a_cluster_that_a_plan_matches_and_that_never_reports_adds_no_records() -> None:
    """The topic is in the east only. The west has another topic, and a plan that matches both."""
    plans = [(region, terms(topics=[".*"])) for region in ("east", "west")]
    reporting = {("orders", HOME): {"east"}, ("orders", EAST): {"east"}, ("clicks", WEST): {"west"}}
    ((region, pair),) = pairs_by_region({HOME: 100, EAST: 105}, plans, reporting)
    assert (region, pair.verdict.state.value, pair.verdict.extra) == ("east", "duplicated", 5)
    plans[1] = ("west", terms(topics=["clicks"]))
    ((_, pair),) = pairs_by_region({HOME: 100, EAST: 105}, plans, reporting)
    assert (pair.verdict.state.value, pair.verdict.absent) == ("absent-audit", ("west-regional",))


def test_records_from_a_region_that_is_not_counted_are_no_duplicates() -> None:
    plans = [(region, terms()) for region in ("east", "west")]
    reporting = {("orders", HOME): {"east"}, ("orders", WEST): {"west"}, ("orders", EAST): {"east"}}
    ((region, pair),) = pairs_by_region({HOME: 60, WEST: 40, EAST: 100}, plans, reporting)
    assert (region, pair.verdict.state.value, pair.verdict.absent) == (
        "east", "absent-audit", ("west-regional",),
    )  # fmt: skip


def test_a_region_without_reports_of_a_regional_cluster_uses_those_of_other_regions() -> None:
    plans = [(region, terms(tiers=["regional", "aggregate"])) for region in ("east", "west")]
    reporting = {("orders", HOME): {"east"}, ("orders", WESTERN): {"west"}}
    ((region, pair),) = pairs_by_region({HOME: 100, WESTERN: 98}, plans, reporting)
    assert (region, pair.verdict.state.value, pair.verdict.missing) == ("west", "lossy", 2)


def test_a_pair_that_two_regions_compare_counts_once_and_their_clients_are_added_up() -> None:
    reporting = {**BOTH, ("orders", WEB): {"east", "west"}}
    found = pairs_by_region({WEB: 30, HOME: 60, WEST: 40, EAST: 100, WESTERN: 100}, NAMED, reporting)
    clients = [(region, pair) for region, pair in found if pair.from_tier == "proxy-client"]
    ((region, pair),) = clients
    assert (region, pair.from_count, pair.to_count) == ("east", 60, 100), (
        "the counts of both regions were not added"
    )
    assert [region for region, pair in found if pair.to_tier == "aggregate"] == ["east", "west"]
