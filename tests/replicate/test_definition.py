"""Route definitions: all of their problems are reported at once, alone and together with other routes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import re2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from app.config.problems import InvalidConfiguration
from app.definitions.plan import plan
from app.definitions.registry import json_schema, load_definitions, parse_any, parse_definition, parse_route
from app.replicate.definition import RouteDefinition
from tests.config.examples import SMALL, changed
from tests.definitions.test_unknown_fields import spoilt, write

ROUTE: dict[str, Any] = {
    "apiVersion": "switchyard/v1",
    "kind": "Route",
    "metadata": {"name": "east-west"},
    "spec": {"from": "east", "to": "west", "topics": ["orders", r"payments\..*"]},
}
FULL_ROUTE: dict[str, Any] = {
    **ROUTE,
    "metadata": {"name": "east-west", "owner": "platform"},
    "spec": {
        **ROUTE["spec"],
        "exclude": [r".*\.test"],
        "rename": {"from": "{topic}", "to": "{cluster}.{topic}", "names": {"orders": "orders-east"}},
        "headers": {"drop": ["x-internal-.*"], "provenance": True},
        "offsets": {"groups": ["billing", "team-a-.*"], "every": "30s"},
        "limits": {"messages_per_second": 1000, "bytes_per_second": "4MiB", "priority": "high"},
        "sync": {"create": True, "partitions": True, "configuration": True, "leave": ["retention.ms"],
                 "replication": 3},
        "checkpoint": {"every": "10s", "records": 5000},
        "onGap": "stop",
        "start": "latest",
        "verify": "all",
    },
}  # fmt: skip


def routed(path: str, value: Any) -> dict[str, Any]:
    return changed(path, value, base=ROUTE)


def problems(document: Any, **options: Any) -> dict[str, str]:
    """The reported problems, by field."""
    with pytest.raises(InvalidConfiguration) as caught:
        parse_route(document, **options)
    return {problem.field: f"{problem.message}; {problem.remedy}" for problem in caught.value.problems}


def written(folder: Path, *documents: dict[str, Any]) -> Path:
    file = folder / "routes.yaml"
    file.write_text("\n---\n".join(json.dumps(document, indent=1) for document in documents))
    return file


def test_a_small_route_has_sane_defaults_and_no_warning() -> None:
    definition, warnings = parse_route(ROUTE)
    spec = definition.spec

    assert warnings == []
    assert (spec.on_gap, spec.start, spec.limits.priority) == ("continue", "earliest", "normal")
    assert (spec.checkpoint.every, spec.checkpoint.records) == (10.0, 100_000)
    assert (spec.sync.create, spec.sync.partitions, spec.sync.configuration) == (True, True, True)
    assert (definition.keeps_header(), spec.headers.provenance, spec.offsets) == (None, False, None)
    route = definition.route()
    assert [route.destination(t) for t in ("orders", "payments.eu", "refunds")] == [
        "orders",
        "payments.eu",
        None,
    ]


def test_a_full_route_is_what_it_says() -> None:
    definition, _ = parse_route(FULL_ROUTE, clusters=["east", "west"])
    route, keeps = definition.route(), definition.keeps_header()

    assert (definition.key, route.source, route.target) == ("east-west", "east", "west")
    assert route.destination("orders") == "orders-east"
    assert route.destination("payments.eu") == "east.payments.eu"
    assert route.destination("payments.test") is None
    assert definition.topic_sync().leave == ("retention.ms",)
    assert keeps is not None
    assert (keeps("x-internal-id"), keeps("x-trace")) == (False, True)


def test_a_topic_of_249_letters_is_copied_and_a_copy_that_would_have_more_is_refused_by_its_name() -> None:
    topic = "t" * 249
    definition, _ = parse_route({**ROUTE, "spec": {**ROUTE["spec"], "topics": ["orders", topic]}})
    assert definition.route().destination(topic) == topic
    longer = {**ROUTE, "spec": {**ROUTE["spec"], "topics": ["orders", topic], "rename": "{cluster}.{topic}"}}
    with pytest.raises(InvalidConfiguration) as met:
        parse_route(longer)
    (problem,) = met.value.problems
    assert problem.field == "spec.topics.1"
    copy = f"{ROUTE['spec']['from']}.{topic}"
    assert problem.message == (
        f"the copy of topic {topic} would be called {copy}, with {len(copy)} characters; Kafka allows 249"
    )
    assert problem.remedy == "give its copy another name by rename.names, or exclude it"


@pytest.mark.parametrize(
    ("rename", "copied"),
    [("identity", "orders"), ("{topic}", "orders"), ("{cluster}.{topic}", "east.orders"),
     ({"from": "or{topic}", "to": "{topic}"}, "ders"), ({"names": {"orders": "all"}}, "all")],
)  # fmt: skip
def test_a_rename_may_be_a_template_a_replacement_or_a_list(rename: Any, copied: str) -> None:
    assert parse_route(routed("spec/rename", rename))[0].route().destination("orders") == copied


@pytest.mark.parametrize(
    ("path", "value", "field", "expected"),
    [("spec/topics", [], "spec.topics", "at least 1"),
     ("spec/topics", ["*"], "spec.topics.0", "write .* for any text"),
     ("spec/topics", ["orders", "a b"], "spec.topics.1", "matches no name"),
     ("spec/topics", ["x" * 250], "spec.topics.0", "not a topic's name"),
     ("spec/topics", [7], "spec.topics.0", "not a name or expression"),
     ("spec/topics", ["(a+)+" * 100 + "b" * 500], "spec.topics.0", "longer than 500"),
     ("spec/topics", ["(a{100}){100}"], "spec.topics.0", "repeat less often"),
     ("spec/topics", [f"({'abcdefgh' * 60}){{2}}{n}" for n in range(250)], "spec.topics", "too complicated"),
     ("spec/exclude", ["orders", r"pay.*"], "spec.topics", "exclude less"),
     ("spec/topics", ["__consumer_.*"], "spec.topics", "name the internal topic"),
     ("spec/rename", "{cluster}-copy", "spec.rename.to", "{topic} once"),
     ("spec/rename", {"to": "a b{topic}"}, "spec.rename.to", "characters that no topic name has"),
     ("spec/rename", {"names": {"orders": "a b"}}, "spec.rename.names.orders", "not a topic's name"),
     ("spec/rename", 7, "spec.rename", "must be a mapping"),
     ("spec/headers", {"keep": ["a"], "drop": ["b"]}, "spec.headers.drop", "not both"),
     ("spec/headers", {"keep": ["["]}, "spec.headers.keep.0", "RE2"),
     ("spec/offsets", {"groups": []}, "spec.offsets.groups", "at least 1"),
     ("spec/offsets", {"groups": ["a"], "every": "100ms"}, "spec.offsets.every", "from 1s to 1d"),
     ("spec/limits", {"messages_per_second": 0}, "spec.limits.messages_per_second", "at least"),
     ("spec/limits", {"bytes_per_second": 0}, "spec.limits.bytes_per_second", "at least 1"),
     ("spec/limits", {"priority": "urgent"}, "spec.limits.priority", "one of low, normal, high"),
     ("spec/sync", {"replication": 0}, "spec.sync.replication", "at least 1"),
     ("spec/checkpoint", {"every": 0}, "spec.checkpoint.every", "from 100ms to 1h"),
     ("spec/checkpoint", {"records": 0}, "spec.checkpoint.records", "at least 1"),
     ("spec/onGap", "ignore", "spec.onGap", "one of continue, stop"),
     ("spec/start", "middle", "spec.start", "one of earliest, latest"),
     ("spec/to", "east", "spec.topics", "would loop: orders: east -> east (route east-west)"),
     ("metadata/name", "a/b", "metadata.name", "not a name")],
)  # fmt: skip
def test_a_wrong_field_is_reported_with_a_remedy(path: str, value: Any, field: str, expected: str) -> None:
    found = problems(routed(path, value))

    assert list(found) == [field]
    assert expected in found[field]
    assert found[field].partition("; ")[2]


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    wrong = routed("spec/topics", ["orders", "a("])
    wrong["spec"] |= {"onGap": "ignore", "color": 1}
    file = written(tmp_path, ROUTE, wrong, changed("spec/start", "middle"))

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([file], clusters=["west"])

    lines = file.read_text().splitlines()
    reported = {(p.field, lines[p.line - 1].strip().rstrip(",")) for p in caught.value.problems}
    assert reported == {
        ("spec.from", '"from": "east"'), ("spec.topics.1", '"a("'), ("spec.onGap", '"onGap": "ignore"'),
        ("spec.color", '"color": 1'), ("metadata.name", '"name": "east-west"'),
        ("spec.start", '"start": "middle"'), ("metadata.cluster", '"cluster": "east-aggregate"'),
    }  # fmt: skip


@given(unknown=spoilt(FULL_ROUTE))
def test_every_unknown_field_of_a_route_is_reported_at_its_line(
    unknown: dict[tuple[str | int, ...], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    named = ("spec", "rename", "names")  # its keys are topics
    unknown = {path: name for path, name in unknown.items() if path != named}
    file = tmp_path_factory.getbasetemp() / "unknown-route.yaml"
    expected = write(FULL_ROUTE, unknown, file)
    if not expected:
        return

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([file])

    assert {(problem.field, problem.line) for problem in caught.value.problems} == expected


def other(name: str, source: str, target: str, **spec: Any) -> dict[str, Any]:
    document = copy.deepcopy(ROUTE)
    document["metadata"]["name"] = name
    document["spec"] |= {"from": source, "to": target, **spec}
    return document


def test_routes_that_loop_together_are_refused_with_the_loop_spelled_out(tmp_path: Path) -> None:
    file = written(tmp_path, ROUTE, other("back", "west", "east", topics=[".*"]))

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([file])

    (problem,) = caught.value.problems
    assert problem.message == "would loop: orders: west -> east (route back) -> west (route east-west)"
    assert "exclude the topic in route back or east-west" in problem.remedy
    assert problem.line > 0


def test_routes_that_copy_the_same_twice_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, ROUTE, other("too", "east", "west", topics=["o.*"]))

    with pytest.raises(InvalidConfiguration, match="routes east-west and too both copy it"):
        load_definitions([file])


def test_a_route_that_is_defined_twice_is_reported_with_both_places(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"east-west is defined twice, first at .*routes.yaml:4"):
        load_definitions([written(tmp_path, ROUTE, ROUTE)])


def test_workloads_and_routes_come_from_the_same_files(tmp_path: Path) -> None:
    found, warnings = load_definitions([written(tmp_path, SMALL, FULL_ROUTE)])

    assert [definition.key for definition in found] == ["billing/orders", "east-west"]
    assert not warnings, "every field is in force"


def test_groups_are_kept_in_step_by_name_or_expression_and_an_exclusion_wins() -> None:
    offsets = {"groups": ["billing", "audit-.*"], "exclude": ["audit-test"], "every": "10s"}
    sync = parse_route(routed("spec/offsets", offsets))[0].offsets

    assert sync is not None
    assert [sync.groups(group) for group in ("billing", "audit-a", "audit-test", "other")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert sync.every_s == 10.0
    assert parse_route(ROUTE)[0].offsets is None


def test_a_mistyped_kind_is_answered_with_a_suggestion() -> None:
    with pytest.raises(InvalidConfiguration, match=r"did you mean Route\?"):
        parse_any({**ROUTE, "kind": "Routes"})


def test_a_route_is_no_workload() -> None:
    with pytest.raises(InvalidConfiguration, match="must be one of Workload"):
        parse_definition(ROUTE)


@pytest.mark.parametrize("document", [ROUTE, FULL_ROUTE, routed("spec/rename", "{cluster}.{topic}")])
def test_a_route_comes_back_from_the_wire_as_it_was(document: dict[str, Any]) -> None:
    definition, _ = parse_route(document)
    wire = json.loads(json.dumps(definition.to_wire()))

    assert RouteDefinition.from_wire({**wire, "newer": 1}) == definition
    assert parse_route(wire)[0].etag() == definition.etag()


def test_the_etag_changes_with_the_meaning_and_not_with_the_writing() -> None:
    etag = parse_route(routed("spec/rename", "{cluster}.{topic}"))[0].etag()

    assert parse_route(routed("spec/rename", {"to": "{cluster}.{topic}"}))[0].etag() == etag
    assert parse_route(ROUTE)[0].etag() != etag


@given(st.text(max_size=20))
def test_any_text_in_a_list_of_topics_is_accepted_or_reported(text: str) -> None:
    try:
        taken = parse_route(routed("spec/topics", ["orders", text]))[0]
    except InvalidConfiguration as error:
        taken = None
        reported = {problem.field for problem in error.problems}
        assert reported == {"spec.topics.1"}
    if taken is not None:
        assert re2.compile(text)


def test_the_json_schema_knows_all_kinds_by_their_names_on_the_wire() -> None:
    parts = json_schema()["$defs"]

    assert set(parts["RouteSpec"]["properties"]) == set(FULL_ROUTE["spec"])
    kinds = {one["$ref"].rpartition("/")[2] for one in json_schema()["oneOf"]}
    assert kinds == {"Workload", "RouteDefinition", "FailoverDefinition", "AuditPlan", "AlertDefinition"}
    assert parts["RouteDefinition"]["properties"]["kind"]["const"] == "Route"


# -- the plan --------------------------------------------------------------------------------------


def definition(document: dict[str, Any]) -> RouteDefinition:
    return parse_route(document)[0]


def test_routes_are_created_updated_kept_and_pruned_like_workloads() -> None:
    here = definition(ROUTE)
    slower = definition(routed("spec/limits", {"messages_per_second": 5}))

    (created,) = plan({}, [here]).changes
    assert (created.action, created.kind.name, created.name, created.definition) == (
        "create", "Route", "route east-west", here,
    )  # fmt: skip
    assert plan({here.key: here}, [here]).empty
    (update,) = plan({here.key: here}, [slower]).changes
    assert [(f.field, f.old, f.new) for f in update.fields] == [
        ("spec.limits.messages_per_second", None, 5.0)
    ]
    assert plan({here.key: here}, []).empty
    (deleted,) = plan({here.key: here}, [], prune=True).changes
    assert (deleted.action, deleted.kind.name, deleted.key) == ("delete", "Route", "east-west")


def test_a_loop_with_a_route_that_runs_already_is_a_conflict_unless_that_goes() -> None:
    running = definition(other("back", "west", "east"))

    (conflict,) = plan({"back": running}, [definition(ROUTE)]).conflicts
    assert "would loop: orders: west -> east (route back) -> west (route east-west)" in conflict
    assert plan({"back": running}, [definition(ROUTE)], prune=True, allow_empty=True).conflicts == ()


def test_a_route_that_changes_its_names_is_warned_of() -> None:
    renamed = definition(routed("spec/rename", "{cluster}.{topic}"))

    (warning,) = plan({"east-west": definition(ROUTE)}, [renamed]).warnings

    assert "copies begin again from spec.start" in warning


def test_topics_that_get_another_name_are_warned_of_one_by_one() -> None:
    before = definition(routed("spec/rename", {"names": {"orders": "orders.v1"}}))
    after = definition(routed("spec/rename", {"names": {"orders": "orders.v2"}}))
    (warning,) = plan({"east-west": before}, [after]).warnings
    assert "orders to orders.v2 (orders.v1 before)" in warning
    assert not plan({"east-west": before}, [before]).warnings


def test_one_route_twice_is_a_conflict_and_no_change() -> None:
    result = plan({}, [definition(ROUTE), definition(FULL_ROUTE)])

    assert result.conflicts == ("east-west: it is defined 2 times; remove all but one",)
    assert result.changes == ()
