"""Definitions of how messages are dispatched: routing apart, payloads, head of line, quarantine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.problems import ConfigProblem, InvalidConfiguration
from app.definitions.registry import json_schema, parse_definition
from app.dispatch.definition import Workload
from app.dispatch.model.circuit_breaker import BreakerLimits
from app.dispatch.model.outcome import RetryPolicy
from tests.config.examples import FULL, ISOLATION, SMALL, changed


def model(document: dict[str, Any]) -> Workload:
    """The workload as it is read from the control log, which may hold a definition not yet in force."""
    return Workload.from_wire(document)


def errors(document: dict[str, Any]) -> list[ConfigProblem]:
    """The errors in the document."""
    try:
        parse_definition(document)
    except InvalidConfiguration as error:
        return [problem for problem in error.problems if problem.severity == "error"]
    return []


def ordered_catch_up() -> dict[str, Any]:
    document = changed("spec/catchUp", {"lag": 1000, "rate": 10})
    document["spec"]["ordering"] = "key"
    return document


def isolation(**fields: Any) -> dict[str, Any]:
    return changed("spec/isolation", {**ISOLATION, **fields})


def protobuf(**fields: Any) -> dict[str, Any]:
    return changed("spec/payload/protobuf", {"descriptor": "a.desc", "message": "acme.Order", **fields})


# -- shapes and defaults ---------------------------------------------------------------------------


def test_a_target_may_leave_the_contract_to_the_receiver() -> None:
    assert model(changed("spec/target/contract", "auto")).spec.target.contract == "auto"
    assert model(SMALL).spec.target.contract == "unary"


@pytest.mark.parametrize(
    ("timeout", "after", "in_force_s", "warns"),
    [
        ("10s", None, 300, False), ("2m", None, 300, False), ("10m", None, 1_200, False),
        ("10m", "20m", 1_200, False), ("10m", "10m", 600, True), ("10s", "20s", 20, False),
        (None, "19s", 19, True),
    ],
)  # fmt: skip
def test_a_head_of_line_below_twice_the_timeout_is_in_force_only_if_defined_and_with_a_warning(
    timeout: str | None, after: str | None, in_force_s: float, warns: bool
) -> None:
    document = changed("spec/headOfLine", {"stash": "dlq"} if after is None else {"after": after}, base=SMALL)
    if timeout is not None:
        document["spec"]["target"]["timeout"] = timeout
    workload, warnings = parse_definition(document)
    assert workload.head_limits().after_s == in_force_s
    assert Workload.from_wire(workload.to_wire()).head_limits().after_s == in_force_s
    assert [warning.field for warning in warnings] == (["spec.headOfLine.after"] if warns else [])


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (changed("spec/target/keepalive/time", "1m", base=SMALL), "spec.target.keepalive.time"),
        (changed("spec/target/keepalive/time", "5m", base=SMALL), None),
        (changed("spec/breaker/failures", 3, base=SMALL), "spec.breaker.failures"),
        (changed("spec/breaker/failures", 4, base=SMALL), None),
        (changed("spec/redelivery/maxAttempts", 10, base=SMALL), "spec.redelivery.maxAttempts"),
        (changed("spec/redelivery/maxAttempts", 9, base=SMALL), None),
        (changed("spec/headOfLine", {"patience": "5m"}, base=SMALL), "spec.headOfLine.patience"),
        (changed("spec/headOfLine", {"patience": "5m", "after": "6m"}, base=SMALL), None),
        (changed("spec/redelivery", {"initialBackoff": "3m", "maxBackoff": "3m"}, base=SMALL),
         "spec.redelivery.initialBackoff"),
        (changed("spec/redelivery", {"initialBackoff": "3m", "maxBackoff": "3m"},
                 base=changed("spec/ordering", "partition", base=SMALL)), None),
        (changed("spec/headOfLine", {"after": "20s", "patience": "1m"}, base=SMALL),
         "spec.headOfLine.patience"),
        (changed("spec/breaker", {"unavailable": 50}, base=SMALL), "spec.breaker.unavailable"),
    ],
)  # fmt: skip
def test_limits_that_may_not_be_meant_so_get_a_warning(document: dict[str, Any], field: str | None) -> None:
    _, warnings = parse_definition(document)
    assert [warning.field for warning in warnings] == ([field] if field else [])


def test_isolation_is_read_whole() -> None:
    found = model(changed("spec/isolation", ISOLATION)).spec.isolation
    assert found is not None

    assert (found.zone, found.environment, found.unmatched) == ("x-zone", "x-environment", "skip")
    assert [(target.environment, target.zone, target.address) for target in found.targets] == [
        ("staging", "b", "billing-staging-b:443"),
        ("staging", None, "billing-staging:443"),
        (None, "b", "billing-b:443"),
    ]
    assert found.production == ("live",)


def test_the_defaults_are_the_safe_ones() -> None:
    full = model(
        changed(
            "spec",
            {
                "target": {"address": "b:1"},
                "headOfLine": {},
                "isolation": {"environment": "x-env"},
                "payload": {"protobuf": {"descriptor": "a.desc", "message": "acme.Order"}},
            },
        )
    ).spec
    assert full.head_of_line
    assert full.isolation
    assert full.payload
    assert full.payload.protobuf

    assert (full.head_of_line.after, full.head_of_line.stash, full.head_of_line.per_minute) == (
        None,
        "dlq",
        10,
    )
    assert full.head_of_line.patience == 1.0
    assert (full.head_of_line.full, full.head_of_line.unfinished) == (0.9, 0.02)
    assert full.breaker.limits() == BreakerLimits()
    assert full.redelivery.backoff() == RetryPolicy().backoff
    assert full.redelivery.max_attempts == RetryPolicy().in_memory_attempts
    assert (full.target.keepalive.time, full.target.keepalive.timeout) == (310, 10)
    assert (full.isolation.unmatched, full.isolation.targets) == ("dlq", ())
    assert full.isolation.production == ("production", "prod")
    decoding = full.payload.protobuf
    assert (decoding.framing, decoding.deliver, decoding.invalid) == ("raw", "bytes", "deliver")
    assert full.dlq.max_merges == 3


def test_a_new_field_at_its_default_does_not_change_the_etag() -> None:
    before = changed("spec/headOfLine", {"after": "5m", "stash": "dlq"}, base=protobuf())
    before["spec"]["isolation"] = {"zone": "x-zone"}
    written_out = changed(
        "spec/headOfLine",
        {"after": "5m", "stash": "dlq", "perMinute": 10, "patience": "1s", "full": 0.9, "unfinished": 0.02},
        base=protobuf(framing="raw", deliver="bytes", invalid="deliver"),
    )
    written_out["spec"]["dlq"] = {"maxMerges": 3}
    written_out["spec"]["breaker"] = {"failures": 10, "window": "10s"}
    written_out["spec"]["redelivery"] = {"maxAttempts": 3, "jitter": 0.5}
    written_out["spec"]["target"]["keepalive"] = {"time": "310s"}
    written_out["spec"]["isolation"] = {
        "zone": "x-zone", "targets": [], "unmatched": "dlq", "production": ["production", "prod"],
    }  # fmt: skip

    wire = model(before).to_wire()["spec"]

    assert wire["headOfLine"] == {"after": "5m", "stash": "dlq"}
    assert wire["dlq"] == {"enabled": True}
    assert not {"breaker", "redelivery"} & set(wire)
    assert "keepalive" not in wire["target"]
    assert wire["isolation"] == {"zone": "x-zone"}
    assert wire["payload"]["protobuf"] == {"descriptor": "a.desc", "message": "acme.Order"}
    assert model(written_out).etag() == model(before).etag()


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec/headOfLine", {"perMinute": 0.5}), ("spec/headOfLine", {"patience": "5s", "full": 0.5}),
     ("spec/breaker", {"failures": 20}), ("spec/redelivery", {"jitter": 0.1}),
     ("spec/target/keepalive", {"timeout": "3s"}),
     ("spec/dlq", {"maxMerges": 0}), ("spec/isolation", ISOLATION),
     ("spec/payload/protobuf", {"descriptor": "d", "message": "a.B", "framing": "confluent",
                                "deliver": "json", "invalid": "dlq"})],
)  # fmt: skip
def test_a_value_other_than_the_default_comes_back_from_the_wire(path: str, value: dict[str, Any]) -> None:
    workload = model(changed(path, value))

    assert Workload.from_wire(workload.to_wire()) == workload
    assert workload.etag() != model(SMALL).etag()


# -- mistakes: the field, the value, the remedy ----------------------------------------------------


@pytest.mark.parametrize(
    ("document", "field", "message", "value"),
    [
        (changed("spec/target/contract", "aut"), "spec.target.contract", "must be one of", "'aut'"),
        (changed("spec/breaker/failures", 0), "spec.breaker.failures", "at least 1", "0"),
        (changed("spec/breaker/overloadShare", 1.5), "spec.breaker.overloadShare", "at most 1", "1.5"),
        (changed("spec/breaker/window", "1ms"), "spec.breaker.window", "must be from 1s to 1h", "'1ms'"),
        (changed("spec/breaker/firstProbe", "2s"), "spec.breaker.firstProbe",
         "is longer than longestProbe (1s)", "'2s'"),
        (changed("spec/redelivery/maxAttempts", "3"), "spec.redelivery.maxAttempts", "whole number", "'3'"),
        (changed("spec/redelivery/backoffMultiplier", 0.5), "spec.redelivery.backoffMultiplier",
         "at least 1", "0.5"),
        (changed("spec/redelivery", {"initialBackoff": "2s", "maxBackoff": "1s"}),
         "spec.redelivery.initialBackoff", "is longer than maxBackoff (1s)", "'2s'"),
        (changed("spec/redelivery/initialBackoff", "11s"), "spec.redelivery.initialBackoff",
         "is longer than maxBackoff (10s)", "'11s'"),
        (changed("spec/redelivery/maxBackoff", "10ms"), "spec.redelivery.maxBackoff",
         "is shorter than initialBackoff (100ms)", "'10ms'"),
        (changed("spec/target/keepalive/time", "1s"), "spec.target.keepalive.time",
         "must be from 10s to 1d", "'1s'"),
        (changed("spec/headOfLine/full", 0), "spec.headOfLine.full", "at least 0.1", "0"),
        (changed("spec/headOfLine/unfinished", 2), "spec.headOfLine.unfinished", "at most 1", "2"),
        (changed("spec/headOfLine/perMinute", 0), "spec.headOfLine.perMinute", "at least 0.001", "0"),
        (changed("spec/flow/bytes_per_second", 0), "spec.flow.bytes_per_second", "at least 1", "0"),
        (changed("spec/flow/messages_per_second", 1e-9), "spec.flow.messages_per_second", "at least",
         "1e-09"),
        (isolation(targets=[{"environment": "ci", "address": "billing:443"}]),
         "spec.isolation.targets.0.address", "is the main target's", "'billing:443'"),
        (changed("spec/headOfLine/perMinute", "10"), "spec.headOfLine.perMinute", "a number", "'10'"),
        (changed("spec/headOfLine/after", "0s"), "spec.headOfLine.after", "must be from 1ms to 30d", "'0s'"),
        (changed("spec/headOfLine/per_minute", 1), "spec.headOfLine.per_minute", "unknown field", ""),
        (changed("spec/headOfLine/stash", "retry"), "spec.headOfLine.stash", "no retry tier", "'retry'"),
        (changed("spec/dlq/maxMerges", -1), "spec.dlq.maxMerges", "at least 0", "-1"),
        (changed("spec/dlq/maxMerges", 1001), "spec.dlq.maxMerges", "at most 1000", "1001"),
        (changed("spec/dlq/maxMerges", True), "spec.dlq.maxMerges", "whole number", "True"),
        (changed("spec/catchUp", {"lag": 2**60, "rate": 1}), "spec.catchUp.lag", "at most", str(2**60)),
        (ordered_catch_up(), "spec.catchUp", "breaks the order by key", ""),
        (changed("spec/placement", {}), "spec.placement.group", "missing", ""),
        (changed("spec/placement/group", "a b"), "spec.placement.group", "not a name", "'a b'"),
        (changed("spec/hibernate/after", "1s"), "spec.hibernate.after", "must be from 1m to 30d", "'1s'"),
        (isolation(zone=""), "spec.isolation.zone", "not the name of a header", "''"),
        (isolation(environment=7), "spec.isolation.environment", "not the name of a header", "7"),
        (isolation(unmatched="drop"), "spec.isolation.unmatched", "must be one of dlq, skip, def", "'drop'"),
        (isolation(production="live"), "spec.isolation.production", "must be a list", "'live'"),
        (isolation(production=["live", 7]), "spec.isolation.production.1", "not a header's value", "7"),
        (isolation(targets={}), "spec.isolation.targets", "must be a list", ""),
        (isolation(targets=["b:1"]), "spec.isolation.targets.0", "must be a mapping, not text", "'b:1'"),
        (isolation(targets=[{"zone": "b"}]), "spec.isolation.targets.0.address", "missing", ""),
        (isolation(targets=[{"zone": "b", "address": "b"}]), "spec.isolation.targets.0.address",
         "not a gRPC address", "'b'"),
        (isolation(targets=[{"zone": "", "address": "b:1"}]), "spec.isolation.targets.0.zone",
         "not a header's value", "''"),
        (isolation(targets=[{"address": "b:1"}]), "spec.isolation.targets.0", "neither environment nor", ""),
        (isolation(targets=[{"environment": "live", "address": "b:1"}]),
         "spec.isolation.targets.0.environment", "is production", "'live'"),
        (isolation(zone=None), "spec.isolation.targets.0.zone", "no header names the zone", "'b'"),
        (changed("spec/isolation", {"unmatched": "skip"}), "spec.isolation", "names no header", ""),
        (changed("spec/isolation", ["zone"]), "spec.isolation", "must be a mapping, not a list", ""),
        (protobuf(message="Order!"), "spec.payload.protobuf.message", "not a Protobuf message", "'Order!'"),
        (protobuf(message=".acme.Order"), "spec.payload.protobuf.message", "not a Prot", "'.acme.Order'"),
        (protobuf(descriptor=""), "spec.payload.protobuf.descriptor", "must not be empty", "''"),
        (protobuf(framing="avro"), "spec.payload.protobuf.framing", "must be one of raw, conf", "'avro'"),
        (protobuf(deliver="text"), "spec.payload.protobuf.deliver", "must be one of bytes, rec", "'text'"),
        (changed("spec/headers", {"allow": ["a*b"]}), "spec.headers.allow.0", "not the name", "'a*b'"),
        (changed("spec/headers", {"deny": [""]}), "spec.headers.deny.0", "not the name", "''"),
        (changed("spec/notBefore", "seconds"), "spec.notBefore", "must be one of header", "'seconds'"),
        (protobuf(invalid="drop"), "spec.payload.protobuf.invalid", "must be one of dlq, deliver", "'drop'"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_field_its_value_and_a_remedy(
    document: dict[str, Any], field: str, message: str, value: str
) -> None:
    problem = next(problem for problem in errors(document) if problem.field == field)

    assert message in problem.message
    assert problem.value == value
    assert problem.remedy


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("spec/headOfLine", {}, "spec.headOfLine.stash"),
        ("spec/isolation", {"environment": "x-env"}, "spec.isolation.unmatched"),
        ("spec/payload/protobuf", {"descriptor": "d", "message": "a.B", "invalid": "dlq"},
         "spec.payload.protobuf.invalid"),
    ],
)  # fmt: skip
def test_without_a_dlq_nothing_can_be_sent_there(path: str, value: dict[str, Any], field: str) -> None:
    document = changed(path, value)
    assert errors(document) == []

    document["spec"]["dlq"] = {"enabled": False}

    assert [problem.field for problem in errors(document)] == [field]


def test_without_a_dlq_there_may_be_other_places() -> None:
    document = changed("spec/dlq/enabled", False)
    document["spec"] |= {"headOfLine": {"stash": "retry"}, "retry": [{"delay": "1m"}]}
    document["spec"]["isolation"] = {"zone": "x-zone"}

    assert errors(document) == []


labels = st.none() | st.sampled_from(["a", "b", "c"])
pairs = st.lists(st.tuples(labels, labels).filter(any), max_size=6)


@given(pairs)
def test_only_targets_that_repeat_an_environment_and_zone_are_reported(
    wanted: list[tuple[str | None, str | None]],
) -> None:
    targets = [
        {"address": "b:1"}
        | {name: label for name, label in zip(("environment", "zone"), pair, strict=True) if label}
        for pair in wanted
    ]
    repeated = [f"spec.isolation.targets.{i}" for i, pair in enumerate(wanted) if pair in wanted[:i]]

    assert [problem.field for problem in errors(isolation(targets=targets))] == repeated


# -- the JSON Schema -------------------------------------------------------------------------------


def test_the_json_schema_knows_every_new_field_by_its_name_on_the_wire() -> None:
    parts = json_schema()["$defs"]

    assert set(parts["HeadOfLine"]["properties"]) == {
        "after", "stash", "perMinute", "patience", "full", "unfinished",
    }  # fmt: skip
    assert set(parts["Dlq"]["properties"]) == {"enabled", "maxMerges", "share", "perMinute", "burst"}
    assert set(parts["Isolation"]["properties"]) == {
        "zone", "environment", "targets", "unmatched", "production", "fallbackAfter",
    }  # fmt: skip
    assert parts["IsolationTarget"]["required"] == ["address"]
    assert parts["IsolationTarget"]["anyOf"] == [{"required": ["environment"]}, {"required": ["zone"]}]
    assert parts["Protobuf"]["properties"]["invalid"]["default"] == "deliver"
    assert parts["Target"]["properties"]["contract"]["enum"] == ["unary", "stream", "auto"]
    assert all(part["additionalProperties"] is False for part in parts.values() if part["type"] == "object")


def test_the_example_of_everything_deployable_is_deployable() -> None:
    assert errors(FULL) == []


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ({"zone": "b", "address": "b:1", "fallback": "c"}, None),
        ({"zone": "b", "address": "b:1", "fallback": "b"}, "spec.isolation.targets.1.fallback"),
        ({"zone": "b", "address": "b:1", "fallback": "d"}, "spec.isolation.targets.1.fallback"),
        (
            {"zone": "b", "environment": "staging", "address": "b:1", "fallback": "c"},
            "spec.isolation.targets.1.fallback",
        ),
    ],
)
def test_a_fallback_is_another_zone_of_the_same_environment_that_has_a_target(
    target: dict[str, Any], field: str | None
) -> None:
    targets = [{"zone": "c", "address": "c:1"}, target]
    problems = errors(changed("spec/isolation", {"zone": "z", "environment": "e", "targets": targets}))
    assert [problem.field for problem in problems] == ([] if field is None else [field])
