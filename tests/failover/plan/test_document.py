"""The contents of a failover plan, and how much of a plan of any size the control log keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec
from app.controllog.events import RunWorkload
from app.failover.plan.document import (
    MAX_KEPT_BYTES,
    MAX_RECORD_BYTES,
    Check,
    Plan,
    PlannedPartition,
    PlannedWorkload,
    Unreplicated,
    kept,
    lasting,
    read,
    totals,
)
from app.failover.plan.planner import MAX_WORKLOADS, FailoverPlanner, PlanRefused
from app.failover.plan.positions import away, passed_by
from tests.failover.run.region_fakes import FakeRegion

MAX_REQUEST_BYTES = 1_048_576  # a producer's default max.request.size

CHECKS = [
    *(
        Check(name=name, level="ok", detail=f"what was found of {name} is well, as far as west says")
        for name in ("topic", "offset-map", "positions", "definition", "left-behind", "regions")
    ),
    Check(name="sources", level="warn", detail="west-regional does not answer: 7 records or more of it are "
          "not here", remedy="they come once region west returns; nothing else waits for them"),
]  # fmt: skip


def rows(count: int, **fields: Any) -> list[PlannedPartition]:
    return [
        PlannedPartition(partition=n, mapped=1, again=2, lag=3, not_replicated=0, unreachable=0, **fields)
        for n in range(count)
    ]


def a_plan(
    workloads: int, partitions: int = 0, checks: list[Check] | None = None, key: str = "billing-{}/orders"
) -> Plan:
    made = [
        PlannedWorkload(
            workload=key.format(n), mode="active-passive", region="west", epoch=65,
            checks=CHECKS if checks is None else checks, partitions=rows(partitions),
        )
        for n in range(workloads)
    ]  # fmt: skip
    heard = Check(name="heard", level="blocked", detail="no report of it has arrived", may_force=True)
    return Plan(at_ms=1, checks=[heard], workloads=made, totals=totals(made))


def planned_run(plan: Plan) -> Any:
    """The run that a planner makes from the plan."""
    chosen = [RunWorkload(one.workload, one.region, one.epoch) for one in plan.workloads]
    east = FakeRegion("east")
    runtime: Any = SimpleNamespace(failover=SimpleNamespace(keeper=east.keeper), control=east.log)
    return FailoverPlanner(runtime).made(
        "east", chosen, plan, forced=True, actor="me", reason="west is lost", name="f"
    )


def kept_plan(plan: Plan, most_bytes: int = MAX_KEPT_BYTES) -> Plan:
    """The plan as a reader of the control log gets it."""
    found = kept(plan, most_bytes)
    assert found is not None
    assert len(msgspec.json.encode(found)) <= most_bytes
    made = read(found)
    assert made is not None
    return made


def test_a_small_plan_is_kept_with_all_but_its_sources() -> None:
    made = kept_plan(a_plan(1, 3))
    assert (len(made.workloads[0].partitions), made.totals.again, made.totals.lag) == (3, 6, 9)
    assert (made.workloads[0].checks, made.left_out) == (CHECKS, "")
    assert read({"rows": 1}) is None
    assert read(None) is None


def test_a_plan_with_too_many_partitions_is_kept_without_them_and_says_so() -> None:
    made = kept_plan(a_plan(1, MAX_KEPT_BYTES // 50))
    assert (made.workloads[0].partitions, made.workloads[0].checks) == ([], CHECKS)
    assert "too large to keep its partitions" in made.left_out
    assert made.totals.partitions == MAX_KEPT_BYTES // 50


@pytest.mark.parametrize("partitions", [0, 8])
def test_a_plan_of_as_many_workloads_as_may_be_planned_fits_into_the_control_log(partitions: int) -> None:
    plan = a_plan(MAX_WORKLOADS, partitions)
    run = planned_run(plan)
    assert len(run.workloads) == MAX_WORKLOADS
    assert len(codec.encode(run)) < MAX_REQUEST_BYTES
    assert codec.control_event(codec.encode(run)) == run
    found = read(run.plan)
    assert found is not None
    assert (found.totals, found.checks) == (plan.totals, plan.checks)
    assert "the output of failover plan had them" in found.left_out


def test_a_plan_with_long_names_fits_or_is_refused() -> None:
    long = a_plan(MAX_WORKLOADS, 8, key="{}-" + "x" * 400 + "/orders")
    assert len(codec.encode(planned_run(long))) < MAX_REQUEST_BYTES
    with pytest.raises(PlanRefused, match="name some of them"):
        planned_run(a_plan(MAX_WORKLOADS, 8, key="{}-" + "x" * 500 + "/orders"))
    assert MAX_RECORD_BYTES < MAX_REQUEST_BYTES


def test_a_blocking_check_of_one_of_many_workloads_still_blocks_the_execution() -> None:
    plan = a_plan(MAX_WORKLOADS, 8)
    gone = Check(name="topic", level="blocked", detail="topic t does not exist in here", remedy="see why")
    fails = msgspec.structs.replace(plan.workloads[1_500], checks=[*CHECKS, gone])
    plan.workloads[1_500] = fails
    ((of, check),) = lasting(kept_plan(plan), forced=True)
    assert (of, check.detail) == (fails.workload, gone.detail)


@given(
    st.lists(st.sampled_from(["ok", "warn", "blocked"]), min_size=1, max_size=12),
    st.integers(0, 3),
    st.booleans(),
    st.integers(1_000, 20_000),
)
def test_a_shortened_plan_blocks_exactly_as_the_whole_plan(
    levels: Any, partitions: int, may: bool, most: int
) -> None:
    plan = a_plan(len(levels), partitions)
    for n, level in enumerate(levels):
        check = Check(name="regions", level=level, detail="d" * 500, remedy="r" * 500, may_force=may)
        plan.workloads[n] = msgspec.structs.replace(plan.workloads[n], checks=[check, *CHECKS])
    for forced in (False, True):
        blocks = bool(lasting(kept_plan(plan, most), forced=forced))
        assert blocks is bool(lasting(plan, forced=forced))
        assert blocks is ("blocked" in levels and not (forced and may))


def test_an_unknown_count_makes_its_sum_unknown() -> None:
    def of(*counts: int | None) -> Any:
        found = [PlannedPartition(partition=n, unreachable=count) for n, count in enumerate(counts)]
        one = PlannedWorkload(workload="a/b", mode="", region="west", epoch=1, checks=[], partitions=found)
        return totals([one]).unreachable

    assert of(3, 4) == 7
    assert of(3, None) is None
    gone = Unreplicated(route="r", cluster="west-regional", region="west", records=7, reachable=False)
    unknown = msgspec.structs.replace(gone, records=None)
    (some,) = away([PlannedPartition(partition=0, routes=[gone])])
    (more,) = away([PlannedPartition(partition=0, routes=[gone, unknown])])
    assert "7 or more of its records are not here" in some.detail
    assert "at least 7 of its records are not here, and how many more is not known" in more.detail


def test_a_foreign_commit_is_a_warning_with_the_skipped_records() -> None:
    def warnings(*found: tuple[int | None, int, bool]) -> list[str]:
        made = [
            PlannedPartition(partition=n, mapped=mapped, own=own, own_is_foreign=foreign)
            for n, (mapped, own, foreign) in enumerate(found)
        ]
        return [f"{check.detail}; {check.remedy}" for check in passed_by(made, "g", "t")]

    assert warnings((60, 65, False), (60, 60, True), (60, 5, True)) == []
    (one,) = warnings((60, 65, False), (60, 80, True))
    assert "partition 1: group g is at 80 here" in one
    assert "20 records beyond 60, its position in the other region; delivery skips them" in one
    assert "--reset-offsets --group g --topic t:1 --to-offset 60" in one
    (many,) = warnings((60, 80, True), (10, 20, True))
    assert "1 more partitions are like this, 30 records in all" in many
    (unknown,) = warnings((None, 80, True))
    assert "its position in the other region is not known" in unknown


def test_missing_records_are_as_of_the_oldest_report() -> None:
    def rows_of(*reported_ms: int | None) -> PlannedWorkload:
        routes = [
            Unreplicated(route="r", cluster="c", region="west", records=7, reachable=False, as_of_ms=at_ms)
            for at_ms in reported_ms
        ]
        return PlannedWorkload(
            workload="billing/orders", mode="active-passive", region="west", epoch=65, checks=[],
            partitions=[PlannedPartition(partition=0, not_replicated=7, unreachable=7, routes=routes)],
        )  # fmt: skip

    assert totals([rows_of(9, None), rows_of(5)]).as_of_ms == 5
    assert totals([rows_of(None)]).as_of_ms is None


def test_a_plan_that_was_kept_before_it_said_as_of_when_is_read() -> None:
    whole: Any = kept(a_plan(1, 1))
    del whole["totals"]["as_of_ms"]
    made = read(whole)
    assert made is not None
    assert made.totals.as_of_ms is None
