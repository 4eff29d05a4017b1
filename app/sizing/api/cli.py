"""size recommend: the recommended size of workloads and fleets, each figure with its reason."""

from __future__ import annotations

from collections.abc import Sequence

import click

from app.cli.client import Client, CommandFailure, guarded, workload_path
from app.cli.output import emit, output_option, printable, url_option
from app.kernel.json_types import JsonMapping

EXIT_CAPACITY = 9
COLUMNS = ["workload", "what", "now", "recommended", "why"]
WHAT = {"partitions": "partitions", "in_flight": "in flight", "workers": "workers"}


@click.group()
def size() -> None:
    """Sizes: recommended partitions, messages in flight and workers.

    \b
    switchyard size recommend
    switchyard size recommend billing/orders
    """


@size.command("recommend")
@click.argument("name", metavar="[GROUP/TOPIC]", required=False)
@click.option("--check", is_flag=True, help="Exit code 9 when a fleet has fewer workers than recommended.")
@url_option
@output_option
@guarded
def recommend_command(name: str | None, check: bool, url: str | None, output: str) -> None:
    """Recommends sizes from measured load.

    For one workload, or for every workload and the fleet: partitions, messages in flight and workers.

    \b
    switchyard size recommend
    switchyard size recommend billing/orders -o json
    switchyard size recommend --check || start-another-worker
    """
    client = Client(url)
    if name is not None and not check:
        found = client.ask("GET", f"{workload_path(name)}/sizing")
        emit(_rows(found), COLUMNS, output, whole=found)
        return
    fleets = client.ask("GET", "/sizing?limit=1")["fleets"]
    items = (
        [client.ask("GET", f"{workload_path(name)}/sizing")] if name is not None else client.all("/sizing")
    )
    rows = [_fleet(fleet) for fleet in fleets] + [row for item in items for row in _rows(item)]
    emit(rows, COLUMNS, output, whole={"fleets": fleets, "items": items})
    short = [fleet for fleet in fleets if (fleet["workers"]["value"] or 0) > (fleet["workers"]["now"] or 0)]
    if check and short:
        missing = "; ".join(
            f"{_named(fleet)}: {fleet['workers']['now']} of {fleet['workers']['value']} workers"
            for fleet in short
        )
        raise CommandFailure(printable(f"too few workers: {missing}"), EXIT_CAPACITY)


@size.command("what-if", hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("given", nargs=-1, expose_value=False)
def what_if() -> None:
    """Removed. Use switchyard size recommend."""
    raise click.UsageError(
        "size what-if was removed: change a copy of the loads and run python -m spark size --loads DIR; "
        "messages in flight are messages/s x seconds until the answer"
    )


def _rows(size: JsonMapping) -> Sequence[JsonMapping]:
    return [
        {"workload": size["key"], "what": words, "now": size[what]["now"],
         "recommended": size[what]["value"], "why": size[what]["why"]}
        for what, words in WHAT.items()
    ]  # fmt: skip


def _fleet(fleet: JsonMapping) -> JsonMapping:
    workers, ratio = fleet["workers"], fleet["load_ratio"]
    level = "" if ratio is None else f"; its {fleet['fullest']} is at {ratio:.0%}"
    row = {"workload": _named(fleet), "what": "workers", "now": workers["now"]}
    return {**row, "recommended": workers["value"], "why": workers["why"] + level}


def _named(fleet: JsonMapping) -> str:
    return f"(isolation group {fleet['group']})" if fleet["group"] else "(all)"
