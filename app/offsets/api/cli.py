"""The commands offsets map, sync and at-time: positions in other clusters, offset sync of groups, offsets
at a time."""

from __future__ import annotations

from urllib.parse import urlencode

import click

from app.cli.acts import DRY, act_options
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
from app.kernel.json_types import JsonObject

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
    "before-start": "the log begins later; older records may have been deleted",
    "beyond-end": "no record is that new, so this is the log's end",
    "window": "the first offset of its audit window, which begins earlier",
}
FROM = click.option("--from", "source", metavar="CLUSTER", help="The cluster that was read.")
TO = click.option("--to", "target", metavar="CLUSTER", help="The cluster where reading continues.")


@click.group()
def offsets() -> None:
    """Offsets across clusters: mapped between copies, synced for groups, found by time.

    \b
    switchyard offsets map --group billing --from east-aggregate --to west-aggregate
    switchyard offsets sync
    switchyard offsets at-time orders 2026-01-31T12:00
    """


@offsets.command("map")
@click.option("--group", help="Map the positions of this consumer group.")
@click.option("--topic", help="Only this topic; with --offset, the topic of the offsets.")
@click.option("--offset", "given", metavar="P:OFFSET", multiple=True,
              help="Instead of a group: the next offset of a partition. May be repeated.")  # fmt: skip
@FROM
@TO
@url_option
@output_option
@guarded
def map_(
    group: str | None, topic: str | None, given: tuple[str, ...], source: str | None, target: str | None,
    url: str | None, output: str,
) -> None:  # fmt: skip
    """Maps positions into another cluster, explained source by source. Changes nothing.

    NEXT_OFFSET is where a reader continues there, AGAIN the most records that it reads again. The second
    table has a row for each source. READ_UP_TO says how far the source was read, by the offset sync
    BARRIER_READ. NEXT_OFFSET is that place in the destination, by the offset sync BARRIER_HERE. Offset syncs
    are printed as source=copy. The source with the least NEXT_OFFSET decides.

    \b
    switchyard offsets map --group billing --from east-aggregate --to west-aggregate
    switchyard offsets map --topic orders --offset 0:1042 --offset 1:77 --from east --to west
    switchyard offsets map --group billing --from east --to west -o json | jq '.topics[].partitions'
    """
    if bool(group) == bool(given) or (given and not topic):
        raise CommandFailure("name the positions: --group, or --topic with --offset P:OFFSET", EXIT_USAGE)
    wanted = {"from": _named(source, "--from"), "to": _named(target, "--to"), "group": group, "topic": topic}
    query = [(name, value) for name, value in wanted.items() if value] + [("offset", one) for one in given]
    answer = Client(url).ask("GET", f"/offsets/map?{urlencode(query)}")
    rows, sources = _mapped(answer)
    emit(rows, PARTITION_COLUMNS, output, whole=answer)
    if output == "table":
        click.echo()
        emit(sources, SOURCE_COLUMNS, output)
    for one in answer["topics"]:
        if one["elsewhere"]:
            missing = ", ".join(one["elsewhere"])
            _print(f"{one['to_topic']} has no copies of {missing}, so their records are not read there")
    for name, why in answer["unmapped"].items():
        _print(f"{name} is not mapped: {why}")
    for region in answer["regions"]:
        if region["state"] == "away":
            as_of = f"as of {when(region['read_ms'])}" if region["read_ms"] is not None else "not known"
            _print(f"region {region['region']} is away, so its offset map is {as_of}: {region['why']}")


