"""The command workload move: to another cluster that has a copy of the topic. A dry run until --execute."""

from __future__ import annotations

import click

from app.cli.acts import DRY
from app.cli.client import EXIT_PRECONDITION, Client, CommandFailure, guarded, workload_path
from app.cli.operations import watch
from app.cli.options import confirm
from app.cli.output import emit, output_option, url_option
from app.kernel.json_types import JsonObject

COLUMNS = ["partition", "position", "end", "unfinished", "since", "to", "again", "by"]


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.option("--to", metavar="CLUSTER", required=True, help="The cluster to which its topic was copied.")
@click.option("--margin", default="10s", show_default=True, metavar="DURATION",
              help="How far before the oldest unfinished message to begin there: more than producers' clocks "
              "differ by, and more than they took to switch.")  # fmt: skip
@click.option("--dlq", type=click.Choice(["copy", "leave"]), default="copy", show_default=True,
              help="What becomes of the dead letters.")  # fmt: skip
@click.option("--force", is_flag=True, help="Move even if more than 1 % of the topic comes again.")
@click.option("--execute", is_flag=True, help="Do it (default: a dry run).")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@output_option
@guarded
def move(
    name: str,
    to: str,
    margin: str,
    dlq: str,
    force: bool,
    execute: bool,
    yes: bool,
    url: str | None,
    output: str,
) -> None:
    """Moves a workload to another cluster: drains it, continues there, and takes along what waits.

    Where a route copies the topic, its offset syncs say where to begin. Otherwise timestamps do. Then copies
    must have kept them, partition to partition. After an interrupted move run the command again: it starts
    over, and may copy dead letters twice. workload resume cancels the move.

    \b
    switchyard workload move billing/orders --to west-aggregate                # what would be repeated
    switchyard workload move billing/orders --to west-aggregate --margin 30s --execute
    """
    client, path = Client(url), f"{workload_path(name)}/move"
    move_request = {"to": to, "margin": margin, "dlq": dlq, "force": force}
    forecast = client.ask("POST", path, move_request)
    waiting = sum(forecast["waiting"].values())
    letters = f"{forecast['dlq']['offsets']} dead letters: {forecast['dlq']['action']}"
    summary = (f"{name} continues in {to}: at most {forecast['again']} messages are delivered again, "
            f"{waiting} wait for retry and are copied along, {letters}")  # fmt: skip
    if not execute:
        emit(forecast["partitions"], COLUMNS, output, whole=forecast)
    for topic, count in forecast["left_there"].items():
        click.echo(f"{count} earlier messages wait in {topic} in {to}; they stay there unread", err=True)
    if not forecast["complete"]:
        click.echo("there was no time to read all timestamps: positions and counts are not final", err=True)
    if forecast["needs_force"] and not force:
        words = f"{summary}. That is more than 1 % of the topic there: choose a smaller --margin, or --force"
        if execute and forecast["complete"]:
            raise CommandFailure(words, EXIT_PRECONDITION)
        click.echo(words, err=True)
    if not execute:
        click.echo(f"{summary}; {DRY}", err=True)
        return
    confirm(f"{summary}?", yes)
    started = client.ask("POST", path, {**move_request, "execute": True})
    click.echo(f"operation {started['id']}", err=True)
    ended: JsonObject = watch(
        client, started, f"check workload describe {name}: it has moved, or move it again"
    )
    emit(ended["progress"]["partitions"], COLUMNS, output, whole=ended["progress"])
    click.echo(f"moved to {to}: {ended['progress']['copied']} messages that waited for retry were copied, "
               f"{ended['progress']['letters']} dead letters", err=True)  # fmt: skip
