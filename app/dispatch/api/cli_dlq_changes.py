"""dlq merge|purge|operation: what changes a queue's standing. Dry runs until --execute."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from app.cli.client import EXIT_PARTIAL, EXIT_PRECONDITION, EXIT_USAGE, Client, CommandFailure, guarded
from app.cli.operations import watch
from app.cli.options import change_options, confirm, dlq_path, query_of, query_options, spans_of
from app.cli.output import emit, output_option, url_option
from app.dispatch.dlq.rules import DEFAULT_RATE

DRY = "dry run: nothing was changed; add --execute to do it"
LEFT = {
    "other": "not asked for",
    "before": "merged before",
    "gone": "purged before",
    "quarantined": "merged too often: quarantined, left where they are",
    "raw": "undecodable batches: never merged",
    "left-out": "their values are neither in the letter nor where they stood: left where they are",
    "refused": "the merge topic does not take them (too large, or by its settings): left where they are",
    "expired": "gone before their turn (retention, a purge)",
}


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@query_options
@change_options
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=DEFAULT_RATE, show_default=True,
              help="Letters a second.")  # fmt: skip
@click.option("--max-merges", type=click.IntRange(0, 1000),
              help="A letter merged so often is quarantined (else: dlq.maxMerges).")  # fmt: skip
@click.option("--again", is_flag=True, help="Also what an earlier merge took.")
@click.option("--resume", metavar="OPERATION", help="Go on with a merge that was killed, canceled or failed.")
@url_option
@output_option
@guarded
def merge(
    name: str, ranges: tuple[str, ...], execute: bool, yes: bool, rate: float, max_merges: int | None,
    again: bool, resume: str | None, url: str | None, output: str, **options: Any,
) -> None:  # fmt: skip
    """Gives letters back to their workload, each once. What arrives meanwhile is left for a later merge.

    \b
    switchyard dlq merge billing/orders --reason timeout             # what would be merged
    switchyard dlq merge billing/orders --reason timeout --rate 200 --execute
    switchyard dlq merge billing/orders --resume merge-3f1c22a90b1e --execute
    """
    terms: dict[str, Any] = {"query": query_of(options), "again": again}
    terms |= {} if max_merges is None else {"max_merges": max_merges}
    extra, how = {"rate": rate}, f"into {name} at {rate:g} a second"
    told = _choose_and_do(
        Client(url), name, "merge", terms, spans_of(ranges), resume, extra, how, execute, yes, output
    )
    if told is not None and any(told["counts"].get(what) for what in ("refused", "expired", "left-out")):
        raise SystemExit(EXIT_PARTIAL)


def _choose_and_do(
    client: Client, name: str, kind: str, terms: dict[str, Any], spans: dict[str, Any], resume: str | None,
    extra: dict[str, Any], how: str, execute: bool, yes: bool, output: str,
) -> dict[str, Any] | None:  # fmt: skip
    """Looks, asks and does what a query chooses, or goes on with it.

    Returns its progress, or what was seen where nothing is to be done; None without `execute`.
    """
    path = f"{dlq_path(name)}/{kind}"
    if resume is not None:
        if not execute:
            raise CommandFailure(
                "--resume goes on under its own terms; add --execute to do it", EXIT_PRECONDITION
            )
        confirm(f"Go on with {resume}?", yes)
        body: dict[str, Any] = {"operation": resume, "resume": True}
    else:
        foreseen: dict[str, Any] = client.ask("POST", path, {**terms, "ranges": spans})
        count = foreseen["counts"][f"{kind}d"]
        many = f"{'' if foreseen['complete'] else 'at least '}{count} letters of {foreseen['topic']}"
        if not execute:
            (_emit_reasons if kind == "purge" else _emit_counts)(foreseen, output)
        if foreseen["unfinished"]:
            click.echo(f"unfinished (--resume): {', '.join(foreseen['unfinished'])}", err=True)
        if foreseen["front"]:
            at_front = "offsets at the front, where all is purged or merged, are deleted for ever"
            click.echo(f"{foreseen['front']} {at_front}", err=True)
        if not execute:
            click.echo(f"{many} would be {kind}d; {DRY}", err=True)
            return None
        if not foreseen["partitions"] or (foreseen["complete"] and not count):
            click.echo(f"nothing to {kind}", err=True)
            _emit_counts(foreseen, output)
            return foreseen
        confirm(f"{kind.capitalize()} {many} {how}?", yes)
        body = {**terms, "ranges": foreseen["partitions"]}
    begun = client.ask("POST", path, {**body, **extra, "execute": True})
    click.echo(f"operation {begun['id']}", err=True)
    ended = watch(client, begun, f"go on with: dlq {kind} {name} --resume {begun['id']} --execute")
    progress: dict[str, Any] = ended["progress"]
    _emit_counts(progress, output)
    return progress


def _emit_reasons(foreseen: dict[str, Any], output: str) -> None:
    rows = [{"letters": count, "reason": reason} for reason, count in foreseen["reasons"].items()]
    emit(rows, ["letters", "reason"], output, whole=foreseen)


def _emit_counts(told: dict[str, Any], output: str) -> None:
    counts, done = told["counts"], "purged" if told["kind"] == "purge" else "merged"
    rows = [{"letters": counts[done], "what": done}]
    rows += [{"letters": counts[name], "what": words} for name, words in LEFT.items() if counts.get(name)]
    emit(rows, ["letters", "what"], output, whole=told)


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@query_options
@change_options
@click.option(
    "--before", metavar="TIME", help="What was moved here before: 30d (ago), 2026-01-31T12:00 (UTC), ms."
)
@click.option("--all", "everything", is_flag=True, help="All that is there now.")
@click.option(
    "--resume", metavar="OPERATION", help="Go on with a purge by query that was killed or canceled."
)
@url_option
@output_option
@guarded
def purge(
    name: str, ranges: tuple[str, ...], execute: bool, yes: bool, before: str | None,
    everything: bool, resume: str | None, url: str | None, output: str, **options: Any,
) -> None:  # fmt: skip
    """Removes letters for ever: those of a query, or all before a time or an offset.

    What a query chooses is gone at once for list, stats, export and merge. Its bytes go when Kafka can delete
    them: from the front of a partition on, as far as everything there was purged or merged.

    \b
    switchyard dlq purge billing/orders --before 30d                 # how many
    switchyard dlq purge billing/orders --range 0:-1042 --execute
    switchyard dlq purge billing/orders --reason 'no such customer' --since 2d --execute
    """
    spans, query = spans_of(ranges), query_of(options)
    if resume is not None or set(query) - {"partition"}:
        if before or everything:
            raise CommandFailure("--before and --all take no conditions; --until is one", EXIT_USAGE)
        terms = {"query": query}
        told = _choose_and_do(
            Client(url), name, "purge", terms, spans, resume, {}, "for ever", execute, yes, output
        )
        if told is not None and "deleted" in told:
            click.echo(f"{told['deleted']} offsets at the front deleted", err=True)
        return
    if not (before or ranges or everything):
        raise CommandFailure(
            "say what: --before TIME, --range P:-OFFSET, --all, or conditions such as --reason", EXIT_USAGE
        )
    if any(span["start"] for span in spans.values()):
        raise CommandFailure("--range: Kafka deletes from the front only; write P:-BEFORE", EXIT_USAGE)
    client, path = Client(url), f"{dlq_path(name)}/purge"
    foreseen = client.ask(
        "POST", path, {"before": before, "ranges": spans, "partitions": query.get("partition", [])}
    )
    if foreseen["unfinished"]:
        click.echo(f"unfinished merges lose what they have not reached: {', '.join(foreseen['unfinished'])}",
                   err=True)  # fmt: skip
    rows = [{"partition": p, **span} for p, span in foreseen["partitions"].items()]
    emit(rows, ["partition", "start", "end"], output, whole=foreseen)
    many = f"{foreseen['offsets']} offsets of {foreseen['topic']}"
    if not foreseen["offsets"]:
        click.echo("nothing to delete", err=True)
        return
    if not execute:
        click.echo(f"{many} would be deleted; {DRY}", err=True)
        return
    confirm(f"Delete {many} for ever?", yes)
    begun = client.ask("POST", path, {"ranges": foreseen["partitions"], "execute": True})
    watch(client, begun, "look again with: dlq list")
    click.echo(f"{many} deleted", err=True)


@click.command()
@click.argument("operation_id", metavar="OPERATION")
@click.option("--cancel", is_flag=True, help="End it; what it has done stays done.")
@url_option
@output_option
@guarded
def operation(operation_id: str, cancel: bool, url: str | None, output: str) -> None:
    """How a merge or purge stands that a worker is at.

    \b
    switchyard dlq operation merge-3f1c22a90b1e --cancel
    """
    method = "DELETE" if cancel else "GET"
    body = Client(url).ask(method, f"/operations/{quote(operation_id, safe='')}")
    row = body | {"looked_at": body["progress"].get("looked_at"), "of": body["progress"].get("of")}
    emit([row], ["id", "kind", "subject", "state", "looked_at", "of", "error"], output, whole=body)
