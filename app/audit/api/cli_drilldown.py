"""audit missing|copy-again: names the missing records of a window, and copies them again."""

from __future__ import annotations

from urllib.parse import urlencode

import click

from app.cli.client import EXIT_LOSS, EXIT_PARTIAL, Client, CommandFailure, guarded
from app.cli.operations import watch
from app.cli.options import confirm
from app.cli.output import Command, emit, output_option, url_option
from app.kernel.json_types import JsonObject

COLUMNS = ["kind", "id", "key", "at", "source", "copy", "one_of", "why"]
FLAT = ["kind", "id", "key", "at", "cluster", "topic", "partition", "offset", "copy_cluster", "copy_topic",
        "copy_partition", "copy_offset", "one_of", "why"]  # fmt: skip
LOST = ("missing", "altered")
LOSS = ("lossy", "corrupted")  # the audit's states of windows with loss, if not all records are named
GO_ON = "ask again with: audit missing"
END_BY = "curl -X DELETE .../api/v1/operations/{id}"
DRY = "dry run: nothing was changed; add --execute to do it"


def window_options(command: Command) -> Command:
    """The options that select a window."""
    for option in (
        click.option("--start", required=True, metavar="TIME",
                     help="When the window begins: 2026-01-31T12:00 (UTC), or milliseconds."),
        click.option("--to-tier", default="aggregate", show_default=True,
                     help="The tier that lacks the records."),
        click.option("--from-tier", default="regional", show_default=True,
                     help="The tier that had the records."),
        click.option("--topic", required=True, help="The topic."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(short_help="Names the records of a window that did not arrive.")
@window_options
@click.option("--group", default="", help="The consumer group, if several have finished the topic.")
@click.option("--again", is_flag=True, help="Read the logs again, even if an answer is cached.")
@url_option
@output_option
@guarded
def missing(
    topic: str,
    from_tier: str,
    to_tier: str,
    start: str,
    group: str,
    again: bool,
    url: str | None,
    output: str,
) -> None:
    """Names the records of a window that did not come from one tier to the next, and altered or doubled ones.
    Each has its cluster, partition and offset, and its id, if there is one. Exit code 8 when records are
    missing.

    The worker reads the logs of both tiers. It cannot name deleted records, only offsets that it could not
    read.

    \b
    switchyard audit missing --topic orders --start 2026-01-31T12:00
    switchyard audit missing --topic orders --start 2026-01-31T12:00 -o csv > missing.csv
    switchyard audit missing --topic orders --start 2026-01-31T12:00 --to-tier consumer --group billing
    """
    client = Client(url)
    query = {"topic": topic, "from_tier": from_tier, "to_tier": to_tier, "start": start}
    query |= {"group": group} if group else {}
    answer = _answer(client, query, again=again)
    _show(answer, output)
    is_unnamed = not answer["complete"] and answer["state"] in LOSS
    if is_unnamed or any(answer["counts"][kind] for kind in LOST):
        raise SystemExit(EXIT_LOSS)


@click.command("copy-again", short_help="Copies the missing records of a window again.")
@window_options
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@output_option
@guarded
def copy_again(
    topic: str,
    from_tier: str,
    to_tier: str,
    start: str,
    execute: bool,
    yes: bool,
    url: str | None,
    output: str,
) -> None:
    """Copies the missing records of a window again, from where they still are. The worker searches them again
    right before, so a second run copies nothing twice.

    Refused until both tiers have closed the window. Exit code 6 when not all could be copied. If the
    destination refuses a record, for its size or timestamp, the output names it with the reason.

    \b
    switchyard audit copy-again --topic orders --start 2026-01-31T12:00            # what would be copied
    switchyard audit copy-again --topic orders --start 2026-01-31T12:00 --execute
    """
    client = Client(url)
    question = {"topic": topic, "from_tier": from_tier, "to_tier": to_tier, "start": start}
    foreseen = client.ask("POST", "/audit/copy-again", question)
    if "missing" not in foreseen:
        watch(client, foreseen, GO_ON, END_BY)
        foreseen = client.ask("POST", "/audit/copy-again", question)
    if "missing" not in foreseen:
        raise CommandFailure("the logs are still being read; ask again")
    many = f"{foreseen['missing']} records of {topic} from {from_tier} to {to_tier}"
    if not execute:
        _show(_answer(client, question), output)
        click.echo(f"{many} would be copied again; {DRY}", err=True)
        return
    if not foreseen["missing"]:
        click.echo("nothing is missing", err=True)
        return
    confirm(f"Copy {many} again?", yes)
    started = client.ask("POST", "/audit/copy-again", {**question, "execute": True})
    click.echo(f"operation {started['id']}", err=True)
    operation = watch(client, started, "the copies made stay; run it again to copy the others", END_BY)
    done = operation["progress"]
    emit([done], ["topic", "from_tier", "to_tier", "start", "copied", "left", "refused"], output, whole=done)
    named, refused = done.get("refused_records", []), done.get("refused", 0)  # not in earlier versions
    for record in named:
        click.echo(f"refused: {_at(record)}: {record['why']}", err=True)
    if refused > len(named):
        click.echo(f"and {refused - len(named)} others", err=True)
    if done["left"] or refused or not done["complete"]:
        click.echo("not all records were copied; see audit missing, and run it again", err=True)
        raise SystemExit(EXIT_PARTIAL)


def _answer(client: Client, query: dict[str, str], *, again: bool = False) -> JsonObject:
    """All pages of an answer, once it is ready."""
    more = {"again": "true"} if again else {}
    page: JsonObject = client.ask("GET", f"/audit/missing?{urlencode({**query, 'limit': '1000', **more})}")
    if "items" not in page:
        watch(client, page, GO_ON, END_BY)
        page = client.ask("GET", f"/audit/missing?{urlencode({**query, 'limit': '1000'})}")
        if "items" not in page:
            raise CommandFailure("the logs are still being read; ask again")
    answer = page
    while page["next"] is not None:
        page = client.ask(
            "GET", f"/audit/missing?{urlencode({**query, 'limit': '1000', 'cursor': page['next']})}"
        )
        answer["items"] += page["items"]
    return {**answer, "next": None}


def _show(answer: JsonObject, output: str) -> None:
    rows = answer["items"]
    if output == "csv":
        emit([_flat(row) for row in rows], FLAT, output)
    else:
        places = [{**row, "source": _at(row["source"]), "copy": _at(row["copy"])} for row in rows]
        shown = [{name: "" if row[name] is None else row[name] for name in COLUMNS} for row in places]
        emit(shown, COLUMNS, output, whole=answer)
    for offsets in answer["unread"]:
        at = f"{offsets['topic']}-{offsets['partition']} in {offsets['cluster']}"
        click.echo(
            f"not read: {at} offsets [{offsets['start']}, {offsets['end']}): {offsets['why']}", err=True
        )
    for note in answer["notes"]:
        click.echo(note, err=True)
    counts = ", ".join(f"{count} {kind}" for kind, count in answer["counts"].items() if count)
    click.echo(f"{counts or 'nothing is missing'} (the audit says: {answer['state'] or 'nothing'})", err=True)


def _at(place: JsonObject | None) -> str | None:
    return None if place is None else "{cluster}/{topic}/{partition}/{offset}".format(**place)


def _flat(row: JsonObject) -> JsonObject:
    found = {**row}
    for prefix, place in (("", row["source"]), ("copy_", row["copy"])):
        found |= {f"{prefix}{name}": value for name, value in (place or {}).items()}
    return {name: "" if found.get(name) is None else found[name] for name in FLAT}
