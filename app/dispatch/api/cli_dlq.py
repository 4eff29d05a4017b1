"""The commands dlq list|show|stats|export, which only read. `cli_dlq_changes` changes queues."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from app.cli.client import EXIT_PRECONDITION, EXIT_USAGE, Client, CommandFailure, guarded
from app.cli.operations import letters_of
from app.cli.options import dlq_path, query_of, query_options, query_string, when
from app.cli.output import emit, output_option, printable, url_option
from app.dispatch.api.cli_dlq_changes import merge, operation, purge
from app.dispatch.dlq import export as files
from app.kernel.json_types import JsonObject

MAX_VALUE_CHARS = 120
PAGE = 500


@click.group()
def dlq() -> None:
    """Dead letter queues.

    \b
    switchyard dlq list
    switchyard dlq list billing/orders --code INTERNAL --since 2h
    switchyard dlq merge billing/orders --reason timeout --execute
    """


for command in (merge, purge, operation):
    dlq.add_command(command)


@dlq.command("list")
@click.argument("name", metavar="[GROUP/TOPIC]", required=False)
@query_options
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Show at most this many."
)
@url_option
@output_option
@guarded
def list_queues(name: str | None, limit: int, url: str | None, output: str, **options: Any) -> None:
    """All dead letter queues with their number of messages; or one queue's letters by query, newest first.

    \b
    switchyard dlq list -o json
    switchyard dlq list billing/orders --reason '/timeout after \\d+s/' --attempt-min 3
    """
    client, query = Client(url), query_of(options)
    if name is not None:
        _list_letters(client, name, query, limit, output)
        return
    if query:
        raise CommandFailure(
            "conditions choose letters of one queue; name the queue: dlq list GROUP/TOPIC", EXIT_USAGE
        )
    rows = []
    for item in client.all("/workloads"):
        body = client.ask("GET", dlq_path(item["key"]))
        rows.append(
            {"workload": item["key"], **{k: body[k] for k in ("topic", "messages", "enabled", "exists")}}
        )
    emit(rows, ["workload", "topic", "messages", "enabled", "exists"], output)


def _list_letters(client: Client, name: str, query: JsonObject, limit: int, output: str) -> None:
    found: list[JsonObject] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < limit:
        page = {"limit": min(PAGE, limit - len(found)), "cursor": cursor}
        body = client.ask("GET", f"{dlq_path(name)}/messages?{query_string(query | page)}")
        found += body["items"]
        cursor = body["next"]
    if cursor is not None:
        click.echo(f"these are the newest {limit} letters; a larger --limit may show more", err=True)
    _emit_letters(found, output)


def _emit_letters(letters: list[JsonObject], output: str) -> None:
    rows = [
        {
            "at": f"{m['partition']}@{m['offset']}",
            "origin": f"{m['origin']['topic']}-{m['origin']['partition']}@{m['origin']['offset']}",
            "code": m["code"],
            "attempt": m["attempt"],
            "merges": m["merges"] or 0,
            "reason": m["reason"],
            "key": _left_out(m, "left_out_key_bytes") or _text(m["key"]),
            "value": _left_out(m, "left_out_bytes") or _text(m["value"]),
        }
        for m in letters
    ]
    columns = ["at", "origin", "code", "attempt", "merges", "reason", "key", "value"]
    emit(rows, columns, output, whole=letters)


def _left_out(letter: JsonObject, what: str) -> str:
    """The text in place of a value or key that the letter does not have; "": it has it."""
    size = letter.get(what)  # workers of earlier versions do not report it
    return "" if size is None else f"({size} bytes, not in the letter)"


def _text(shown: JsonObject | None) -> str:
    if shown is None:
        return "null"
    return str(shown.get("text", shown.get("base64", "")))[:MAX_VALUE_CHARS]


@dlq.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.argument("at", metavar="[PARTITION@OFFSET]", required=False)
@click.option(
    "--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Show at most this many."
)
@url_option
@output_option
@guarded
def show(name: str, at: str | None, limit: int, url: str | None, output: str) -> None:
    """One dead letter, decoded. Without a place: the newest letters, with origin and answer of each.

    \b
    switchyard dlq show billing/orders 3@1042
    switchyard dlq show billing/orders --limit 5 -o yaml
    """
    client = Client(url)
    if at is None:
        _emit_letters(client.ask("GET", f"{dlq_path(name)}/messages?limit={limit}")["items"], output)
        return
    partition, sign, offset = at.partition("@")
    if not (sign and partition.isdecimal() and offset.isdecimal() and at.isascii()):
        raise CommandFailure(
            f"{at!r} is not a place; write PARTITION@OFFSET as dlq list shows it", EXIT_USAGE
        )
    letter = client.ask("GET", f"{dlq_path(name)}/messages/{partition}/{offset}")
    letter |= {"timestamp": when(letter["timestamp_ms"]), "moved": when(letter["moved_ms"])}
    plain = ["partition", "offset", "timestamp", "moved", "code", "reason", "attempt", "merges", "raw_batch"]
    rows = [{"what": what, "value": letter[what]} for what in plain]
    rows += [{"what": f"origin {k}", "value": v} for k, v in letter["origin"].items()]
    rows += [{"what": f"header {header}", "value": _shown(value)} for header, value in letter["headers"]]
    rows += [{"what": "key", "value": _left_out(letter, "left_out_key_bytes") or _shown(letter["key"])}]
    rows += [{"what": "value", "value": _left_out(letter, "left_out_bytes") or _shown(letter["value"])}]
    emit(rows, ["what", "value"], output, whole=letter)


def _shown(preview: JsonObject | None) -> str:
    if preview is None:
        return "null"
    cut = f" (the first of {preview['bytes']} bytes)" if preview["cut"] else ""
    return f"{preview['shown']}{cut}"


@dlq.command()
@click.argument("name", metavar="GROUP/TOPIC")
@query_options
@url_option
@output_option
@guarded
def stats(name: str, url: str | None, output: str, **options: Any) -> None:
    """Counts of a queue's letters by status and by hour, with the oldest and the newest.

    \b
    switchyard dlq stats billing/orders --since 1d
    """
    body = Client(url).ask("GET", f"{dlq_path(name)}/stats?{query_string(query_of(options))}")
    rows: list[JsonObject] = [
        {"what": "letters", "value": body["letters"]},
        {"what": "bytes of values", "value": body["value_bytes"]},
        {"what": "came back after a merge", "value": body["merged_before"]},
        {"what": "oldest", "value": when(body["oldest_ms"])},
        {"what": "newest", "value": when(body["newest_ms"])},
    ]
    rows += [{"what": f"code {code}", "value": count} for code, count in body["codes"].items()]
    rows += [{"what": f"hour {str(when(at))[:13]}", "value": count} for at, count in body["hours"]]
    emit(rows, ["what", "value"], output, whole=body)
    if not body["complete"]:
        click.echo(
            f"counted only the first {body['looked_at']} of {body['of']} offsets: the time limit was reached",
            err=True,
        )


@dlq.command()
@click.argument("name", metavar="GROUP/TOPIC")
@query_options
@click.option(
    "--format", "file_format", type=click.Choice(files.FORMATS), help="Default: by the file's name."
)
@click.option(
    "--to", "path", type=click.Path(dir_okay=False, path_type=Path), help="A file (default: stdout)."
)
@click.option("--yes", is_flag=True, help="Replace an existing file.")
@click.option("--dry-run", is_flag=True, help="Only count what would be written.")
@url_option
@guarded
def export(
    name: str, file_format: str | None, path: Path | None, yes: bool, dry_run: bool, url: str | None,
    **options: Any,
) -> None:  # fmt: skip
    """Writes letters with all their bytes as JSON lines or Parquet. A file is written whole or not at all.

    \b
    switchyard dlq export billing/orders --code DATA_LOSS --to lost.parquet --dry-run
    switchyard dlq export billing/orders --code DATA_LOSS --to lost.parquet
    switchyard dlq export billing/orders | jq -r .reason | sort | uniq -c
    """
    chosen_format = file_format or ("parquet" if path is not None and path.suffix == ".parquet" else "jsonl")
    if path is None and chosen_format == "parquet":
        raise CommandFailure("Parquet goes into a file: add --to letters.parquet", EXIT_USAGE)
    if path is not None and path.exists() and not yes:
        raise CommandFailure(f"{path} exists already; add --yes to replace it", EXIT_PRECONDITION)
    found = letters_of(Client(url), f"{dlq_path(name)}/export?{query_string(query_of(options))}")
    if dry_run:
        _print_dry_run(path, chosen_format, found)
    elif path is None:
        out = click.get_binary_stream("stdout")
        for line in found:
            out.write(line)
        out.flush()
    else:
        with _failures(path):
            count = files.write_file(path, chosen_format, found)
        click.echo(f"{count} letters in {printable(str(path))}", err=True)


def _print_dry_run(path: Path | None, chosen_format: str, found: Iterable[bytes]) -> None:
    """Prints what an export would write. A Parquet file's size is known only once it is written."""
    if path is not None:
        with _failures(path):
            files.check_format(chosen_format)
            if not (path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK)):
                raise OSError(f"{path.parent} is not a folder that this user can write to")
    letters = size_bytes = 0
    for line in found:
        letters += 1
        size_bytes += len(line)
    conversion = f", converted to {chosen_format}" if chosen_format != "jsonl" else ""
    where = "stdout" if path is None else printable(str(path))
    click.echo(f"{letters} letters, {size_bytes} bytes of JSON lines{conversion}, would go to {where}")
    click.echo("dry run: nothing was written; leave out --dry-run to write it", err=True)


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Raises the errors of writing a file as `CommandFailure`."""
    try:
        yield
    except files.NoParquet as error:
        raise CommandFailure(str(error), EXIT_PRECONDITION) from error
    except OSError as error:
        raise CommandFailure(f"{path} cannot be written: {error}") from error
