"""The commands dlq merge|purge|operation, which change a queue. merge and purge begin with a dry run."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from app.cli.client import EXIT_PARTIAL, EXIT_PRECONDITION, EXIT_USAGE, Client, CommandFailure, guarded
from app.cli.operations import watch
from app.cli.options import change_options, confirm, dlq_path, query_of, query_options, spans_of
from app.cli.output import emit, output_option, url_option
from app.dispatch.dlq.rules import DEFAULT_RATE
from app.kernel.json_types import JsonObject

DRY = "dry run: nothing was changed; add --execute to do it"
LEFT = {
    "other": "not chosen",
    "before": "merged before",
    "gone": "purged before",
    "quarantined": "merged too often: quarantined, left in the queue",
    "raw": "undecodable batches: never merged",
    "left-out": "the letter lacks its value, and no topic of the workload has it any more: left in the queue",
    "refused": "the merge topic does not take them (too large, or by its settings): left in the queue",
    "expired": "deleted before their turn (by retention or a purge)",
}


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@query_options
@change_options
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=DEFAULT_RATE, show_default=True,
              help="Letters a second.")  # fmt: skip
@click.option("--max-merges", type=click.IntRange(0, 1000),
              help="Quarantine letters that were merged this often (default: dlq.maxMerges).")  # fmt: skip
@click.option("--again", is_flag=True, help="Also letters that an earlier merge took.")
@click.option("--resume", metavar="OPERATION", help="Continue a merge that was killed, canceled or failed.")
@url_option
@output_option
@guarded
def merge(
    name: str, ranges: tuple[str, ...], execute: bool, yes: bool, rate: float, max_merges: int | None,
    again: bool, resume: str | None, url: str | None, output: str, **options: Any,
) -> None:  # fmt: skip
    """Delivers letters to their workload again, each once. Letters that arrive later are not merged.

    \b
    switchyard dlq merge billing/orders --reason timeout             # what would be merged
    switchyard dlq merge billing/orders --reason timeout --rate 200 --execute
    switchyard dlq merge billing/orders --resume merge-3f1c22a90b1e --execute
    """
    terms: JsonObject = {"query": query_of(options), "again": again}
    terms |= {} if max_merges is None else {"max_merges": max_merges}
    settings, manner = {"rate": rate}, f"into {name} at {rate:g} a second"
    progress = _run_by_query(
        Client(url), name, "merge", terms, spans_of(ranges), resume, settings, manner, execute, yes, output
    )
    if progress is not None and any(
        progress["counts"].get(what) for what in ("refused", "expired", "left-out")
    ):
        raise SystemExit(EXIT_PARTIAL)


def _run_by_query(
    client: Client, name: str, kind: str, terms: JsonObject, spans: JsonObject, resume: str | None,
    settings: JsonObject, manner: str, execute: bool, yes: bool, output: str,
) -> JsonObject | None:  # fmt: skip
    """Shows the forecast, asks, and runs the operation; or resumes one.

    Returns its progress, or the forecast if there is nothing to do; None: a dry run.
    """
    path = f"{dlq_path(name)}/{kind}"
    if resume is not None:
        if not execute:
            raise CommandFailure(
                "--resume continues with the conditions it began with; add --execute to do it",
                EXIT_PRECONDITION,
            )
        confirm(f"Continue {resume}?", yes)
        body: JsonObject = {"operation": resume, "resume": True}
    else:
        forecast: JsonObject = client.ask("POST", path, {**terms, "ranges": spans})
        count = forecast["counts"][f"{kind}d"]
        letters = f"{'' if forecast['complete'] else 'at least '}{count} letters of {forecast['topic']}"
        if not execute:
            (_emit_reasons if kind == "purge" else _emit_counts)(forecast, output)
        if forecast["unfinished"]:
            click.echo(f"unfinished (continue with --resume): {', '.join(forecast['unfinished'])}", err=True)
        if forecast["front"]:
            at_front = "offsets at the front, all purged or merged, are deleted for ever"
            click.echo(f"{forecast['front']} {at_front}", err=True)
        if not execute:
            click.echo(f"{letters} would be {kind}d; {DRY}", err=True)
            return None
        if not forecast["partitions"] or (forecast["complete"] and not count):
            click.echo(f"nothing to {kind}", err=True)
            _emit_counts(forecast, output)
            return forecast
        confirm(f"{kind.capitalize()} {letters} {manner}?", yes)
        body = {**terms, "ranges": forecast["partitions"]}
    started = client.ask("POST", path, {**body, **settings, "execute": True})
    click.echo(f"operation {started['id']}", err=True)
    ended = watch(client, started, f"continue with: dlq {kind} {name} --resume {started['id']} --execute")
    progress: JsonObject = ended["progress"]
    _emit_counts(progress, output)
    return progress


def _emit_reasons(forecast: JsonObject, output: str) -> None:
    rows = [{"letters": count, "reason": reason} for reason, count in forecast["reasons"].items()]
    emit(rows, ["letters", "reason"], output, whole=forecast)


def _emit_counts(progress: JsonObject, output: str) -> None:
    counts, done = progress["counts"], "purged" if progress["kind"] == "purge" else "merged"
    rows = [{"letters": counts[done], "what": done}]
    rows += [{"letters": counts[name], "what": words} for name, words in LEFT.items() if counts.get(name)]
    emit(rows, ["letters", "what"], output, whole=progress)


@click.command()
@click.argument("name", metavar="GROUP/TOPIC")
@query_options
@change_options
@click.option(
    "--before", metavar="TIME", help="Letters moved here before: 30d (ago), 2026-01-31T12:00 (UTC), ms."
)
@click.option("--all", "everything", is_flag=True, help="All letters that are there now.")
@click.option("--resume", metavar="OPERATION", help="Continue a purge by query that was killed or canceled.")
@url_option
@output_option
@guarded
def purge(
    name: str, ranges: tuple[str, ...], execute: bool, yes: bool, before: str | None,
    everything: bool, resume: str | None, url: str | None, output: str, **options: Any,
) -> None:  # fmt: skip
    """Removes letters for ever: those of a query, or all before a time or an offset.

    Letters of a query disappear at once from list, stats, export and merge. Kafka deletes their bytes later,
    from the front of a partition, as far as everything there was purged or merged.

    \b
    switchyard dlq purge billing/orders --before 30d                 # how many
    switchyard dlq purge billing/orders --range 0:-1042 --execute
    switchyard dlq purge billing/orders --reason 'no such customer' --since 2d --execute
    """
    spans, query = spans_of(ranges), query_of(options)
    if resume is not None or set(query) - {"partition"}:
        if before or everything:
            raise CommandFailure(
                "--before and --all take no conditions; use the condition --until instead", EXIT_USAGE
            )
        terms = {"query": query}
        progress = _run_by_query(
            Client(url), name, "purge", terms, spans, resume, {}, "for ever", execute, yes, output
        )
        if progress is not None and "deleted" in progress:
            click.echo(f"{progress['deleted']} offsets at the front deleted", err=True)
        return
    if not (before or ranges or everything):
        raise CommandFailure(
            "choose letters: --before TIME, --range P:-OFFSET, --all, or conditions such as --reason",
            EXIT_USAGE,
        )
    if any(span["start"] for span in spans.values()):
        raise CommandFailure("--range: Kafka deletes only from the front; write P:-OFFSET", EXIT_USAGE)
    client, path = Client(url), f"{dlq_path(name)}/purge"
    forecast = client.ask(
        "POST", path, {"before": before, "ranges": spans, "partitions": query.get("partition", [])}
    )
    if forecast["unfinished"]:
        click.echo("unfinished merges lose letters that they have not reached: "
                   f"{', '.join(forecast['unfinished'])}", err=True)  # fmt: skip
    rows = [{"partition": p, **span} for p, span in forecast["partitions"].items()]
    emit(rows, ["partition", "start", "end"], output, whole=forecast)
    amount = f"{forecast['offsets']} offsets of {forecast['topic']}"
    if not forecast["offsets"]:
        click.echo("nothing to delete", err=True)
        return
    if not execute:
        click.echo(f"{amount} would be deleted; {DRY}", err=True)
        return
    confirm(f"Delete {amount} for ever?", yes)
    started = client.ask("POST", path, {"ranges": forecast["partitions"], "execute": True})
    watch(client, started, "check the queue with: dlq list")
    click.echo(f"{amount} deleted", err=True)


@click.command()
@click.argument("operation_id", metavar="OPERATION")
@click.option("--cancel", is_flag=True, help="End it; what it has done so far stays.")
@url_option
@output_option
@guarded
def operation(operation_id: str, cancel: bool, url: str | None, output: str) -> None:
    """The state of a merge or purge that a worker runs.

    \b
    switchyard dlq operation merge-3f1c22a90b1e --cancel
    """
    method = "DELETE" if cancel else "GET"
    body = Client(url).ask(method, f"/operations/{quote(operation_id, safe='')}")
    row = body | {"looked_at": body["progress"].get("looked_at"), "of": body["progress"].get("of")}
    emit([row], ["id", "kind", "subject", "state", "looked_at", "of", "error"], output, whole=body)