def _mapped(answer: JsonObject) -> tuple[list[JsonObject], list[JsonObject]]:
    rows: list[JsonObject] = []
    sources: list[JsonObject] = []
    for topic in answer["topics"]:
        names = {"topic": topic["topic"], "to_topic": topic["to_topic"], "road": topic["road"]}
        for partition in topic["partitions"]:
            rows.append({**partition, **names, "least": partition["least"] or ""})
            sources += [
                {
                    **names, **one, "partition": partition["partition"],
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


def _barrier(barrier: JsonObject | None) -> str:
    if barrier is None:
        return ""
    return f"{barrier['source_end']}={barrier['target_end']} ({barrier['age_s']:.0f} s old)"


@offsets.command()
@click.argument("group", required=False)
@FROM
@TO
@click.option("--topic", help="Only this topic.")
@act_options
@guarded
def sync(
    group: str | None, source: str | None, target: str | None, topic: str | None, execute: bool, yes: bool,
    url: str | None, output: str,
) -> None:  # fmt: skip
    """Commits a group's mapped positions in another cluster. Without GROUP, lists the groups in offset sync.

    Routes with spec.offsets sync their groups, and so do active-passive workloads where they are passive.

    A group that is consumed in the destination is left alone. A position never moves back, unless the group
    itself went back in the source cluster.

    \b
    switchyard offsets sync                                              # the groups in offset sync
    switchyard offsets sync billing --from east --to west                # the planned commits
    switchyard offsets sync billing --from east --to west --execute --yes
    """
    client = Client(url)
    if group is None:
        if source or target or topic or execute:
            raise CommandFailure("name the group: offsets sync GROUP --from CLUSTER --to CLUSTER", EXIT_USAGE)
        groups = client.all("/offsets/sync")
        emit([_synced_row(row) for row in groups], SYNC_COLUMNS, output, whole=groups)
        return
    request = {"group": group, "from": _named(source, "--from"), "to": _named(target, "--to"), "topic": topic}
    planned = client.ask("POST", "/offsets/sync", request)
    if not execute:
        _print_outcome(planned, output)
        click.echo(f"{group}: {_describe(planned)}; {DRY}", err=True)
        return
    if planned["state"] == "synced":
        confirm(f"{group}: {_describe(planned)}; commit in {target}?", yes)
    answer = client.ask("POST", "/offsets/sync", {**request, "execute": True})
    _print_outcome(answer, output)
    if answer["state"] in {"live", "refused", "nothing"}:
        raise CommandFailure(f"{group} was left alone: {answer['why']}", EXIT_PRECONDITION)
    if answer["state"] == "failed":
        raise CommandFailure(f"{group} was not committed: {answer['why']}", EXIT_FAILURE)
    click.echo(f"{group}: {'committed' if answer['done'] else 'already in step'}", err=True)


def _synced_row(row: JsonObject) -> JsonObject:
    owner = {name: row.get(name) or "" for name in ("route", "workload")}
    return {**row, **owner, "in_step": when(row["good_ms"])}


def _print_outcome(outcome: JsonObject, output: str) -> None:
    rows = [{**row, "commit": "unchanged" if row["commit"] is None else row["commit"],
             "have": _or_none(row["have"])} for row in outcome["partitions"]]  # fmt: skip
    emit(rows, SYNCED_COLUMNS, output, whole=outcome)
    for name, why in outcome["unmapped"].items():
        _print(f"{name} is not mapped: {why}")


def _describe(answer: JsonObject) -> str:
    count = sum(row["commit"] is not None for row in answer["partitions"])
    return f"{count} partitions" if answer["state"] == "synced" else answer["why"] or "already in step"


@offsets.command("at-time")
@click.argument("topic")
@click.argument("time")
@click.option("--cluster", help="Only in this cluster.")
@url_option
@output_option
@guarded
def at_time(topic: str, time: str, cluster: str | None, url: str | None, output: str) -> None:
    """The first offset at or after TIME of a topic and its copies, in every cluster.

    TIME is 2h (ago), 2026-01-31T12:00 (UTC without a zone), or milliseconds. BY says which time counts: the
    records' timestamps, or the event time of the topic's audit plan, which the audit knows.

    \b
    switchyard offsets at-time orders 2h
    switchyard offsets at-time orders 2026-01-31T12:00+01:00 --cluster east-aggregate -o csv
    """
    query = {"topic": topic, "time": time} | ({"cluster": cluster} if cluster else {})
    answer = Client(url).ask("GET", f"/offsets/at-time?{urlencode(query)}")
    rows = [
        {**partition, "cluster": one["cluster"], "topic": one["topic"], "by": one["by"],
         "note": NOTES[partition["note"]],
         "timestamp": "none" if partition["timestamp_ms"] is None else when(partition["timestamp_ms"])}
        for one in answer["topics"]
        for partition in one["partitions"]
    ]  # fmt: skip
    emit(rows, TIME_COLUMNS, output, whole=answer)
    for one in answer["topics"]:
        if one["why"]:
            _print(f"{one['cluster']}, {one['topic']}: {one['why']}")
    errors = [one for one in answer["topics"] if one["error"]]
    for one in errors:
        _print(f"{one['cluster']} is missing: {one['error']}")
    if errors and not rows:
        raise CommandFailure("no cluster that answered has the topic", EXIT_UNREACHABLE)


def _named(cluster: str | None, option: str) -> str:
    if not cluster:
        raise CommandFailure(f"{option}: name a cluster", EXIT_USAGE)
    return cluster


def _print(text: str) -> None:
    click.echo(printable(text), err=True)
