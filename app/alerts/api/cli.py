"""alert list|describe|test: firing alerts, their notices, and tests of channels."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

import click
from pydantic import ValidationError

from app.alerts.definition import AlertDefinition
from app.cli.client import EXIT_FAILURE, EXIT_PARTIAL, Client, alert_path, guarded
from app.cli.output import emit, output_option, printable, url_option
from app.config.problems import not_readable
from app.kernel.json_types import JsonObject

COLUMNS = ["name", "state", "severity", "topic", "tiers", "what", "since", "notices"]
TESTED = ["channel", "place", "taken", "why"]
STATES = ("firing", "pending", "resolved")


@click.group()
def alert() -> None:
    """Alerts: firing audit findings, and their notices.

    \b
    switchyard alert list
    switchyard alert describe orders-lost
    switchyard alert test orders-lost
    """


@alert.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="May be given repeatedly.")
@click.option("--topic", help="Of this topic only.")
@url_option
@output_option
@guarded
def list_command(states: tuple[str, ...], topic: str | None, url: str | None, output: str) -> None:
    """Lists alerts that fire, are pending, or were resolved within a day.

    \b
    switchyard alert list --state firing
    switchyard alert list -o json | jq '.[] | .windows'
    """
    query = urlencode([*(("state", state) for state in states), *([("topic", topic)] if topic else [])])
    client = Client(url)
    rows = client.all("/alerts", query)
    emit([_row(row) for row in rows], COLUMNS, output, whole=rows)
    if not rows:
        rules = client.all("/alert-rules")
        said = f"none, of {len(rules)} that are defined" if rules else (
            "no alert is defined, so no person learns of missing records. Write one (kind: Alert), then: "
            "switchyard config deploy -f alert.yaml --execute"
        )  # fmt: skip
        click.echo(said, err=True)


@alert.command()
@click.argument("name")
@url_option
@output_option
@guarded
def describe(name: str, url: str | None, output: str) -> None:
    """Shows an alert: its channels, its windows, and what to do.

    \b
    switchyard alert describe orders-lost
    """
    client = Client(url)
    rule = client.ask("GET", alert_path(name))
    rows = client.all("/alerts", urlencode({"name": name}))
    if output != "table":
        emit([_row(row) for row in rows], COLUMNS, output, whole={**rule, "alerts": rows})
        return
    click.echo(f"{printable(name)}: {printable(_condition(rule['definition']))}")
    click.echo(f"{rule['firing']} fire, {rule['pending']} are pending")
    for channel in rule["channels"]:
        click.echo(
            f"channel {channel['channel']} {printable(channel['place'])}: "
            f"{printable(_channel_words(channel))}"
        )
    for row in rows:
        click.echo()
        click.echo(printable(f"{row['state']}: {row['topic']}, {_tiers(row)}: {row['what']}"))
        for label, field in (
            ("holds since", "since_ms"),
            ("fired at", "fired_ms"),
            ("over since", "over_ms"),
        ):
            if row[field]:
                click.echo(f"  {label} {_time(row[field])}")
        for window in row["windows"]:
            counts = f"{window['from_count']} before, {window['to_count']} after"
            click.echo(printable(f"  {_time(window['start_ms'])}  {window['state']}  {counts}"))
        if row["more_windows"]:
            click.echo(f"  and {row['more_windows']} more")
        for line in row["todo"]:
            click.echo(printable(f"  > {line}"))


@alert.command()
@click.argument("name")
@url_option
@output_option
@guarded
def test(name: str, url: str | None, output: str) -> None:
    """Sends a test notice to every channel. Exit code 1 when none takes it, 6 when some do not.

    The worker that gets this request sends it. Every worker needs the environment variables that channels
    name.

    \b
    switchyard alert test orders-lost
    """
    answer = Client(url).ask("POST", f"{alert_path(name)}/test")
    tried = answer["channels"]
    emit(tried, TESTED, output, whole=answer)
    taken = sum(one["taken"] for one in tried)
    if not tried:
        click.echo("it has no channels, so no one gets a notice; add some to its definition", err=True)
    elif taken < len(tried):
        click.echo(f"{len(tried) - taken} of {len(tried)} channels did not take it", err=True)
        raise SystemExit(EXIT_PARTIAL if taken else EXIT_FAILURE)


def _row(row: JsonObject) -> JsonObject:
    troubles = [f"{one['channel']}: {_channel_words(one)}" for one in row["channels"] if one["waits"]]
    notified = sum(not one["waits"] for one in row["channels"])
    return {
        **row,
        "tiers": _tiers(row),
        "since": _time(row["since_ms"]),
        "notices": "; ".join(troubles) or ("" if row["state"] == "pending" else f"{notified} channels"),
    }


def _tiers(row: JsonObject) -> str:
    group = f" (group {row['group']})" if row["group"] else ""
    return f"{row['from_tier']} to {row['to_tier']}{group}"


def _channel_words(channel: JsonObject) -> str:
    last = f"took notice {channel['notice']} at {_time(channel['at_ms'])}" if channel["at_ms"] else ""
    if channel["trouble"]:
        return "; ".join(filter(None, [channel["trouble"], last]))
    if channel["waits"]:
        return "has a notice to take"
    return last or "had no notice to take"


def _condition(definition: JsonObject) -> str:
    try:
        AlertDefinition.from_wire(definition)
    except ValidationError as error:
        return not_readable(error)
    spec = definition["spec"]
    tiers = " to ".join(spec["tiers"]) if spec.get("tiers") else "any two tiers"
    above = f" above {spec['above']}" if spec.get("above") else ""
    on, topics = ", ".join(spec["on"]), ", ".join(spec["topics"])
    return f"{on}{above} for {spec['for']}, topics {topics}, {tiers}, {spec['severity']}"


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
