"""The command line against a real server over a fake runtime; some commands run in a process of their own."""

from __future__ import annotations

import csv
import io
import json
import socket
import threading
from typing import Any

import click
import msgspec
import pytest
from ruamel.yaml import YAML

from app.cli.main import switchyard
from app.controllog.events import WorkloadDeleted
from tests.cli.shell import Shell
from tests.cli.shell import process_shell as process_shell  # noqa: PLC0414 - the fixture
from tests.cli.shell import shell as shell  # noqa: PLC0414 - the fixture
from tests.payload.schemas import file_of, set_of, write_source
from tests.web.runtime_fake import FakeRuntime, a_pump, assigned, beat, definition, flowing, job, put


def flowing_orders(fed: FakeRuntime) -> None:
    fed.apply(put(definition()), assigned(job(0)), assigned(job(1)))
    fed.observe(beat(flowing(job(0)), flowing(job(1), committed=-1), url=fed.url))


# -- config ----------------------------------------------------------------------------------------


def test_valid_definitions_need_no_worker(process_shell: Shell) -> None:
    ended = process_shell(
        "config", "validate", "-f", process_shell.file(definition()), SWITCHYARD_URL="http://127.0.0.1:1"
    )
    assert ended.returncode == 0, ended.stderr
    assert "all valid" in ended.stderr
    assert ended.stdout == ""


def test_a_cluster_that_the_static_file_lacks_is_reported_without_a_worker(shell: Shell) -> None:
    settings = shell.home / "switchyard.yaml"
    cluster = "{name: other, region: east, tier: regional, bootstrap: 'localhost:9092'}"
    settings.write_text(f"region: east\nclusters: [{cluster}]\n")
    ended = shell("config", "validate", "-f", shell.file(definition()), SWITCHYARD_CONFIG=str(settings))
    assert ended.returncode == 3
    assert "no such cluster" in ended.stderr


def test_metadata_that_the_static_file_forbids_is_reported_without_a_worker(shell: Shell) -> None:
    """A file that names no credentials may be another machine's, so they are not checked."""
    settings = shell.home / "switchyard.yaml"
    cluster = "{name: east, region: east, tier: regional, bootstrap: 'localhost:9092'}"
    settings.write_text(f"region: east\nclusters: [{cluster}]\nreceivers: {{metadata: {{deny: [x-a]}}}}\n")
    for name, code in ("x-b", 0), ("x-a", 3):
        target = {"address": "billing:443", "tls": {"credentials": "any"}, "metadata": {name: "secret:any"}}
        file = shell.file(definition(target=target))
        ended = shell("config", "validate", "-f", file, SWITCHYARD_CONFIG=str(settings))
        assert ended.returncode == code, ended.stderr
    assert "spec.target.metadata.x-a: the workers allow no metadata of this name" in ended.stderr


def test_a_schema_that_workers_would_refuse_is_reported_without_a_worker(shell: Shell) -> None:
    settings = shell.home / "switchyard.yaml"
    cluster = "{name: east, region: east, tier: regional, bootstrap: 'localhost:9092'}"
    settings.write_text(f"region: east\nclusters: [{cluster}]\n")
    (shell.home / "schemas").mkdir()
    (shell.home / "schemas" / "orders.binpb").write_bytes(set_of(file_of("order.proto", "Order")))
    for descriptor, code in (("orders.binpb", 0), ("/dev/ptmx", 3)):
        typed = {"protobuf": {"descriptor": descriptor, "message": "acme.Order"}}
        file = shell.file(definition(payload=typed))
        ended = shell("config", "validate", "-f", file, SWITCHYARD_CONFIG=str(settings))
        assert ended.returncode == code, ended.stderr
    assert "spec.payload.protobuf.descriptor: /dev/ptmx: is not in the folder of schemas" in ended.stderr
    assert "-> put the file there, or name another folder as `schemas` in switchyard.yaml" in ended.stderr


