"""size recommend|what-if: how large workloads and the fleet should be, each figure with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import msgspec

from app.cli.client import Client, CommandFailure, guarded, workload_path
from app.cli.output import emit, output_option, printable, url_option
from app.config.quantities import parse_size
from app.kernel.durations import parse_duration
from app.kernel.load import DEFAULT_WORKER, Load
from app.sizing.recommendation import MAX_PARTITIONS, Measured, SizingRules, recommend

EXIT_CAPACITY = 9
COLUMNS = ["workload", "what", "now", "recommended", "why"]
NO_FORECASTS = (
    "the worker that answers is older than this command, and knows no forecasts: measured load only"
)
SAID_BY = {"partitions": "--per-partition", "in_flight": "--latency", "workers": "--cpu"}
WHAT = {"partitions": "partitions", "in_flight": "in flight", "workers": "workers"}


class FigureParam(click.ParamType):
    """A number that `parse` reads from text, with the words of its error."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return float(value)
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1e12:
        raise ValueError("not a number from 0 to 1e12")
    return number


NUMBER, DURATION = FigureParam("NUMBER", _number), FigureParam("DURATION", parse_duration)
SIZE = FigureParam("SIZE", parse_size)


@click.group()
def size() -> None:
    """Sizes: partitions, messages in flight and workers that there should be.

    \b
    switchyard size recommend billing/orders
    switchyard size what-if --rate 5000 --latency 20ms --partitions 16 --cpu 1.8
    """


@size.command("recommend")
@click.argument("name", metavar="[GROUP/TOPIC]", required=False)
@click.option("--check", is_flag=True, help="Exit code 9 when a fleet has fewer workers than recommended.")
@url_option
@output_option
@guarded
def recommend_command(name: str | None, check: bool, url: str | None, output: str) -> None:
    """What one workload, or every workload and the fleet, should have: from measured load, and workers also
    from what python -m spark size --publish forecast for this and the coming hour.

    \b
    switchyard size recommend
    switchyard size recommend billing/orders -o json
    switchyard size recommend --check || start-another-worker
    """
    client = Client(url)
    if name is not None and not check:
        told = client.ask("GET", f"{workload_path(name)}/sizing")
        emit(_rows(told), COLUMNS, output, whole=told)
        return
    first = client.ask("GET", "/sizing?limit=1")
    fleets, taken = first["fleets"], first.get("forecasts")
    items = (
        [client.ask("GET", f"{workload_path(name)}/sizing")] if name is not None else client.all("/sizing")
    )
    rows = [row for fleet in fleets for row in _fleet(fleet)] + [row for item in items for row in _rows(item)]
    emit(rows, COLUMNS, output, whole={"forecasts": taken, "fleets": fleets, "items": items})
    if taken is None:
        click.echo(NO_FORECASTS, err=True)
    elif taken["passed_over"]:
        told = "{passed_over} of the forecast topic's records passed over; the last: {last_passed_over}"
        click.echo(printable(told.format_map(taken)), err=True)
    short = [fleet for fleet in fleets if (fleet["workers"]["value"] or 0) > (fleet["workers"]["now"] or 0)]
    if check and short:
        told = "; ".join(
            f"{_named(fleet)}: {fleet['workers']['now']} of {fleet['workers']['value']} workers"
            for fleet in short
        )
        raise CommandFailure(printable(f"too few workers: {told}"), EXIT_CAPACITY)


@size.command("what-if")
@click.option("--rate", type=NUMBER, required=True, help="Messages that arrive a second.")
@click.option("--latency", type=DURATION, help="Mean time from push to answer, such as 20ms.")
@click.option("--lag", type=NUMBER, default="0", help="Messages that wait already.")
@click.option("--partitions", type=click.IntRange(1, MAX_PARTITIONS), default=1, show_default=True,
              help="Of the topic, now.")  # fmt: skip
