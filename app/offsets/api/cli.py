"""offsets map|sync|at-time: where consumers go on in another cluster, and why."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from app.cli.client import (
    EXIT_FAILURE,
    EXIT_PRECONDITION,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Client,
    CommandFailure,
    guarded,
)
from app.cli.options import confirm, when
from app.cli.output import emit, output_option, printable, url_option
from app.worker.api.cli import DRY, act_options

PARTITION_COLUMNS = ["topic", "to_topic", "road", "partition", "next_offset", "again", "least", "why"]
SOURCE_COLUMNS = ["to_topic", "partition", "source", "read", "barrier_read", "read_up_to", "barrier_here",
           "next_offset", "again", "why"]  # fmt: skip
SYNCED_COLUMNS = ["topic", "to_topic", "partition", "have", "mapped", "commit", "again", "why"]
SYNC_COLUMNS = ["route", "workload", "from", "to", "group", "state", "in_step", "why"]
TIME_COLUMNS = [
    "cluster",
    "topic",
    "partition",
    "next_offset",
    "timestamp",
    "log_start",
    "log_end",
    "by",
    "note",
]
NOTES = {
    "": "",
    "before-start": "the log begins later: older records may have been there",
    "beyond-end": "no record is that new: the log's end",
    "window": "the first of its audit window, which begins before",
}
FROM = click.option("--from", "source", metavar="CLUSTER", help="The cluster that was read.")
TO = click.option("--to", "target", metavar="CLUSTER", help="Where it goes on.")


@click.group()
def offsets() -> None:
    """Offsets across clusters: mapped from copy to copy, kept in step, found by time.

    \b
    switchyard offsets map --group billing --from east-aggregate --to west-aggregate
    switchyard offsets sync
    switchyard offsets at-time orders 2026-01-31T12:00
    """


@offsets.command("map")
@click.option("--group", help="Map the positions of this consumer group.")
@click.option("--topic", help="Of this topic only; with --offset, the topic that it is of.")
@click.option("--offset", "given", metavar="P:OFFSET", multiple=True,
              help="In place of a group: the next offset of a partition (again: and).")  # fmt: skip
@FROM
@TO
@url_option
@output_option
@guarded
def map_(
    group: str | None, topic: str | None, given: tuple[str, ...], source: str | None, target: str | None,
    url: str | None, output: str,
) -> None:  # fmt: skip
    """Where a reader goes on in another cluster, explained source by source. Changes nothing.

    NEXT_OFFSET is where it goes on, AGAIN at most how many records it reads once more. The second table says
    of each source up to where it was read (by a barrier in what was read), and where that is here (by a
    barrier here), barriers being source=copy. The source with the least offset decides.

    \b
    switchyard offsets map --group billing --from east-aggregate --to west-aggregate
    switchyard offsets map --topic orders --offset 0:1042 --offset 1:77 --from east --to west
    switchyard offsets map --group billing --from east --to west -o json | jq '.topics[].partitions'
    """
    if bool(group) == bool(given) or (given and not topic):
        raise CommandFailure("say which positions: --group, or --topic with --offset P:OFFSET", EXIT_USAGE)
    wanted = {"from": _named(source, "--from"), "to": _named(target, "--to"), "group": group, "topic": topic}
    query = [(name, value) for name, value in wanted.items() if value] + [("offset", one) for one in given]
    told = Client(url).ask("GET", f"/offsets/map?{urlencode(query)}")
    rows, sources = _mapped(told)
    emit(rows, PARTITION_COLUMNS, output, whole=told)
    if output == "table":
        click.echo()
        emit(sources, SOURCE_COLUMNS, output)
    for one in told["topics"]:
        if one["elsewhere"]:
            _print(f"{one['to_topic']} has nothing of {', '.join(one['elsewhere'])}: that is not read there")
    for name, why in told["unmapped"].items():
        _print(f"{name} is not mapped: {why}")
    for region in told["regions"]:
        if region["state"] == "away":
            as_of = f"as of {when(region['read_ms'])}" if region["read_ms"] is not None else "not known"
            _print(f"region {region['region']} is away, its part of the map is {as_of}: {region['why']}")


def _mapped(told: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    sources: list[dict[str, Any]] = []
    for topic in told["topics"]:
        of = {"topic": topic["topic"], "to_topic": topic["to_topic"], "road": topic["road"]}
        for partition in topic["partitions"]:
            rows.append({**partition, **of, "least": partition["least"] or ""})
            sources += [
                {
                    **of, **one, "partition": partition["partition"],
                    "source": f"{one['cluster']}/{one['topic']}-{one['partition']}",
                    "read": [f"{r['partition']}:{_or_none(r['next_offset'])}" for r in one["readings"]],
                    "barrier_read": [_barrier(r["barrier"]) for r in one["readings"]],
                    "barrier_here": _barrier(one["barrier"]),
                }
                for one in partition["sources"]
            ]  # fmt: skip
    return rows, sources


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def _barrier(barrier: dict[str, Any] | None) -> str:
    if barrier is None:
        return ""
    return f"{barrier['source_end']}={barrier['target_end']} ({barrier['age_s']:.0f} s old)"


@offsets.command()
@click.argument("group", required=False)
@FROM
@TO
@click.option("--topic", help="Only of this topic.")
@act_options
@guarded
def sync(
    group: str | None, source: str | None, target: str | None, topic: str | None, execute: bool, yes: bool,
    url: str | None, output: str,
) -> None:  # fmt: skip
    """Commits a group's mapped positions in another cluster; without GROUP shows those that are kept so.

    That is done by routes with spec.offsets, and for every active-passive workload where it is passive.

    A group that is consumed there is left alone, and nothing moves backwards, unless the group itself went
    back where it is mapped from.

    \b
    switchyard offsets sync                                              # what is kept in step
    switchyard offsets sync billing --from east --to west                # what would be committed
    switchyard offsets sync billing --from east --to west --execute --yes
    """
    client = Client(url)
    if group is None:
        if source or target or topic or execute:
            raise CommandFailure("name the group: offsets sync GROUP --from CLUSTER --to CLUSTER", EXIT_USAGE)
        kept = client.all("/offsets/sync")
        emit([_kept(row) for row in kept], SYNC_COLUMNS, output, whole=kept)
        return
    wish = {"group": group, "from": _named(source, "--from"), "to": _named(target, "--to"), "topic": topic}
    foreseen = client.ask("POST", "/offsets/sync", wish)
    if not execute:
        _print_row(foreseen, output)
        click.echo(f"{group}: {_describe(foreseen)}; {DRY}", err=True)
        return
    if foreseen["state"] == "synced":
        confirm(f"{group}: {_describe(foreseen)}; commit in {target}?", yes)
    told = client.ask("POST", "/offsets/sync", {**wish, "execute": True})
    _print_row(told, output)
    if told["state"] in {"live", "refused", "nothing"}:
        raise CommandFailure(f"{group} was left alone: {told['why']}", EXIT_PRECONDITION)
    if told["state"] == "failed":
        raise CommandFailure(f"{group} was not committed: {told['why']}", EXIT_FAILURE)
    click.echo(f"{group}: {'committed' if told['done'] else 'it was in step before'}", err=True)


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    whose = {name: row.get(name) or "" for name in ("route", "workload")}
    return {**row, **whose, "in_step": when(row["good_ms"])}


def _print_row(told: dict[str, Any], output: str) -> None:
    rows = [{**row, "commit": "as it is" if row["commit"] is None else row["commit"],
             "have": _or_none(row["have"])} for row in told["partitions"]]  # fmt: skip
    emit(rows, SYNCED_COLUMNS, output, whole=told)
    for name, why in told["unmapped"].items():
        _print(f"{name} is not mapped: {why}")


def _describe(told: dict[str, Any]) -> str:
    count = sum(row["commit"] is not None for row in told["partitions"])
    return f"{count} partitions" if told["state"] == "synced" else told["why"] or "in step already"


@offsets.command("at-time")
@click.argument("topic")
@click.argument("time")
@click.option("--cluster", help="In this cluster only.")
@url_option
@output_option
@guarded
def at_time(topic: str, time: str, cluster: str | None, url: str | None, output: str) -> None:
    """The first offset of a topic, and of its copies, at or after TIME, in every cluster.

    TIME is 2h (ago), 2026-01-31T12:00 (UTC where it names no zone), or milliseconds. BY says which time that
    is of: the records' timestamps, or the event time of their audit plan, as their audit knows it.

    \b
    switchyard offsets at-time orders 2h
    switchyard offsets at-time orders 2026-01-31T12:00+01:00 --cluster east-aggregate -o csv
    """
    query = {"topic": topic, "time": time} | ({"cluster": cluster} if cluster else {})
    told = Client(url).ask("GET", f"/offsets/at-time?{urlencode(query)}")
    rows = [
        {**partition, "cluster": one["cluster"], "topic": one["topic"], "by": one["by"],
         "note": NOTES[partition["note"]],
         "timestamp": "none" if partition["timestamp_ms"] is None else when(partition["timestamp_ms"])}
        for one in told["topics"]
        for partition in one["partitions"]
    ]  # fmt: skip
    emit(rows, TIME_COLUMNS, output, whole=told)
    for one in told["topics"]:
        if one["why"]:
            _print(f"{one['cluster']}, {one['topic']}: {one['why']}")
    errors = [one for one in told["topics"] if one["error"]]
    for one in errors:
        _print(f"{one['cluster']} is not among them: {one['error']}")
    if errors and not rows:
        raise CommandFailure("no cluster that answers has the topic", EXIT_UNREACHABLE)


def _named(cluster: str | None, option: str) -> str:
    if not cluster:
        raise CommandFailure(f"{option}: name a cluster", EXIT_USAGE)
    return cluster


def _print(text: str) -> None:
    click.echo(printable(text), err=True)
