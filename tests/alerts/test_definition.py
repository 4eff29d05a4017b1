"""Definitions of alerts: errors name the field and the remedy, and no definition contains a secret."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.alerts.channel_definition import Channel, MissingVariable, revealed
from app.alerts.definition import AlertDefinition
from app.alerts.rules import AlertThreshold
from app.config.problems import InvalidConfiguration
from app.definitions.plan import plan
from app.definitions.registry import json_schema, load_definitions, parse_alert, parse_any
from tests.config.examples import changed

HOOK = {"webhook": {"url": "https://alerts.example/hook?a=b", "headers": {"X-Team": "data"}}}
SLACK = {"slack": {"url": "env:SWITCHYARD_ALERT_SLACK"}}
MAIL = {"email": {"smtp": "mail.example:587", "from": "yard@example.org", "to": ["oncall@example.org"]}}
ALERT: dict[str, Any] = {
    "apiVersion": "switchyard/v1",
    "kind": "Alert",
    "metadata": {"name": "orders-lost", "owner": "data"},
    "spec": {
        "on": ["loss", "corruption"],
        "topics": ["orders", r"payments\..*"],
        "exclude": [r".*\.test"],
        "tiers": ["regional", "aggregate"],
        "above": 10,
        "for": "5m",
        "severity": "critical",
        "channels": [
            HOOK,
            {"webhook": {"url": {"env": "SWITCHYARD_ALERT_URL"}}},
            {"alertmanager": {"url": "http://am:9093", "headers": {"X-Token": "env:SWITCHYARD_ALERT_AM"}}},
        ],
    },
}  # fmt: skip


def edited(path: str, value: Any) -> dict[str, Any]:
    return changed(path, value, base=ALERT)


def errors_of(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_alert(document)
    errors = [problem for problem in caught.value.problems if problem.severity == "error"]
    return {problem.field: f"{problem.message}; {problem.remedy}" for problem in errors}


def test_a_valid_definition_comes_back_from_the_wire_and_fits_the_schema() -> None:
    found, warnings = parse_alert(ALERT)

    assert (found.key, warnings, found.spec.for_) == ("alert:orders-lost", [], 300.0)
    assert AlertDefinition.from_wire(json.loads(json.dumps(found.to_wire()))).etag() == found.etag()
    assert "AlertDefinition" in json.dumps(json_schema())
    assert parse_any(ALERT)[0] == found
    rule = found.rule
    assert (rule.for_ms, rule.above, rule.tiers, len(set(rule.channels))) == (
        300_000, AlertThreshold("records", 10), ("regional", "aggregate"), 3,
    )  # fmt: skip
    assert [rule.means(topic) for topic in ("orders", "payments.a", "payments.test", "x")] == [1, 1, 0, 0]
    _, by_name, manager = found.spec.channels
    assert (by_name.variables, manager.variables) == (["SWITCHYARD_ALERT_URL"], ["SWITCHYARD_ALERT_AM"])
    assert found.spec.channels[0].place == "https://alerts.example"


@pytest.mark.parametrize(
    ("value", "above"),
    [
        (0, AlertThreshold("records", 0)),
        ("12", AlertThreshold("records", 12)),
        ("0.10 %", AlertThreshold("share", 0.001)),
        ("100%", AlertThreshold("share", 1.0)),
    ],
)
def test_a_threshold_is_a_number_a_share_or_a_time(value: Any, above: AlertThreshold) -> None:
    found, _ = parse_alert(edited("spec/above", value))
    assert found.above == above
    assert AlertDefinition.from_wire(found.to_wire()).to_wire() == found.to_wire()


def test_a_rule_may_have_one_kind_only_and_lag_needs_a_time() -> None:
    found, _ = parse_alert(changed("spec/above", "1m30s", base=edited("spec/on", "lag")))
    assert (found.spec.on, found.above, found.to_wire()["spec"]["above"]) == (
        ("lag",), AlertThreshold("ms", 90_000), "1m30s",
    )  # fmt: skip


CHANNEL = "spec/channels"


@pytest.mark.parametrize(
    ("path", "value", "field", "expected"),
    [
        ("spec/on", [], "spec.on", "1"),
        ("spec/on", ["los"], "spec.on.0", "did you mean loss?"),
        ("spec/on", ["loss", "loss"], "spec.on", "names one twice"),
        ("spec/on", ["loss", "lag"], "spec.on", "an Alert of its own for lag"),
        ("spec/on", "lag", "spec.above", "threshold of lag is a duration"),
        ("spec/on", "absent-audit", "spec.above", "leave it out"),
        ("spec/above", "30s", "spec.above", "write a number of records"),
        ("spec/above", "101%", "spec.above", "from 0% to 100%"),
        ("spec/above", -1, "spec.above", "a share like 0.1%"),
        ("spec/above", "many", "spec.above", "a share like 0.1%"),
        ("spec/topics", ["("], "spec.topics.0", "is not closed"),
        ("spec/topics", ["switchyard-.*"], "spec.topics", "no topic is meant"),
        ("spec/tiers", ["regional"], "spec.tiers", "not two tiers"),
        ("spec/tiers", ["regional", "regional"], "spec.tiers", "not two tiers"),
        ("spec/severity", "grave", "spec.severity", "critical"),
        ("spec/within", "5m", "spec.within", "write more than for"),
        ("metadata/name", "a/b", "metadata.name", "not a name"),
        (CHANNEL, [{}], "spec.channels.0", "exactly one of webhook"),
        (CHANNEL, [{**HOOK, **MAIL}], "spec.channels.0", "has webhook and email"),
        (CHANNEL, [HOOK, HOOK], "spec.channels.1.webhook", "the same place"),
        (CHANNEL, [{"webhook": {"url": "alerts.example"}}], "spec.channels.0.webhook.url", "not an address"),
        (CHANNEL, [{"webhook": {"url": "https://a:b@c"}}], "spec.channels.0.webhook.url", "holds a user"),
        (CHANNEL, [{"webhook": {"url": "env:AWS_SECRET"}}], "spec.channels.0.webhook.url", "alerts may use"),
        (CHANNEL, [SLACK], "spec.channels.0.slack", "name an alertmanager channel, and write slack_configs"),
        (CHANNEL, [{"slack": "https://a.example/hunter2"}], "spec.channels.0.slack", "no longer a channel"),
        (CHANNEL, [HOOK, MAIL], "spec.channels.1.email", "email_configs in Alertmanager's configuration"),
        (
            CHANNEL, [{"webhook": {"url": "https://a", "headers": {"X-Api-Key": "k3y"}}}],
            "spec.channels.0.webhook.headers", "a secret",
        ),
        (
            CHANNEL, [{"webhook": {"url": "https://a", "headers": {"X-A": "a\r\nb"}}}],
            "spec.channels.0.webhook.headers", "printable ASCII",
        ),
        (CHANNEL, [{"pager": {"url": "https://a"}}], "spec.channels.0.pager", "here: alertmanager, webhook"),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_at_its_place(
    path: str, value: Any, field: str, expected: str
) -> None:
    problems = errors_of(edited(path, value))

    assert field in problems, problems
    assert expected in problems[field]
    assert "hunter2" not in str(problems)


def test_an_alert_without_channels_is_a_warning() -> None:
    _, warnings = parse_alert(edited(CHANNEL, []))
    assert ["nobody gets a notice" in str(warning) for warning in warnings] == [True]


def test_repeat_of_an_earlier_version_is_a_warning_and_leaves_the_definition_the_same() -> None:
    found, warnings = parse_alert(edited("spec/repeat", "4h"))
    assert [(one.field, one.value, one.severity) for one in warnings] == [("spec.repeat", "'4h'", "warning")]
    assert "repeat_interval in Alertmanager" in warnings[0].remedy
    assert found.to_wire() == parse_alert(ALERT)[0].to_wire()
    assert not re.findall('"(repeat|slack|email)"', json.dumps(AlertDefinition.model_json_schema()))


@pytest.mark.parametrize("removed", [SLACK, MAIL, {"slack": "x"}, {"email": [1, {"a": 2}]}])
def test_a_stored_definition_with_a_removed_channel_is_read_and_keeps_its_other_channels(
    removed: Any,
) -> None:
    stored = changed(CHANNEL, [removed, HOOK], base=edited("spec/repeat", "4h"))
    found = AlertDefinition.from_wire(stored)
    gone, hook = found.spec.channels
    assert found.rule.channels == (hook.key,)
    assert (gone.kind, gone.target, gone.place, gone.variables) == (*removed, None, "(removed)", [])
    assert "Alertmanager" in gone.trouble
    assert not hook.trouble
    assert found.to_wire()["spec"]["channels"][0] == removed, "the export lacks the stored channel"


def test_an_environment_variable_is_read_when_it_is_needed() -> None:
    env = {"SWITCHYARD_ALERT_X": " https://a\n"}
    assert revealed("env:SWITCHYARD_ALERT_X", env) == "https://a"
    assert revealed("https://b", env) == "https://b"
    with pytest.raises(MissingVariable, match="SWITCHYARD_ALERT_Y is not set here"):
        revealed("env:SWITCHYARD_ALERT_Y", env)


def test_a_channel_with_another_address_has_another_key() -> None:
    def key(channel: dict[str, Any]) -> str:
        return Channel.model_validate(channel).key

    assert key(HOOK) == key({"webhook": {**HOOK["webhook"], "headers": {}}})
    assert key(HOOK) != key({"webhook": {"url": "https://alerts.example/other"}})
    assert key(SLACK) != key({"slack": {"url": "env:SWITCHYARD_ALERT_OTHER"}})


def test_an_alert_is_planned_beside_other_definitions() -> None:
    wanted, _ = parse_alert(ALERT)
    before, _ = parse_alert(edited("spec/above", 3))
    (changes,) = plan({before.key: before}, [wanted]).changes
    assert (changes.action, changes.kind.name, [f.field for f in changes.fields]) == (
        "update", "Alert", ["spec.above"],
    )  # fmt: skip
    assert [c.action for c in plan({}, [wanted]).changes] == ["create"]
    assert [c.action for c in plan({before.key: before}, [], prune=True).changes] == ["delete"]
    assert [c.action for c in plan({before.key: before}, [before]).changes] == ["unchanged"]


def test_two_alerts_of_one_name_are_refused_and_an_audit_plan_may_share_it(tmp_path: Path) -> None:
    alert = "apiVersion: switchyard/v1\nkind: Alert\nmetadata: {name: a}\nspec: {on: loss, topics: [x]}\n"
    audit = "apiVersion: switchyard/v1\nkind: AuditPlan\nmetadata: {name: a}\nspec: {topics: [x]}\n"
    file = tmp_path / "a.yaml"
    file.write_text(f"{alert}---\n{audit}")
    assert len(load_definitions([file])[0]) == 2
    file.write_text(f"{alert}---\n{alert}")
    with pytest.raises(InvalidConfiguration, match="defined twice"):
        load_definitions([file])
