"""Options of the DLQ commands, and the API parameters that they become."""

from __future__ import annotations

import sys
import time
from urllib.parse import urlencode

import click

from app.cli.client import EXIT_PRECONDITION, EXIT_USAGE, CommandFailure, workload_path
from app.cli.output import Command
from app.dispatch.dlq.query import BadQuery, LetterQuery, parse_when
from app.dispatch.dlq.rules import parse_range
from app.kernel.clock import iso
from app.kernel.json_types import JsonObject


def query_options(command: Command) -> Command:
    """The conditions that choose letters."""
    for option in (
        click.option(
            "--partition", type=click.IntRange(0), multiple=True, help="In this partition (again: or)."
        ),
        click.option("--attempt-min", type=click.IntRange(0), help="Delivered at least this many times."),
        click.option("--key", help="The whole key: text, or base64:..."),
        click.option("--until", metavar="TIME", help="Moved here before this time."),
        click.option(
            "--since", metavar="TIME", help="Moved here since: 2h (ago), 2026-01-31T12:00 (UTC), ms."
        ),
        click.option("--code", multiple=True, help="Given up with this status (again: or)."),
        click.option("--reason", help="The reason has this text; /between slashes/ an expression (RE2)."),
    ):
        command = option(command)
    return command


def query_of(options: JsonObject) -> JsonObject:
    """The given conditions, times as milliseconds. Raises CommandFailure."""
    now_ms = time.time_ns() // 1_000_000
    found: JsonObject = {}
    for name in ("reason", "code", "key", "attempt_min", "partition"):
        value = options.get(name)
        if value not in (None, ()):
            found[name] = list(value) if isinstance(value, tuple) else value
    for name in ("since", "until"):
        if options.get(name) is not None:
            try:
                found[f"{name}_ms"] = parse_when(options[name], now_ms)
            except BadQuery as error:
                raise CommandFailure(f"--{name}: {error}", EXIT_USAGE) from error
    try:
        LetterQuery.from_json(found)
    except BadQuery as error:
        raise CommandFailure(str(error), EXIT_USAGE) from error
    return found


def query_string(query: JsonObject) -> str:
    """`query` as the query string of a GET."""
    return urlencode({name.removesuffix("_ms"): value for name, value in query.items()}, doseq=True)


def dlq_path(name: str) -> str:
    """The API's path of a workload's queue. Raises CommandFailure."""
    return workload_path(name).replace("/workloads/", "/dlq/", 1)


def when(at_ms: int | None) -> str | None:
    """A time for people (`app.kernel.clock.iso`), with the short sign of UTC."""
    return None if at_ms is None else iso(at_ms).replace("+00:00", "Z")


def change_options(command: Command) -> Command:
    """--execute, --yes and --range."""
    command = click.option("--yes", is_flag=True, help="Do not ask.")(command)
    command = click.option(
        "--execute", is_flag=True, help="Do it; without this, only show what would change."
    )(command)
    return click.option(
        "--range",
        "ranges",
        metavar="P:FROM-BEFORE",
        multiple=True,
        help="Offsets [FROM, BEFORE) of a partition.",
    )(command)


def spans_of(texts: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """--range in the API's form. Raises CommandFailure."""
    try:
        spans = [parse_range(text) for text in texts]
    except BadQuery as error:
        raise CommandFailure(f"--range: {error}", EXIT_USAGE) from error
    if len({partition for partition, _ in spans}) < len(spans):
        raise CommandFailure("--range: one range a partition", EXIT_USAGE)
    return {str(partition): {"start": start, "end": end} for partition, (start, end) in spans}


def confirm(question: str, yes: bool) -> None:
    """Asks for confirmation unless `yes`. Raises CommandFailure when there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailure("standard input is no terminal to confirm on; add --yes", EXIT_PRECONDITION)
    click.confirm(question, abort=True, err=True)
