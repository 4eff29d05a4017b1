"""Regions over the REST API: definitions, derived routes, and where workloads are active."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.controllog.events import (
    FailoverDeleted,
    FailoverPut,
    RegionPulse,
    RolePut,
    RoleReleased,
    WorkloadPut,
)
from tests.web.client import Console
from tests.web.runtime_fake import LAYOUT, definition, put, put_route, route

PATH = "/api/v1/failovers/shared"
KEY = "billing/orders"


def failover(*topics: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "switchyard/v1", "kind": "Failover", "metadata": {"name": "shared"},
        "spec": {"regions": ["east", "west"], "topics": list(topics or ("orders",)), **spec},
    }  # fmt: skip


@pytest.fixture(autouse=True)
def all_clusters(console: Console) -> None:
    """The worker knows all clusters of the layout."""
    console.fed.clusters.specs = dict.fromkeys(LAYOUT.sites)


def step(console: Console) -> None:
    """Runs the leader's next round."""
    asyncio.run(console.fed.failover.step())


def test_a_definition_is_put_read_changed_and_deleted_each_by_one_event(console: Console) -> None:
    created = console.ask("PUT", PATH, failover())
    assert created.status == 201, created.text
    assert (created.json["key"], created.json["warnings"]) == ("failover:shared", [])
    read = console.ask("GET", PATH)
    assert read.headers["ETag"] == created.headers["ETag"] == f'"{read.json["etag"]}"'
    assert read.json["definition"]["spec"]["topics"] == ["orders"]
    assert console.ask("PUT", PATH, failover()).json["changed"] is False
    assert console.ask("PUT", f"{PATH}?dry_run=true", failover("refunds")).json["changed"] is True
    assert console.ask("PUT", PATH, failover("refunds"), If_Match='"other"').status == 412
    assert console.ask("PUT", PATH, failover("refunds"), If_Match=read.headers["ETag"]).status == 200
    (item,) = console.ask("GET", "/api/v1/failovers").json["items"]
    assert (item["name"], item["definition"]["spec"]["topics"]) == ("shared", ["refunds"])
    assert console.ask("DELETE", PATH).json == {"key": "failover:shared", "deleted": True}
    assert console.ask("GET", PATH).status == 404
    kinds = [type(event) for event in console.fed.control.appended]
    assert kinds == [FailoverPut, FailoverPut, FailoverDeleted]


def test_an_impossible_value_is_refused_at_its_field(console: Console) -> None:
    answer = console.ask("PUT", PATH, failover(regions=["east", "wset"]))
    assert answer.status == 422
    (problem,) = answer.json["errors"]
    assert (problem["field"], problem["message"]) == ("spec.regions.1", "no such region")
    assert console.ask("PUT", "/api/v1/failovers/other", failover()).status == 422
    assert console.ask("GET", "/api/v1/failovers/other").status == 404


def test_derived_routes_cannot_be_edited_by_hand_and_say_what_to_change(console: Console) -> None:
    console.ask("PUT", PATH, failover())
    step(console)
    routes = console.ask("GET", PATH).json["routes"]
    assert routes == [
        "shared-east-to-east", "shared-west-to-east", "switchyard-west-to-east",
        "switchyard-west-to-east.events",
    ]  # fmt: skip
    one = f"/api/v1/routes/{routes[1]}"
    read = console.ask("GET", one)
    assert read.json["deployed"]["made_by"] == "shared"
    assert read.json["deployed"]["by"] == "made by failover definition shared"
    for method, path, body in (
        ("PUT", one, read.json["definition"]), ("DELETE", one, None),
        ("PUT", f"{one}/topics/refunds", None), ("DELETE", f"{one}/topics/orders", None),
    ):  # fmt: skip
        refused = console.ask(method, path, body)
        assert (refused.status, refused.json["title"]) == (409, "Derived"), refused.text
        assert "change shared instead (GET /api/v1/failovers/shared)" in refused.json["detail"]
    assert console.ask("POST", f"{one}/pause").status == 200, "an operator may still stop it"
    console.ask("DELETE", PATH)
    step(console)
    assert console.ask("GET", one).status == 404


