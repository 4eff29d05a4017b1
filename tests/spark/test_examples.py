"""Each example in a job's `--help` is a command that the job accepts."""

from __future__ import annotations

import importlib
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator

import pytest

from spark.__main__ import EXAMPLES, JOBS, main

BEGINS = "python -m spark "


def commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        assert not line.strip().startswith("-"), "an option stands on a line of its own"
        if line.strip().startswith(BEGINS) and " JOB " not in line:
            yield shlex.split(line.strip().removeprefix(BEGINS))


OF_JOBS = [
    (name, command)
    for name in JOBS
    for command in commands(importlib.import_module(f"spark.jobs.{name}").EXAMPLES)
]


@pytest.mark.parametrize(("name", "command"), [*OF_JOBS, *((one[0], one) for one in commands(EXAMPLES))])
def test_an_example_is_a_command(name: str, command: list[str]) -> None:
    parser = ArgumentParser()
    importlib.import_module(f"spark.jobs.{name}").add_arguments(parser)
    assert command[0] == name
    parser.parse_args(command[1:])


def test_every_job_but_jars_has_examples() -> None:
    assert {name for name, _ in OF_JOBS} >= JOBS.keys() - {"jars"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--offsets", "abc", "'abc' is not a range of offsets: give START-END"),
        ("--offsets", "9-3", "'9-3' is not a range of offsets: give START-END"),
        ("--partitions", "0,a", "'0,a' is not a list of partitions: give numbers"),
        ("--from", "noon", "'noon' is not a time: give 2026-11-22T09:30"),
    ],
)
def test_an_unusable_restore_option_is_refused_with_its_name_and_the_remedy(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--archive", "there", "--topic", "orders", "--bootstrap", "broker:9092", "--into", "again"]
    with pytest.raises(SystemExit) as caught:
        main(["restore", *given, option, value])
    assert caught.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert f"argument {option}" in errors
