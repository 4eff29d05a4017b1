"""The plan of a deployment: it lists exactly the changes that the deployment makes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.definitions.plan import UnreadableDefinition, plan
from app.definitions.registry import parse_definition, parse_route
from app.dispatch.definition import Workload
from app.dispatch.definition_kind import WORKLOAD
from app.replicate.definition import RouteDefinition
from app.replicate.model.copy_graph import OtherRegions
from tests.config.examples import SMALL, changed


def workload(topic: str = "orders", path: str = "spec/start", value: Any = "earliest") -> Workload:
    return parse_definition(changed(path, value, base=changed("metadata/topic", topic)))[0]


def route(name: str, source: str = "east", **changes: Any) -> RouteDefinition:
    spec = {"from": source, "to": "west", "topics": [name], **changes}
    return parse_route(
        {"apiVersion": "switchyard/v1", "kind": "Route", "metadata": {"name": name}, "spec": spec}
    )[0]


def by_key(*workloads: Workload) -> dict[str, Workload]:
    return {w.key: w for w in workloads}


def test_an_unchanged_definition_is_an_empty_plan() -> None:
    written_out = parse_definition(workload().to_wire())[0]  # written defaults are no change

    result = plan(by_key(workload()), [written_out])

    assert result.empty
    assert [change.action for change in result.changes] == ["unchanged"]


def test_a_new_definition_is_created_and_a_changed_one_updated_field_by_field() -> None:
    wanted = [workload("refunds"), workload("orders", "spec/target/timeout", "20s")]

    create, update = sorted(
        plan(by_key(workload("orders")), wanted).changes, key=lambda change: change.action
    )

    assert (create.action, create.key, create.definition) == ("create", "billing/refunds", wanted[0])
    assert (update.action, update.key, update.definition) == ("update", "billing/orders", wanted[1])
    assert [(c.field, c.old, c.new) for c in update.fields] == [("spec.target.timeout", "10s", "20s")]


def test_an_added_or_removed_field_has_none_on_one_side() -> None:
    bare, limited = workload(), workload(path="spec/flow/messages_per_second", value=5)

    (appears,) = plan(by_key(bare), [limited]).changes[0].fields
    (goes,) = plan(by_key(limited), [bare]).changes[0].fields

    assert (appears.field, appears.old, appears.new) == ("spec.flow.messages_per_second", None, 5.0)
    assert (goes.old, goes.new) == (5.0, None)


@given(st.integers(0, 6), st.integers(0, 6))
def test_a_prune_deletes_neither_all_of_a_kind_nor_more_than_half_unless_that_is_allowed(
    kept: int, gone: int
) -> None:
    topics = [f"t{number}" for number in range(kept + gone)]
    current, wanted = by_key(*map(workload, topics)), list(map(workload, topics[:kept]))
    refused = plan(current, wanted, prune=True)
    assert bool(refused.conflicts) == (gone > kept)
    assert len([one for one in refused.changes if one.action == "delete"]) == gone
    assert not plan(current, wanted, prune=True, allow_empty=True).conflicts
    assert not plan(current, wanted).conflicts


def test_groups_whose_topics_collide_in_kafka_are_refused() -> None:
    dots, underscores = (
        parse_definition(changed("metadata/group", group))[0] for group in ("pay.eu", "pay_eu")
    )
    words = (
        "pay_eu/orders: its topic {}__pay_eu__{} collides with {}__pay.eu__{} of pay.eu/orders:"
        " to Kafka . and _ are equal; {}"
    )
    (conflict,) = plan(by_key(dots), [underscores]).conflicts
    assert re.fullmatch(words.format(*["orders", r"\w+"] * 2, "rename its group"), conflict)
    assert len(plan({}, [dots, underscores]).conflicts) == 1
    assert not plan({}, [dots]).conflicts

    deployed = by_key(dots, underscores)  # an older version accepted both
    planned = plan(deployed, [workload("invoices"), underscores])
    (warning,) = planned.warnings
    assert re.fullmatch(words.format(*["orders", r"\w+"] * 2, "delete one"), warning)
    assert not planned.conflicts
    assert not plan(deployed, [dots], prune=True, allow_empty=True).warnings


def test_copies_whose_names_collide_in_kafka_are_refused() -> None:
    def routes(*given: tuple[str, str, dict[str, Any]]) -> dict[str, RouteDefinition]:
        return {name: route(name, source, **spec) for name, source, spec in given}

    one = routes(("mirror", "east", {"topics": ["pay.eu", "pay_eu"]}))
    (conflict,) = plan({}, [*one.values()]).conflicts
    remedy = "give one of them another name by rename.names, or exclude its topic"
    assert conflict == (
        "mirror: its copy pay_eu and pay.eu in west collide, because Kafka treats . and _ as equal in topic "
        f"names; only one of them can be created; {remedy}"
    )
    two = routes(
        ("a", "east", {"topics": ["pay.*"], "rename": {"names": {"pay": "pay.eu"}}}),
        ("b", "north", {"topics": ["pay_eu"]}),
    )
    (conflict,) = plan({}, [*two.values()]).conflicts
    assert conflict.startswith("b: its copy pay_eu and pay.eu of route a in west collide")
    (kept,) = plan({"a": two["a"]}, [two["b"]]).conflicts
    assert kept == conflict
    assert not plan({"a": two["a"]}, [two["b"]], prune=True, allow_empty=True).conflicts
    (of_other_region,) = plan(
        {}, [two["b"]], other_regions=OtherRegions(routes=(two["a"].route(),))
    ).conflicts
    assert of_other_region == conflict

    renamed = routes(("b", "north", {"topics": ["pay_eu"], "rename": "{cluster}.{topic}"}))
    assert not plan({"a": two["a"]}, [*renamed.values()]).conflicts
    planned = plan(two, [*routes(("c", "east", {"topics": ["x"]})).values()])
    assert (planned.conflicts, planned.warnings) == ((), (conflict,)), (
        "routes that an older version accepted are a conflict"
    )


def test_a_plan_warns_what_happens_to_unreadable_definitions() -> None:
    unread = {"billing/orders": UnreadableDefinition(WORKLOAD, {}, "spec.novel: unknown (got 1)")}
    fates = {
        "stays as it is. Deploy it again, or delete it, with the version that wrote it": plan(
            {}, [], unreadable=unread
        ),
        "is replaced": plan({}, [workload("orders")], unreadable=unread),
        "is deleted": plan({}, [], prune=True, allow_empty=True, unreadable=unread),
    }
    for fate, planned in fates.items():
        (warning,) = planned.warnings
        assert warning == (
            "billing/orders: this version cannot read it: spec.novel: unknown (got 1)."
            f" A newer one may have written it. It {fate}"
        )
    assert [planned.changes[0].action for planned in list(fates.values())[1:]] == ["update", "delete"]
    assert plan({}, [], prune=True, unreadable=unread).conflicts == (
        "--prune would delete every Workload there is: 1 (billing/orders); see whether these are all the"
        " files, or add --allow-empty",
    )


def test_more_than_half_of_all_kinds_together_is_too_much_to_prune() -> None:
    current, routes = by_key(*map(workload, "abcd")), {name: route(name) for name in "xy"}
    kept = [workload("a"), route("x")]
    (conflict,) = plan({**current, **routes}, kept, prune=True).conflicts
    assert "4 of 6 definitions (billing/b, billing/c, billing/d, route y)" in conflict
    assert not plan({**current, **routes}, [*kept, workload("b")], prune=True).conflicts


def test_an_unlisted_definition_is_deleted_only_when_pruning() -> None:
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
    assert not plan(by_key(shared), [moved], is_local=False).conflicts, (
        "another region's workload is a conflict"
    )


@pytest.mark.parametrize("second", ["20s", "30s"])
def test_one_workload_twice_is_a_conflict_and_no_change(second: str) -> None:
    twice = [workload(path="spec/target/timeout", value=timeout) for timeout in ("20s", second)]

    for current in ({}, by_key(workload())):
        result = plan(current, [*twice, workload("refunds")], prune=True)

        assert result.conflicts == ("billing/orders: it is defined 2 times; remove all but one",)
        assert [(change.action, change.key) for change in result.changes] == [("create", "billing/refunds")]


def tiers(*delays: str) -> Workload:
    return workload(path="spec/retry", value=[{"delay": delay} for delay in delays])


def test_a_removed_retry_tier_is_a_warning_with_its_topic_and_its_fate() -> None:
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
def test_a_kept_or_added_retry_tier_gives_no_warning(after: tuple[str, ...]) -> None:
    assert plan(by_key(tiers("1m", "10m")), [tiers(*after)]).warnings == ()


topics = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1s", "2s", "3s"]))


@given(topics, topics, st.booleans())
def test_an_executed_plan_leaves_no_change(
    current: dict[str, str], wanted: dict[str, str], prune: bool
) -> None:
    state = by_key(*(workload(topic, "spec/target/timeout", timeout) for topic, timeout in current.items()))
    target = [workload(topic, "spec/target/timeout", timeout) for topic, timeout in wanted.items()]

    for change in plan(state, target, prune=prune).changes:
        if change.action == "delete":
            del state[change.key]
        elif change.definition is not None:
            state[change.key] = change.definition

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
