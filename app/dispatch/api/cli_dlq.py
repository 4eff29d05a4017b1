"""dlq list|show|stats|export: what lies in the dead letter queues, and why. See `cli_dlq_changes` too."""

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
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many."
)
@url_option
@output_option
@guarded
def list_queues(name: str | None, limit: int, url: str | None, output: str, **options: Any) -> None:
    """Every workload's queue and how many messages it holds; or one queue's letters by query, newest first.

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
            "conditions choose letters of one queue; name it: dlq list GROUP/TOPIC", EXIT_USAGE
        )
    rows = []
    for item in client.all("/workloads"):
        body = client.ask("GET", dlq_path(item["key"]))
        rows.append(
            {"workload": item["key"], **{k: body[k] for k in ("topic", "messages", "enabled", "exists")}}
        )
    emit(rows, ["workload", "topic", "messages", "enabled", "exists"], output)


def _list_letters(client: Client, name: str, query: dict[str, Any], limit: int, output: str) -> None:
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None and len(found) < limit:
        page = {"limit": min(PAGE, limit - len(found)), "cursor": cursor}
        body = client.ask("GET", f"{dlq_path(name)}/messages?{query_string(query | page)}")
        found += body["items"]
        cursor = body["next"]
    if cursor is not None:
        click.echo(f"the newest {limit}; there may be more: --limit", err=True)
    _emit_letters(found, output)


def _emit_letters(letters: list[dict[str, Any]], output: str) -> None:
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


def _left_out(letter: dict[str, Any], what: str) -> str:
    """What is said in the place of a value or key that is not in the letter; "": it is."""
    size = letter.get(what)  # a worker of an earlier version tells none
    return "" if size is None else f"({size} bytes, not in the letter)"


def _text(shown: dict[str, Any] | None) -> str:
    if shown is None:
        return "null"
    return str(shown.get("text", shown.get("base64", "")))[:MAX_VALUE_CHARS]


@dlq.command()
@click.argument("name", metavar="GROUP/TOPIC")
@click.argument("at", metavar="[PARTITION@OFFSET]", required=False)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="At most so many.")
@url_option
@output_option
@guarded
def show(name: str, at: str | None, limit: int, url: str | None, output: str) -> None:
    """One dead letter, decoded; without a place the newest: where each came from and what was answered.

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
        raise CommandFailure(f"{at!r} is no place; write PARTITION@OFFSET as dlq list shows it", EXIT_USAGE)
    letter = client.ask("GET", f"{dlq_path(name)}/messages/{partition}/{offset}")
    letter |= {"timestamp": when(letter["timestamp_ms"]), "moved": when(letter["moved_ms"])}
    plain = ["partition", "offset", "timestamp", "moved", "code", "reason", "attempt", "merges", "raw_batch"]
    rows = [{"what": what, "value": letter[what]} for what in plain]
    rows += [{"what": f"origin {k}", "value": v} for k, v in letter["origin"].items()]
    rows += [{"what": f"header {header}", "value": _shown(value)} for header, value in letter["headers"]]
    rows += [{"what": "key", "value": _left_out(letter, "left_out_key_bytes") or _shown(letter["key"])}]
    rows += [{"what": "value", "value": _left_out(letter, "left_out_bytes") or _shown(letter["value"])}]
    emit(rows, ["what", "value"], output, whole=letter)


def _shown(preview: dict[str, Any] | None) -> str:
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
    """Figures of a queue: by status, by hour, oldest and newest.

    \b
    switchyard dlq stats billing/orders --since 1d
    """
    body = Client(url).ask("GET", f"{dlq_path(name)}/stats?{query_string(query_of(options))}")
    rows: list[dict[str, Any]] = [
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
        click.echo(f"of the first {body['looked_at']} of {body['of']} offsets only: time was up", err=True)


@dlq.command()
@click.argument("name", metavar="GROUP/TOPIC")
@query_options
@click.option("--format", "file_format", type=click.Choice(files.FORMATS), help="Else by the file's name.")
@click.option("--to", "path", type=click.Path(dir_okay=False, path_type=Path), help="A file; else stdout.")
@click.option("--yes", is_flag=True, help="Replace a file that is there.")
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
    chosen = file_format or ("parquet" if path is not None and path.suffix == ".parquet" else "jsonl")
    if path is None and chosen == "parquet":
        raise CommandFailure("Parquet goes into a file: add --to letters.parquet", EXIT_USAGE)
    if path is not None and path.exists() and not yes:
        raise CommandFailure(f"{path} is there already; add --yes to replace it", EXIT_PRECONDITION)
    found = letters_of(Client(url), f"{dlq_path(name)}/export?{query_string(query_of(options))}")
    if dry_run:
        _foretell(path, chosen, found)
    elif path is None:
        out = click.get_binary_stream("stdout")
        for line in found:
            out.write(line)
        out.flush()
    else:
        with _failures(path):
            count = files.write_file(path, chosen, found)
        click.echo(f"{count} letters in {printable(str(path))}", err=True)


def _foretell(path: Path | None, chosen: str, found: Iterable[bytes]) -> None:
    """Counts what an export would write. Parquet's own bytes are known only once they are there."""
    if path is not None:
        with _failures(path):
            files.check_format(chosen)
            if not (path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK)):
                raise OSError(f"{path.parent} is no folder that can be written to")
    letters = size_bytes = 0
    for line in found:
        letters += 1
        size_bytes += len(line)
    made_into = f", made into {chosen}" if chosen != "jsonl" else ""
    where = "stdout" if path is None else printable(str(path))
    click.echo(f"{letters} letters, {size_bytes} bytes of JSON lines{made_into}, would go to {where}")
    click.echo("dry run: nothing was written; leave out --dry-run to write it", err=True)


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """What keeps a file from being written, as `CommandFailure`."""
    try:
        yield
    except files.NoParquet as error:
        raise CommandFailure(str(error), EXIT_PRECONDITION) from error
    except OSError as error:
        raise CommandFailure(f"{path} cannot be written: {error}") from error
