"""Failovers over the REST API: planned, executed step by step, forced, aborted, failed back."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import msgspec
import pytest

from app.controllog.events import Claim, RegionPulse, RolePut, RoleReleased
from app.kernel.clock import now_ms
from tests.failover.api.test_rest import PATH, failover
from tests.web.client import Answer, Console
from tests.web.runtime_fake import LAYOUT, ME, FakeRuntime, beat, definition, put

API = "/api/v1/failover"
KEY, OTHER = "billing/orders", "billing/refunds"


def hear_west(fed: FakeRuntime, ago_s: float = -3_600.0) -> None:
    """The west's last report came `ago_s` ago. By default it stays recent for the whole test."""
    bridge = fed.failover.bridge
    bridge.pulses["west"] = RegionPulse(at_ms=now_ms(), region="west")
    bridge._arrived_s["west"] = time.monotonic() - ago_s


def role(region: str, epoch: int, key: str = KEY, **fields: Any) -> RolePut:
    return RolePut(at_ms=1, key=key, region=region, epoch=epoch, state="active", **fields)


def regions(fed: FakeRuntime) -> None:
    """Two workloads that are active in the west, as the east knows."""
    fed.clusters.specs = dict.fromkeys(LAYOUT.sites)
    fed.observe(beat())
    for key in (KEY, OTHER):
        topic = key.split("/")[1]
        fed.apply(put(definition(topic=topic, mode="active-passive")), role("west", 65, key))
    hear_west(fed)


@pytest.fixture(autouse=True)
def two_workloads(console: Console) -> None:
    regions(console.fed)
    assert console.ask("PUT", PATH, failover("orders", "refunds")).status == 201


def step(console: Console) -> None:
    """Runs the leader's next round."""
    asyncio.run(console.fed.failover.step())


def planned(console: Console, **body: Any) -> Any:
    answer = console.ask("POST", f"{API}/plan", {"to": "east", **body})
    assert answer.status == 200, answer.text
    return answer.json


def execute(console: Console, name: str, **body: Any) -> Answer:
    return console.ask("POST", f"{API}/execute", {"id": name, **body})


def stages(console: Console, name: str) -> list[str]:
    return [row["stage"] for row in console.ask("GET", f"{API}/{name}").json["rows"]]


def released(console: Console, key: str, epoch: int) -> None:
    console.fed.apply(RoleReleased(at_ms=1, key=key, region="west", epoch=epoch))


def test_a_plan_is_kept_and_executed_step_by_step_until_it_is_done(console: Console) -> None:
    made = planned(console, reason="maintenance")
    assert (made["state"], made["workloads"], made["reason"]) == ("planned", 2, "maintenance")
    assert [one["workload"] for one in made["plan"]["workloads"]] == [KEY, OTHER]
    levels = {check["name"]: check["level"] for check in made["plan"]["checks"]}
    assert levels == {"workers": "ok", "heard": "ok"}
    assert made["plan"]["workloads"][0]["why"] == "this worker has no offset map", (
        "the plan names what it cannot know"
    )
    name = made["id"]
    assert stages(console, name) == ["to-begin", "to-begin"]
    dry_run = execute(console, name, dry_run=True).json
    assert (dry_run["in_the_way"], dry_run["changed"], dry_run["state"]) == ([], False, "planned")
    started = execute(console, name)
    assert (started.status, started.json["state"], started.json["changed"]) == (200, "executing", True), (
        started.text
    )
    assert execute(console, name).json["changed"] is False, "the run already executes"

    step(console)
    roles = console.ask("GET", API).json["roles"]
    assert {(r["region"], r["state"], r["epoch"], r["previous"], r["plan"]) for r in roles} == {
        ("east", "moving", 128, "west", name)
    }  # fmt: skip
    (waits, _) = console.ask("GET", f"{API}/{name}").json["rows"]
    assert (waits["stage"], waits["waits_for"]) == ("releasing", "region west to release it")
    assert f"switchyard failover execute {name} --force" in waits["remedy"]
    released(console, KEY, 128)
    step(console)
    assert stages(console, name) == ["active", "releasing"]
    released(console, OTHER, 128)
    step(console)
    step(console)
    done = console.ask("GET", f"{API}/{name}").json
    assert (done["state"], done["result"]) == ("done", "2 active")
    assert done["took_s"] >= 0
    assert done["plan"] is not None, "the run keeps the plan"
    (listed,) = console.ask("GET", f"{API}/runs").json["items"]
    assert (listed["id"], listed["state"]) == (name, "done")
    events = [
        one for one in console.ask("GET", "/api/v1/activity").json["items"] if one["event"] == "failover-run"
    ]
    assert [one["state"] for one in events] == ["done", "executing", "planned"]
    assert execute(console, name).json["title"] == "It has ended"
    assert "failback" in console.ask("POST", f"{API}/abort", {"id": name}).json["detail"]


