"""Data to stdout as a table, JSON, YAML or CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.kernel.csv_cells import text_cell
from app.kernel.json_types import JsonMapping

Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)  # as Click's decorators take it

FORMATS = ("table", "json", "yaml", "csv")
PLAIN_WIDTH = 100_000  # when stdout is no terminal: one row is one line, for grep and awk


def formats(*names: str, about: str | None = None) -> Callable[[Command], Command]:
    """-o with these formats, of which the first is usual; --json and --csv say the same."""

    def decorated(command: Command) -> Command:
        for name in ("csv", "json"):
            if name in names:
                command = click.option(
                    f"--{name}", "output", flag_value=name, help=f"The same as -o {name}."
                )(command)
        return click.option(
            "-o", "--output", type=click.Choice(names), default=names[0], show_default=True, help=about
        )(command)

    return decorated


output_option = formats(*FORMATS)


def url_option(command: Command) -> Command:
    """--url of a worker."""
    return click.option("--url", metavar="URL", help="A worker's web address (or SWITCHYARD_URL).")(command)


def emit(rows: Sequence[JsonMapping], columns: Sequence[str], output: str, *, whole: object = None) -> None:
    """Prints `rows`; JSON and YAML print `whole` when given, with everything that is known."""
    if output == "json":
        click.echo(orjson.dumps(rows if whole is None else whole, option=orjson.OPT_INDENT_2).decode())
    elif output == "yaml":
        from app.cli.yaml_output import yaml_writer

        yaml = yaml_writer()
        yaml.default_flow_style = False
        yaml.dump(rows if whole is None else whole, sys.stdout)
    elif output == "csv":
        click.echo(csv_text([columns, *([row.get(column) for column in columns] for row in rows)]), nl=False)
    else:
        terminal = sys.stdout.isatty()
        console = Console(width=None if terminal else PLAIN_WIDTH)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold", no_wrap=not terminal)
        for row in rows:
            # Text, not markup: what stands in records must not style the operator's terminal.
            table.add_row(*[Text(printable(cell(row.get(column)))) for column in columns])
        console.print(table)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Lines of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_csv_cell, row) for row in rows)
    return text.getvalue()


def _csv_cell(value: object) -> str:
    text = cell(value)
    return text if isinstance(value, int | float) else text_cell(text)


def cell(value: object) -> str:
    """A value in one cell; unknown is said, not left empty."""
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return str(value)


def printable(text: str) -> str:
    """Without control characters, which could drive a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
