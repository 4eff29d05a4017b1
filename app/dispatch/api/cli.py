"""The commands workload list|describe, tracker show and worker list, which change nothing."""

from __future__ import annotations

from urllib.parse import quote

import click

from app.cli.client import Client, guarded, workload_path
from app.cli.options import when
from app.cli.output import emit, output_option, printable, url_option
from app.dispatch.api.cli_flow import print_flow
from app.dispatch.api.cli_move import move
from app.dispatch.api.cli_operators import pause, reset, resume, skip, stash
from app.dispatch.model.throughput_diagnosis import used_up
from app.kernel.json_types import JsonMapping
from app.kernel.load import THROTTLED

MAX_RANGES = 20  # in a table; -o json shows all that the worker sends


@click.group()
def workload() -> None:
    """Workloads: a group's consumption of a topic.

    \b
    switchyard workload list
    switchyard workload describe billing/orders
    """


@workload.command("list")
@url_option
@output_option
@guarded
def list_workloads(url: str | None, output: str) -> None:
    """Every workload with its lag, in messages and in seconds, and the region that is active for it.

    \b
    switchyard workload list -o json | jq '.[] | select(.lag_s > 60)'
    """
    columns = ["key", "active_in", "breaker", "lag_messages", "lag_s", "in_flight", "delivered", "retried",
               "dead_lettered", "partitions", "troubles"]  # fmt: skip
    found = Client(url).all("/workloads")
    emit([{**row, "active_in": _active_in(row)} for row in found], columns, output, whole=found)


def _active_in(row: JsonMapping) -> str:
    role = row.get("role")
    if not role:
        return ""
    moving = " (moving)" if role["state"] == "moving" else ""
    return f"{role['region'] or 'nowhere yet'}{' (here)' if role['active_here'] else moving}"


@workload.command()
@click.argument("name", metavar="GROUP/TOPIC")
@url_option
@output_option
@guarded
def describe(name: str, url: str | None, output: str) -> None:
    """One workload: where it is active, what limits it, its receivers and endpoints, and its partitions.

    \b
    switchyard workload describe billing/orders
    switchyard workload describe billing/orders -o yaml      # with the definition
    """
    body = Client(url).ask("GET", workload_path(name))
    if output == "table":
        _print_role(body["status"].get("role"))
    print_flow(body, output)
    columns = ["topic", "partition", "state", "lag_messages", "lag_s", "committed", "high_watermark",
               "in_flight", "delivered", "passed_over", "worker", "epoch", "trouble"]  # fmt: skip
    emit(body["partitions"], columns, output, whole=body)


def _print_role(role: JsonMapping | None) -> None:
    if not role:
        return
    if role["region"] is None:
        click.echo(f"{role['mode']}: active nowhere yet")
        return
    passive = role["mode"] == "active-passive" and not role["active_here"]
    word = "moving to" if role["state"] == "moving" else "active in"
    if role["mode"] == "active-active":
        word = "primary moves to" if role["state"] == "moving" else "primary in"
    parts = [
        f"{role['mode']}: {word} {role['region']}{', passive here' if passive else ''}",
        f"epoch {role['epoch']} since {when(role['since_ms'])} by {role['by']}", role["reason"],
    ]  # fmt: skip
    click.echo(printable("; ".join(filter(None, parts))))


@click.group()
def tracker() -> None:
    """Trackers: which offsets of a partition are finished, in flight or waiting.

    \b
    switchyard tracker show billing/orders 3
    """


@tracker.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.argument("partition", type=click.IntRange(0))
@click.option("--topic", help="A retry topic of the workload (default: its main topic).")
@url_option
@output_option
@guarded
def show(name: str, partition: int, topic: str | None, url: str | None, output: str) -> None:
    """One partition's tracker.

    \b
    switchyard tracker show billing/orders 3
    switchyard tracker show billing/orders 0 --topic orders__billing__retry_1 -o json
    """
    query = f"?topic={quote(topic, safe='')}" if topic else ""
    body = Client(url).ask("GET", f"{workload_path(name)}/partitions/{partition}/tracker{query}")
    rows = [{"what": key, "value": value} for key, value in body.items()
            if not isinstance(value, list) and key != "more_ranges"]  # fmt: skip
    rows += [{"what": name.replace("_", " "), "value": _ranges(body[name])}
             for name in ("finished_ranges", "unfinished_ranges")]  # fmt: skip
    emit(rows, ["what", "value"], output, whole=body)


def _ranges(ranges: list[list[int]]) -> str:
    shown = " ".join(f"[{start},{end})" for start, end in ranges[:MAX_RANGES])
    return shown + (f" and {len(ranges) - MAX_RANGES} more" if len(ranges) > MAX_RANGES else "")


for command in (pause, resume, reset, move):
    workload.add_command(command)
for command in (skip, stash):
    tracker.add_command(command)


@click.group()
def worker() -> None:
    """Workers of the region.

    \b
    switchyard worker list
    """


@worker.command("list")
@url_option
@output_option
@guarded
def list_workers(url: str | None, output: str) -> None:
    """Every worker with a recent heartbeat, dead ones included.

    \b
    switchyard worker list -o csv
    """
    columns = ["worker", "state", "leader", "jobs", "silent_s", "clock_ahead_s", "url"]
    rows = Client(url).all("/workers")
    emit(rows, columns, output)
    for row in rows:
        if row.get("cpu_throttled", 0) >= THROTTLED:
            words = f"warning: the container of {row['worker']} is throttled: {used_up(row['cpu_throttled'])}"
            click.echo(printable(words), err=True)
