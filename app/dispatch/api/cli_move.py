"""workload move: to another cluster that has its topic. A dry run until --execute."""

from __future__ import annotations

from typing import Any

import click

from app.cli.client import Client, guarded, workload_path
from app.cli.operations import watch
from app.cli.options import confirm
from app.cli.output import emit, output_option, url_option
from app.worker.api.cli import DRY

COLUMNS = ["partition", "position", "end", "unfinished", "since", "to", "again"]


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.option("--to", metavar="CLUSTER", required=True, help="Where its topic was copied to.")
@click.option("--margin", default="10s", show_default=True, metavar="DURATION",
              help="How far before the oldest unfinished message to begin there: more than producers' clocks "
              "differ by, and than they took to switch.")  # fmt: skip
@click.option("--dlq", type=click.Choice(["copy", "leave"]), default="copy", show_default=True,
              help="What becomes of the dead letters.")  # fmt: skip
@click.option("--execute", is_flag=True, help="Do it; else it is only said what would be.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@output_option
@guarded
def move(
    name: str, to: str, margin: str, dlq: str, execute: bool, yes: bool, url: str | None, output: str
) -> None:
    """Moves a workload to another cluster: drains it, goes on there by time, takes along what waits.

    The topic must have been copied there with its timestamps, partition to partition. One that was broken
    off goes on when it is asked for again, and is undone by workload resume.

    \b
    switchyard workload move billing/orders --to west-aggregate                # positions, what comes again
    switchyard workload move billing/orders --to west-aggregate --margin 30s --execute
    """
    client, path = Client(url), f"{workload_path(name)}/move"
    wish = {"to": to, "margin": margin, "dlq": dlq}
    foreseen = client.ask("POST", path, wish)
    waiting = sum(foreseen["waiting"].values())
    letters = f"{foreseen['dlq']['offsets']} dead letters: {foreseen['dlq']['action']}"
    what = (f"{name} goes on in {to}: about {foreseen['again']} messages may come again, "
            f"{waiting} wait for retry and go along, {letters}")  # fmt: skip
    if not execute:
        emit(foreseen["partitions"], COLUMNS, output, whole=foreseen)
    for topic, count in foreseen["left_there"].items():
        click.echo(f"{count} messages wait in {topic} in {to} from before; they stay there unread", err=True)
    if not foreseen["complete"]:
        click.echo("there was no time to read all timestamps: what is shown may be too new", err=True)
    if not execute:
        click.echo(f"{what}; {DRY}", err=True)
        return
    confirm(f"{what}?", yes)
    begun = client.ask("POST", path, {**wish, "execute": True})
    click.echo(f"operation {begun['id']}", err=True)
    told: dict[str, Any] = watch(
        client, begun, f"see workload describe {name}: it is moved, or move it again"
    )
    emit(told["progress"]["partitions"], COLUMNS, output, whole=told["progress"])
    click.echo(f"moved to {to}: {told['progress']['copied']} that waited for retry were copied, "
               f"{told['progress']['letters']} dead letters", err=True)  # fmt: skip
