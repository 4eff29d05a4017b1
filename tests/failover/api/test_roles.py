"""Workloads of several regions on the console: where they are active, and that a passive workload is no
trouble.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.controllog.events import RegionPulse, RolePut, RoleReleased
from tests.failover.api.test_rest import failover
from tests.web.client import Console
from tests.web.runtime_fake import LAYOUT, FakeRuntime, assigned, beat, definition, flowing, job, put, serving

KEY, REFUNDS = "billing/orders", "billing/refunds"
EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def passive(console: Console) -> Console:
    return regions(console)


def regions(console: Console) -> Console:
    """`KEY` moved to the west and its job here was released; `REFUNDS` is primary in the east; `local` has
    no mode."""
    fed = console.fed
    fed.clusters.specs = dict.fromkeys(LAYOUT.sites)
    fed.apply(put(definition(mode="active-passive")), put(definition(topic="refunds", mode="active-active")))
    fed.apply(put(definition(topic="local")), assigned(job(0), worker="", reason="released"))
    fed.apply(
        RolePut(at_ms=5_000, key=KEY, region="west", epoch=65, state="active", previous="east", actor=EVIL,
                reason="a drill"),
        RoleReleased(at_ms=6_000, key=KEY, region="east", epoch=65),
        RolePut(at_ms=5_000, key=REFUNDS, region="east", epoch=0, state="active", actor="definition"),
    )  # fmt: skip
    refunds = job(0, "refunds", REFUNDS)
    fed.apply(assigned(refunds))
    fed.observe(beat(flowing(refunds, passed_over=7, committed=40)))
    console.ask("PUT", "/api/v1/failovers/shared", failover())
    return console


def status(console: Console, key: str) -> dict[str, Any]:
    answer = console.ask("GET", f"/api/v1/workloads/{key}")
    assert answer.status == 200, answer.text
    return dict(answer.json)


def test_a_workload_says_where_it_is_active_under_which_epoch_since_when_and_why(passive: Console) -> None:
    assert status(passive, KEY)["status"]["role"] == {
        "mode": "active-passive", "region": "west", "epoch": 65, "state": "active", "active_here": False,
        "since_ms": 5_000, "by": EVIL, "reason": "a drill",
    }  # fmt: skip
    listed = {item["key"]: item["role"] for item in passive.ask("GET", "/api/v1/workloads").json["items"]}
    assert listed["billing/local"] is None
    assert (listed[REFUNDS]["region"], listed[REFUNDS]["active_here"]) == ("east", True)


def test_a_workload_that_is_passive_here_needs_no_attention(passive: Console) -> None:
    shown = status(passive, KEY)
    assert (shown["status"]["bound"], shown["flow"]["bound"]) == ("passive", "passive")
    assert shown["status"]["why"] == shown["flow"]["why"] == "region west is active for it"
    assert (shown["status"]["waiting"], shown["status"]["troubles"], shown["partitions"]) == (0, [], [])
    overview = passive.ask("GET", "/api/v1/overview").json
    assert overview["totals"]["lag_messages"] is None, "the lag of billing/local is unknown"
    passive.ask("DELETE", "/api/v1/workloads/billing/local")
    assert passive.ask("GET", "/api/v1/overview").json["totals"]["lag_messages"] == 0
    passive.fed.apply(assigned(job(0), worker="gone", epoch=2))
    assert status(passive, KEY)["status"]["waiting"] == 1, "an assigned job is not hidden"


def test_a_role_that_moves_here_or_is_unknown_is_shown_as_such(passive: Console) -> None:
    moving = RolePut(at_ms=7_000, key=KEY, region="east", epoch=128, state="moving", previous="west")
    passive.fed.apply(moving)
    assert status(passive, KEY)["status"]["why"] == "its role is moving to region east"
    passive.fed.apply(put(definition(topic="new", mode="active-passive")))
    shown = status(passive, "billing/new")["status"]
    assert (shown["role"]["state"], shown["role"]["region"], shown["bound"]) == ("unknown", None, "worker")


def test_a_region_that_has_just_come_back_is_active_nowhere_and_says_why(passive: Console) -> None:
    own = RolePut(at_ms=7_000, key=KEY, region="east", epoch=128, state="active", previous="west")
    passive.fed.apply(own)

    def activity() -> list[Any]:
        shown = status(passive, KEY)["status"]
        roles = passive.ask("GET", "/api/v1/failover").json["roles"]
        text = metrics(passive)
        return [
            shown["role"]["active_here"], shown["bound"] == "passive",
            *(role["active_here"] for role in roles),
            *(f'switchyard_workload_active{{region="east",workload="{key}"}} 1.0' in text
              for key in (KEY, REFUNDS)),
        ]  # fmt: skip

    assert activity() == [True, False, *[True] * 4]
    passive.fed.apply(RegionPulse(at_ms=7_000, region="east"))  # from workers that are gone
    assert activity() == [False, True, *[False] * 4]
    why = "region east has just returned, and has not read yet what others decided"
    assert status(passive, KEY)["status"]["why"] == why
    listed = {item["key"]: item for item in passive.ask("GET", "/api/v1/overview").json["workloads"]}
    assert (listed[KEY]["why"], listed[KEY]["role"]["active_here"]) == (why, False)


def test_records_that_the_other_region_had_finished_are_counted(passive: Console) -> None:
    shown = status(passive, REFUNDS)
    assert [shown["status"]["passed_over"], shown["partitions"][0]["passed_over"]] == [7, 7]
    name = f'topic="refunds",workload="{REFUNDS}"'
    assert f'switchyard_passed_over_messages_total{{partition="0",region="east",{name}}} 7.0' in metrics(
        passive
    )


def metrics(console: Console) -> str:
    return console.ask("GET", "/metrics").text


def test_over_all_regions_the_leaders_metrics_show_one_active_region(passive: Console) -> None:
    text = metrics(passive)
    assert f'switchyard_workload_active{{region="east",workload="{KEY}"}} 0.0' in text
    assert f'switchyard_workload_active{{region="east",workload="{REFUNDS}"}} 1.0' in text
    assert f'switchyard_role_epoch{{region="east",workload="{KEY}"}} 65.0' in text
    assert "billing/local" not in "".join(line for line in text.splitlines() if "switchyard_role" in line)
    passive.fed.leader.leads = False
    assert "switchyard_workload_active{" not in metrics(passive)


def test_the_leader_answers_how_offsets_follow_and_without_one_the_rest_is_answered(passive: Console) -> None:
    sync = {"region": "west", "from": "b", "to": "a", "state": "away", "why": "b is away", "lag_s": 3.5}
    passive.fed.regions = SimpleNamespace(
        passive_sync_fields=lambda key: dict(sync) if key == KEY else None, sync=SimpleNamespace()
    )

    def offsets(console: Console) -> list[Any]:
        return [role["offsets"] for role in console.ask("GET", "/api/v1/failover").json["roles"]]

    assert offsets(passive) == [sync, None]
    follower = FakeRuntime()
    follower.worker = "worker-b"
    follower.leader.leads = False
    follower.apply(*passive.fed.control.view.workloads.values())
    follower.control.view.leader = passive.fed.worker
    follower.observe(beat(url=passive.url))
    with serving(follower) as url:
        other_console = Console(url, follower)
        assert offsets(other_console) == [sync, None]
        follower.observe(beat(url="http://127.0.0.1:1"))
        assert offsets(other_console) == [None, None]