def test_a_forced_run_waits_for_no_region_also_when_it_waited_before(console: Console) -> None:
    name = planned(console, workloads=[KEY])["id"]
    execute(console, name)
    step(console)
    assert stages(console, name) == ["releasing"]
    assert execute(console, name, force=True).json["forced"]
    step(console)
    step(console)
    assert console.ask("GET", f"{API}/{name}").json["state"] == "done"
    held = console.fed.control.view.roles.of(KEY)
    assert held is not None
    assert (held.region, held.state, held.epoch) == ("east", "active", 128)


def test_after_an_abort_moving_workloads_go_back_and_active_ones_stay(console: Console) -> None:
    name = planned(console)["id"]
    execute(console, name)
    step(console)
    released(console, KEY, 128)
    step(console)
    aborted = console.ask("POST", f"{API}/abort", {"id": name, "reason": "west is well"}).json
    assert (aborted["state"], [row["stage"] for row in aborted["rows"]]) == (
        "aborted",
        ["active", "returning"],
    )
    step(console)
    assert stages(console, name) == ["active", "back"]
    returned = console.fed.control.view.roles.of(OTHER)
    assert returned is not None
    assert (returned.region, returned.state, returned.epoch, returned.reason) == (
        "west", "active", 129, f"failover aborted {name}; west is well",
    )  # fmt: skip
    never = planned(console)["id"]
    assert console.ask("POST", f"{API}/abort", {"id": never}).json["result"] == "aborted before it was begun"


def test_an_abort_after_the_end_of_the_run_is_refused(console: Console) -> None:
    name = planned(console, workloads=[KEY])["id"]
    execute(console, name, force=True)
    step(console)
    held = console.fed.control.view.runs.get(name)
    assert held is not None
    done = msgspec.structs.replace(held, state="done", result="1 active", plan=None)
    console.fed.control.meanwhile = [done]
    late = console.ask("POST", f"{API}/abort", {"id": name})
    assert (late.status, late.json["title"]) == (409, "It has ended")
    assert "1 active; to move its workloads back, plan a failback" in late.json["detail"]
    assert console.ask("GET", f"{API}/{name}").json["state"] == "done"


def test_a_region_that_is_not_heard_is_only_taken_over_by_force(console: Console) -> None:
    hear_west(console.fed, ago_s=60.0)
    made = planned(console)
    (check,) = (one for one in made["plan"]["checks"] if one["name"] == "heard")
    assert (check["level"], check["may_force"]) == ("blocked", True)
    assert "if it is lost, plan with --force" in check["remedy"]
    refused = execute(console, made["id"])
    assert (refused.status, "would wait in vain" in refused.json["detail"]) == (412, True)
    assert execute(console, made["id"], force=True).json["state"] == "executing"
    hear_west(console.fed)
    forced = planned(console, force=True, workloads=[KEY])
    assert any("plan without --force" in check["remedy"] for check in forced["plan"]["checks"])


def test_an_outdated_plan_is_refused_with_the_reason(console: Console) -> None:
    first, second = planned(console)["id"], planned(console)["id"]
    execute(console, first)
    refused = execute(console, second)
    assert (refused.status, refused.json["title"]) == (412, "Not as planned")
    assert f"failover {first} is moving it" in refused.json["detail"]
    assert "blocked" in {c["level"] for c in planned(console)["plan"]["workloads"][0]["checks"]}
    console.ask("POST", f"{API}/abort", {"id": first})
    console.fed.apply(role("west", 129))
    changed = execute(console, second).json["detail"]
    assert f"{KEY} was west's under epoch 65, now it is west's under epoch 129; plan again" in changed
    old = msgspec.structs.replace(
        console.fed.control.view.runs.get(second), id="failover-old", expires_ms=now_ms() - 1
    )
    console.fed.control.view.apply(old)
    expired = execute(console, "failover-old")
    assert (expired.status, "has expired; plan again" in expired.json["detail"]) == (412, True)
    assert console.ask("GET", f"{API}/failover-old").json["state"] == "expired"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"to": "west"}, 409, "send the command to a worker of west"),
        ({"to": "mars"}, 409, "send the command to a worker of mars"),
        ({"to": ""}, 400, "to: name the region"),
        ({"to": "east", "workloads": ["billing/none"]}, 409, "is no workload with a mode"),
        ({"to": "east", "workloads": "x"}, 400, "write a list of group/topic"),
        ({"to": "east", "force": "yes"}, 400, "must be true or false"),
    ],
)
def test_an_impossible_plan_is_refused_with_the_remedy(
    console: Console, body: dict[str, Any], status: int, words: str
) -> None:
    answer = console.ask("POST", f"{API}/plan", body)
    assert (answer.status, words in answer.json["detail"]) == (status, True), answer.text
    assert not len(console.fed.control.view.runs)


def test_a_workload_that_is_active_here_is_not_moved(console: Console) -> None:
    console.fed.apply(role("east", 128), role("east", 128, OTHER))
    assert "there is nothing to move" in console.ask("POST", f"{API}/plan", {"to": "east"}).json["detail"]
    named = console.ask("POST", f"{API}/plan", {"to": "east", "workloads": [KEY]})
    assert "is active in east already" in named.json["detail"]
    for path, body in (("execute", {"id": "none"}), ("abort", {"id": "none"})):
        assert console.ask("POST", f"{API}/{path}", body).status == 404
        assert console.ask("POST", f"{API}/{path}", {}).status == 400
    assert console.ask("GET", f"{API}/failover-none").status == 404


