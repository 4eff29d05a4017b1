"""Options and output of the commands that change something: dry runs without --execute, confirmations."""

from __future__ import annotations

from collections.abc import Callable

import click

from app.cli.client import EXIT_PARTIAL, EXIT_PRECONDITION, CommandFailure
from app.cli.options import confirm
from app.cli.output import Command, emit, output_option, url_option
from app.kernel.json_types import JsonObject

DRY = "dry run: nothing was changed; add --execute to do it"


def act_options(command: Command) -> Command:
    """--execute, --yes, --url, -o."""
    for option in (
        output_option,
        url_option,
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option("--execute", is_flag=True, help="Do it; without it the command only shows the effect."),
    ):
        command = option(command)
    return command


def reset_as_shown(
    foreseen: JsonObject, what: str, columns: list[str], act: Callable[[], JsonObject], *,
    execute: bool, yes: bool, output: str,
) -> None:  # fmt: skip
    """Shows what a reset would do; or asks for confirmation, calls `act`, and prints the result."""
    rows = foreseen["partitions"]
    if not execute:
        emit(rows, columns, output, whole=foreseen)
        click.echo(f"{what}; {DRY}", err=True)
        return
    confirm(f"Reset {len(rows)} partitions: {what}?", yes)
    answer = act()
    why = ["why"] if any(row.get("why") for row in answer["partitions"]) else []
    emit(answer["partitions"], [*columns, "done", *why], output, whole=answer)
    click.echo(f"{answer['done']} of {len(rows)} partitions were reset", err=True)
    if not answer["done"]:
        raise CommandFailure("nothing was reset; the column why gives the reasons", EXIT_PRECONDITION)
    if answer["done"] < len(rows):
        raise SystemExit(EXIT_PARTIAL)