def test_the_choice_between_two_imports_is_a_warning_and_all_wrong_schemas_are_reported(shell: Shell) -> None:
    settings, schemas = shell.home / "switchyard.yaml", shell.home / "schemas"
    cluster = "{name: east, region: east, tier: regional, bootstrap: 'localhost:9092'}"
    settings.write_text(f"region: east\nclusters: [{cluster}]\n")
    for folder in (schemas, schemas / "acme"):
        write_source(folder, 'syntax = "proto3"; message Money {}', "money.proto")
    text = 'syntax = "proto3"; import "{}money.proto"; message Order {{ Money total = 1; }}'
    write_source(schemas / "acme", text.format(""), "order.proto")
    write_source(schemas / "acme", text.format("none/"), "wrong.proto")
    definitions = [
        definition(
            f"g-{name}", payload={"protobuf": {"descriptor": f"acme/{name}.proto", "message": "Order"}}
        )
        for name in ("order", "wrong", "none")
    ]
    ended = shell("config", "validate", "-f", shell.file(*definitions), SWITCHYARD_CONFIG=str(settings))
    assert ended.returncode == 3, ended.stderr
    taken, other = schemas / "money.proto", schemas / "acme" / "money.proto"
    assert f"warning: g-order/orders: import 'money.proto' is {taken}, which is found first" in ended.stderr
    assert f"and not {other}" in ended.stderr
    assert "none/money.proto: File not found" in ended.stderr
    assert f"imports are looked for in {schemas}, then in {schemas / 'acme'}\n" in ended.stderr
    assert "none.proto: does not exist" in ended.stderr


def test_invalid_definitions_end_with_3_and_every_problem_has_its_line(shell: Shell) -> None:
    file = shell.home / "wrong.yaml"
    file.write_text("apiVersion: switchyard/v1\nkind: Workload\nmetadata: {group: g, topic: t, cluster: c}\n"
                    "spec:\n  target: {address: nowhere}\n  orderin: key\n")  # fmt: skip
    ended = shell("config", "validate", "-f", str(file))
    assert ended.returncode == 3
    for part in (f"{file}:5", f"{file}:6", "did you mean ordering?"):
        assert part in ended.stderr


def test_the_schema_is_json_on_stdout(process_shell: Shell) -> None:
    ended = process_shell("config", "schema", SWITCHYARD_URL="http://127.0.0.1:1")
    assert ended.returncode == 0
    assert "Workload" in json.loads(ended.stdout)["$defs"]


def test_a_plan_with_changes_ends_with_10_and_changes_nothing(shell: Shell) -> None:
    shell.fed.apply(put(definition(tracker={"capacity": 5})))
    file = shell.file(definition(), definition("new", "orders"))
    ended = shell("config", "plan", "-f", file, "-o", "json")
    assert ended.returncode == 10, ended.stderr
    rows = json.loads(ended.stdout)
    assert {(r["action"], r["workload"], r["field"]) for r in rows} == {
        ("update", "billing/orders", "spec.tracker.capacity"), ("create", "new/orders", ""),
    }  # fmt: skip
    assert not shell.fed.control.appended


def test_a_plan_without_changes_ends_with_0(shell: Shell) -> None:
    shell.fed.apply(put(definition()))
    assert shell("config", "plan", "-f", shell.file(definition())).returncode == 0


def test_a_plan_reports_what_the_worker_would_refuse(shell: Shell) -> None:
    """A plan is worthless if the deployment then fails half way."""
    wrong = definition("new", "orders")
    wrong["metadata"]["cluster"] = "eats"
    for verb in (["plan"], ["deploy", "--execute", "--yes"]):
        ended = shell("config", *verb, "-f", shell.file(definition(), wrong))
        assert ended.returncode == 3, ended.stderr
        assert "switchyard: new/orders: " in ended.stderr
        assert "did you mean east?" in ended.stderr
        assert not shell.fed.control.appended


def test_a_payload_type_that_the_worker_cannot_use_is_refused_by_its_field(shell: Shell) -> None:
    descriptor = shell.home / "orders.binpb"
    descriptor.write_bytes(set_of(file_of("order.proto", "Order")))
    for field, path, message in (("descriptor", "none.binpb", "acme.Order"), ("message", "", "acme.Ordre")):
        typed = {"descriptor": str(descriptor) + path, "message": message}
        file = shell.file(definition(payload={"protobuf": typed}))
        ended = shell("config", "deploy", "-f", file, "--execute", "--yes")
        assert (ended.returncode, f"spec.payload.protobuf.{field}: " in ended.stderr) == (3, True), (
            ended.stderr
        )
    assert "did you mean acme.Order?" in ended.stderr
    assert not shell.fed.control.appended


def test_a_move_to_another_cluster_is_a_conflict(shell: Shell) -> None:
    shell.fed.apply(put(definition()))
    shell.fed.clusters.specs["west"] = None
    moved = definition()
    moved["metadata"]["cluster"] = "west"
    for verb in ("plan", "deploy", "diff"):
        ended = shell("config", verb, "-f", shell.file(moved))
        assert ended.returncode == 5, verb
        assert "delete it first" in ended.stderr


