"""audit records: a topic's records of a time, by the event time of its audit plan."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlencode

import click
import orjson

from app.cli.client import (
    BY_STATUS,
    EXIT_FAILURE,
    EXIT_PARTIAL,
    EXIT_UNREACHABLE,
    Client,
    CommandFailure,
    actor,
    guarded,
)
from app.cli.output import emit, formats, printable, url_option
from app.kernel.json_types import JsonObject

COLUMNS = ["partition", "offset", "time", "key", "value"]
RECORDS_READ_TIMEOUT_S = 90.0  # longer than a worker reads for one answer
SHOWN_CHARS = 200
WHY = {
    "records": "--limit is reached; there may be more",
    "bytes": "the worker's limit of bytes is reached; ask for a shorter time",
    "time": "the worker's limit of time is reached; ask for a shorter time",
}


@click.command(short_help="A topic's records of a time, by their event time.")
@click.option("--topic", required=True, help="The topic.")
@click.option("--cluster", required=True, help="In this cluster.")
@click.option("--from", "since", metavar="TIME", required=True,
              help="Event times from this one on: 2h (ago), an ISO 8601 time, or milliseconds.")  # fmt: skip
@click.option("--to", "until", metavar="TIME", help="Event times before this one; by default now.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, show_default=True)
@formats("table", "json", "csv", about="json: a record as an object in a line.")
@url_option
@guarded
def records(
    topic: str, cluster: str, since: str, until: str | None, limit: int, output: str, url: str | None
) -> None:
    """A topic's records of a time, by the event time of its audit plan (without a plan, by their timestamps).

    The audit's index says where to read. All records shown are of that time, by offset in each partition.
    Records that retention has deleted come from the cluster's archive, if switchyard.yaml names one. Exit
    code 6 when records may be left out.

    \b
    switchyard audit records --topic orders --cluster east-regional --from 2h --to 119m
    switchyard audit records --topic orders --cluster east-regional --from 10m -o json | jq .value
    """
    wanted = {"topic": topic, "cluster": cluster, "from": since, "to": until, "limit": limit}
    query = urlencode({name: value for name, value in wanted.items() if value})
    summary: JsonObject = {}
    rows: list[JsonObject] = []
    for line in _lines(Client(url), f"/audit/records?{query}&format=ndjson"):
        found = orjson.loads(line)
        if "summary" in found:
            summary = found["summary"]
        elif output == "json":
            click.echo(line.rstrip(b"\n"))
        else:
            rows.append({**found, "key": _text(found["key"]), "value": _text(found["value"])})
    if output != "json":
        cut = SHOWN_CHARS if output == "table" else None
        emit([{**row, "value": row["value"][:cut]} for row in rows], COLUMNS, output)
    _print_summary(summary)


def _print_summary(summary: JsonObject) -> None:
    """Prints what was read. Raises SystemExit if records may be left out."""
    by = {"audit": "the audit's index", "timestamps": "timestamps", "log": "reading all of the log"}
    ways = ", ".join(sorted({by[part["by"]] for part in summary["partitions"]}))
    plan = f"event time of plan {summary['plan']}" if summary["plan"] else "timestamps, as no plan counts it"
    click.echo(
        printable(
            f"{summary['records']} records, of {summary['looked_at']} read, by {plan}; found by {ways}"
        ),
        err=True,
    )
    if archived := sum(part["archived"] for part in summary["partitions"]):
        click.echo(f"{archived} offsets that the log no longer has were looked up in the archive", err=True)
    if summary["gone"]:
        click.echo(f"{summary['gone']} offsets that may have been of that time are lost", err=True)
    if summary["archive_trouble"]:
        click.echo(printable(f"the archive was not read: {summary['archive_trouble']}"), err=True)
    if summary["why"]:
        click.echo(f"incomplete: {WHY[summary['why']]}", err=True)
    if not summary["complete"]:
        raise SystemExit(EXIT_PARTIAL)


def _lines(client: Client, path: str) -> Iterator[bytes]:
    """Yields the lines of an answer, up to the summary. Raises CommandFailure: the worker refuses, or breaks
    off."""
    request = urllib.request.Request(  # noqa: S310 - the client has checked the scheme
        f"{client.url}/api/v1{path}", headers={"X-Switchyard-Actor": actor()}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    line = b""
    try:
        with opener.open(request, timeout=RECORDS_READ_TIMEOUT_S) as answer:
            for line in answer:
                yield line
        if b'{"summary":' not in line[:11]:
            raise http.client.IncompleteRead(line)
    except urllib.error.HTTPError as error:
        problem = orjson.loads(error.read())
        words = f"{problem['title']}: {problem['detail']}"
        raise CommandFailure(words, BY_STATUS.get(error.code, EXIT_FAILURE)) from error
    except (http.client.HTTPException, OSError) as error:
        why = f"the worker at {client.url} does not answer, or broke off: {error!r}; ask again"
        raise CommandFailure(why, EXIT_UNREACHABLE) from error


def _text(value: dict[str, str] | None) -> str:
    if value is None:
        return "null"
    return value["text"] if "text" in value else f"base64:{value['base64']}"
