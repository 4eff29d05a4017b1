"""Routes on the command line: planned, deployed, exported, shown, paused, changed topic by topic."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml as yaml_1_1
from ruamel.yaml import YAML

from app.cli.client import CommandFailure
from app.controllog.codec import CopyingStatus
from app.controllog.events import RouteDeleted, RoutePut, WorkloadPut
from app.kernel.broker_throttle import BrokerThrottle
from app.replicate.api.cli import _reset_as_foreseen
from app.replicate.definition import RouteDefinition
from tests.cli.shell import Shell
from tests.cli.shell import shell as shell  # noqa: PLC0414 - the fixture
from tests.replicate.api.test_rest import listed
from tests.replicate.api.test_rest_operators import acting
from tests.web.runtime_fake import assigned, beat, copying, definition, flowing, put_route, route


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
    prune = ("--prune", "--allow-empty", "--execute", "--yes")
    gone = shell("config", "deploy", "-f", shell.file(definition()), *prune)
    assert gone.returncode == 0, gone.stderr
    assert isinstance(shell.fed.control.appended[-1], RouteDeleted)


def test_an_export_is_the_same_definition_for_tools_of_yaml_1_1(shell: Shell) -> None:
    topics = ["on", "no", "y", "1_000", "017", "2026-01-31"]
    data = route(
        "mirror",
        "east",
        "west",
        *topics,
        rename={"names": {"on": "off"}},
        headers={"keep": ["1:30", "~", "="]},
    )
    shell.fed.apply(put_route(data))
    exported = shell("config", "export").stdout
    (read,) = yaml_1_1.safe_load_all(exported)
    assert RouteDefinition.from_wire(read) == RouteDefinition.from_wire(data)
    (shell.home / "all.yaml").write_text(yaml_1_1.safe_dump(read))
    assert shell("config", "plan", "-f", str(shell.home / "all.yaml")).returncode == 0


def test_a_key_that_a_tool_has_read_as_true_is_explained(shell: Shell) -> None:
    data = route()
    data["spec"] |= yaml_1_1.safe_load("on: {gap: stop}")  # a tool's data for a key on
    (shell.home / "tool.yaml").write_text(yaml_1_1.safe_dump(data))
    ended = shell("config", "validate", "-f", str(shell.home / "tool.yaml"))
    assert ended.returncode == 3
    assert "error: spec.true: unknown field" in ended.stderr
    assert "-> YAML 1.1 reads on, yes and y as true: put that key in quotes; known here: " in ended.stderr


def test_a_loop_ends_with_exit_code_3_within_files_and_5_with_running_routes(shell: Shell) -> None:
    ended = shell("config", "validate", "-f", shell.file(route(), route("back", "west", "east")))
    assert ended.returncode == 3
    assert "would loop: orders: west -> east (route back) -> west (route mirror)" in ended.stderr
    shell.fed.apply(put_route(route()))
    ended = shell("config", "deploy", "-f", shell.file(route("back", "west", "east")), "--execute", "--yes")
    assert ended.returncode == 5
    assert "conflict: mirror: would loop: orders" in ended.stderr
    assert not shell.fed.control.appended


def test_an_unknown_cluster_is_reported_with_the_known_ones(shell: Shell) -> None:
    ended = shell("config", "plan", "-f", shell.file(route("mirror", "nowhere-at-all", "west")))
    assert (ended.returncode, "known: east, west" in ended.stderr) == (3, True), ended.stderr


def flowing_route(shell: Shell) -> None:
    fed = shell.fed
    shell.fed.apply(put_route(route("mirror", "east", "west", "orders.*", exclude=["orders.test"])),
                    assigned(copying(0)))  # fmt: skip
    throttles = [BrokerThrottle("west", "produce", 1_500)]
    fed.observe(
        beat(flowing(copying(0), delivered=7, trouble="\x1b[31mred", throttles=throttles), url=fed.url)
    )
    listed(fed, "east", orders=1, orders_test=1, unrelated=1)


def test_a_route_is_described_with_its_topics_those_it_leaves_out_and_its_jobs(shell: Shell) -> None:
    flowing_route(shell)
    (row,) = json.loads(shell("route", "list", "-o", "json").stdout)
    assert (row["name"], row["lag_messages"], row["copied"]) == ("mirror", 30, 7)
    shown = shell("route", "describe", "mirror")
    assert shown.returncode == 0, shown.stderr
    for part in ("east -> west: orders.*", "except: orders.test", "1 others of east match no entry",
                 "throttled: the broker's quota delays produce requests to cluster west by 1,500 ms; raise ",
                 "excluded by 'orders.test'", "worker-a", "\\x1b[31mred"):  # fmt: skip
        assert part in shown.stdout, shown.stdout
    assert "\x1b" not in shown.stdout
    whole = YAML().load(shell("route", "describe", "mirror", "-o", "yaml").stdout)
    assert (whole["definition"]["kind"], len(whole["topics"]), len(whole["partitions"])) == ("Route", 2, 1)
    assert shell("route", "describe", "none").returncode == 4
    assert shell("route", "describe", "a/b").returncode == 2


def test_commands_that_change_a_route_are_dry_runs_without_execute(shell: Shell) -> None:
    flowing_route(shell)
    for arguments in (("pause", "mirror"), ("add-topic", "mirror", "x"), ("drop-topic", "mirror", "orders")):
        assert "dry run" in shell("route", *arguments).stderr
        assert shell("route", *arguments, "--execute").returncode == 5  # the prompt gets no answer
    assert not shell.fed.control.appended
    done = shell("route", "add-topic", "mirror", "x", "--execute", "--yes", "-o", "json")
    assert json.loads(done.stdout)["done"] == "x: added to topics"
    done = shell("route", "drop-topic", "mirror", "orders", "--execute", "--yes")
    assert "orders: added to exclude" in done.stdout, done.stderr
    assert shell("route", "pause", "mirror", "--execute", "--yes").returncode == 0
    assert shell.fed.control.view.paused == {"mirror": {-1}}
    assert "nothing has changed" in shell("route", "pause", "mirror", "--execute", "--yes").stderr
    assert shell("route", "resume", "mirror", "--execute", "--yes").returncode == 0
    assert not shell.fed.control.view.paused


def test_a_route_is_deleted_only_with_execute_and_its_copies_stay(shell: Shell) -> None:
    flowing_route(shell)
    assert "its copies stay; dry run" in shell("route", "delete", "mirror").stderr
    assert shell("route", "delete", "mirror", "--execute").returncode == 5, "the prompt gets no answer"
    assert not shell.fed.control.appended
    done = shell("route", "delete", "mirror", "--execute", "--yes")
    assert (done.returncode, "route mirror is deleted" in done.stderr) == (0, True), done.stderr
    (event,) = shell.fed.control.appended
    assert isinstance(event, RouteDeleted)
    assert shell("route", "delete", "mirror", "--execute", "--yes").returncode == 4


def test_offsets_that_cannot_be_copied_are_shown_and_skipped_by_command(shell: Shell) -> None:
    fed = shell.fed
    pump = acting(fed)
    status = CopyingStatus(
        halted="a gap",
        stuck=(10, 12),
        encoded=1,
        left_out=3,
        lost=5,
        lost_ms=7_000,
        compared=4,
        uncompared=6,
        begun_anew=2,
        destination_losses=7,
        barrier=(10, 11, 1),
    )
    fed.observe(beat(flowing(copying(0), delivered=4, copying=status), flowing(copying(1)), url=fed.url))
    shown = shell("route", "describe", "mirror").stdout
    for part in ("halted: orders-0: a gap", "stuck: route skip mirror orders 0 10 12", "10 -> 11", "75%",
                 "4 records, 1 of them in batches encoded again; 3 left out",
                 "since copying began: 5 offsets, the last found missing 1970-01-01 00:00:07 UTC",
                 "4 records as they were sent, 0 that differ; 6 could not be",
                 "2 times a partition of the source, 7 times one of the destination"):  # fmt: skip
        assert part in shown, shown
    skip = ("route", "skip", "mirror", "orders", "0", "10", "12")
    dry = shell(*skip)
    assert "2 offsets of orders-0 are left out of the copy; dry run" in dry.stderr, dry.stderr
    assert "nobody can decode it" in dry.stdout
    assert len(pump.stuck) == 2
    assert shell(*skip, "--execute", "--yes").returncode == 0
    assert pump.stuck == ((15, 16),)
    assert shell(*skip, "--execute", "--yes").returncode == 5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), "give one of --earliest"), (("--earliest", "--latest"), "give one of --earliest"),
     (("--latest", "--partition", "0"), "name it with --topic"),
     (("--to-offset", "5", "--topic", "orders"), "--to-offset needs one partition")],
)  # fmt: skip
def test_a_reset_without_a_target_position_is_a_usage_error(
    shell: Shell, arguments: tuple[str, ...], expected: str
) -> None:
    flowing_route(shell)
    done = shell("route", "reset", "mirror", *arguments)
    assert (done.returncode, expected in done.stderr) == (2, True), done.stderr


def test_a_reset_that_fails_reports_the_topics_that_were_reset_before() -> None:
    class Client:
        def ask(self, _method: str, _path: str, body: dict[str, Any]) -> Any:
            if body["topic"] == "b":
                raise CommandFailure("no worker answers")
            return {"done": 1, "partitions": [{"topic": body["topic"], "partition": 0, "done": True}]}

    client: Any = Client()
    foreseen = {"partitions": [{"topic": topic, "partition": 0, "to": 0} for topic in "abc"]}
    result = _reset_as_foreseen(client, "/routes/r/reset", foreseen)
    assert (result["done"], [row["done"] for row in result["partitions"]]) == (2, [True, False, True])
    assert result["partitions"][1]["why"] == "no worker answers"
    with pytest.raises(CommandFailure, match="no worker"):
        _reset_as_foreseen(client, "/routes/r/reset", {"partitions": foreseen["partitions"][1:]})
