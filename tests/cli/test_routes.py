"""Routes on the command line: planned, deployed, exported, shown, paused, changed topic by topic."""

from __future__ import annotations

import json

from ruamel.yaml import YAML

from app.core.control_events import RouteDeleted, RoutePut, WorkloadPut
from tests.cli.test_commands import Shell
from tests.cli.test_commands import shell as shell  # noqa: PLC0414 - the fixture
from tests.console.hand_fed import assigned, beat, copying, definition, flowing, put_route, route
from tests.console.test_routes import listed


def test_routes_are_planned_deployed_exported_and_pruned_like_workloads(shell: Shell) -> None:
    file = shell.file(definition(), route())
    assert "2 definitions: all valid" in shell("config", "validate", "-f", file).stderr
    planned = shell("config", "plan", "-f", file, "-o", "json")
    assert planned.returncode == 10, planned.stderr
    assert {row["workload"]: row["action"] for row in json.loads(planned.stdout)} == {
        "billing/orders": "create",
        "route mirror": "create",
    }
    deployed = shell("config", "deploy", "-f", file, "--execute", "--yes")
    assert deployed.returncode == 0, deployed.stderr
    assert "created route mirror" in deployed.stderr
    assert [type(event) for event in shell.fed.control.appended] == [WorkloadPut, RoutePut]
    exported = shell("config", "export").stdout
    assert [found["kind"] for found in YAML().load_all(exported)] == ["Workload", "Route"]
    (shell.home / "all.yaml").write_text(exported)
    assert shell("config", "plan", "-f", str(shell.home / "all.yaml")).returncode == 0
    diff = shell("config", "diff", "-f", shell.file(route(start="latest")), "--prune").stdout
    assert 'update route mirror\n- spec.start: "earliest"\n+ spec.start: "latest"\n' in diff
    gone = shell("config", "deploy", "-f", shell.file(definition()), "--prune", "--execute", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert isinstance(shell.fed.control.appended[-1], RouteDeleted)


def test_a_loop_is_told_with_exit_code_3_in_files_and_5_with_what_runs(shell: Shell) -> None:
    ended = shell("config", "validate", "-f", shell.file(route(), route("back", "west", "east")))
    assert ended.returncode == 3
    assert "would loop: orders: west -> east (route back) -> west (route mirror)" in ended.stderr
    shell.fed.apply(put_route(route()))
    ended = shell("config", "deploy", "-f", shell.file(route("back", "west", "east")), "--execute", "--yes")
    assert ended.returncode == 5
    assert "conflict: mirror: would loop: orders" in ended.stderr
    assert not shell.fed.control.appended


def test_an_unknown_cluster_is_told_with_those_there_are(shell: Shell) -> None:
    ended = shell("config", "plan", "-f", shell.file(route("mirror", "nowhere-at-all", "west")))
    assert (ended.returncode, "known: east, west" in ended.stderr) == (3, True), ended.stderr


def flowing_route(shell: Shell) -> None:
    fed = shell.fed
    shell.fed.apply(put_route(route("mirror", "east", "west", "orders.*", exclude=["orders.test"])),
                    assigned(copying(0)))  # fmt: skip
    fed.hear(beat(flowing(copying(0), delivered=7, trouble="\x1b[31mred"), url=fed.url))
    listed(fed, "east", orders=1, orders_test=1, unrelated=1)


def test_a_route_is_described_with_its_topics_those_it_leaves_out_and_its_jobs(shell: Shell) -> None:
    flowing_route(shell)
    (row,) = json.loads(shell("route", "list", "-o", "json").stdout)
    assert (row["name"], row["lag_messages"], row["copied"]) == ("mirror", 30, 7)
    shown = shell("route", "describe", "mirror")
    assert shown.returncode == 0, shown.stderr
    for part in ("east -> west: orders.*", "except: orders.test", "1 others of east are not meant",
                 "excluded by 'orders.test'", "worker-a", "\\x1b[31mred"):  # fmt: skip
        assert part in shown.stdout, shown.stdout
    assert "\x1b" not in shown.stdout
    whole = YAML().load(shell("route", "describe", "mirror", "-o", "yaml").stdout)
    assert (whole["definition"]["kind"], len(whole["topics"]), len(whole["partitions"])) == ("Route", 2, 1)
    assert shell("route", "describe", "none").returncode == 4
    assert shell("route", "describe", "a/b").returncode == 2


def test_what_changes_a_route_is_a_dry_run_until_told(shell: Shell) -> None:
    flowing_route(shell)
    for arguments in (("pause", "mirror"), ("add-topic", "mirror", "x"), ("drop-topic", "mirror", "orders")):
        assert "dry run" in shell("route", *arguments).stderr
        assert shell("route", *arguments, "--execute").returncode == 5  # nobody is there to answer
    assert not shell.fed.control.appended
    done = shell("route", "add-topic", "mirror", "x", "--execute", "--yes", "-o", "json")
    assert json.loads(done.stdout)["done"] == "x: added to topics"
    done = shell("route", "drop-topic", "mirror", "orders", "--execute", "--yes")
    assert "orders: added to exclude" in done.stdout, done.stderr
    assert shell("route", "pause", "mirror", "--execute", "--yes").returncode == 0
    assert shell.fed.control.view.paused == {"mirror": {-1}}
    assert "it was so before" in shell("route", "pause", "mirror", "--execute", "--yes").stderr
    assert shell("route", "resume", "mirror", "--execute", "--yes").returncode == 0
    assert not shell.fed.control.view.paused