def test_a_failback_takes_back_what_a_failover_took_away_and_nothing_else(console: Console) -> None:
    nothing = console.ask("POST", f"{API}/failback", {})
    assert (nothing.status, "no failover has a workload to give back" in nothing.json["detail"]) == (
        409,
        True,
    )
    console.fed.apply(role("west", 129, previous="east", plan="failover-w"))
    other = console.ask("POST", f"{API}/failback", {"id": "failover-x"})
    assert (other.status, "these have: failover-w" in other.json["detail"]) == (409, True)
    made = console.ask("POST", f"{API}/failback", {}).json
    assert (made["back_of"], made["reason"]) == ("failover-w", "back after failover-w")
    assert [row["workload"] for row in made["rows"]] == [KEY]
    assert execute(console, made["id"]).json["state"] == "executing"


def test_a_drill_reports_its_result_and_is_recorded_as_an_operators_act(console: Console) -> None:
    started = console.ask("POST", f"{API}/drill", {"to": "east"})
    assert started.status == 202, started.text
    until_s = time.monotonic() + 30
    while (op := console.ask("GET", started.headers["Location"]).json)["state"] == "running":
        assert time.monotonic() < until_s
        time.sleep(0.05)
    assert (op["state"], op["kind"], op["progress"]["partitions"]) == ("done", "drill", [])
    acts = [
        one for one in console.ask("GET", "/api/v1/activity").json["items"] if one["event"] == "operator-act"
    ]
    assert [(one["action"], one["subject"]) for one in acts] == [("failover-drill", op["id"])]


def test_a_wait_for_the_leader_names_it_and_the_age_of_its_heartbeat(console: Console) -> None:
    name = planned(console, workloads=[KEY])["id"]
    assert console.ask("GET", f"{API}/{name}").json["rows"][0]["waits_for"] == "", "it is only planned"
    execute(console, name)
    (row,) = console.ask("GET", f"{API}/{name}").json["rows"]
    assert row["waits_for"] == "the leader of east (there is none) to write it"
    assert "whose rounds succeed" in row["remedy"]
    console.fed.apply(Claim(at_ms=1, term=1, worker="worker-gone"))
    (row,) = console.ask("GET", f"{API}/{name}").json["rows"]
    assert row["waits_for"] == "the leader of east (worker-gone, not heard) to write it"
    console.fed.apply(Claim(at_ms=1, term=2, worker=ME))
    (row,) = console.ask("GET", f"{API}/{name}").json["rows"]
    assert re.fullmatch(
        rf"the leader of east \({ME}, last heard \d+\.\d s ago\) to write it", row["waits_for"]
    )

    console.fed.apply(role("east", 128, previous="west", plan=name))
    run = console.ask("GET", f"{API}/{name}").json
    assert (run["state"], run["rows"][0]["waits_for"]) == ("executing", "")
    assert run["waits_for"].endswith("to write that it has ended")
    assert "whose rounds succeed" in run["remedy"]
    step(console)
    run = console.ask("GET", f"{API}/{name}").json
    assert (run["state"], run["waits_for"], run["remedy"]) == ("done", "", "")


def test_in_a_region_that_has_just_returned_a_run_waits_for_other_regions(console: Console) -> None:
    name = planned(console, workloads=[KEY])["id"]
    execute(console, name)
    console.fed.apply(RegionPulse(at_ms=7, region="east", returned_ms=5))
    (row,) = console.ask("GET", f"{API}/{name}").json["rows"]
    assert row["waits_for"] == "region east to read what other regions decided"
    assert "failover status" in row["remedy"]


def drilled(console: Console, **body: Any) -> Any:
    started = console.ask("POST", f"{API}/drill", {"to": "east", **body})
    assert started.status == 202, started.text
    until_s = time.monotonic() + 30
    while (op := console.ask("GET", started.headers["Location"]).json)["state"] == "running":
        assert time.monotonic() < until_s
        time.sleep(0.05)
    return op["progress"]


def test_a_drill_reports_blocking_checks_and_is_forced_only_on_request(
    console: Console,
) -> None:
    well = drilled(console)
    assert (well["blocked"], well["workloads"]) == (0, 2)
    assert [one["workload"] for one in well["unknown"]] == [KEY, OTHER]
    execute(console, planned(console, workloads=[OTHER])["id"])
    found = drilled(console)
    assert found["blocked"] == 1
    assert [one["of"] for one in found["checks"] if one["level"] == "blocked"] == [OTHER]
    hear_west(console.fed, ago_s=60.0)
    (check,) = (one for one in drilled(console, workloads=[KEY])["checks"] if one["name"] == "heard")
    assert (check["of"], check["level"]) == ("regions", "blocked")
    forced = drilled(console, workloads=[KEY], force=True)
    assert (forced["blocked"], {one["name"]: one["level"] for one in forced["checks"]}["heard"]) == (
        0,
        "warn",
    )
