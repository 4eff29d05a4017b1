"""Failovers on the command line: plan, execute, follow to the end, abort."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from app.cli.main import switchyard
from app.controllog.events import RoleReleased
from app.failover.api import cli_runs
from app.failover.plan.document import PlannedPartition, PlannedWorkload
from app.failover.plan.planner import FailoverPlanner
from tests.failover.api.test_rest import PATH, failover
from tests.failover.api.test_rest_runs import KEY, OTHER, hear_west, regions, role
from tests.web.client import Console
from tests.web.conftest import console as console  # noqa: PLC0414 - the fixture
from tests.web.runtime_fake import FakeRuntime

PLAN = ("failover", "plan", "--to", "east")


class Shell:
    """Runs commands in this process, against one worker: a process for each would be slow."""

    def __init__(self, url: str, fed: FakeRuntime) -> None:
        self.url = url
        self.fed = fed

    def __call__(self, *arguments: str) -> Any:
        ended = CliRunner().invoke(switchyard, arguments, env={"SWITCHYARD_URL": self.url})
        return SimpleNamespace(returncode=ended.exit_code, stdout=ended.stdout, stderr=ended.stderr)


@pytest.fixture
def shell(console: Console) -> Shell:
    regions(console.fed)
    assert console.ask("PUT", PATH, failover("orders", "refunds")).status == 201
    return Shell(console.url, console.fed)


@contextmanager
def leading(shell: Shell, *released: str) -> Iterator[None]:
    """Runs the leader's rounds in a thread; the west releases these workloads."""
    ended = threading.Event()

    def rounds() -> None:
        while not ended.wait(0.05):
            asyncio.run(shell.fed.failover.step())
            for key in released:
                found = shell.fed.control.view.roles.of(key)
                if found is not None and found.state == "moving":
                    release = RoleReleased(at_ms=1, key=key, region="west", epoch=found.epoch)
                    shell.fed.control.view.apply(release)

    thread = threading.Thread(target=rounds)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def plan(shell: Shell, *more: str) -> str:
    planned = shell(*PLAN, *more, "-o", "json")
    assert planned.returncode == 0, planned.stderr
    return str(json.loads(planned.stdout)["id"])


def test_a_plan_is_shown_executed_and_followed_to_its_end(shell: Shell) -> None:
    shown = shell(*PLAN, "--reason", "evil\x1b[2J")
    assert shown.returncode == 0, shown.stderr
    assert "the last report of region west arrived" in shown.stdout
    assert "its partitions are not known: this worker has no offset map" in shown.stderr
    assert "2 workloads, 0 partitions" in shown.stderr
    assert "not here yet unknown (unknown unreachable)" in shown.stderr
    (name,) = [word for word in shown.stderr.split() if word.startswith("failover-") and ":" not in word]
    assert f"switchyard failover execute {name}" in shown.stderr

    dry_run = shell("failover", "execute", name, "--dry-run")
    assert (dry_run.returncode, "the failover can begin; nothing was changed" in dry_run.stderr) == (0, True)
    unconfirmed = shell("failover", "execute", name)
    assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (5, True)
    with leading(shell, KEY, OTHER):
        done = shell("failover", "execute", name, "--yes")
    assert done.returncode == 0, done.stderr
    assert f"{name} is done after" in done.stderr
    assert "2 active" in done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("billing/")]
    assert [row[:4] for row in rows] == [[key, "west", "active", "128"] for key in (KEY, OTHER)]
    listed = shell("failover", "runs")
    assert name in listed.stdout
    assert "\x1b" not in listed.stdout
    whole = shell("failover", "show", name)
    assert (whole.returncode, "\x1b" in whole.stdout + whole.stderr) == (0, False)
    assert json.loads(shell("failover", "show", name, "-o", "json").stdout)["state"] == "done"
    repeated = shell("failover", "execute", name, "--yes")
    assert (repeated.returncode, "It has ended" in repeated.stderr) == (5, True)


def test_a_waiting_run_says_for_what_and_is_forced_or_aborted(shell: Shell) -> None:
    first = plan(shell, "--workload", KEY)
    started = shell("failover", "execute", first, "--yes", "--no-wait")
    assert (started.returncode, f"{first} is executing" in started.stderr) == (0, True), started.stderr
    asyncio.run(shell.fed.failover.step())
    waits = shell("failover", "show", first)
    assert f"{KEY} waits for region west to release it: " in waits.stderr
    assert f"switchyard failover execute {first} --force" in waits.stderr
    with leading(shell):
        forced = shell("failover", "execute", first, "--force", "--yes")
    assert (forced.returncode, "1 active" in forced.stderr) == (0, True), forced.stderr
    second = plan(shell)
    shell("failover", "execute", second, "--yes", "--no-wait")
    asyncio.run(shell.fed.failover.step())
    unconfirmed = shell("failover", "abort", second)
    assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (5, True)
    aborted = shell("failover", "abort", second, "--reason", "no need", "--yes")
    assert (aborted.returncode, f"{second} is aborted" in aborted.stderr) == (0, True), aborted.stderr
    assert "returning" in aborted.stdout