def test_deploying_is_a_dry_run_without_execute_and_asks_without_yes(shell: Shell) -> None:
    file = shell.file(definition())
    assert "dry run" in shell("config", "deploy", "-f", file).stderr
    asks = shell("config", "deploy", "-f", file, "--execute")
    assert (asks.returncode, "--yes" in asks.stderr) == (5, True)  # no terminal answers the question
    assert not shell.fed.control.appended
    done = shell("config", "deploy", "-f", file, "--execute", "--yes", USER="jö")
    assert done.returncode == 0, done.stderr
    assert "created billing/orders" in done.stderr
    (event,) = shell.fed.control.appended
    assert event.actor == "j? (command line)"  # type: ignore[union-attr]
    repeated = shell("config", "deploy", "-f", file, "--execute", "--yes")
    assert "nothing to change" in repeated.stderr
    assert len(shell.fed.control.appended) == 1


def test_definitions_that_the_files_leave_out_are_deleted_only_with_prune(shell: Shell) -> None:
    shell.fed.apply(put(definition()), put(definition("old", "orders")))
    file = shell.file(definition())
    assert shell("config", "plan", "-f", file).returncode == 0
    assert shell("config", "deploy", "-f", file, "--prune", "--execute", "--yes").returncode == 0
    assert [type(event) for event in shell.fed.control.appended] == [WorkloadDeleted]
    assert set(shell.fed.control.view.workloads) == {"billing/orders"}


def test_a_prune_of_all_or_most_definitions_is_refused_without_allow_empty(shell: Shell) -> None:
    shell.fed.apply(*(put(definition(name, "orders")) for name in "abc"))
    prune = ("config", "deploy", "--prune", "--execute", "--yes", "-f")
    for wanted, words in (
        ([definition("a", "orders")], "2 of 3"),
        ([definition("d", "orders")], "every Workload"),
    ):
        file = shell.file(*wanted)
        refused = shell(*prune, file)
        assert refused.returncode == 5
        assert f"--prune would delete {words}" in refused.stderr
        assert shell("config", "plan", "--prune", "-f", file).returncode == 5
    (shell.home / "empty.yaml").write_text("# {{ range .workloads }}\n")
    empty = str(shell.home / "empty.yaml")
    for command in (("config", "validate", "-f", empty), (*prune, empty)):
        refused = shell(*command)
        assert (refused.returncode, "defines nothing" in refused.stderr) == (3, True), refused.stderr
    assert not shell.fed.control.appended
    assert shell(*prune, empty, "--allow-empty").returncode == 0
    assert not shell.fed.control.view.workloads


