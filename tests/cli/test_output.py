"""Output formats: -o, and the flags --json and --csv of every command with data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from app.cli.main import switchyard
from app.cli.output import csv_text, output_option


def commands(group: Any, *before: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield " ".join((*before, name)), command


@pytest.mark.parametrize(
    ("options", "output"),
    [([], "table"), (["--json"], "json"), (["--csv"], "csv"), (["-o", "yaml"], "yaml"),
     (["-o", "csv", "--json"], "json"), (["--json", "-o", "csv"], "csv")],
)  # fmt: skip
def test_a_format_has_two_options_and_the_last_one_wins(options: list[str], output: str) -> None:
    @click.command()
    @output_option
    def show(output: str) -> None:
        click.echo(output)

    assert CliRunner().invoke(show, options).output == f"{output}\n"


def test_every_command_with_a_format_has_both_options() -> None:
    found = 0
    for name, command in commands(switchyard):
        choices = [one.type.choices for one in command.params if "--output" in one.opts]
        flags = {option for one in command.params for option in one.opts} & {"--json", "--csv"}
        assert not choices or flags == {f"--{kind}" for kind in choices[0]} & {"--json", "--csv"}, name
        found += bool(choices)
    assert found > 20


def test_no_cell_of_a_file_is_a_formula() -> None:
    assert csv_text([["=1+1", -1, None, 1.5]]) == "'=1+1,-1,unknown,1.5\n"
