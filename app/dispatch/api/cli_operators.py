"""The commands workload pause|resume|reset and tracker skip|stash. They are dry runs without --execute."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import click

from app.cli.acts import DRY, act_options, reset_as_shown
from app.cli.client import (
    EXIT_PARTIAL,
    EXIT_PRECONDITION,
    EXIT_USAGE,
    Client,
    CommandFailure,
    guarded,
    workload_path,
)
from app.cli.options import confirm
from app.cli.output import Command, emit
from app.kernel.json_types import JsonObject

RESET_COLUMNS = ["partition", "from", "to", "skipped", "again", "note"]


_partition_option = click.option(
    "--partition", type=click.IntRange(0), multiple=True, help="A partition of the main topic (repeatable)."
)


# -- workload ----------------------------------------------------------------------------------------


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@_partition_option
@act_options
@guarded
def pause(name: str, partition: tuple[int, ...], **options: Any) -> None:
    """Stops delivery; fetched messages wait, and commits stay true.

    \b
    switchyard workload pause billing/orders --execute
    switchyard workload pause billing/orders --partition 3 --execute --yes
    """
    _pause("pause", name, partition, **options)


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@_partition_option
@act_options
@guarded
def resume(name: str, partition: tuple[int, ...], **options: Any) -> None:
    """Resumes delivery where it was paused.

    \b
    switchyard workload resume billing/orders --execute --yes
    """
    _pause("resume", name, partition, **options)


def _pause(
    verb: str,
    name: str,
    partition: tuple[int, ...],
    *,
    execute: bool,
    yes: bool,
    url: str | None,
    output: str,
) -> None:
    client, path = Client(url), workload_path(name)
    chosen = ", ".join(map(str, partition))
    what = f"partition {chosen} of {name}" if partition else f"all of {name} and its retry topics"
    if not execute:
        body = client.ask("GET", path)
        topic = name.partition("/")[2]
        rows = [row for row in body["partitions"]
                if not partition or (row["topic"] == topic and row["partition"] in partition)]  # fmt: skip
        emit(rows, ["topic", "partition", "state", "in_flight", "lag_messages"], output)
        click.echo(f"{verb} {what}; {DRY}", err=True)
        return
    confirm(f"{verb.capitalize()} {what}?", yes)
    answer = client.ask("POST", f"{path}/{verb}", {"partitions": list(partition)})
    emit([answer], ["key", "changed", "all", "partitions"], output, whole=answer)
    if not answer["changed"]:
        click.echo(f"nothing changed: it was {verb}d before", err=True)


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.option("--to", type=click.Choice(["earliest", "latest"]), help="An end of the log.")
@click.option(
    "--at", metavar="TIME", help="The first message since then: 2h (ago), 2026-01-31T12:00 (UTC), ms."
)
@click.option(
    "--offset", "offsets", metavar="P:OFFSET", multiple=True, help="An offset of one partition (repeatable)."
)
@_partition_option
@act_options
@guarded
def reset(
    name: str, to: str | None, at: str | None, offsets: tuple[str, ...], partition: tuple[int, ...],
    execute: bool, yes: bool, url: str | None, output: str,
) -> None:  # fmt: skip
    """Moves the position: back to deliver again, forward to skip. Retry topics keep their messages.

    \b
    switchyard workload reset billing/orders --at 2h                  # from, to, how many
    switchyard workload reset billing/orders --to earliest --partition 3 --execute
    switchyard workload reset billing/orders --offset 0:1042 --execute --yes
    """
    client, path = Client(url), f"{workload_path(name)}/reset"
    foreseen = client.ask("POST", path, _wanted(to, at, offsets, partition))
    rows = foreseen["partitions"]
    skipped, again = (sum(row[what] for row in rows) for what in ("skipped", "again"))
    what = f"{skipped} offsets of {name} are skipped, {again} are delivered again"

    def act() -> JsonObject:
        # The offsets shown, even if the log has grown since.
        offsets = {str(row["partition"]): row["to"] for row in rows}
        answer: JsonObject = client.ask("POST", path, {"offsets": offsets, "execute": True})
        return answer

    reset_as_shown(foreseen, what, RESET_COLUMNS, act, execute=execute, yes=yes, output=output)


def _wanted(
    to: str | None, at: str | None, offsets: tuple[str, ...], partition: tuple[int, ...]
) -> JsonObject:
    if sum(map(bool, (to, at, offsets))) != 1 or (offsets and partition):
        raise CommandFailure("say where to: --to, --at (both with --partition) or --offset", EXIT_USAGE)
    if not offsets:
        return {"partitions": list(partition), **({"to": to} if to else {"at": at})}
    found: dict[str, int] = {}
    for text in offsets:
        if (match := re.fullmatch(r"([0-9]{1,9}):([0-9]{1,18})", text)) is None or match[1] in found:
            raise CommandFailure(
                f"--offset {text!r}: write P:OFFSET, as 0:1042, each partition once", EXIT_USAGE
            )
        found[match[1]] = int(match[2])
    return {"offsets": found}


# -- tracker -----------------------------------------------------------------------------------------


def _offsets_arguments(command: Command) -> Command:
    for option in (
        guarded,
        act_options,
        click.option("--reason", default="", help="The reason, for the activity and the dead letter."),
        click.option("--topic", help="A retry topic of the workload (default: its main topic)."),
        click.argument("offsets", metavar="OFFSET|FROM-BEFORE...", nargs=-1, required=True),
        click.argument("partition", type=click.IntRange(0)),
        click.argument("name", metavar="GROUP/TOPIC"),
    ):
        command = option(command)
    return command


@click.command()
@_offsets_arguments
def skip(**options: Any) -> None:
    """Finishes messages without delivering them; no copy is kept.

    \b
    switchyard tracker skip billing/orders 3 1042 --reason "bug 17"
    switchyard tracker skip billing/orders 3 1042 1100-1200 --execute
    """
    _end("skip", **options)


@click.command()
@_offsets_arguments
def stash(**options: Any) -> None:
    """Moves messages into the dead letter queue; dlq merge delivers them again.

    \b
    switchyard tracker stash billing/orders 3 1042 --reason "bug 17" --execute --yes
    """
    _end("stash", **options)


def _end(
    verb: str, name: str, partition: int, offsets: tuple[str, ...], topic: str | None, reason: str, *,
    execute: bool, yes: bool, url: str | None, output: str,
) -> None:  # fmt: skip
    query = f"?topic={quote(topic, safe='')}" if topic else ""
    client, path = Client(url), f"{workload_path(name)}/partitions/{partition}/tracker/{verb}{query}"
    body: JsonObject = {"ranges": _ranges(offsets), "reason": reason}
    foreseen = client.ask("POST", path, body)
    many = f"{foreseen['counts']['ended']} messages of {topic or name}, partition {partition}"
    if not execute:
        _emit_ended(foreseen, output)
        click.echo(f"{verb} {many}; {DRY}", err=True)
        return
    if not foreseen["ended"]:
        _emit_ended(foreseen, output)
        raise CommandFailure(f"nothing to {verb}", EXIT_PRECONDITION)
    confirm(f"{verb.capitalize()} {many}?", yes)
    answer = client.ask("POST", path, {**body, "execute": True})
    _emit_ended(answer, output)
    if answer["counts"]["pending"] or answer["counts"]["refused"]:
        raise SystemExit(EXIT_PARTIAL)


def _ranges(texts: tuple[str, ...]) -> list[list[int]]:
    found: list[list[int]] = []
    for text in texts:
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text)
        if match is None:
            raise CommandFailure(f"{text[:40]!r}: write 1042, or 1042-1100 for [1042, 1100)", EXIT_USAGE)
        found.append([int(match[1]), int(match[2]) if match[2] else int(match[1]) + 1])
    return found


def _emit_ended(answer: JsonObject, output: str) -> None:
    groups = [("ended", answer["ended"]), ("in flight", answer["pending"]), *answer["refused"].items()]
    rows = [{"offsets": sum(end - start for start, end in spans), "what": what,
             "ranges": [f"[{start},{end})" for start, end in spans[:20]]}
            for what, spans in groups if spans]  # fmt: skip
    emit(rows, ["offsets", "what", "ranges"], output, whole=answer)