def test_a_deployment_that_fails_half_way_ends_with_6_and_lists_its_changes(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = shell.fed.control.append

    async def once(*events: Any) -> int:
        if shell.fed.control.appended:
            raise TimeoutError
        return await append(*events)

    monkeypatch.setattr(shell.fed.control, "append", once)
    file = shell.file(definition("a", "orders"), definition("b", "orders"))
    ended = shell("config", "deploy", "-f", file, "--execute", "--yes")
    assert ended.returncode == 6
    assert "b/orders" in ended.stderr
    assert "1 changed: a/orders" in ended.stderr


def test_diff_shows_lines_before_and_after(shell: Shell) -> None:
    shell.fed.apply(put(definition(tracker={"capacity": 5})))
    ended = shell("config", "diff", "-f", shell.file(definition()))
    assert ended.returncode == 10
    assert ended.stdout.splitlines() == [
        "update billing/orders", "- spec.tracker.capacity: 5", "+ spec.tracker.capacity: 10000",
    ]  # fmt: skip


def test_an_unreadable_definition_is_one_warning_and_the_others_are_deployed(shell: Shell) -> None:
    unread = definition("b", "orders")
    unread["spec"]["ordering"] = "by-magic"  # a newer version may have such a value
    shell.fed.apply(msgspec.structs.replace(put(definition("b", "orders")), definition=unread, etag="newer"))
    shell.fed.apply(put(definition("a", "orders")))
    others = shell.file(definition("a", "orders"), definition("c", "orders"))
    for command in ("plan", "diff"):
        ended = shell("config", command, "-f", others)
        assert ended.returncode == 10, ended.stderr
        assert "c/orders" in ended.stdout
        assert "b/orders" not in ended.stdout
        assert "warning: b/orders: this version cannot read it: spec.ordering: Input should" in ended.stderr
        assert "(got by-magic)" in ended.stderr
    deployed = shell("config", "deploy", "-f", others, "--execute", "--yes")
    assert (deployed.returncode, "created c/orders" in deployed.stderr) == (0, True), deployed.stderr
    exported = shell("config", "export")
    orders = [one["spec"]["ordering"] for one in YAML().load_all(exported.stdout)]
    assert orders == ["none", "none", "by-magic"]
    assert shell("config", "validate", "-f", others).returncode == 0
    assert "warning: b/orders" in exported.stderr

    pruned = shell("config", "plan", "-f", others, "--prune")
    assert "delete     b/orders" in pruned.stdout
    replaced = shell("config", "deploy", "-f", shell.file(definition("b", "orders")), "--execute", "--yes")
    assert (replaced.returncode, "updated b/orders" in replaced.stderr) == (0, True), replaced.stderr
    assert "warning" not in shell("config", "plan", "-f", others).stderr


def test_a_definition_with_a_field_of_a_newer_version_can_be_changed_and_deleted(shell: Shell) -> None:
    newer = definition("a", "orders")
    newer["spec"]["novel"] = 1
    for arguments, words in (
        (("-f", shell.file(definition("a", "orders", start="latest"))), "updated a/orders"),
        (("-f", shell.file(name="none.yaml"), "--prune", "--allow-empty"), "deleted a/orders"),
    ):
        shell.fed.apply(
            msgspec.structs.replace(put(definition("a", "orders")), definition=newer, etag="newer")
        )
        done = shell("config", "deploy", *arguments, "--execute", "--yes")
        assert (done.returncode, words in done.stderr) == (0, True), done.stderr


def test_an_export_deploys_again_without_a_change(shell: Shell) -> None:
    shell.fed.apply(put(definition(retry=[{"delay": "90s", "attempts": 2}])), put(definition("b", "t")))
    exported = shell("config", "export")
    assert exported.returncode == 0
    file = shell.home / "exported.yaml"
    file.write_text(exported.stdout)
    assert shell("config", "plan", "-f", str(file), "--prune").returncode == 0


# -- looking ---------------------------------------------------------------------------------------


def test_workloads_are_listed_in_every_format_with_unknown_values_named(shell: Shell) -> None:
    flowing_orders(shell.fed)
    (whole,) = json.loads(shell("workload", "list", "-o", "json").stdout)
    assert (whole["key"], whole["lag_messages"]) == ("billing/orders", None)
    (row,) = csv.DictReader(io.StringIO(shell("workload", "list", "-o", "csv").stdout))
    assert (row["key"], row["lag_messages"]) == ("billing/orders", "unknown")
    assert YAML(typ="safe").load(shell("workload", "list", "-o", "yaml").stdout)[0]["key"] == "billing/orders"
    table = shell("workload", "list").stdout.splitlines()
    assert "lag_messages" in table[0]
    assert "unknown" in table[1]


def test_a_row_of_a_piped_table_is_one_line_however_long(shell: Shell) -> None:
    trouble = "x " * 500
    shell.fed.apply(put(definition()), assigned(job(0)))
    shell.fed.observe(beat(flowing(job(0), trouble=trouble)))
    assert len(shell("workload", "list").stdout.splitlines()) == 2


def test_data_of_records_cannot_drive_the_terminal(shell: Shell) -> None:
    shell.fed.apply(put(definition()), assigned(job(0)))
    shell.fed.observe(beat(flowing(job(0), trouble="\x1b]0;owned\x07[bold red]x")))
    shown = shell("workload", "list").stdout
    assert "\x1b" not in shown
    assert "\\x1b]0;owned\\x07[bold red]x" in shown


def test_describe_shows_a_workload_with_its_partitions(shell: Shell) -> None:
    flowing_orders(shell.fed)
    body = json.loads(shell("workload", "describe", "billing/orders", "-o", "json").stdout)
    assert body["definition"]["metadata"]["topic"] == "orders"
    assert [p["partition"] for p in body["partitions"]] == [0, 1]
    assert "worker-a" in shell("workload", "describe", "billing/orders").stdout


def test_tracker_show_prints_the_ranges_of_a_partition(shell: Shell) -> None:
    flowing_orders(shell.fed)
    shell.fed.jobs.pumps[job(0)] = a_pump()
    shown = shell("tracker", "show", "billing/orders", "0").stdout
    assert "[110,112)" in shown
    assert "[105,110) [112,120)" in shown
    body = json.loads(shell("tracker", "show", "billing/orders", "0", "-o", "json").stdout)
    assert body["in_flight_offsets"] == [105]


def test_worker_list_shows_state_and_jobs_of_each_worker(shell: Shell) -> None:
    flowing_orders(shell.fed)
    (row,) = csv.DictReader(io.StringIO(shell("worker", "list", "-o", "csv").stdout))
    assert (row["worker"], row["state"], row["jobs"]) == ("worker-a", "running", "2")


@pytest.mark.parametrize("throttled", [0.0, 0.02, 0.49])
def test_worker_list_warns_of_a_throttled_worker(shell: Shell, throttled: float) -> None:
    shell.fed.observe(msgspec.structs.replace(beat(), cpu_throttled=throttled))
    ended = shell("worker", "list")
    words = (
        "warning: the container of worker-a is throttled: its CPU quota was used up in 49% of the last "
        "minute's periods; raise the quota, or add workers"
    )
    assert (words in ended.stderr) is (throttled == 0.49)
    assert ("throttled" in ended.stderr) is (throttled == 0.49)


# -- exit codes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["workload", "describe", "no/such"], 4),
        (["tracker", "show", "billing/orders", "99"], 4),
        (["dlq", "show", "no/such"], 4),
        (["dlq", "show", "billing/orders"], 7),  # its cluster cannot be reached
        (["workload", "describe", "nonsense"], 2),
        (["workload", "describe", "a/b/c"], 2),
        (["tracker", "show", "billing/orders", "x"], 2),
        (["workload", "nonsense"], 2),
        (["config", "plan"], 2),
        (["config", "validate", "-f", "no/such/file.yaml"], 3),
        (["workload", "list", "-o", "xml"], 2),
    ],
)
def test_exit_codes_say_what_went_wrong(shell: Shell, arguments: list[str], code: int) -> None:
    flowing_orders(shell.fed)
    ended = shell(*arguments)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unreachable_worker_ends_with_7_and_the_remedy(process_shell: Shell) -> None:
    for env in ({}, {"http_proxy": process_shell.url, "HTTP_PROXY": process_shell.url}):
        ended = process_shell("workload", "list", "--url", "http://127.0.0.1:1", **env)
        assert ended.returncode == 7
        assert "faust -A app worker" in ended.stderr
        assert "SWITCHYARD_URL" in ended.stderr


