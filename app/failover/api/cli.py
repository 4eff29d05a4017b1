"""The command group `failover`, and `failover status`."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from app.cli.client import Client, guarded
from app.cli.options import when
from app.cli.output import cell, emit, output_option, printable, url_option
from app.failover.api import cli_runs
from app.kernel.json_types import JsonObject

COLUMNS = [
    "workload",
    "mode",
    "region",
    "state",
    "epoch",
    "here",
    "since",
    "by",
    "reason",
    "released",
    "offsets",
]


@click.group()
def failover() -> None:
    """Regions: where workloads with a mode are active, and how to move them to another region.

    \b
    switchyard failover status
    switchyard failover plan --to west
    switchyard failover execute failover-3f9a2c11
    """


@failover.command()
@url_option
@output_option
@guarded
def status(url: str | None, output: str) -> None:
    """The active region of each workload with a mode: since when, by whom, and the regions that released it.

    The lines above the table say when each other region was last heard. If this region has just returned,
    they say that it acts for no workload yet.

    \b
    switchyard failover status
    switchyard failover status -o json | jq '.roles[] | select(.state != "active")'
    """
    whole = Client(url).ask("GET", "/failover")
    if output == "table":
        click.echo(f"region {printable(whole['region'])}", err=True)
        if returned := whole.get("returned"):
            since_ms = returned["since_ms"]
            since = "" if since_ms is None else f" (since {when(since_ms)})"
            words = f"it has just returned{since}: {returned['why']}; {returned['remedy']}"
            click.echo(printable(words), err=True)
        for seen in whole["regions"]:
            if not seen["own"]:
                age_s = seen["copy_age_s"]
                age = "no report from it yet" if age_s is None else f"last heard {age_s:.1f} s ago"
                click.echo(f"region {printable(seen['region'])}: {age}", err=True)
    emit([_row(role) for role in whole["roles"]], COLUMNS, output, whole=whole)


def _row(role: JsonObject) -> JsonObject:
    since_ms = role["since_ms"]
    since = None if since_ms is None else datetime.fromtimestamp(since_ms / 1000, UTC)
    return {
        **role,
        "here": "active" if role["active_here"] else "",
        "since": None if since is None else f"{since:%Y-%m-%d %H:%M:%S} UTC",
        "released": ", ".join(f"{region} ({cell(epoch)})" for region, epoch in role["released"].items()),
        "offsets": _offsets(role.get("offsets")),
    }


def _offsets(sync: JsonObject | None) -> str:
    """How the positions here follow the active region, for a workload that is passive here."""
    if not sync:
        return ""
    age = "" if sync["lag_s"] is None else f"in step {sync['lag_s']:.0f} s ago"
    parts = [age] if sync["state"] in {"synced", "unchanged"} else [sync["state"], sync["why"], age]
    return "; ".join(filter(None, parts))


for verb in cli_runs.VERBS:
    failover.add_command(verb)
