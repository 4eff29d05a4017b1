"""A definition is accepted only at its own address."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from app.definitions.api.requests import MAX_PAGE_BYTES
from tests.alerts.api import test_rest
from tests.audit.api import plans
from tests.config.examples import with_bytes
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


# -- lists -----------------------------------------------------------------------------------------


def test_lists_have_definitions_where_asked(console: Console) -> None:
    derived = msgspec.structs.replace(runtime_fake.put_route(runtime_fake.route()), made_by="failover:orders")
    console.fed.apply(runtime_fake.put(runtime_fake.definition()), derived)
    for path, names in (("workloads", {"definition"}), ("routes", {"definition", "made_by"})):
        (plain,) = console.ask("GET", f"/api/v1/{path}").json["items"]
        (whole,) = console.ask("GET", f"/api/v1/{path}?definitions=true").json["items"]
        assert whole.keys() - plain.keys() == names
        one = console.ask("GET", f"/api/v1/{path}/{whole.get('key') or whole['name']}").json
        assert whole["definition"] == one["definition"]
        assert console.ask("GET", f"/api/v1/{path}?definitions=yes").status == 400
    assert whole["made_by"] == "failover:orders"


def test_a_page_of_large_definitions_is_bounded_and_loses_none(console: Console) -> None:
    size = MAX_PAGE_BYTES // 9
    groups = [f"g{number:02}" for number in range(20)]
    large = (with_bytes(runtime_fake.definition(group), size) for group in groups)
    console.fed.apply(*map(runtime_fake.put, large))
    found, cursor, pages = [], "0", 0
    while cursor is not None:
        answer = console.ask("GET", f"/api/v1/workloads?definitions=true&limit=1000&cursor={cursor}")
        assert len(answer.text) < MAX_PAGE_BYTES + 100_000
        found += [item["key"] for item in answer.json["items"]]
        cursor, pages = answer.json["next"], pages + 1
    assert (found, pages) == ([f"{group}/orders" for group in groups], 3)
