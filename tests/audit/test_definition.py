"""Audit plans: problems are reported at once; which topics and clusters a plan counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.audit.definition import AuditPlan, job_name, of_job_name
from app.audit.folds.plan_terms import PlanTerms
from app.audit.folds.tier_pairs import ComparisonTerms
from app.config.problems import InvalidConfiguration
from app.definitions.plan import plan
from app.definitions.registry import json_schema, load_definitions, parse_any, parse_audit
from app.kernel.job import JobId, Kind
from tests.config.examples import REGIONS, changed

PLAN: dict[str, Any] = {
    "apiVersion": "switchyard/v1",
    "kind": "AuditPlan",
    "metadata": {"name": "orders", "owner": "data"},
    "spec": {
        "topics": ["orders", r"payments\..*"],
        "exclude": [r".*\.test"],
        "timestamp": {"source": "json", "field": "meta.createdAt", "format": "iso-8601"},
        "id": {"header": "message-id"},
    },
}


def edited(path: str, value: Any) -> dict[str, Any]:
    return changed(path, value, base=PLAN)


def problems_by_field(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_audit(document, layout=REGIONS)
    errors = [problem for problem in caught.value.problems if problem.severity == "error"]
    return {problem.field: f"{problem.message}; {problem.remedy}" for problem in errors}


def test_readers_of_the_table_of_plans_compare_by_the_same_terms() -> None:
    plan = AuditPlan.model_validate(edited("spec/clusters", ["regional", "west"]))
    stated = PlanTerms.of(plan.to_wire())

    assert stated.plan == ComparisonTerms(plan.width_ms, plan.bounds, plan.spec.tiers)
    assert stated.counts_consumers == plan.counts_consumers
    for topic in ("orders", "payments.in", "payments.in.test", "mail"):
        assert stated.counts("regional", "east", topic) == plan.means(topic)
    assert stated.counts("aggregate", "west", "orders")
    assert not stated.counts("aggregate", "east", "orders")
    with pytest.raises(ValueError, match="not the definition of an audit plan"):
        PlanTerms.of({"metadata": {"name": "orders"}, "spec": {}})


def test_a_valid_plan_survives_the_wire_and_fits_the_schema() -> None:
    found, _ = parse_audit(PLAN, layout=REGIONS)

    assert (found.key, found.spec.window, found.width_ms) == ("audit:orders", 600.0, 600_000)
    assert AuditPlan.from_wire(found.to_wire()).etag() == found.etag()
    assert "AuditPlan" in json.dumps(json_schema())
    assert parse_any(PLAN, layout=REGIONS)[0] == found


TIMESTAMP = "spec/timestamp"


@pytest.mark.parametrize(
    ("path", "value", "field", "words"),
    [
        ("spec/topics", ["("], "spec.topics.0", "is not closed"),
        ("spec/topics", [r"switchyard-.*"], "spec.topics", "no topic is counted"),
        ("spec/window", "0s", "spec.window", "from 1s"),
        ("spec/clusters", ["regoinal"], "spec.clusters.0", "did you mean regional?"),
        ("metadata/name", "a/b", "metadata.name", "not a name"),
        ("metadata/name", "x" * 101, "metadata.name", "at most 100"),
        (TIMESTAMP, {"source": "header"}, "spec.timestamp.header", "source header needs it"),
        (TIMESTAMP, {"source": "avro", "field": "at"}, "spec.timestamp.schema", "source avro needs it"),
        (TIMESTAMP, {"source": "record", "field": "at"}, "spec.timestamp.field", "no meaning with source"),
        (TIMESTAMP, {"source": "json", "field": "a..b"}, "spec.timestamp.field", "a key has 0 characters"),
        (TIMESTAMP, {"source": "jsno", "field": "a"}, "spec.timestamp.source", "did you mean json?"),
        (TIMESTAMP, {"source": "json", "field": "a", "otherwise": "now"}, "spec.timestamp.otherwise", "none"),
        (
            TIMESTAMP, {"source": "header", "header": "at", "binary": True, "format": "iso-8601"},
            "spec.timestamp.format", "8 binary bytes",
        ),
    ],
)  # fmt: skip
def test_invalid_fields_are_refused_with_their_paths(path: str, value: Any, field: str, words: str) -> None:
    problems = problems_by_field(edited(path, value))

    assert list(problems) == [field]
    assert words in problems[field]


def test_clusters_are_named_or_by_tier_or_all_of_the_region() -> None:
    def clusters(*entries: str) -> list[str]:
        found, _ = parse_audit(edited("spec/clusters", list(entries)), layout=REGIONS)
        return found.clusters(REGIONS)

    own = sorted(name for name, site in REGIONS.sites.items() if site.region == REGIONS.own)
    assert clusters() == own
    assert clusters("regional") == [f"{REGIONS.own}-regional"]
    assert clusters("regional", "east-aggregate") == sorted({f"{REGIONS.own}-regional", "east-aggregate"})


def test_an_aggregate_cluster_without_its_sources_gives_a_warning() -> None:
    _, warnings = parse_audit(PLAN, layout=REGIONS)
    everything = edited("spec/clusters", sorted(REGIONS.sites))

    assert [warning.field for warning in warnings] == ["spec.clusters"]
    assert "which the plan omits" in warnings[0].message
    assert parse_audit(everything, layout=REGIONS)[1] == []


def test_internal_topics_are_counted_only_by_their_own_names() -> None:
    found, _ = parse_audit(edited("spec/topics", [".*", "switchyard-east-control"]))

    assert found.means("orders")
    assert not found.means("orders.test")
    assert found.means("switchyard-east-control")
    assert not found.means("switchyard-east-trackers")
    assert not found.means("orders__billing__retry_1")


def test_job_names_differ_from_other_keys_and_can_be_parsed() -> None:
    name = job_name("orders", "east-regional")

    assert of_job_name(name) == ("orders", "east-regional")
    assert JobId.parse(str(JobId(Kind.AUDIT, name, "t", 0))).name == name
    assert name.count("/") == 2, "a workload's key has one, a route's none"


def test_a_plan_of_a_deployment_creates_changes_warns_and_deletes() -> None:
    before, _ = parse_audit(PLAN)
    after, _ = parse_audit(edited("spec/window", "5m"))
    current = {before.key: before}

    def actions(*wanted: AuditPlan, prune: bool = False) -> list[tuple[str, str]]:
        return [(change.action, change.key) for change in plan(current, wanted, prune=prune).changes]

    assert [c.action for c in plan({}, [before]).changes] == ["create"]
    assert actions(before) == [("unchanged", before.key)]
    assert actions(after) == [("update", before.key)]
    assert actions(prune=True) == [("delete", before.key)]
    changed_plan = plan(current, [after])
    assert [field.field for field in changed_plan.changes[0].fields] == ["spec.window"]
    assert "other windows from now on" in changed_plan.warnings[0]
    assert plan({}, [before, before]).conflicts


def test_two_plans_of_one_name_are_reported_with_both_places(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps(PLAN))
    with pytest.raises(InvalidConfiguration, match="orders is defined twice, first at"):
        load_definitions([tmp_path])


def test_a_change_of_records_windows_changes_the_counting_checksum() -> None:
    def counting(path: str, value: Any) -> int:
        return parse_audit(edited(path, value))[0].counting

    same = parse_audit(PLAN)[0].counting
    assert {counting(*one) for one in (("spec/lateness", "2m"), ("spec/tiers", ["consumer"]))} == {same}
    others = (("spec/window", "5m"), ("spec/timestamp", {"source": "record"}), ("spec/disorder", "1m"))
    assert len({same, *(counting(*one) for one in others)}) == 4


@pytest.mark.parametrize("value", ["sometimes", "2d", -1, None, True])
def test_an_invalid_disorder_is_reported_once_with_a_remedy(value: Any) -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"spec\.disorder: .*\n.*write any, or a duration"
    ) as error:
        parse_audit(edited("spec/disorder", value))
    assert "1 error" in str(error.value)


def test_disorder_is_any_by_default() -> None:
    for value, written in (("any", "any"), (5, "5s"), ("90s", "1m30s")):
        assert parse_audit(edited("spec/disorder", value))[0].to_wire()["spec"]["disorder"] == written
    assert parse_audit(PLAN)[0].spec.disorder == "any"
