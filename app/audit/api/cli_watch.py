"""audit watch: shows differences between tiers as they come and go.

On a terminal it keeps a table up to date. Otherwise it prints a line for each change, at first for each
difference. If a worker does not answer, it says so and asks again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple
from urllib.parse import urlencode

import click
import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app.cli.client import EXIT_LOSS, EXIT_PARTIAL, EXIT_UNREACHABLE, Client, CommandFailure, guarded
from app.cli.output import cell, csv_text, formats, printable, url_option
from app.kernel.json_types import JsonMapping, JsonObject

STATES = ("ok", "provisional", "lossy", "duplicated", "corrupted", "late", "absent-audit")
LOSS = {"lossy", "corrupted"}  # records that a tier had are not in the next one
SHOWN = ("topic", "from_tier", "to_tier", "start", "state", "from_count", "to_count", "missing", "extra")
COLUMNS = ("before", *SHOWN[:3], "group", *SHOWN[3:], "absent")  # of a file
STYLES = {"lossy": "bold red", "corrupted": "bold red", "ok": "green", "provisional": "dim"}
MOST_ROWS = 30  # of the table: differences first, then the newest
WATCH_INTERVAL_S = 2.0

VerdictRow = JsonObject
PairName = tuple[str, str, str, str | None, int, int]


class VerdictChange(NamedTuple):
    """A verdict that differs from the last one seen. `before`: the state then; None: the verdict is new."""

    before: str | None
    row: VerdictRow


def name_of(row: JsonMapping) -> PairName:
    """The window, the tiers and the consumer group of a verdict."""
    return row["topic"], row["from_tier"], row["to_tier"], row["group"], row["start_ms"], row["end_ms"]


def changes(known: Mapping[PairName, VerdictRow] | None, rows: Iterable[VerdictRow]) -> list[VerdictChange]:
    """New or changed verdicts, the oldest first. At the start (`known` None) only differences."""
    found = []
    for row in sorted(rows, key=lambda row: (row["start_ms"], row["topic"], row["from_tier"])):
        before = None if known is None else known.get(name_of(row))
        if before is None:
            if known is not None or row["state"] not in ("ok", "provisional"):
                found.append(VerdictChange(None, row))
        elif _signature(before) != _signature(row):
            found.append(VerdictChange(before["state"], row))
    return found


def _signature(row: JsonMapping) -> tuple[Any, ...]:
    """The fields whose change is shown. While a window is not over, its counts grow all the time."""
    if row["state"] in ("ok", "provisional"):
        return (row["state"],)
    return row["state"], row["missing"], row["extra"], tuple(row["absent"])


def line(change: VerdictChange) -> str:
    """A change in words."""
    row = change.row
    was = f"{change.before} -> " if change.before and change.before != row["state"] else ""
    tiers = f"{row['from_tier']} -> {_target(row)}"
    return printable(f"{row['start']} {row['topic']} {tiers}: {was}{row['state']}{_why(row)}")


def _target(row: JsonMapping) -> str:
    return f"{row['to_tier']} ({row['group']})" if row["group"] else str(row["to_tier"])


def _why(row: JsonMapping) -> str:
    match row["state"]:
        case "ok" | "provisional":
            return f", {row['to_count']} of {row['from_count']}"
        case "lossy" | "late":
            return f", {row['missing']} of {row['from_count']} are missing"
        case "duplicated":
            return f", {row['extra']} more than {row['from_count']}"
        case "corrupted":
            return f", {row['from_count']} at both, but not the same ({row['by']} differ)"
        case _:
            return f": nothing is known of {', '.join(row['absent'])}"


def _table(rows: Iterable[VerdictRow], words: str) -> Table:
    shown = sorted(rows, key=lambda row: (row["state"] in ("ok", "provisional"), -row["start_ms"]))
    table = Table(box=None, pad_edge=False, header_style="bold", caption=printable(words))
    for column in SHOWN:
        table.add_column(column, overflow="fold")
    for row in shown[:MOST_ROWS]:
        style, cells = STYLES.get(row["state"], "yellow"), {**row, "to_tier": _target(row)}
        table.add_row(*[Text(printable(cell(cells[c])), style if c == "state" else "") for c in SHOWN])
    return table


@click.command(short_help="Differences between tiers as they come and go.")
@click.option("--topic", help="Of this topic only.")
@click.option(
    "--from", "since", metavar="TIME", default="2h", show_default=True,
    help="Windows that begin at this time or later: 2h (ago), an ISO 8601 time, or milliseconds.",
)  # fmt: skip
@click.option("--to", "until", metavar="TIME", help="Windows that begin before this time.")
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    default=WATCH_INTERVAL_S,
    show_default=True,
    help="How often to ask.",
)
@click.option(
    "--until-ok",
    "until_ok_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    help="End once a window is compared and all are ok; after SECONDS end with 8 (lost) or 6 (unknown).",
)
@formats("table", "json", "csv", about="json, csv: every change in a line.")
@url_option
@guarded
def watch(
    topic: str | None,
    since: str,
    until: str | None,
    every_s: float,
    until_ok_s: float | None,
    output: str,
    url: str | None,
) -> None:
    """Shows differences between tiers as they come and go, until Ctrl-C.

    With --until-ok it ends with exit code 0 once a window is compared and all compared windows are ok. When
    the time is over, it ends with 8 if records are missing, else with 6.

    \b
    switchyard audit watch --topic orders
    switchyard audit watch -o json | jq 'select(.state == "lossy")'
    switchyard audit watch --from 10m --until-ok 120
    """
    client = Client(url)
    wanted = {"state": STATES, "from": since, "to": until, "topic": topic}
    query = urlencode({name: value for name, value in wanted.items() if value}, doseq=True)

    def ask() -> list[VerdictRow]:
        return client.all("/audit/loss", query)

    terminal = output == "table" and sys.stdout.isatty()
    console = Console()
    try:
        with Live(console=console, auto_refresh=False) if terminal else nullcontext() as live:
            code = _follow(ask, live, every_s, until_ok_s, output)
    except KeyboardInterrupt:
        code = 0
    raise SystemExit(code)


def _follow(
    ask: Callable[[], list[VerdictRow]],
    live: Live | None,
    every_s: float,
    until_ok_s: float | None,
    output: str,
) -> int:
    """Watches until all is ok, or the time is over. Returns the exit code."""
    if output == "csv":
        click.echo(csv_text([COLUMNS]), nl=False)
    known: dict[PairName, VerdictRow] | None = None
    began_s, outage = time.monotonic(), ""
    while True:
        try:
            rows = ask()
            outage = _report_return(outage)
        except CommandFailure as failure:
            if failure.code != EXIT_UNREACHABLE or known is None:
                raise
            rows, outage = list(known.values()), _report_outage(outage, str(failure))
        if live is not None:
            words = outage or time.strftime("as of %H:%M:%S; Ctrl-C ends")
            live.update(_table(rows, words), refresh=True)
        elif not outage:
            for change in changes(known, rows):
                _print_change(change, output)
        if not outage:
            known = {name_of(row): row for row in rows}
        if until_ok_s is not None:
            if rows and not outage and all(row["state"] == "ok" for row in rows):
                return 0
            if time.monotonic() - began_s >= until_ok_s:
                click.echo(_not_ok(rows), err=True)
                return EXIT_LOSS if any(row["state"] in LOSS for row in rows) else EXIT_PARTIAL
        time.sleep(every_s)


def _not_ok(rows: list[VerdictRow]) -> str:
    """Why the time ran out."""
    states = Counter(row["state"] for row in rows if row["state"] != "ok")
    if not rows:
        return "the time is over: there is nothing to compare"
    differing = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"the time is over: of {len(rows)} comparisons {differing or 'all were ok in the last answer'}"


def _print_change(change: VerdictChange, output: str) -> None:
    if output == "json":
        click.echo(orjson.dumps({"before": change.before, **change.row}).decode())
    elif output == "csv":
        row = {"before": change.before or "", **change.row, "group": change.row["group"] or ""}
        click.echo(csv_text([[row[column] for column in COLUMNS]]), nl=False)
    else:
        click.echo(line(change))


def _report_outage(before: str, words: str) -> str:
    if not before:
        click.echo(f"switchyard: {printable(words)}; asking again", err=True)
    return words


def _report_return(before: str) -> str:
    if before:
        click.echo("switchyard: the worker answers again", err=True)
    return ""
