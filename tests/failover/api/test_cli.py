"""Regions on the command line: definitions are deployed like any other, and the status shows roles."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import msgspec
from ruamel.yaml import YAML

from app.controllog.events import RegionPulse, RolePut
from tests.cli.shell import Shell
from tests.cli.shell import shell as shell  # noqa: PLC0414 - the fixture
from tests.failover.api.test_rest import failover
from tests.web.runtime_fake import definition, put


def test_a_definition_is_planned_deployed_exported_and_pruned_without_its_routes(shell: Shell) -> None:
    file = shell.file(failover(), definition())
    planned = shell("config", "plan", "-f", file, "-o", "json")
    assert planned.returncode == 10, planned.stderr
    assert {row["workload"]: row["action"] for row in json.loads(planned.stdout)} == {
        "billing/orders": "create",
        "failover:shared": "create",
    }
    assert shell("config", "deploy", "-f", file, "--execute", "--yes").returncode == 0
    asyncio.run(shell.fed.failover.step())
    assert len(shell.fed.control.view.routes) == 4
    exported = shell("config", "export").stdout
    assert [found["kind"] for found in YAML().load_all(exported)] == ["Workload", "Failover"]
    (shell.home / "all.yaml").write_text(exported)
    pruning_plan = shell("config", "plan", "-f", str(shell.home / "all.yaml"), "--prune")
    assert pruning_plan.returncode == 0, f"prune must not touch derived routes: {pruning_plan.stdout}"
    prune = ("--prune", "--allow-empty", "--execute", "--yes")
    pruned = shell("config", "deploy", "-f", shell.file(definition()), *prune)
    assert (pruned.returncode, "deleted failover:shared" in pruned.stderr) == (0, True), pruned.stderr


def test_the_status_shows_where_each_workload_is_active_and_the_age_of_other_regions_reports(
    shell: Shell,
) -> None:
    shell.fed.apply(put(definition(mode="active-passive")))
    deployed = shell("config", "deploy", "-f", shell.file(failover()), "--execute", "--yes")
    assert deployed.returncode == 0, deployed.stderr
    shell.fed.apply(
        RolePut(at_ms=1_790_000_000_000, key="billing/orders", region="west", epoch=65, state="active",
                actor="me", reason="evil\x1b[2J"),
    )  # fmt: skip
    status = shell("failover", "status")
    assert status.returncode == 0, status.stderr
    assert "region west: no report from it yet" in status.stderr
    head, row = status.stdout.splitlines()
    assert head.split()[:4] == ["workload", "mode", "region", "state"]
    assert row.split()[:5] == ["billing/orders", "active-passive", "west", "active", "65"]
    assert "2026-09-21" in row
    assert "\x1b" not in status.stdout
    shell.fed.apply(RegionPulse(at_ms=1, region="east", heard={"west": 1}))
    assert "region west: last heard" in shell("failover", "status").stderr
    whole = json.loads(shell("failover", "status", "-o", "json").stdout)
    assert whole["roles"][0]["reason"] == "evil\x1b[2J"
    offsets = {"region": "west", "from": "west", "to": "east", "lag_s": 61.2}
    for state, why, shown in (
        ("away", "west is away\x1b[2J", "away; west is away\\x1b[2J; in step 61 s ago"),
        ("synced", "", "in step 61 s ago"),
    ):
        fields = {**offsets, "state": state, "why": why}
        shell.fed.regions = SimpleNamespace(passive_sync_fields=lambda _, fields=fields: fields)
        assert shown in shell("failover", "status").stdout


def test_a_workload_shows_the_region_that_is_active_for_it(shell: Shell) -> None:
    shell.fed.apply(put(definition(mode="active-passive")), put(definition(topic="local")))
    assert "active-passive: active nowhere yet" in shell("workload", "describe", "billing/orders").stdout
    role = RolePut(
        at_ms=1_790_000_000_000, key="billing/orders", region="west", epoch=65, state="active", actor="me",
        reason="evil\x1b[2J",
    )  # fmt: skip
    shell.fed.apply(role)
    rows = [line.split() for line in shell("workload", "list").stdout.splitlines()]
    assert rows[0][:2] == ["key", "active_in"]
    assert {row[0]: row[1] for row in rows[1:]} == {"billing/orders": "west", "billing/local": "unknown"}
    shown = shell("workload", "describe", "billing/orders").stdout
    assert shown.splitlines()[0] == (
        "active-passive: active in west, passive here; epoch 65 since 2026-09-21T14:13:20.000Z by me; "
        "evil\\x1b[2J"
    )
    assert "passive: region west is active for it" in shown
    moving = msgspec.structs.replace(role, region="east", epoch=128, state="moving")
    shell.fed.apply(moving)
    assert "moving to east, passive here" in shell("workload", "describe", "billing/orders").stdout
    assert "active_in" not in shell("workload", "list", "-o", "json").stdout


def test_the_status_says_that_the_region_has_just_returned_and_what_that_waits_for(shell: Shell) -> None:
    deployed = shell("config", "deploy", "-f", shell.file(failover()), "--execute", "--yes")
    assert deployed.returncode == 0, deployed.stderr
    assert "returned" not in shell("failover", "status").stderr
    shell.fed.apply(RegionPulse(at_ms=7, region="east", returned_ms=1_790_000_000_000))
    status = shell("failover", "status").stderr
    assert "it has just returned (since 2026-09-21" in status
    assert "once west answered" in status
