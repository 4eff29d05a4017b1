"""workload pause|resume|reset and tracker skip|stash, against a real server."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.controllog.events import Assignment, Paused
from tests.cli.shell import InProcess, Shell
from tests.cli.test_commands import flowing_orders
from tests.dispatch.api.test_rest_operators import HeldPump
from tests.web.runtime_fake import FakeRuntime, job, serving

NAME = "billing/orders"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The command line against a worker with two partitions; partition 0 has unfinished messages."""
    fed = FakeRuntime()
    with serving(fed) as url:
        flowing_orders(fed)
        fed.jobs.worker, fed.jobs.draining, fed.jobs.lease = fed.worker, False, fed.lease
        fed.jobs.pumps[job(0)] = HeldPump()
        yield InProcess(url, fed, tmp_path)


def test_pausing_is_a_dry_run_without_execute_and_asks_without_yes(shell: Shell) -> None:
    look = shell("workload", "pause", NAME)
    assert (look.returncode, "flowing" in look.stdout, "dry run" in look.stderr) == (0, True, True)
    asks = shell("workload", "pause", NAME, "--execute")
    assert (asks.returncode, "--yes" in asks.stderr) == (5, True)  # no terminal that could confirm it
    assert not shell.fed.control.appended


def test_a_partition_is_paused_and_all_is_resumed(shell: Shell) -> None:
    ended = shell(
        "workload", "pause", NAME, "--partition", "1", "--execute", "--yes", "-o", "json", USER="ann"
    )
    assert json.loads(ended.stdout)["partitions"] == [1]
    assert shell("workload", "resume", NAME, "--execute", "--yes").returncode == 0
    assert "it was resumed before" in shell("workload", "resume", NAME, "--execute", "--yes").stderr
    events = [event for event in shell.fed.control.appended if isinstance(event, Paused)]
    assert [(event.partition, event.paused) for event in events] == [(1, True), (-1, False), (-1, False)]
    assert events[0].actor == "ann (command line)"


@pytest.mark.parametrize("verb", ["skip", "stash"])
def test_a_dry_run_names_the_offsets_that_would_end_and_why_others_would_not(shell: Shell, verb: str) -> None:
    look = shell("tracker", verb, NAME, "0", "104-108", "119-121", "-o", "csv")
    assert look.returncode == 0, look.stderr
    assert list(csv.reader(io.StringIO(look.stdout)))[1:] == [
        ["3", "ended", "[105,106); [107,108); [119,120)"],
        ["1", "already finished", "[104,105)"],
        ["1", "its copy is on its way", "[106,107)"],
        ["1", "not read yet", "[120,121)"],
    ]
    assert f"{verb} 3 messages" in look.stderr
    assert "dry run" in look.stderr


def test_nothing_to_end_is_a_failed_precondition(shell: Shell) -> None:
    ended = shell("tracker", "skip", NAME, "0", "104", "--execute", "--yes")
    assert (ended.returncode, "already finished" in ended.stdout) == (5, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["workload", "reset", NAME], 2, "say where to"),
        (["workload", "reset", NAME, "--to", "earliest", "--at", "2h"], 2, "say where to"),
        (["workload", "reset", NAME, "--offset", "0:1", "--partition", "0"], 2, "say where to"),
        (["workload", "reset", NAME, "--offset", "0"], 2, "P:OFFSET"),
        (["workload", "reset", NAME, "--offset", "0:1", "--offset", "0:2"], 2, "each partition once"),
        (["workload", "pause", "orders"], 2, "group/topic"),
        (["workload", "pause", "no/such", "--execute", "--yes"], 4, "no workload no/such"),
        (["workload", "pause", NAME, "--partition", "9", "--execute", "--yes"], 4, "no partition 9"),
        (["tracker", "skip", NAME, "0", "x"], 2, "1042"),
        (["tracker", "skip", NAME, "0"], 2, "OFFSET"),
        (["tracker", "stash", NAME, "9", "1"], 4, "no worker owns"),
        (["tracker", "stash", NAME, "1", "1"], 7, "starting or stopping"),
        (["tracker", "stash", NAME, "0", "1", "--url", "http://127.0.0.1:1"], 7, "no worker answers"),
    ],
)  # fmt: skip
def test_each_error_has_its_text_and_exit_code(
    shell: Shell, arguments: list[str], code: int, words: str
) -> None:
    ended = shell(*arguments)
    assert (ended.returncode, words in ended.stderr) == (code, True), ended.stderr
    assert ended.stdout == ""
    assert not shell.fed.control.appended


def test_a_placement_is_shown_with_its_reason_and_when_the_job_last_moved(shell: Shell) -> None:
    def shown(*more: str) -> list[tuple[str, ...]]:
        ended = shell("placement", "show", "--workload", NAME, "-o", "csv", *more)
        assert ended.returncode == 0, ended.stderr
        rows = csv.DictReader(io.StringIO(ended.stdout))
        return [tuple(row.get(column, "") for column in ("job", "epoch", "since", "reason")) for row in rows]

    began = "1970-01-01T00:00:00.001+00:00"
    assert shown("--why") == [(job(0), "1", began, ""), (job(1), "1", began, "")]
    moved_ms = 1_700_000_000_000
    moved = Assignment(at_ms=moved_ms, job=job(1), worker="worker-b", epoch=2, term=0, reason="drained")
    shell.fed.apply(moved)
    assert shown("--why")[1] == (job(1), "2", "2023-11-14T22:13:20.000+00:00", "drained")
    assert shown("--why")[0][2] == began, "the start of an unchanged partition"
    assert shown()[1] == (job(1), "2", "", "")
