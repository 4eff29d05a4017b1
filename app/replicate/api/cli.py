"""route list|describe|pause|resume|reset|skip|delete|add-topic|drop-topic: copies to other clusters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click
from pydantic import ValidationError

from app.cli.acts import DRY, act_options, reset_as_shown
from app.cli.client import (
    EXIT_PRECONDITION,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Client,
    CommandFailure,
    guarded,
    route_path,
)
from app.cli.options import confirm
from app.cli.output import cell, emit, output_option, printable, url_option
from app.config.problems import not_readable
from app.kernel.json_types import JsonObject
from app.replicate.definition import RouteDefinition

COLUMNS = ["name", "from", "to", "lag_messages", "lag_s", "rate", "copied", "verbatim", "topics",
           "partitions", "halted", "paused", "troubles"]  # fmt: skip
TOPICS = ["topic", "partitions", "copy", "copy_partitions", "state", "why"]
RESET_COLUMNS = ["topic", "partition", "from", "to", "skipped", "again", "note"]
PARTITIONS = ["topic", "partition", "state", "lag_messages", "lag_s", "rate", "committed", "high_watermark",
              "copied", "verbatim", "compared", "differing", "uncompared", "left_out", "lost", "barrier",
              "worker", "epoch", "trouble"]  # fmt: skip
MAX_HALTED = 10  # partitions, above the tables
MAX_TOPICS = 500  # in a description; GET /routes/NAME/topics has all
NAME = click.argument("name", metavar="ROUTE")
TOPIC = click.argument("topic")


@click.group()
def route() -> None:
    """Routes: they copy topics of one cluster to another.

    \b
    switchyard route list
    switchyard route describe east-to-west
    """


@route.command("list")
@url_option
@output_option
@guarded
def list_routes(url: str | None, output: str) -> None:
    """Lists all routes with their lag, in messages and in seconds.

    \b
    switchyard route list -o json | jq '.[] | select(.lag_s > 60)'
    """
    routes = Client(url).all("/routes")
    shown = [_shown(row) for row in routes] if output in ("table", "csv") else routes
    emit(shown, COLUMNS, output)


@route.command()
@NAME
@url_option
@output_option
@guarded
def describe(name: str, url: str | None, output: str) -> None:
    """Shows a route: its topics and their copies, the reasons for those not copied, and the owner of each
    partition.

    \b
    switchyard route describe east-to-west
    switchyard route describe east-to-west -o yaml      # with the definition
    """
    client, path = Client(url), route_path(name)
    body = client.ask("GET", path)
    topics = _topics(client, path)
    partitions = [{**row, "copied": row["delivered"]} for row in body["partitions"]]
    if output in ("table", "csv"):
        partitions = [_shown(row) for row in partitions]
    whole = {**body, "topics": topics["items"], "other_topics": topics["others"]}
    if output == "table":
        _print_details(body, topics)
        emit(topics["items"], TOPICS, output)
        click.echo()
    emit(partitions, PARTITIONS, output, whole=whole)


def _shown(row: JsonObject) -> JsonObject:
    """Numbers for people: shares instead of counts, the offset sync as offset -> offset."""
    at = row.get("barrier")
    barrier = "none yet" if at is None else f"{at['source_end']} -> {at['target_end']}"
    return {**row, "verbatim": _share(row["verbatim"], row["copied"]), "barrier": barrier}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else ""


def _topics(client: Client, path: str) -> JsonObject:
    try:
        found: JsonObject = client.ask("GET", f"{path}/topics?limit={MAX_TOPICS}")
    except CommandFailure as failure:
        if failure.code != EXIT_UNREACHABLE:
            raise
        return {"items": [], "next": None, "read_s_ago": None, "others": None}  # only the leader has them
    return found


def _print_details(body: JsonObject, topics: JsonObject) -> None:
    status = body["status"]
    try:
        spec = RouteDefinition.from_wire(body["definition"]).to_wire()["spec"]
        names = ", ".join(spec["topics"]), ", ".join(spec.get("exclude", [])) or "nothing"
    except ValidationError as error:
        spec, names = {}, (not_readable(error), "not known")
    lines = [
        f"{status['from']} -> {status['to']}: {names[0]}",
        f"except: {names[1]}",
        f"lag: {cell(status['lag_messages'])} records, {cell(status['lag_s'])} s; "
        f"rate: {cell(status['rate'])} records/s" + "; limits hold it back" * bool(status["limited"]),
        f"copied: {status['copied']} records, {status['encoded']} of them in batches encoded again; "
        f"{status['left_out']} left out by provenance",
        f"lost in gaps of the source since copying began: {status['lost']} offsets"
        + (f", the last found missing {_time(status['lost_ms'])}" if status["lost_ms"] else ""),
        f"read back: {status['compared']} records as they were sent, {status['differing']} that differ"
        + f"; {status['uncompared']} could not be compared" * bool(status["uncompared"]),
    ]
    if status["begun_anew"] or status["destination_losses"]:
        lines.append(
            f"truncated or recreated since copying began: {status['begun_anew']} times a partition of the "
            f"source, {status['destination_losses']} times one of the destination; the incidents name them"
        )
    if spec.get("start") == "latest":
        begins = body["begins_ms"]
        lines.append(
            f"begins at: the source's ends of {_time(begins)}" if begins else "begins: not recorded yet"
        )
    lines += [f"halted: {row['topic']}-{row['partition']}: {row['halted']}"
              for row in body["partitions"] if row["halted"]][:MAX_HALTED]  # fmt: skip
    lines += [f"stuck: route skip {status['name']} {row['topic']} {row['partition']} "
              f"{row['stuck'][0]} {row['stuck'][1]} leaves out the records that cannot be copied"
              for row in body["partitions"] if row["stuck"]][:MAX_HALTED]  # fmt: skip
    lines += ["paused: nothing is copied until route resume"] * status["paused"]
    lines += [f"throttled: {words}" for words in status.get("throttled", ())]
    lines += [f"trouble: {trouble}" for trouble in status["troubles"]]
    if topics["read_s_ago"] is None:
        lines.append(f"topics: not known; the leader has not listed the topics of {status['from']} yet")
    else:
        more = f"; {MAX_TOPICS} are shown" if topics["next"] else ""
        lines.append(f"topics: {topics['others']} others of {status['from']} match no entry{more}")
    click.echo("\n".join(map(printable, lines)))


@route.command()
@NAME
@act_options
@guarded
def pause(name: str, **options: Any) -> None:
    """Pauses copying; positions stay.

    \b
    switchyard route pause east-to-west --execute
    """
    _pause("pause", name, **options)


@route.command()
@NAME
@act_options
@guarded
def resume(name: str, **options: Any) -> None:
    """Resumes copying where it was paused.

    \b
    switchyard route resume east-to-west --execute --yes
    """
    _pause("resume", name, **options)


def _pause(verb: str, name: str, *, execute: bool, yes: bool, url: str | None, output: str) -> None:
    client, path = Client(url), route_path(name)
    if not execute:
        emit([client.ask("GET", path)["status"]], COLUMNS, output)
        click.echo(f"{verb} {name}; {DRY}", err=True)
        return
    confirm(f"{verb.capitalize()} {name}?", yes)
    answer = client.ask("POST", f"{path}/{verb}")
    emit([answer], ["key", "changed", "paused"], output, whole=answer)
    if not answer["changed"]:
        click.echo("nothing has changed", err=True)


@route.command()
@NAME
@TOPIC
@click.argument("partition", type=click.IntRange(0))
@click.argument("start", metavar="FROM", type=click.IntRange(0))
@click.argument("end", metavar="BEFORE", type=click.IntRange(1))
@click.option("--reason", default="", help="The reason, for the activity log.")
@act_options
@guarded
def skip(
    name: str, topic: str, partition: int, start: int, end: int, reason: str, *,
    execute: bool, yes: bool, url: str | None, output: str,
) -> None:  # fmt: skip
    """Leaves out the offsets from FROM to before BEFORE that cannot be copied; the others are copied.

    \b
    switchyard route skip east-to-west orders 3 1042 1100 --reason "bug 17"
    switchyard route skip east-to-west orders 3 1042 1100 --execute
    """
    client = Client(url)
    path = f"{route_path(name)}/topics/{quote(topic, safe='')}/partitions/{partition}/skip"
    body = {"start": start, "end": end, "reason": reason}
    answer = client.ask("POST", path, body)
    summary = f"{answer['count']} offsets of {topic}-{partition} are left out of the copy"
    if execute:
        confirm(f"{name}: {summary}?", yes)
        answer = client.ask("POST", path, {**body, "execute": True})
    rows = [{"from": a, "before": b, "offsets": b - a, "why": answer["why"]} for a, b in answer["skipped"]]
    emit(rows, ["from", "before", "offsets", "why"], output, whole=answer)
    if not execute:
        click.echo(f"{summary}; {DRY}", err=True)
    elif not answer["count"]:
        raise CommandFailure("nothing was skipped; it may have been copied meanwhile", EXIT_PRECONDITION)


@route.command()
@NAME
@click.option("--topic", help="A topic of the source (default: all that the route copies).")
@click.option(
    "--partition", type=click.IntRange(0), multiple=True, help="A partition of the topic (repeatable)."
)
@click.option("--earliest", is_flag=True, help="To the first record that exists.")
@click.option("--latest", is_flag=True, help="To the end: present records are not copied.")
@click.option(
    "--to-time",
    metavar="TIME",
    help="To the first record from then on: 2h (ago), 2026-01-31T12:00 (UTC), or ms.",
)
@click.option("--to-offset", metavar="OFFSET", type=click.IntRange(0), help="For one partition of one topic.")
@act_options
@guarded
def reset(
    name: str, topic: str | None, partition: tuple[int, ...], earliest: bool, latest: bool,
    to_time: str | None, to_offset: int | None, execute: bool, yes: bool, url: str | None, output: str,
) -> None:  # fmt: skip
    """Moves a route's position: back to copy records again (behind the present copies), forward to leave
    records out.

    \b
    switchyard route reset east-to-west --to-time 2h                  # from, to, how many
    switchyard route reset east-to-west --topic orders --earliest --execute
    switchyard route reset east-to-west --topic orders --partition 3 --to-offset 1042 --execute --yes
    """
    client, path = Client(url), f"{route_path(name)}/reset"
    wanted = _wanted(topic, partition, earliest, latest, to_time, to_offset)
    foreseen = client.ask("POST", path, wanted)
    rows = foreseen["partitions"]
    skipped, again = (sum(row[field] for row in rows) for field in ("skipped", "again"))
    summary = f"{skipped} offsets of {name} are left out, {again} are copied again"
    reset_as_shown(
        foreseen, summary, RESET_COLUMNS, lambda: _reset_as_foreseen(client, path, foreseen),
        execute=execute, yes=yes, output=output,
    )  # fmt: skip


def _wanted(
    topic: str | None, partition: tuple[int, ...], earliest: bool, latest: bool, to_time: str | None,
    to_offset: int | None,
) -> JsonObject:  # fmt: skip
    if sum((earliest, latest, to_time is not None, to_offset is not None)) != 1:
        raise CommandFailure("give one of --earliest, --latest, --to-time and --to-offset", EXIT_USAGE)
    if partition and topic is None:
        raise CommandFailure("--partition needs a topic: name it with --topic", EXIT_USAGE)
    place: JsonObject = {} if topic is None else {"topic": topic}
    if to_offset is not None:
        if len(partition) != 1:
            raise CommandFailure(
                "--to-offset needs one partition: name it with --topic and --partition", EXIT_USAGE
            )
        return {**place, "offsets": {str(partition[0]): to_offset}}
    chosen = {"partitions": list(partition)} if partition else {}
    return {
        **place,
        **chosen,
        **({"at": to_time} if to_time else {"to": "earliest" if earliest else "latest"}),
    }


def _reset_as_foreseen(client: Client, path: str, foreseen: JsonObject) -> JsonObject:
    """Resets to the offsets that were shown, topic by topic, even if the logs have grown since."""
    result: JsonObject = {**foreseen, "execute": True, "done": 0, "partitions": []}
    for topic in dict.fromkeys(row["topic"] for row in foreseen["partitions"]):
        offsets = {
            str(row["partition"]): row["to"] for row in foreseen["partitions"] if row["topic"] == topic
        }
        try:
            answer = client.ask("POST", path, {"topic": topic, "offsets": offsets, "execute": True})
        except CommandFailure as error:
            if not result["partitions"]:
                raise
            failed = {"topic": topic, "done": False, "why": str(error)}
            answer = {"done": 0, "partitions": [{**failed, "partition": int(number)} for number in offsets]}
        result["done"] += answer["done"]
        result["partitions"] += answer["partitions"]
    return result


@route.command()
@NAME
@act_options
@guarded
def delete(name: str, *, execute: bool, yes: bool, url: str | None, output: str) -> None:
    """Deletes a route. It stops once what is in flight has arrived; its copies stay, and no topic is
    deleted.

    \b
    switchyard route delete east-to-west             # shows the route
    switchyard route delete east-to-west --execute
    """
    client, path = Client(url), route_path(name)
    emit([client.ask("GET", path)["status"]], COLUMNS, output)
    if not execute:
        click.echo(f"delete {name}; its copies stay; {DRY}", err=True)
        return
    confirm(f"Delete {name}? Its copies stay.", yes)
    client.ask("DELETE", path)
    click.echo(f"route {name} is deleted", err=True)


@route.command("add-topic")
@NAME
@TOPIC
@act_options
@guarded
def add_topic(name: str, topic: str, **options: Any) -> None:
    """Adds a topic to a route, by its name or by ending its exclusion.

    \b
    switchyard route add-topic east-to-west orders --execute
    """
    _edit("PUT", name, topic, **options)


@route.command("drop-topic")
@NAME
@TOPIC
@act_options
@guarded
def drop_topic(name: str, topic: str, **options: Any) -> None:
    """Removes a topic from a route, by removing its name or by an exclusion. Its copy stays.

    \b
    switchyard route drop-topic east-to-west orders --execute --yes
    """
    _edit("DELETE", name, topic, **options)


def _edit(
    method: str, name: str, topic: str, *, execute: bool, yes: bool, url: str | None, output: str
) -> None:
    client, path = Client(url), f"{route_path(name)}/topics/{quote(topic, safe='')}"
    foreseen = client.ask(method, f"{path}?dry_run=true")
    columns = ["key", "changed", "done", "warnings"]
    if not execute:
        emit([foreseen], columns, output, whole=foreseen)
    for one in foreseen.get("topics", ()):
        old, new = (f"{one['old']} -> " if one["old"] is not None else ""), one["new"] or "the default"
        click.echo(
            f"{one['action']} topic {one['topic']} in {one['cluster']}: {one['setting']} {old}{new}", err=True
        )
    if not execute:
        click.echo(DRY, err=True)
        return
    if foreseen["changed"]:
        confirm(f"{name}: {foreseen['done']}?", yes)
    answer = client.ask(method, path)
    emit([answer], columns, output, whole=answer)
