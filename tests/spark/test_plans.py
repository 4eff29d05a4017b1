"""Which tiers a report compares: by the plans of the regions that have heard them."""

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


def stated(**spec: Any) -> PlanTerms:
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


def told(
    counts: dict[TierPlace, int],
    plans: Sequence[tuple[str, PlanTerms]],
    heard: dict[TierPlace, TierRecord] | None = None,
) -> list[Pair]:
    """Of a window with these records; all places are heard by region east until now, unless `heard`."""
    known = heard or dict.fromkeys(counts, tier())
    by = {("orders", place): {"east"} for place in known}
    return [pair for _, pair in everywhere(counts, plans, by, known)]


def everywhere(
    counts: dict[TierPlace, int],
    plans: Sequence[tuple[str, PlanTerms]],
    heard: dict[tuple[str, TierPlace], set[str]],
    known: dict[TierPlace, TierRecord] | None = None,
) -> list[tuple[str, Pair]]:
    """The same, with the region that says it. `heard`: by topic and place, by which regions."""
    tiers: dict[str, dict[TierPlace, list[TierRecord]]] = {}
    for topic, place in heard:
        tiers.setdefault(topic, {})[place] = [(known or {}).get(place, tier())]
    topics = compared(tiers, heard, Plans(plans, CONSUMED), 120_000)
    windows = [
        (region, place, WindowRecord(totals=Totals(count=count)))
        for place, count in counts.items()
        for region in sorted(heard.get(("orders", place), {"east"}))[: None if place[0] in CLIENTS else 1]
        if count
    ]
    return list(Comparer(topics, {}, NOW_MS).pairs("orders", START_MS, WIDTH_MS, windows))


def said(pairs: Sequence[Pair]) -> list[tuple[str, str, str, str, int]]:
    return [
        (pair.from_tier, pair.to_tier, pair.group, pair.verdict.state.value, pair.verdict.missing)
        for pair in pairs
    ]


def test_a_tier_that_the_plan_names_and_nobody_hears_is_absent_and_no_loss() -> None:
    plan = stated(tiers=["regional", "aggregate"])
    assert said(told({HOME: 10}, [("east", plan)])) == [("regional", "aggregate", "", "absent-audit", 10)]
    assert told({HOME: 10}, [("east", stated())]) == []


def test_windows_of_a_former_width_are_not_compared() -> None:
    assert told({HOME: 10, ALL: 9}, [("east", stated(window="1h"))]) == []
    assert said(told({HOME: 10, ALL: 9}, [("east", stated())])) == [("regional", "aggregate", "", "lossy", 1)]


def test_what_no_plan_counts_any_more_has_a_part_in_its_windows_only() -> None:
    plans = [("east", stated(clusters=["east-regional", "aggregate"]))]
    assert said(told({HOME: 10, WEST: 5, ALL: 14}, plans)) == [("regional", "aggregate", "", "lossy", 1)]
    assert told({WEST: 5}, plans, {HOME: tier(), WEST: tier(), ALL: tier()})[0].from_count == 5
    (pair,) = told({HOME: 10, ALL: 12}, plans, {HOME: tier(), WEST: tier(), ALL: tier()})
    assert (pair.verdict.state.value, pair.verdict.absent) == ("absent-audit", ("west-regional",))


def test_groups_are_compared_where_a_plan_counts_what_they_finish() -> None:
    counts = {HOME: 10, BILLING: 8}
    assert said(told(counts, [("east", stated())])) == [("regional", "consumer", "billing", "lossy", 2)]
    assert told(counts, [("east", stated(tiers=["regional"]))]) == []
    assert told(counts, [("west", stated())]), "that region has not heard it: as nobody's plan"


def test_a_client_that_was_given_up_lacks_nothing_later() -> None:
    old = {WEB: tier(START_MS - 2 * HOUR_MS), HOME: tier()}
    assert told({HOME: 10}, [("east", stated())], old) == []
    lately = {WEB: tier(START_MS), HOME: tier()}
    assert [pair.from_tier for pair in told({HOME: 10}, [("east", stated())], lately)] == ["proxy-client"]


