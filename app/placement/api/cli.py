"""placement show|plan|move, worker drain: where jobs run and why. Changes are dry runs until --execute."""

from __future__ import annotations

from urllib.parse import quote

import click

from app.cli.acts import DRY, act_options
from app.cli.client import EXIT_CHANGES, EXIT_PRECONDITION, EXIT_USAGE, Client, CommandFailure, guarded
from app.cli.options import confirm
from app.cli.output import emit, output_option, url_option
from app.kernel.json_types import JsonObject

MOVE_COLUMNS = ["job", "from", "to", "reason"]


@click.group()
def placement() -> None:
    """Placement: which worker runs which job, and why.

    \b
    switchyard placement show --why
    switchyard placement plan --even
    switchyard placement move dispatch:billing/orders:orders:3 --to east-2-4711-6920af3b --execute
    """


@placement.command("show")
@click.option("--why", is_flag=True, help="Also show why each job is where it is, and since when.")
@click.option("--worker", help="Jobs of this worker only.")
@click.option("--workload", metavar="GROUP/TOPIC", help="Jobs of this workload only.")
@url_option
@output_option
@guarded
def show(why: bool, worker: str | None, workload: str | None, url: str | None, output: str) -> None:
    """Shows every job and its worker.

    \b
    switchyard placement show --workload billing/orders --why
    """
    rows = [
        row
        for row in Client(url).all("/assignments")
        if (worker is None or row["worker"] == worker)
        and (workload is None or row["job"].split(":")[1] == workload)
    ]
    columns = ["job", "worker", "epoch", "cpu_cores", "network_bytes_per_s"]
    shown = [{**row, "wish": row["wish"] or "-"} for row in rows]
    emit(shown, columns + ["since", "reason", "wish"] * why, output, whole=rows)


@placement.command("plan")
@click.option("--even", is_flag=True, help="Also make the workers' job counts even; without this, jobs stay.")
@click.option("--execute", is_flag=True, help="Carry the moves out; without this, only show them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@output_option
@guarded
def plan(even: bool, execute: bool, yes: bool, url: str | None, output: str) -> None:
    """Shows the moves that placement would make now, with reasons. Exit code 10: there are moves.

    \b
    switchyard placement plan                     # usually nothing: due moves are made at once
    switchyard placement plan --even --execute    # a worker that joined gets its share
    """
    _plan({"even": even}, execute, yes, url, output)


@placement.command("move")
@click.argument("job")
@click.option("--to", metavar="WORKER", help="A live worker's name (worker list).")
@click.option("--release", is_flag=True, help="Cancel the wish: the job stays, and may move as others do.")
@click.option("--reason", default="", help="Why, for the activity log.")
@act_options
@guarded
def move(
    job: str, to: str | None, release: bool, reason: str, execute: bool, yes: bool, url: str | None,
    output: str,
) -> None:  # fmt: skip
    """Moves one job to a worker. Its owner hands over its acknowledgements, so nothing is delivered twice.

    A wish that cannot be fulfilled (its worker ended) stays until it can be, or until --release.

    \b
    switchyard placement move dispatch:billing/orders:orders:3 --to east-2-4711-6920af3b --execute
    switchyard placement move dispatch:billing/orders:orders:3 --release --execute
    """
    if release == (to is not None):
        raise CommandFailure("name a worker with --to, or cancel the wish with --release", EXIT_USAGE)
    if to is not None:
        _plan({"moves": [{"job": job, "to": to}]}, execute, yes, url, output, reason=reason, only=job)
        return
    client, body = Client(url), {"job": job, "reason": reason}
    answer = client.ask("POST", "/placement/release", body)
    if not answer["changed"]:
        raise CommandFailure(f"no operator wants {job} on a certain worker", EXIT_PRECONDITION)
    if execute:
        confirm(f"Cancel the wish for {job} on {answer['wish']}?", yes)
        answer = client.ask("POST", "/placement/release", {**body, "execute": True})
    emit([answer], ["job", "wish", "changed"], output)
    if not execute:
        click.echo(DRY, err=True)


def _plan(
    wanted: JsonObject, execute: bool, yes: bool, url: str | None, output: str, *, reason: str = "",
    only: str = "",
) -> None:  # fmt: skip
    client = Client(url)
    made = client.ask("POST", "/placement/plan", wanted)
    shown = [row for row in made["moves"] if not only or row["job"] == only]
    emit(shown, MOVE_COLUMNS, output, whole=made)
    for notice in made["notices"]:
        click.echo(f"{notice['kind']}: {notice['message']}; {notice['remedy']}", err=True)
    if not shown:
        if only:
            raise CommandFailure(
                "the job would not move: it is there already, or the notices say why", EXIT_PRECONDITION
            )
        click.echo("nothing would move", err=True)
        return
    if not execute:
        click.echo(f"{len(shown)} moves; {DRY}", err=True)
        raise SystemExit(EXIT_CHANGES)
    confirm(f"Carry out {len(shown)} moves?", yes)
    done = client.ask("POST", "/placement/apply", {**wanted, "plan": made["plan"], "reason": reason})
    click.echo(
        f"{done['wished']} moves are under way; 'placement show --why' shows when they are done", err=True
    )


@click.command("drain")
@click.argument("name", metavar="WORKER")
@click.option("--undo", is_flag=True, help="Give it jobs again.")
@act_options
@guarded
def drain(name: str, undo: bool, execute: bool, yes: bool, url: str | None, output: str) -> None:
    """Makes a worker hand over its jobs and get no more, before you stop or examine it.

    \b
    switchyard worker drain east-2-4711-6920af3b --execute
    switchyard worker drain east-2-4711-6920af3b --undo --execute
    """
    if not name:
        raise CommandFailure("WORKER: name one of 'worker list'", EXIT_USAGE)
    client, path = Client(url), f"/workers/{quote(name, safe='')}/drain"
    body = {"draining": not undo}
    answer = client.ask("POST", path, body)
    columns = ["worker", "draining", "changed", "jobs"]
    if not execute:
        emit([answer], columns, output)
        click.echo(DRY, err=True)
        return
    confirm(f"{'Give jobs to' if undo else 'Drain'} {name}, which has {answer['jobs']}?", yes)
    emit([client.ask("POST", path, {**body, "execute": True})], columns, output)
