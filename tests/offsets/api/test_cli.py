"""The offsets commands: positions explained by source, commits after a dry run, offsets at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.dev.yard import Yard
from tests.cli.shell import Shell
from tests.cli.shell import shell as shell  # noqa: PLC0414 - the fixture
from tests.offsets.clusters import HERE, THERE
from tests.offsets.console import served

BETWEEN = ("--from", HERE, "--to", THERE)


def test_a_group_is_mapped_and_synced_and_the_result_is_printed(
    yard: Yard, tmp_path: Path, topic_name: str
) -> None:
    with served(yard, tmp_path, topic_name) as at:
        run = Shell(at.url, at.fed, tmp_path)
        mapped = run("offsets", "map", "--group", at.group, *BETWEEN)
        assert mapped.returncode == 0, mapped.stderr
        rows = [line.split() for line in mapped.stdout.splitlines()]
        assert rows[1][:6] == [topic_name, topic_name, "copy", "0", "60", "5"]
        explained = next(line for line in mapped.stdout.splitlines() if "50=60" in line)
        assert f"{HERE}/{topic_name}-0" in explained
        assert "0:55" in explained
        foreseen = run("offsets", "sync", at.group, *BETWEEN)
        assert (foreseen.returncode, "1 partitions; dry run" in foreseen.stderr) == (0, True), foreseen.stderr
        unconfirmed = run("offsets", "sync", at.group, *BETWEEN, "--execute")
        assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (5, True)
        done = run("offsets", "sync", at.group, *BETWEEN, "--execute", "--yes", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["done"]
        back = run("offsets", "sync", at.group, "--from", THERE, "--to", HERE, "--execute", "--yes")
        assert (back.returncode, "was left alone" in back.stderr) == (5, True), back.stderr
        kept = run("offsets", "sync", "-o", "csv").stdout.splitlines()
        assert kept[1] == "mirror,,here,there,a,unchanged,1970-01-01T00:00:00.005Z,"
        assert kept[-1] == ",p/t,there,here,p,live,1970-01-01T00:00:00.004Z,<b>somebody</b>"
        times = run("offsets", "at-time", topic_name, "1h")
        assert times.returncode == 0, times.stderr
        assert "nowhere is missing" in times.stderr
        assert times.stdout.count(topic_name) == 2
        assert run("offsets", "at-time", f"{topic_name}-none", "1h", "--cluster", HERE).returncode == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("map", *BETWEEN),
        ("map", *BETWEEN, "--group", "g", "--topic", "t", "--offset", "0:1"),
        ("map", "--group", "g", "--to", THERE),
        ("sync", "--execute"),
        ("sync", "g", "--from", HERE),
    ],
)
def test_a_missing_option_is_named_in_the_error(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell("offsets", *arguments).returncode == 2


def test_help_has_examples(shell: Shell) -> None:
    for verb in ("map", "sync", "at-time"):
        assert f"switchyard offsets {verb} " in shell("offsets", verb, "--help").stdout