def test_a_topic_without_a_plan_is_compared_between_those_that_were_heard() -> None:
    assert said(told({HOME: 10, ALL: 9}, [])) == [("regional", "aggregate", "", "lossy", 1)]
    assert told({HOME: 10}, [], {HOME: tier(), ALL: tier(START_MS - 2 * HOUR_MS)}) == []


def test_a_tier_whose_record_is_gone_still_has_its_windows() -> None:
    (pair,) = told({HOME: 10, ALL: 9}, [("east", stated())], {HOME: tier()})
    assert (pair.from_count, pair.to_count, pair.is_closed) == (10, 9, False)


BOTH = {
    ("orders", HOME): {"east", "west"}, ("orders", WEST): {"east", "west"},
    ("orders", EAST): {"east"}, ("orders", WESTERN): {"west"},
}  # fmt: skip
NAMED = [
    ("east", stated(clusters=["east-regional", "west-regional", "east-aggregate"])),
    ("west", stated(clusters=["east-regional", "west-regional", "west-aggregate"])),
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
    found = everywhere(counts, NAMED, BOTH)
    assert [
        (region, pair.verdict.state.value, pair.verdict.missing, pair.verdict.extra) for region, pair in found
    ] == states
    assert {(pair.from_tier, pair.to_tier, pair.from_count) for _, pair in found} == {
        ("regional", "aggregate", 100)
    }


def test_what_a_plan_would_count_and_nobody_hears_brings_no_records() -> None:
    """The topic is in the east only; the west has another, and a plan that means both."""
    plans = [(region, stated(topics=[".*"])) for region in ("east", "west")]
    heard = {("orders", HOME): {"east"}, ("orders", EAST): {"east"}, ("clicks", WEST): {"west"}}
    ((region, pair),) = everywhere({HOME: 100, EAST: 105}, plans, heard)
    assert (region, pair.verdict.state.value, pair.verdict.extra) == ("east", "duplicated", 5)
    plans[1] = ("west", stated(topics=["clicks"]))
    ((_, pair),) = everywhere({HOME: 100, EAST: 105}, plans, heard)
    assert (pair.verdict.state.value, pair.verdict.absent) == ("absent-audit", ("west-regional",))


def test_what_came_from_a_region_that_this_one_does_not_count_is_no_duplicate() -> None:
    plans = [(region, stated()) for region in ("east", "west")]
    heard = {("orders", HOME): {"east"}, ("orders", WEST): {"west"}, ("orders", EAST): {"east"}}
    ((region, pair),) = everywhere({HOME: 60, WEST: 40, EAST: 100}, plans, heard)
    assert (region, pair.verdict.state.value, pair.verdict.absent) == (
        "east", "absent-audit", ("west-regional",),
    )  # fmt: skip


def test_a_region_that_hears_no_regional_cluster_takes_those_of_others() -> None:
    plans = [(region, stated(tiers=["regional", "aggregate"])) for region in ("east", "west")]
    heard = {("orders", HOME): {"east"}, ("orders", WESTERN): {"west"}}
    ((region, pair),) = everywhere({HOME: 100, WESTERN: 98}, plans, heard)
    assert (region, pair.verdict.state.value, pair.verdict.missing) == ("west", "lossy", 2)


def test_regions_that_compare_the_same_say_it_once_and_their_clients_are_added_up() -> None:
    heard = {**BOTH, ("orders", WEB): {"east", "west"}}
    found = everywhere({WEB: 30, HOME: 60, WEST: 40, EAST: 100, WESTERN: 100}, NAMED, heard)
    clients = [(region, pair) for region, pair in found if pair.from_tier == "proxy-client"]
    ((region, pair),) = clients
    assert (region, pair.from_count, pair.to_count) == ("east", 60, 100), "30 by each region's table"
    assert [region for region, pair in found if pair.to_tier == "aggregate"] == ["east", "west"]