def test_a_definition_that_conflicts_with_others_is_refused(console: Console) -> None:
    console.fed.apply(put_route(route("shared-west-to-east", "west-regional", "east")))
    refused = console.ask("PUT", PATH, failover())
    assert refused.status == 409
    assert "its route shared-west-to-east is defined already; delete that route" in refused.json["detail"]
    console.ask("DELETE", "/api/v1/routes/shared-west-to-east")
    console.fed.apply(put_route(route("by-hand", "west-regional", "east")))
    twice = console.ask("PUT", f"{PATH}?dry_run=true", failover())
    assert (twice.status, "would copy twice: orders" in twice.json["detail"]) == (409, True)
    assert console.ask("PUT", PATH, failover("refunds")).status == 201
    step(console)
    second = failover("refunds.*")
    second["metadata"]["name"] = "more"
    assert console.ask("PUT", "/api/v1/failovers/more", second).status == 409


def test_roles_are_shown_with_the_state_of_other_regions(console: Console) -> None:
    for topic, mode in (("orders", "active-passive"), ("refunds", "active-active")):
        console.fed.apply(put(definition(topic=topic, mode=mode)))
    console.fed.apply(put(definition(topic="local")))
    console.ask("PUT", PATH, failover())
    unknown = console.ask("GET", "/api/v1/failover").json
    assert unknown["regions"] == [
        {"region": "east", "own": True, "copy_age_s": None},
        {"region": "west", "own": False, "copy_age_s": None},
    ]
    assert [(role["workload"], role["region"], role["state"]) for role in unknown["roles"]] == [
        (KEY, None, "unknown"), ("billing/refunds", None, "unknown"),
    ]  # fmt: skip
    console.fed.apply(
        RolePut(at_ms=5, key=KEY, region="west", epoch=65, state="moving", previous="east", plan="p",
                actor="me", reason="a drill"),
        RoleReleased(at_ms=6, key=KEY, region="east", epoch=65),
        RegionPulse(at_ms=7, region="east", heard={"west": 1}),
    )  # fmt: skip
    known = console.ask("GET", "/api/v1/failover").json
    assert known["roles"][0] == {
        "workload": KEY, "mode": "active-passive", "region": "west", "epoch": 65, "state": "moving",
        "active_here": False, "previous": "east", "since_ms": 5, "by": "me", "reason": "a drill", "plan": "p",
        "regions": ["east", "west"], "released": {"east": 65}, "offsets": None,
    }  # fmt: skip
    assert known["regions"][1]["copy_age_s"] > 1000


def test_a_workload_that_would_be_active_in_no_region_gets_a_warning_when_it_is_deployed(
    console: Console,
) -> None:
    path, data = f"/api/v1/workloads/{KEY}?dry_run=true", definition(mode="active-passive")
    (doubt,) = console.ask("PUT", path, data).json["warnings"]
    assert "no region will be active for it: no Failover definition shares its topic" in doubt
    console.ask("PUT", PATH, failover())
    assert console.ask("PUT", path, data).json["warnings"] == []
    data["spec"]["primary"] = "west"
    assert console.ask("PUT", path, data).json["warnings"] == []


def test_a_workload_with_a_mode_may_name_any_regions_cluster(console: Console) -> None:
    data = definition(mode="active-passive")
    assert console.ask("PUT", f"/api/v1/workloads/{KEY}", data).status == 201
    data["metadata"]["cluster"] = "west"
    assert console.ask("PUT", f"/api/v1/workloads/{KEY}", data).status == 200, "it reads east's either way"
    data["metadata"]["cluster"] = "east-regional"
    other = console.ask("PUT", f"/api/v1/workloads/{KEY}", data)
    assert (other.status, "its cluster cannot change" in other.json["detail"]) == (409, True)
    assert [type(event) for event in console.fed.control.appended] == [WorkloadPut, WorkloadPut]


def test_a_region_that_has_just_returned_says_so_and_until_when(console: Console) -> None:
    console.ask("PUT", PATH, failover())
    assert console.ask("GET", "/api/v1/failover").json["returned"] is None
    console.fed.apply(RegionPulse(at_ms=7, region="east", returned_ms=5))
    returned = console.ask("GET", "/api/v1/failover").json["returned"]
    assert returned["since_ms"] == 5
    assert "has not read yet what other regions decided" in returned["why"]
    assert "once west answered" in returned["remedy"]
    assert "at the latest after 120 s" in returned["remedy"]
    goes_on = RegionPulse(at_ms=8, region="east", workers=[console.fed.failover.keeper._presence.name])
    console.fed.apply(goes_on)
    assert console.ask("GET", "/api/v1/failover").json["returned"] is None
