"""A definition is accepted only at its own address."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.alerts.api import test_rest
from tests.audit.api import plans
from tests.web import runtime_fake
from tests.web.client import Console

FAILOVER = {
    "apiVersion": "switchyard/v1", "kind": "Failover", "metadata": {"name": "mine"},
    "spec": {"regions": ["east", "west"], "topics": ["orders"]},
}  # fmt: skip
BY_NAME = [
    ("routes", runtime_fake.route("mine")),
    ("failovers", FAILOVER),
    ("audit/plans", plans.plan()),
    ("alerts", test_rest.definition()),
]


def named(data: dict[str, Any], name: str) -> dict[str, Any]:
    """The definition with this name and topics of its own, so that two names do not conflict."""
    metadata, spec = {**data["metadata"], "name": name}, {**data["spec"], "topics": [f"of-{name}"]}
    return {**data, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(("path", "data"), BY_NAME, ids=[path for path, _ in BY_NAME])
@pytest.mark.parametrize("other", ["other", "Mine", "mine ", "x" * 300, "<img src=x>"])
@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_a_definition_that_is_sent_to_the_address_of_another_changes_nothing(
    console: Console, path: str, data: dict[str, Any], other: str, query: str
) -> None:
    answer = console.ask("PUT", f"/api/v1/{path}/{quote(other, safe='')}{query}", named(data, "mine"))
    assert (answer.status, answer.json["title"]) == (422, "Wrong address"), answer.text
    assert answer.json["detail"] == f"the definition is of mine, the address of {other[:100]}"
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert not console.fed.control.appended


@pytest.mark.parametrize(("path", "data"), BY_NAME, ids=[path for path, _ in BY_NAME])
def test_an_existing_definition_is_not_changed_through_the_address_of_another(
    console: Console, path: str, data: dict[str, Any]
) -> None:
    for name in ("mine", "other"):
        assert console.ask("PUT", f"/api/v1/{path}/{name}", named(data, name)).status == 201
    etags = _etags(console, path)
    changed = named(data, "mine")
    changed["metadata"]["owner"] = "somebody"
    assert console.ask("PUT", f"/api/v1/{path}/other", changed, If_Match=etags[0]).status == 422
    assert console.ask("PUT", f"/api/v1/{path}/other", changed).status == 422
    assert _etags(console, path) == etags


def _etags(console: Console, path: str) -> list[str]:
    return [console.ask("GET", f"/api/v1/{path}/{name}").headers["ETag"] for name in ("mine", "other")]


def test_a_workload_goes_to_its_own_group_and_topic_only(console: Console) -> None:
    for path in ("billing/other", "other/orders"):
        answer = console.ask("PUT", f"/api/v1/workloads/{path}", runtime_fake.definition())
        assert answer.status == 422, answer.text
    assert not console.fed.control.appended
