"""route list|describe|pause|resume|add-topic|drop-topic: what is copied between clusters, how that fares."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from app.cli.client import EXIT_UNREACHABLE, Client, Failure, guarded, route_path
from app.cli.dlq_options import confirm
from app.cli.operators import DRY, act_options
from app.cli.output import cell, emit, output_option, printable, url_option

COLUMNS = [
    "name",
    "from",
    "to",
    "lag_messages",
    "lag_s",
    "copied",
    "topics",
    "partitions",
    "paused",
    "troubles",
]
TOPICS = ["topic", "partitions", "copy", "copy_partitions", "state", "why"]
PARTITIONS = ["topic", "partition", "state", "lag_messages", "lag_s", "committed", "high_watermark", "copied",
              "worker", "epoch", "trouble"]  # fmt: skip
MAX_TOPICS = 500  # in a description; GET /routes/NAME/topics has all
NAME = click.argument("name", metavar="ROUTE")
TOPIC = click.argument("topic")


@click.group()
def route() -> None:
    """Routes: topics of one cluster that are copied to another.

    \b
    switchyard route list
    switchyard route describe east-to-west
    """


@route.command("list")
@url_option
@output_option
@guarded
def list_routes(url: str | None, output: str) -> None:
    """Every route with its lag, in messages and in seconds.

    \b
    switchyard route list -o json | jq '.[] | select(.lag_s > 60)'
    """
    emit(Client(url).all("/routes"), COLUMNS, output)


@route.command()
@NAME
@url_option
@output_option
@guarded
def describe(name: str, url: str | None, output: str) -> None:
    """One route: which topics it copies where to, which not and why, and who copies each partition.

    \b
    switchyard route describe east-to-west
    switchyard route describe east-to-west -o yaml      # with the definition
    """
    client, path = Client(url), route_path(name)
    body = client.ask("GET", path)
    topics = _topics(client, path)
    partitions = [{**row, "copied": row["delivered"]} for row in body["partitions"]]
    whole = {**body, "topics": topics["items"], "other_topics": topics["others"]}
    if output == "table":
        _tell(body, topics)
        emit(topics["items"], TOPICS, output)
        click.echo()
    emit(partitions, PARTITIONS, output, whole=whole)


def _topics(client: Client, path: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = client.ask("GET", f"{path}/topics?limit={MAX_TOPICS}")
    except Failure as failure:
        if failure.code != EXIT_UNREACHABLE:
            raise
        return {"items": [], "next": None, "read_s_ago": None, "others": None}  # only the leader knows them
    return found


def _tell(body: dict[str, Any], topics: dict[str, Any]) -> None:
    status, spec = body["status"], body["definition"]["spec"]
    lines = [
        f"{status['from']} -> {status['to']}: {', '.join(spec['topics'])}",
        f"except: {', '.join(spec.get('exclude', [])) or 'nothing'}",
        f"lag: {cell(status['lag_messages'])} records, {cell(status['lag_s'])} s",
    ]
    lines += ["paused: nothing is copied until route resume"] * status["paused"]
    lines += [f"trouble: {trouble}" for trouble in status["troubles"]]
    if topics["read_s_ago"] is None:
        lines.append(f"topics: not known; the leader has not listed those of {status['from']} yet")
    else:
        more = f"; {MAX_TOPICS} are shown" if topics["next"] else ""
        lines.append(f"topics: {topics['others']} others of {status['from']} are not meant{more}")
    click.echo("\n".join(map(printable, lines)))


@route.command()
@NAME
@act_options
@guarded
def pause(name: str, **options: Any) -> None:
    """Copies nothing more; positions stay.

    \b
    switchyard route pause east-to-west --execute
    """
    _pause("pause", name, **options)


@route.command()
@NAME
@act_options
@guarded
def resume(name: str, **options: Any) -> None:
    """Copies again, from where it was paused.

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
    told = client.ask("POST", f"{path}/{verb}")
    emit([told], ["key", "changed", "paused"], output, whole=told)
    if not told["changed"]:
        click.echo("it was so before", err=True)


@route.command("add-topic")
@NAME
@TOPIC
@act_options
@guarded
def add_topic(name: str, topic: str, **options: Any) -> None:
    """Lets a route copy one topic more: by its name, or by ending its exclusion.

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
    """Lets a route copy one topic less: by taking its name out, or by an exclusion. Its copy stays.

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
        click.echo(DRY, err=True)
        return
    if foreseen["changed"]:
        confirm(f"{name}: {foreseen['done']}?", yes)
    told = client.ask(method, path)
    emit([told], columns, output, whole=told)
