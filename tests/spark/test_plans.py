"""Which tiers a report compares: by the plans of the regions that have heard them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.config.audit import AuditPlan
from app.core.audit.pairing import Pair, Place
from app.core.audit.plans import Stated
from app.core.audit.tiers import Closing, Heard, TierRecord
from app.core.audit.totals import Totals
from app.core.audit.windows import WindowRecord
from spark.dashboard.plans import Comparer, Plans, compared

WIDTH_MS, HOUR_MS = 600_000, 3_600_000
START_MS = 100 * HOUR_MS
NOW_MS = START_MS + HOUR_MS
HOME, WEST, ALL = ("regional", "east-regional"), ("regional", "west-regional"), ("aggregate", "all")
WEB, BILLING = ("proxy-client", "east-regional"), ("consumer", "east-regional:billing")
CONSUMED = {("east", "billing/orders"): "east-regional"}


def stated(**spec: Any) -> Stated:
    definition = {
        "apiVersion": "switchyard/v1",
        "kind": "AuditPlan",
        "metadata": {"name": "all"},
        "spec": {"topics": ["orders"], "window": "10m", **spec},
    }
    return Stated.of(AuditPlan.model_validate(definition).to_wire())


def tier(heard_ms: int = NOW_MS) -> TierRecord:
    closing = Closing(NOW_MS, 10**6, NOW_MS)
    return TierRecord({"reader": Heard(heard_ms, heard_ms)}, (closing,), position=10**6)


def told(
    counts: dict[Place, int],
    plans: Sequence[tuple[str, Stated]],
    heard: dict[Place, TierRecord] | None = None,
) -> list[Pair]:
    """Of a window with these records; all places are heard by region east until now, unless `heard`."""
    known = heard or dict.fromkeys(counts, tier())
    tiers = {"orders": {place: [record] for place, record in known.items()}}
    regions = {("orders", place): {"east"} for place in known}
    topics = compared(tiers, regions, Plans(plans, CONSUMED), 120_000)
    windows = [(place, WindowRecord(totals=Totals(count=count))) for place, count in counts.items()]
    comparer = Comparer(topics, {}, NOW_MS)
    return list(comparer.pairs("orders", START_MS, WIDTH_MS, [one for one in windows if one[1].totals.count]))


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