def test_another_server_at_the_address_ends_with_7(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"\x00\x00\x00\x10 this is no HTTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        ended = shell("workload", "list", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join(10)
    assert ended.returncode == 7, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "url", ["", "localhost:6066", "http://", "ftp://a", "http://a:x", "http://a b", "http://ü"]
)
def test_an_invalid_address_is_a_usage_error(shell: Shell, url: str) -> None:
    ended = shell("workload", "list", "--url", url, SWITCHYARD_URL="nonsense")
    assert ended.returncode == 2, ended.stderr
    assert "http://host:port" in ended.stderr


def test_a_worker_that_is_starting_ends_with_7(shell: Shell) -> None:
    shell.fed.control.caught_up = False
    ended = shell("workload", "list")
    assert ended.returncode == 7
    assert "starting" in ended.stderr


def test_the_default_address_is_the_port_of_the_local_configuration(shell: Shell) -> None:
    file = shell.home / "switchyard.yaml"
    port = shell.url.rpartition(":")[2]
    file.write_text("region: east\nclusters: [{name: a, region: east, tier: regional, bootstrap: 'h:9092'}]\n"
                    f"web: {{port: {port}}}\n")  # fmt: skip
    ended = shell("workload", "list", "-o", "json", SWITCHYARD_URL="", SWITCHYARD_CONFIG=str(file))
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr


# -- help ------------------------------------------------------------------------------------------


def every_command() -> list[tuple[str, Any]]:
    found = []
    for noun, group in switchyard.commands.items():
        found.append((noun, group))
        if isinstance(group, click.Group):
            found += [(f"{noun} {verb}", command) for verb, command in group.commands.items()]
    return found


@pytest.mark.parametrize(("name", "command"), every_command(), ids=[name for name, _ in every_command()])
def test_every_commands_help_has_an_example(name: str, command: Any) -> None:
    assert f"switchyard {name.split(' ', maxsplit=1)[0]}" in command.help, f"{name} has no example"


def test_the_nouns_and_verbs_are_those_of_the_interface() -> None:
    names = {name for name, _ in every_command() if " " in name}
    assert names >= {
        "config validate", "config plan", "config deploy", "config diff", "config export", "config schema",
        "workload list", "workload describe", "tracker show", "dlq list", "dlq show", "worker list",
    }  # fmt: skip


def test_no_option_has_the_prefix_of_fausts_own() -> None:
    """Faust takes any argument that begins with --app for its own option."""
    for name, command in every_command():
        for parameter in command.params:
            assert not any(option.startswith(("--app", "-A")) for option in parameter.opts), name