@click.option("--per-partition", type=NUMBER, help="Messages a second that one partition can carry.")
@click.option("--ordered", is_flag=True, help="Strict order by partition: one message in flight each.")
@click.option("--cpu", type=NUMBER, help="Cores that all its jobs take together.")
@click.option("--memory", type=SIZE, default="0", help="That all its jobs take together.")
@click.option("--network", type=SIZE, default="0", help="Bytes a second, read and sent.")
@click.option("--worker-cpu", type=NUMBER, default=str(DEFAULT_WORKER.cpu_cores), show_default=True,
              help="Cores that a worker can use.")  # fmt: skip
@click.option("--worker-memory", type=SIZE, default="2GiB", show_default=True, help="That a worker has.")
@click.option("--headroom", type=NUMBER, default="1.3", show_default=True, help="Factor over what is known.")
@click.option("--catch-up", type=DURATION, default="10m", show_default=True, help="When the lag is gone.")
@click.option("--spare", type=click.IntRange(0, 100), default=1, show_default=True,
              help="Workers that may be lost at once.")  # fmt: skip
@output_option
@guarded
def what_if(
    rate: float, latency: float | None, lag: float, partitions: int, per_partition: float | None,
    ordered: bool, cpu: float | None, memory: float, network: float, worker_cpu: float, worker_memory: float,
    headroom: float, catch_up: float, spare: int, output: str,
) -> None:  # fmt: skip
    """What a workload would need: computed here from what you say, no worker is asked.

    \b
    switchyard size what-if --rate 5000 --latency 20ms
    switchyard size what-if --rate 200 --latency 50ms --partitions 4 --ordered
    switchyard size what-if --rate 5000 --latency 20ms --partitions 16 --per-partition 800 --cpu 1.8
    """
    for option, value in (("--headroom", headroom), ("--catch-up", catch_up), ("--worker-cpu", worker_cpu)):
        if not value > 0:
            raise click.BadParameter("must be above 0", param_hint=option)
    measured = Measured(
        rate=rate,
        latency_s=latency,
        lag_messages=lag,
        partitions=partitions,
        partition_ceiling=per_partition,
        load=None if cpu is None else Load(cpu, memory, network),
        ordered=ordered,
    )
    rules = SizingRules(headroom=headroom, catch_up_s=catch_up, spare_workers=spare)
    worker = Load(worker_cpu, worker_memory, DEFAULT_WORKER.network_bytes_per_s)
    made = msgspec.to_builtins(recommend(measured, worker, rules))
    now = {"partitions": partitions}
    for what, option in SAID_BY.items():
        if made[what]["value"] is None:
            made[what]["why"] += f"; say it with {option}"
    rows = [
        {
            "what": words,
            "now": now.get(what, "-"),
            "recommended": made[what]["value"],
            "why": made[what]["why"],
        }
        for what, words in WHAT.items()
    ]
    emit(rows, COLUMNS[1:], output, whole=made)


def _rows(size: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rows = [
        {"workload": size["key"], "what": words, "now": size[what]["now"],
         "recommended": size[what]["value"], "why": size[what]["why"]}
        for what, words in WHAT.items()
    ]  # fmt: skip
    to_come = size.get("forecast")
    if to_come is not None:
        busiest = f"up to {to_come['rate_per_s']:,.0f} messages/s on {to_come['told']}"
        rows += [
            {"workload": size["key"], "what": f"{words}, forecast", "now": size[what]["now"],
             "recommended": to_come[what], "why": f"{busiest}: {to_come[what + '_why']}"}
            for what, words in WHAT.items()
            if what in to_come
        ]  # fmt: skip
    return rows


def _fleet(fleet: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    workers, ratio, to_come = fleet["workers"], fleet["load_ratio"], fleet.get("forecast")
    level = "" if ratio is None else f"; its {fleet['fullest']} is at {ratio:.0%}"
    row = {"workload": _named(fleet), "now": workers["now"]}
    rows = [{**row, "what": "workers", "recommended": workers["value"], "why": workers["why"] + level}]
    if to_come is not None:
        rows.append(
            {**row, "what": "workers, forecast", "recommended": to_come["workers"], "why": to_come["why"]}
        )
    return rows


def _named(fleet: Mapping[str, Any]) -> str:
    return f"(isolation group {fleet['group']})" if fleet["group"] else "(all)"
