"""The published alerting rules ask for metrics that there are, and commands that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from app.cli.main import switchyard
from app.control.vanished import Found, Topic
from tests.console.client import Console

RULES = Path(__file__).parents[2] / "docker" / "prometheus" / "alerts.yaml"


@pytest.fixture
def rules() -> list[dict[str, Any]]:
    return [rule for group in YAML(typ="safe").load(RULES)["groups"] for rule in group["rules"]]


def test_every_metric_and_label_of_a_rule_is_told(rules: list[dict[str, Any]], console: Console) -> None:
    text = console.ask("GET", "/metrics").text
    told = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    asked = {name for rule in rules for name in re.findall(r"switchyard_\w+", rule["expr"])}
    assert len(asked) > 10
    assert asked <= told


def test_every_command_of_a_rule_is_one(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "action"}
        for noun, verb in re.findall(r"switchyard ([a-z]+) ([a-z-]+)", rule["annotations"]["action"]):
            assert verb in switchyard.commands[noun].commands, rule["alert"]


def test_a_topic_that_vanished_has_a_series_that_a_rule_fires_on(
    rules: list[dict[str, Any]], console: Console
) -> None:
    vanished = console.fed.catalog.vanished
    topic = Topic("route", "mirror", "east", "orders")
    vanished.of = {"replicate:mirror:orders": Found(topic, "absent")}
    text = console.ask("GET", "/metrics").text
    labels = 'cluster="east",kind="route",name="mirror",state="absent",topic="orders"'
    assert f"switchyard_topic_vanished{{{labels}}} 1.0" in text
    (rule,) = [rule for rule in rules if rule["alert"] == "SwitchyardTopicVanished"]
    assert rule["expr"] == "switchyard_topic_vanished == 1"
    vanished.of = {}
