"""The DLQ commands against a server with a real cluster behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli.main import switchyard
from tests.cli.shell import InProcess, quiet_log
from tests.dispatch.dlq.console import served
from tests.dispatch.dlq.queues import DeadLetterQueue


class Place(InProcess):
    """A shell beside a workload whose queue holds 0..29, of which 20..29 are lost data."""

    name: str
    queue: DeadLetterQueue

    def json(self, *arguments: str) -> Any:
        ended = self(*arguments, "-o", "json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def merged(self) -> list[int]:
        return asyncio.run(self.queue.numbers())


@pytest.fixture
def place(bootstrap: str, topic_name: str, tmp_path: Path) -> Iterator[Place]:
    with quiet_log(), served(bootstrap, topic_name, 1, 30, 10, "gone\x1b[31m") as (url, fed, queue):
        made = Place(url, fed, tmp_path)
        made.name, made.queue = queue.workload.key, queue
        yield made


def test_letters_are_listed_by_query_shown_and_counted(place: Place) -> None:
    listed = place.json("dlq", "list", place.name, "--code", "data_loss", "--limit", "4")
    assert [item["value"]["text"] for item in listed] == ["29", "28", "27", "26"]
    table = place("dlq", "list", place.name, "--reason", "/^gone/")
    assert table.returncode == 0
    assert "\x1b" not in table.stdout, "a stranger's words must not drive the terminal"
    shown = place("dlq", "show", place.name, "0@21")
    assert (shown.returncode, "2023-11-14T22:13:20.000Z" in shown.stdout) == (0, True)
    assert place.json("dlq", "show", place.name, "0@21")["value"]["shown"] == "21"
    assert place.json("dlq", "stats", place.name)["codes"] == {"INTERNAL": 20, "DATA_LOSS": 10}
    assert place.json("dlq", "list") == [
        {"workload": place.name, "topic": place.queue.workload.dlq_topic(),
         "messages": 30, "enabled": True, "exists": True}
    ]  # fmt: skip


def test_a_merge_is_a_dry_run_until_it_is_confirmed(place: Place) -> None:
    dry = place("dlq", "merge", place.name, "--code", "DATA_LOSS", "-o", "json")
    assert (dry.returncode, json.loads(dry.stdout)["counts"]["merged"]) == (0, 10)
    assert "10 letters" in dry.stderr
    assert "dry run" in dry.stderr
    unasked = place("dlq", "merge", place.name, "--execute")
    assert (unasked.returncode, "add --yes" in unasked.stderr) == (5, True)
    assert place.merged() == []
    done = place("dlq", "merge", place.name, "--code", "DATA_LOSS", "--execute", "--yes", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["counts"]["merged"]) == (0, 10), done.stderr
    assert place.merged() == list(range(20, 30))
    operation = json.loads(done.stdout)["operation"]
    resumed = place("dlq", "merge", place.name, "--resume", operation, "--execute", "--yes")
    assert resumed.returncode == 0, resumed.stderr
    assert "done" in place("dlq", "operation", operation).stdout
    assert place("dlq", "merge", place.name, "--execute", "--yes").returncode == 0
    again = place("dlq", "merge", place.name, "--execute", "--yes")
    assert (again.returncode, "nothing to merge" in again.stderr) == (0, True)
    assert place.merged() == list(range(30))


def test_a_purge_is_a_dry_run_until_it_is_confirmed(place: Place) -> None:
    dry = place("dlq", "purge", place.name, "--range", "0:-12")
    assert (dry.returncode, "12 offsets" in dry.stderr) == (0, True)
    assert place.json("dlq", "list")[0]["messages"] == 30
    done = place("dlq", "purge", place.name, "--range", "0:-12", "--execute", "--yes")
    assert done.returncode == 0, done.stderr
    assert place.json("dlq", "list")[0]["messages"] == 18


def test_a_purge_by_query_counts_by_reason_asks_and_can_be_resumed(place: Place) -> None:
    chosen = ("dlq", "purge", place.name, "--code", "DATA_LOSS", "--since", "2020-01-01")
    dry = place(*chosen)
    assert (dry.returncode, "10 letters" in dry.stderr, "dry run" in dry.stderr) == (0, True, True), (
        dry.stderr
    )
    assert ("gone" in dry.stdout, "\x1b" in dry.stdout) == (True, False)
    unasked = place(*chosen, "--execute")
    assert (unasked.returncode, "add --yes" in unasked.stderr) == (5, True)
    assert place.json("dlq", "stats", place.name)["letters"] == 30
    done = place(*chosen, "--execute", "--yes", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["counts"]["purged"]) == (0, 10), done.stderr
    listed = place.json("dlq", "list", place.name)
    assert [item["value"]["text"] for item in listed] == [str(n) for n in range(19, -1, -1)]
    operation = json.loads(done.stdout)["operation"]
    resumed = place("dlq", "purge", place.name, "--resume", operation, "--execute", "--yes")
    assert resumed.returncode == 0, resumed.stderr
    again = place(*chosen, "--execute", "--yes")
    assert (again.returncode, "nothing to purge" in again.stderr) == (0, True)
    front = place("dlq", "purge", place.name, "--key", "0", "--execute", "--yes")
    assert (front.returncode, "1 offsets at the front deleted" in front.stderr) == (0, True), front.stderr
    assert place.json("dlq", "list")[0]["messages"] == 29


def test_an_export_is_a_file_or_a_stream(place: Place) -> None:
    streamed = place("dlq", "export", place.name, "--code", "DATA_LOSS")
    assert [json.loads(line)["offset"] for line in streamed.stdout.splitlines()] == list(range(20, 30))
    file = place.home / "letters.jsonl"
    dry = place("dlq", "export", place.name, "--to", str(file), "--dry-run")
    assert (dry.returncode, "nothing was written" in dry.stderr, file.exists()) == (0, True, False), (
        dry.stderr
    )
    assert place("dlq", "export", place.name, "--to", str(file)).returncode == 0
    assert len(file.read_text().splitlines()) == 30
    foretold = f"30 letters, {file.stat().st_size} bytes of JSON lines, would go to {file}\n"
    assert dry.stdout == foretold, "to the byte"
    assert place("dlq", "export", place.name, "--to", str(file)).returncode == 5
    assert place("dlq", "export", place.name, "--to", str(file), "--dry-run").returncode == 5
    few = place("dlq", "export", place.name, "--code", "DATA_LOSS", "--dry-run")
    assert few.stdout == f"10 letters, {len(streamed.stdout)} bytes of JSON lines, would go to stdout\n"
    assert [one.name for one in place.home.iterdir()] == [file.name]
    pytest.importorskip("pyarrow")
    table = place("dlq", "export", place.name, "--to", str(place.home / "letters.parquet"))
    assert (table.returncode, "30 letters" in table.stderr) == (0, True), table.stderr


ENDINGS: list[tuple[list[str], int]] = [
    (["list", "{}", "--reason", "/(/"], 2),
    (["list", "--code", "INTERNAL"], 2),
    (["stats", "{}", "--since", "whenever"], 2),
    (["show", "{}", "0-1"], 2),
    (["show", "{}", "0@99"], 4),
    (["purge", "{}"], 2),
    (["purge", "{}", "--range", "0:5-9"], 2),
    (["purge", "{}", "--before", "30d", "--code", "INTERNAL"], 2),
    (["purge", "{}", "--partition", "0"], 2),
    (["purge", "{}", "--resume", "none"], 5),
    (["purge", "{}", "--resume", "none", "--execute", "--yes"], 4),
    (["merge", "{}", "--range", "0:1-2", "--range", "0:3-4"], 2),
    (["merge", "{}", "--resume", "none"], 5),
    (["merge", "{}", "--resume", "none", "--execute", "--yes"], 4),
    (["merge", "no/such"], 4),
    (["operation", "none"], 4),
    (["export", "{}", "--format", "parquet"], 2),
    (["export", "{}", "--to", "no/such/folder/x.jsonl"], 1),
    (["export", "{}", "--to", "no/such/folder/x.jsonl", "--dry-run"], 1),
    (["export", "no/such"], 4),
]


def test_exit_codes_say_what_went_wrong(place: Place) -> None:
    for arguments, code in ENDINGS:
        words = [argument.replace("{}", place.name) for argument in arguments]
        ended = CliRunner().invoke(switchyard, ["dlq", *words, "--url", place.url])
        assert ended.exit_code == code, (arguments, ended.output)
        assert ended.exception is None or isinstance(ended.exception, SystemExit), arguments


def test_a_worker_that_dies_during_a_merge_is_an_error_that_says_how_to_resume(place: Place) -> None:
    from app.cli.client import Client, CommandFailure
    from app.cli.operations import watch

    running = {"id": "merge-1", "kind": "merge", "state": "running"}
    with pytest.raises(CommandFailure, match=r"Changes so far stay; resume it") as failure:
        watch(Client("http://127.0.0.1:1"), running, "resume it")
    assert failure.value.code == 7
