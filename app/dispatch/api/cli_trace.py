"""The command `trace`, which shows where the messages of a workload wait."""

from __future__ import annotations

import math

import click

from app.cli.client import Client, guarded, workload_path
from app.cli.output import emit, output_option, printable, url_option
from app.dispatch.model.latency_trace import MAX_TRACE_S
from app.kernel.durations import parse_duration

ANSWER_S = 20.0  # for the answer, beyond the trace


def _seconds(_: click.Context, __: click.Parameter, value: str) -> int:
    try:
        seconds = math.ceil(parse_duration(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is {error}") from error
    if not 1 <= seconds <= MAX_TRACE_S:
        raise click.BadParameter(f"{value!r} is not within 1s and {MAX_TRACE_S}s")
    return seconds


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.option("--for", "seconds", default="10s", show_default=True, callback=_seconds, metavar="DURATION",
              help=f"How long messages are traced; at most {MAX_TRACE_S}s.")  # fmt: skip
@click.option("--workers", "by_worker", is_flag=True, help="Each worker on its own.")
@url_option
@output_option
@guarded
def trace(name: str, seconds: int, by_worker: bool, url: str | None, output: str) -> None:
    """Where a workload's messages wait, from their append to the commit.

    All workers that own partitions of the main topic trace them for a time. Messages that arrive meanwhile
    count, with their first answer.

    \b
    switchyard trace billing/orders
    switchyard trace billing/orders --for 30s --workers
    """
    path = workload_path(name)
    click.echo(f"tracing for {seconds} s ...", err=True)
    body = Client(url).ask("GET", f"{path}/trace?seconds={seconds}", timeout_s=seconds + ANSWER_S)
    columns = ["stage", "count", "p50_ms", "p99_ms", "longest_ms"]
    rows = body["stages"]
    if by_worker:
        columns = ["worker", *columns]
        rows = [{"worker": one["worker"], **row} for one in body["workers"] for row in one["stages"]]
    emit(rows, columns, output, whole=body)
    if waiting := body["unanswered"]:
        words = f"{waiting} messages had no answer at the end; see: switchyard workload describe {name}"
        click.echo(printable(words), err=True)
    for problem in body["problems"]:
        click.echo(printable(f"incomplete: {problem}"), err=True)
