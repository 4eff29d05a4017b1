"""Failover definitions: errors are reported at once, and a valid definition gives valid routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.config.problems import InvalidConfiguration
from app.controllog.topics import ControlTopics
from app.definitions.plan import plan
from app.definitions.registry import json_schema, load_definitions, parse_any, parse_failover, parse_route
from app.failover.definition import FailoverDefinition, route_definition
from app.failover.topology import DerivedRoute, Layout, derive
from tests.config.examples import REGIONS, changed

FAILOVER: dict[str, Any] = {
    "apiVersion": "switchyard/v1",
    "kind": "Failover",
    "metadata": {"name": "orders", "owner": "platform"},
    "spec": {
        "regions": ["east", "west"],
        "topics": ["orders", r"payments\..*"],
        "exclude": [r".*\.test"],
        "limits": {"bytes_per_second": "4MiB"},
    },
}


def edited(path: str, value: Any) -> dict[str, Any]:
    return changed(path, value, base=FAILOVER)


def problems_of(document: dict[str, Any], layout: Layout | None = REGIONS) -> dict[str, str]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_failover(document, layout=layout)
    return {problem.field: f"{problem.message}; {problem.remedy}" for problem in caught.value.problems}


def test_a_valid_definition_has_no_warning_and_survives_the_wire() -> None:
    definition, warnings = parse_failover(FAILOVER, layout=REGIONS)

    assert warnings == []
    assert (definition.key, definition.spec.regions) == ("failover:orders", ("east", "west"))
    assert FailoverDefinition.from_wire(definition.to_wire()).etag() == definition.etag()
    assert "FailoverDefinition" in json.dumps(json_schema())


@pytest.mark.parametrize(
    ("path", "value", "field", "message"),
    [
        ("spec/regions", ["east"], "spec.regions", "2"),
        ("spec/regions", ["east", "east"], "spec.regions", "names a region twice; name each once"),
        ("spec/regions", ["east", "wset"], "spec.regions.1", "no such region; did you mean west?"),
        ("spec/topics", [], "spec.topics", "1"),
        (
            "spec/topics",
            ["switchyard-east-control"],
            "spec.topics.0",
            "the control topics that other regions need",
        ),
        ("spec/exclude", [".*"], "spec.topics", "the regions share no topic"),
        ("spec/topics", ["(", "orders"], "spec.topics.0", "is not closed"),
        ("metadata/name", "switchyard-orders", "metadata.name", "do not begin with switchyard-"),
        ("metadata/name", "n" * 81, "metadata.name", "at most 80 characters"),
        ("spec/region", ["east"], "spec.region", "did you mean regions?"),
    ],
)
def test_a_wrong_value_is_reported_at_its_field(path: str, value: Any, field: str, message: str) -> None:
    problems = problems_of(edited(path, value))

    assert message in problems[field]


def test_a_region_without_one_cluster_of_each_tier_is_reported() -> None:
    sites = {name: site for name, site in REGIONS.sites.items() if name != "east-aggregate"}

    assert problems_of(FAILOVER, Layout("west", sites, "west-regional")) == {
        "spec.regions.0": "region east has no cluster of tier aggregate; give each region one regional and "
        "one aggregate cluster under clusters in switchyard.yaml"
    }


def test_a_region_that_is_not_listed_gets_a_warning_that_it_copies_nothing() -> None:
    _, warnings = parse_failover(FAILOVER, layout=Layout("north", REGIONS.sites, "x"))

    assert [warning.message for warning in warnings] == ["this region, north, is not in the list"]


def test_derived_routes_are_valid_route_definitions() -> None:
    definition, _ = parse_failover(FAILOVER, layout=REGIONS)

    def control_topics(region: str) -> list[str]:
        return [topic.name for topic in ControlTopics(region).needed_by_other_regions]

    def control_events(region: str) -> list[str]:
        return [topic.name for topic in ControlTopics(region).followed_by_other_regions]

    routes = derive([definition.failover()], REGIONS, control_topics, control_events).routes
    made = {name: route_definition(derived, definition) for name, derived in routes.items()}

    assert sorted(made) == [
        "orders-east-to-west", "orders-west-to-west", "switchyard-east-to-west",
        "switchyard-east-to-west.events",
    ]  # fmt: skip
    for route in made.values():
        parsed, warnings = parse_route(route.to_wire(), clusters=REGIONS.sites)
        assert (parsed.etag(), warnings) == (route.etag(), [])
    data, control = made["orders-east-to-west"], made["switchyard-east-to-west"]
    assert (data.spec.limits.bytes_per_second, data.metadata.owner) == (4 * 1024 * 1024, "platform")
    assert [data.route().destination(t) for t in ("payments.eu", "payments.test")] == ["payments.eu", None]
    assert (control.spec.limits.priority, control.spec.limits.bytes_per_second) == ("high", None)
    events = made["switchyard-east-to-west.events"]
    assert (control.spec.start, events.spec.start) == ("earliest", "latest")
    assert (events.spec.topics, events.spec.limits) == (
        ("switchyard-east-trackers", "switchyard-east-checkpoints"),
        control.spec.limits,
    )


def test_the_longest_names_still_make_a_route() -> None:
    definition, _ = parse_failover(edited("metadata/name", "n" * 80))
    derived = DerivedRoute("n" * 80 + "-" + "e" * 57 + "-to-" + "w" * 57, "a", "b", ("orders",), (), "n", "e")

    assert route_definition(derived, definition).key == derived.name


def test_the_same_text_is_read_from_files_with_workloads_and_routes_of_the_same_name(tmp_path: Path) -> None:
    route = {"apiVersion": "switchyard/v1", "kind": "Route", "metadata": {"name": "orders"},
             "spec": {"from": "east-regional", "to": "west-aggregate", "topics": ["refunds"]}}  # fmt: skip
    file = tmp_path / "all.yaml"
    file.write_text("\n---\n".join(json.dumps(document) for document in (FAILOVER, route)))
    found, warnings = load_definitions([file], clusters=REGIONS.sites, layout=REGIONS)
    assert ([type(definition).__name__ for definition in found], warnings) == (
        ["FailoverDefinition", "RouteDefinition"], [],
    )  # fmt: skip
    file.write_text("\n---\n".join(json.dumps(FAILOVER) for _ in range(2)))
    with pytest.raises(InvalidConfiguration, match="orders is defined twice, first at"):
        load_definitions([file])


def test_a_kind_that_was_mistyped_is_read_as_what_was_meant() -> None:
    with pytest.raises(InvalidConfiguration, match=r"did you mean Failover\?"):
        parse_any({**FAILOVER, "kind": "Failvoer"})


def test_a_plan_says_what_changes_and_what_the_removal_of_a_region_means() -> None:
    before, _ = parse_failover(edited("spec/regions", ["east", "west", "north"]))
    after, _ = parse_failover(FAILOVER)

    created = plan({}, [before])
    assert [(c.action, c.kind.name, c.name) for c in created.changes] == [
        ("create", "Failover", "failover:orders")
    ]
    assert plan({before.key: before}, [before]).empty
    planned = plan({before.key: before}, [after])
    assert [field.field for change in planned.changes for field in change.fields] == ["spec.regions"]
    assert "region north is named no more" in planned.warnings[0]
    assert plan({before.key: before}, []).empty
    pruned = plan({before.key: before}, [], prune=True)
    assert [(c.action, c.definition) for c in pruned.changes] == [("delete", None)]
    assert plan({}, [before, before]).conflicts