def test_a_blocking_check_ends_the_command_with_its_code(shell: Shell) -> None:
    hear_west(shell.fed, ago_s=60.0)
    blocked = shell(*PLAN)
    assert (blocked.returncode, "is blocked; see the checks above" in blocked.stderr) == (5, True)
    assert "if it is lost, plan with --force" in blocked.stdout
    name = json.loads(shell("failover", "runs", "-o", "json").stdout)[0]["id"]
    dry_run = shell("failover", "execute", name, "--dry-run")
    assert (dry_run.returncode, "blocked: " in dry_run.stderr) == (5, True)
    refused = shell("failover", "execute", name, "--yes")
    assert (refused.returncode, "Not as planned" in refused.stderr) == (5, True)
    assert shell(*PLAN, "--force").returncode == 0
    other_region = shell("failover", "plan", "--to", "west")
    assert (other_region.returncode, "send the command to a worker of west" in other_region.stderr) == (
        5,
        True,
    )
    assert shell("failover", "show", "failover-none").returncode == 4
    assert shell("failover", "show", "a/b").returncode == 2
    assert shell("failover", "plan").returncode == 2


def test_a_failback_takes_workloads_back(shell: Shell) -> None:
    nothing = shell("failover", "failback")
    assert (nothing.returncode, "no failover has a workload to give back" in nothing.stderr) == (5, True)
    shell.fed.apply(role("west", 129, previous="east", plan="failover-w"))
    back = shell("failover", "failback", "-o", "json")
    assert back.returncode == 0, back.stderr
    planned = json.loads(back.stdout)
    assert (planned["back_of"], [row["workload"] for row in planned["rows"]]) == ("failover-w", [KEY])


def drill(shell: Shell, *more: str) -> Any:
    return shell("failover", "drill", "--to", "east", *more)


def test_a_drill_that_does_not_know_all_partitions_fails_and_names_the_workloads(shell: Shell) -> None:
    unknown = drill(shell)
    assert (unknown.returncode, "2 workloads are not fully known" in unknown.stderr) == (1, True)
    assert f"{KEY}: its partitions are not known: this worker has no offset map" in unknown.stderr
    assert "as planned" not in unknown.stderr


def test_a_drill_of_a_failover_that_is_blocked_fails_as_the_plan_does(shell: Shell) -> None:
    shell("failover", "execute", plan(shell, "--workload", KEY), "--yes", "--no-wait")
    blocked = drill(shell)
    assert (blocked.returncode, "checks that block the failover: 1" in blocked.stderr) == (5, True), (
        blocked.stderr
    )
    assert f"blocked: {KEY}: failover failover-" in blocked.stderr
    hear_west(shell.fed, ago_s=60.0)
    unheard = drill(shell, "--workload", OTHER)
    assert (
        unheard.returncode,
        "blocked: regions: the last report of region west arrived" in unheard.stderr,
    ) == (
        5,
        True,
    )
    forced = drill(shell, "--workload", OTHER, "--force")
    assert (forced.returncode, "warn: regions: the last report of region west arrived" in forced.stderr) == (
        1,
        True,
    )


def test_a_drill_of_workloads_that_run_here_says_that_there_is_nothing_to_rehearse(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = PlannedWorkload(workload=KEY, mode="active-active", region="west", epoch=65, checks=[])

    async def known(_: FailoverPlanner, *__: Any) -> PlannedWorkload:
        return found

    monkeypatch.setattr(FailoverPlanner, "_workload", known)
    nothing = drill(shell, "--workload", KEY)
    assert (nothing.returncode, "nothing to rehearse" in nothing.stderr) == (0, True), nothing.stderr
    row = PlannedPartition(partition=0, next_offset=5, log_end=9)
    found = msgspec.structs.replace(found, mode="active-passive", partitions=[row])
    failed = drill(shell, "--workload", KEY)
    assert (failed.returncode, "1 of 1 partitions failed" in failed.stderr) == (1, True)


def test_following_a_run_shows_what_the_leader_has_not_written(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = plan(shell, "--workload", KEY)
    monkeypatch.setattr(cli_runs, "SHOW_WAIT_AFTER_S", 0.3)
    was_shown, ended = threading.Event(), threading.Event()
    printed: list[str] = []
    waits = f"{KEY} waits for the leader of east (there is none) to write it; "

    def record_text(text: str) -> None:
        printed.append(text)
        if text.startswith(waits):
            was_shown.set()

    def lead() -> None:
        was_shown.wait(30.0)
        with leading(shell, KEY):
            ended.wait(30.0)

    monkeypatch.setattr(cli_runs, "_print", record_text)
    leads = threading.Thread(target=lead)
    leads.start()
    done = shell("failover", "execute", name, "--yes")
    ended.set()
    leads.join()
    assert done.returncode == 0, done.stderr
    assert [text for text in printed if text.startswith(waits)]


def test_help_has_examples(shell: Shell) -> None:
    for verb in ("status", "plan", "execute", "abort", "failback", "drill", "runs", "show"):
        assert f"switchyard failover {verb}" in shell("failover", verb, "--help").stdout
