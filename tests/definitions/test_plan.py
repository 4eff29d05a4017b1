"""What a deployment would change: a dry run says exactly what the deployment does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.definitions.plan import plan
from app.definitions.registry import parse_definition
from app.dispatch.definition import Workload
from tests.config.examples import SMALL, changed


def workload(topic: str = "orders", path: str = "spec/start", value: Any = "earliest") -> Workload:
    return parse_definition(changed(path, value, base=changed("metadata/topic", topic)))[0]


def by_key(*workloads: Workload) -> dict[str, Workload]:
    return {w.key: w for w in workloads}


def test_nothing_to_do_is_an_empty_plan() -> None:
    written_out = parse_definition(workload().to_wire())[0]  # defaults spelled out are no change

    result = plan(by_key(workload()), [written_out])

    assert result.empty
    assert [change.action for change in result.changes] == ["unchanged"]


def test_what_is_new_is_created_and_what_differs_is_updated_field_by_field() -> None:
    wanted = [workload("refunds"), workload("orders", "spec/target/timeout", "20s")]

    create, update = sorted(
        plan(by_key(workload("orders")), wanted).changes, key=lambda change: change.action
    )

    assert (create.action, create.key, create.workload) == ("create", "billing/refunds", wanted[0])
    assert (update.action, update.key, update.workload) == ("update", "billing/orders", wanted[1])
    assert [(c.field, c.old, c.new) for c in update.fields] == [("spec.target.timeout", "10s", "20s")]


def test_a_field_that_appears_or_goes_has_nothing_on_one_side() -> None:
    bare, limited = workload(), workload(path="spec/flow/messages_per_second", value=5)

    (appears,) = plan(by_key(bare), [limited]).changes[0].fields
    (goes,) = plan(by_key(limited), [bare]).changes[0].fields

    assert (appears.field, appears.old, appears.new) == ("spec.flow.messages_per_second", None, 5.0)
    assert (goes.old, goes.new) == (5.0, None)


def test_what_is_not_wanted_is_deleted_only_when_pruning() -> None:
    current = by_key(workload("orders"), workload("refunds"))

    assert plan(current, [workload("orders")]).empty
    pruned = plan(current, [workload("orders")], prune=True)
    assert [(c.action, c.key) for c in pruned.changes if c.action != "unchanged"] == [
        ("delete", "billing/refunds")
    ]


def test_a_cluster_cannot_change_under_a_workload() -> None:
    moved = parse_definition(changed("metadata/cluster", "west-aggregate"))[0]

    (conflict,) = plan(by_key(parse_definition(SMALL)[0]), [moved]).conflicts

    assert "delete it first" in conflict

    before = by_key(parse_definition(SMALL)[0])
    assert plan(before, [moved], clusters={"east-aggregate", "west-aggregate"}).conflicts
    renamed = plan(before, [moved], clusters={"west-aggregate"})
    assert not renamed.conflicts
    assert "the same cluster by its id" in renamed.warnings[0]

    shared = workload(path="spec/mode", value="active-passive")
    moved = shared.model_copy(
        update={"metadata": shared.metadata.model_copy(update={"cluster": "west-aggregate"})}
    )
    assert plan(by_key(shared), [moved]).conflicts
    assert not plan(by_key(shared), [moved], is_local=False).conflicts, "it may be any region's"


@pytest.mark.parametrize("second", ["20s", "30s"])
def test_one_workload_twice_is_a_conflict_and_no_change(second: str) -> None:
    twice = [workload(path="spec/target/timeout", value=timeout) for timeout in ("20s", second)]

    for current in ({}, by_key(workload())):
        result = plan(current, [*twice, workload("refunds")], prune=True)

        assert result.conflicts == ("billing/orders: it is defined 2 times; remove all but one",)
        assert [(change.action, change.key) for change in result.changes] == [("create", "billing/refunds")]


def tiers(*delays: str) -> Workload:
    return workload(path="spec/retry", value=[{"delay": delay} for delay in delays])


def test_a_retry_tier_that_goes_is_warned_of_with_its_topic_and_what_becomes_of_it() -> None:
    result = plan(by_key(tiers("1m", "10m", "1h")), [tiers("1m")])

    assert not result.conflicts
    assert len(result.warnings) == 2
    for warning, topic, delay in zip(
        result.warnings, ("orders__billing__retry_2", "orders__billing__retry_3"), ("10m", "1h"), strict=True
    ):
        assert warning.startswith("billing/orders: ")
        assert topic in warning
        assert f"its delay of {delay}" in warning


@pytest.mark.parametrize("after", [("1m", "10m"), ("5m", "20m"), ("1m", "10m", "1h")])
def test_a_retry_tier_that_stays_or_comes_warns_of_nothing(after: tuple[str, ...]) -> None:
    assert plan(by_key(tiers("1m", "10m")), [tiers(*after)]).warnings == ()


topics = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1s", "2s", "3s"]))


@given(topics, topics, st.booleans())
def test_carrying_a_plan_out_leaves_nothing_to_do(
    current: dict[str, str], wanted: dict[str, str], prune: bool
) -> None:
    state = by_key(*(workload(topic, "spec/target/timeout", timeout) for topic, timeout in current.items()))
    target = [workload(topic, "spec/target/timeout", timeout) for topic, timeout in wanted.items()]

    for change in plan(state, target, prune=prune).changes:
        if change.action == "delete":
            del state[change.key]
        elif change.workload is not None:
            state[change.key] = change.workload

    assert plan(state, target, prune=prune).empty
    kept = set() if prune else {f"billing/{topic}" for topic in current}
    assert set(state) == {w.key for w in target} | kept


def test_a_plan_does_not_depend_on_the_order_of_files() -> None:
    wanted = [workload("b"), workload("a"), workload("c")]

    assert plan({}, wanted) == plan({}, wanted[::-1])


@pytest.mark.parametrize("prune", [True, False])
def test_a_plan_changes_nothing_by_itself(prune: bool) -> None:
    current = by_key(workload("orders"))

    plan(current, [workload("refunds")], prune=prune)

    assert set(current) == {"billing/orders"}
