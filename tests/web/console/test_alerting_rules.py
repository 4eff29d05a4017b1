"""The published alerting rules use only metrics and commands that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from app.cli.main import switchyard
from app.worker.jobs.vanished_topics import ExpectedTopic, TopicPresence
from tests.web.client import Console
from tests.web.runtime_fake import assigned, beat, definition, flowing, job, put

RULES = Path(__file__).parents[3] / "docker" / "prometheus" / "alerts.yaml"


@pytest.fixture
def rules() -> list[dict[str, Any]]:
    return [rule for group in YAML(typ="safe").load(RULES)["groups"] for rule in group["rules"]]


def test_every_metric_and_label_of_a_rule_is_exported(rules: list[dict[str, Any]], console: Console) -> None:
    text = console.ask("GET", "/metrics").text
    exported = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    used = {name for rule in rules for name in re.findall(r"switchyard_\w+", rule["expr"])}
    assert len(used) > 10
    assert used <= exported


def test_every_series_names_its_region(console: Console) -> None:
    console.fed.apply(put(definition()), assigned(job(0)))
    console.fed.observe(beat(flowing(job(0), delivered=5)))
    lines = [line for line in console.ask("GET", "/metrics").text.splitlines() if not line.startswith("#")]
    assert len(lines) > 30
    assert [line for line in lines if 'region="east"' not in line] == []


def test_no_rule_sums_over_regions(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        for found in re.finditer(r"\b(sum|count|max|min|avg)\b *(by)?", rule["expr"]):
            assert found[2], rule["alert"]
        for labels in re.findall(r"\bby *\(([^)]*)\)", rule["expr"]):
            assert "region" in labels, rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("check", "rules", RULES.name), marks=pytest.mark.deep(minutes=0.2)),
        ("test", "rules", "alerts_test.yaml"),
    ],
)
def test_the_rules_fire_when_they_should_as_prometheus_reads_them(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=RULES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_of_a_rule_exists(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "action"}
        for noun, verb in re.findall(r"switchyard ([a-z]+) ([a-z-]+)", rule["annotations"]["action"]):
            assert verb in switchyard.commands[noun].commands, rule["alert"]


def test_a_topic_that_vanished_has_a_series_that_a_rule_fires_on(
    rules: list[dict[str, Any]], console: Console
) -> None:
    vanished = console.fed.catalog.vanished_topics
    topic = ExpectedTopic("route", "mirror", "east", "orders")
    vanished.of = {"replicate:mirror:orders": TopicPresence(topic, "absent")}
    text = console.ask("GET", "/metrics").text
    labels = 'cluster="east",kind="route",name="mirror",region="east",state="absent",topic="orders"'
    assert f"switchyard_topic_vanished{{{labels}}} 1.0" in text
    (rule,) = [rule for rule in rules if rule["alert"] == "SwitchyardTopicVanished"]
    assert rule["expr"] == "switchyard_topic_vanished == 1"
    vanished.of = {}
