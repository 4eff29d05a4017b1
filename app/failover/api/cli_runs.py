"""failover plan|execute|abort|failback|drill|runs|show: move workloads to another region."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.cli.client import (
    EXIT_FAILURE,
    EXIT_PARTIAL,
    EXIT_PRECONDITION,
    EXIT_USAGE,
    Client,
    CommandFailure,
    guarded,
)
from app.cli.operations import watch
from app.cli.options import confirm, when
from app.cli.output import emit, output_option, printable, url_option
from app.kernel.json_types import JsonObject

PARTITIONS = ["workload", "partition", "from_region", "next_offset", "again", "passed_over",
              "not_here_at_least", "unreachable_at_least", "lag", "why"]  # fmt: skip
CHECKS = ["level", "of", "check", "detail", "remedy"]
ROWS = ["workload", "from_region", "stage", "epoch", "waits_for", "note"]
RUNS = ["id", "to", "state", "forced", "workloads", "by", "made", "took_s", "back_of", "reason", "result"]
DRILLED = ["workload", "partition", "committed", "first_record", "took_ms", "again", "lag", "error"]
RUN_POLL_INTERVAL_S = 0.2
SHOW_WAIT_AFTER_S = 3.0  # a shorter wait is not printed
ENDED = {"done", "aborted"}

TO = click.option(
    "--to",
    metavar="REGION",
    required=True,
    help="The region that becomes active; send the command to a worker there.",
)
WORKLOADS = click.option("--workload", "workloads", metavar="GROUP/TOPIC", multiple=True,
                         help="Only this workload; repeatable. Default: all that may move here.")  # fmt: skip
FORCE = click.option("--force", is_flag=True, help="Do not wait for the former region to stop: use it when "
                     "that region is lost.")  # fmt: skip
REASON = click.option("--reason", default="", help="Why, for the activity log.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@TO
@WORKLOADS
@FORCE
@REASON
@url_option
@output_option
@guarded
def plan(to: str, workloads: tuple[str, ...], force: bool, reason: str, url: str | None, output: str) -> None:
    """What it means to make workloads active in REGION, partition by partition. Changes nothing.

    Delivery continues at NEXT_OFFSET of this region's topic. From there on at most AGAIN records were read
    before; PASSED_OVER of them are known to be finished, and are not delivered again. NOT_HERE records are
    not copied yet, and UNREACHABLE of them are in clusters that do not answer. Both are lower bounds, because
    producers may have written more since. LAG records are here and wait for delivery. For each partition's
    sources use -o json. The checks follow. Exit code 5: a check blocks the failover.

    \b
    switchyard failover plan --to west
    switchyard failover plan --to west --workload billing/orders --reason "maintenance"
    switchyard failover plan --to west --force                   # east is lost
    switchyard failover plan --to west -o json | jq '.plan.workloads[].partitions[].sources'
    """
    body = {"to": to, "workloads": list(workloads), "force": force, "reason": reason}
    _show_plan(Client(url).ask("POST", "/failover/plan", body), output)


@click.command()
@click.argument("failover_id", metavar="[ID]", required=False)
@FORCE
@REASON
@url_option
@output_option
@guarded
def failback(failover_id: str | None, force: bool, reason: str, url: str | None, output: str) -> None:
    """Plans to take back the workloads that a failover took away. Changes nothing.

    Send it to the region that gets them back. ID is the failover, in whichever region it ran; by default the
    last one that took workloads away from here. failover execute carries the plan out.

    \b
    switchyard failover failback
    switchyard failover failback failover-3f9a2c11 --reason "east is well again"
    """
    body = {"force": force, "reason": reason} | ({"id": failover_id} if failover_id else {})
    _show_plan(Client(url).ask("POST", "/failover/failback", body), output)


@click.command()
@click.argument("failover_id", metavar="ID")
@click.option(
    "--force", is_flag=True, help="Do not wait (any longer) for the former region to stop: if it is lost."
)
@click.option("--dry-run", is_flag=True, help="Only check whether it can begin. Exit code 5: it cannot.")
@click.option("--no-wait", is_flag=True, help="Do not follow it to its end.")
@YES
@url_option
@output_option
@guarded
def execute(
    failover_id: str, force: bool, dry_run: bool, no_wait: bool, yes: bool, url: str | None, output: str
) -> None:
    """Carries out a planned failover, and follows it until it is done.

    It is refused when the plan has expired, when a role has changed since, or when a check blocks it. If it
    waits for a lost region, run it again with --force. Ctrl-C stops following; the failover continues.

    \b
    switchyard failover execute failover-3f9a2c11
    switchyard failover execute failover-3f9a2c11 --dry-run
    switchyard failover execute failover-3f9a2c11 --force --yes
    """
    client = Client(url)
    if dry_run:
        answer = client.ask("POST", "/failover/execute", {"id": failover_id, "force": force, "dry_run": True})
        emit(_rows(answer), ROWS, output, whole=answer)
        for why in answer["in_the_way"]:
            _print(f"blocked: {why}")
        if answer["in_the_way"]:
            raise CommandFailure("the failover cannot begin", EXIT_PRECONDITION)
        _print("the failover can begin; nothing was changed")
        return
    if not yes:
        run = client.ask("GET", _path(failover_id))
        how = (
            "at once, while another region may still deliver"
            if force or run["forced"]
            else "once their region has stopped"
        )
        confirm(f"{run['workloads']} workloads become active in {run['to']}, {how}?", yes)
    run = client.ask("POST", "/failover/execute", {"id": failover_id, "force": force})
    if not no_wait:
        run = _follow(client, run)
    emit(_rows(run), ROWS, output, whole=run)
    if run["state"] == "aborted":
        raise CommandFailure(f"{run['id']} was aborted: {run['result']}", EXIT_FAILURE)
    _print(
        f"{run['id']} is {run['state']}" + (f" after {run['took_s']:.1f} s: {run['result']}" * (not no_wait))
    )


@click.command()
@click.argument("failover_id", metavar="ID")
@REASON
@YES
@url_option
@output_option
@guarded
def abort(failover_id: str, reason: str, yes: bool, url: str | None, output: str) -> None:
    """Ends a failover. Workloads that are moving go back; those that are active here already stay.

    \b
    switchyard failover abort failover-3f9a2c11 --reason "east has recovered"
    """
    client = Client(url)
    if not yes:
        run = client.ask("GET", _path(failover_id))
        moving = [row for row in run["rows"] if row["stage"] in {"releasing", "positions", "activating"}]
        active = [row for row in run["rows"] if row["stage"] == "active"]
        question = f"{len(moving)} workloads go back, and {len(active)} that are active in {run['to']} stay?"
        confirm(question, yes)
    run = client.ask("POST", "/failover/abort", {"id": failover_id, "reason": reason})
    emit(_rows(run), ROWS, output, whole=run)
    stays = [row["workload"] for row in run["rows"] if row["stage"] == "active"]
    _print(
        f"{run['id']} is aborted"
        + (f"; active in {run['to']} already, and stays so: {', '.join(stays)}" * bool(stays))
    )


@click.command()
@TO
@WORKLOADS
@click.option("--force", is_flag=True, help="Rehearse a forced one, which asks nothing of the other region.")
@url_option
@output_option
@guarded
def drill(to: str, workloads: tuple[str, ...], force: bool, url: str | None, output: str) -> None:
    """Rehearses a failover with shadow groups, deletes them at the end, and changes nothing else.

    For each partition it commits the position where delivery would continue, reads it back, and reads the
    first record from there. TOOK_MS is the time from the consumer's start to that record. If the worker is
    killed meanwhile, groups named switchyard-drill-... remain; the next drill deletes those older than ten
    minutes. Exit code 5: a check blocks the failover. Exit code 1: a partition failed, or not all of them are
    known.

    \b
    switchyard failover drill --to west
    switchyard failover drill --to west --force                  # as if east were lost
    switchyard failover drill --to west --workload billing/orders -o json
    """
    client = Client(url)
    operation = client.ask(
        "POST", "/failover/drill", {"to": to, "workloads": list(workloads), "force": force}
    )
    drilled = watch(client, operation, "drill again")["progress"]
    rows = [
        {**row, "again": _shown(row["again"]), "lag": _shown(row["lag"]),
         "committed": _shown(row["committed"], "none"), "first_record": _shown(row["offset"], "none yet"),
         "took_ms": _shown(row["took_ms"], "-")}
        for row in drilled["partitions"]
    ]  # fmt: skip
    emit(rows, DRILLED, output, whole=drilled)
    for check in drilled["checks"]:
        if check["level"] != "ok":
            _print(f"{check['level']}: {check['of']}: {check['detail']}; {check['remedy']}")
    _print_unknown(drilled["unknown"])
    if drilled["blocked"]:
        what = f"checks that block the failover: {drilled['blocked']}; see above"
        raise CommandFailure(what, EXIT_PRECONDITION)
    if drilled["failed"]:
        raise CommandFailure(f"{drilled['failed']} of {drilled['looked_at']} partitions failed", EXIT_FAILURE)
    if drilled["unknown"] or drilled["looked_at"] < drilled["of"]:
        tried = f"{drilled['looked_at']} of {drilled['of']} known partitions succeeded"
        unknown = len(drilled["unknown"])
        raise CommandFailure(f"{tried}; {unknown} workloads are not fully known", EXIT_FAILURE)
    if not drilled["workloads"]:
        _print("nothing to rehearse: these workloads are active-active, and run here already")
        return
    slowest = max(
        (row["took_ms"] for row in drilled["partitions"] if row["took_ms"] is not None), default=None
    )
    first = f"; the slowest first record came after {slowest:.0f} ms" if slowest is not None else ""
    _print(f"{drilled['looked_at']} partitions would continue as planned{first}")


@click.command()
@url_option
@output_option
@guarded
def runs(url: str | None, output: str) -> None:
    """Every failover to this region, the newest first.

    \b
    switchyard failover runs
    switchyard failover runs -o json | jq '.[] | select(.state == "executing")'
    """
    found = Client(url).all("/failover/runs")
    rows = [{**run, "made": when(run["made_ms"]), "took_s": _shown(run["took_s"], "")} for run in found]
    emit(rows, RUNS, output, whole=found)


@click.command()
@click.argument("failover_id", metavar="ID")
@url_option
@output_option
@guarded
def show(failover_id: str, url: str | None, output: str) -> None:
    """One failover: the stage of each workload, what it waits for, and the plan.

    \b
    switchyard failover show failover-3f9a2c11
    switchyard failover show failover-3f9a2c11 -o json | jq '.rows[] | {workload, stage, waits_for}'
    """
    run = Client(url).ask("GET", _path(failover_id))
    emit(_rows(run), ROWS, output, whole=run)
    if output == "table" and run["plan"] is not None:
        click.echo()
        emit(_partitions(run["plan"]), PARTITIONS, output)
        click.echo()
        emit(_checks(run["plan"]), CHECKS, output)
        if run["plan"]["left_out"]:
            _print(run["plan"]["left_out"])
    for row in _waiting(run):
        _print(f"{row['workload']} waits for {row['waits_for']}: {row['remedy']}")
    _print(_describe(run))


# -- following -----------------------------------------------------------------------------------------


def _follow(client: Client, run: JsonObject) -> JsonObject:
    """Polls the failover until it has ended. Raises CommandFailure when the API does not answer."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    printed: dict[str, tuple[str, float]] = {}
    try:
        with bar:
            task = bar.add_task(printable(run["id"]), total=run["workloads"])
            while run["state"] not in ENDED:
                time.sleep(RUN_POLL_INTERVAL_S)
                run = client.ask("GET", _path(run["id"]))
                waiting = _waiting(run)
                first = waiting[0]["waits_for"] if waiting else ""
                what = f"{run['id']}: waits for {first}" if first else run["id"]
                ready = sum(row["stage"] in {"active", "taken", "gone"} for row in run["rows"])
                bar.update(task, completed=ready, description=printable(what)[:100])
                _print_long_waits(waiting, printed)
    except CommandFailure as failure:
        raise CommandFailure(
            f"{failure}. The failover continues; see failover show {run['id']}", failure.code
        ) from failure
    except KeyboardInterrupt:
        _print(f"\n{run['id']} continues; see failover show {run['id']}, or end it with failover abort")
        raise SystemExit(EXIT_PARTIAL) from None
    return run


def _waiting(run: JsonObject) -> list[JsonObject]:
    """The workloads that wait for something, or the failover itself, when only its end does."""
    end = {"workload": run["id"], "waits_for": run.get("waits_for"), "remedy": run.get("remedy")}
    return [row for row in (*run["rows"], end) if row["waits_for"]]


def _print_long_waits(waiting: Iterable[JsonObject], printed: dict[str, tuple[str, float]]) -> None:
    """Prints each long wait once. Numbers that change are in brackets, and do not count as a new wait."""
    for row in waiting:
        what, since_s = printed.get(row["workload"], ("", 0.0))
        now = row.get("stage", "") + row["waits_for"].partition(" (")[0]
        if what != now:
            printed[row["workload"]] = now, time.monotonic()
        elif since_s and time.monotonic() - since_s > SHOW_WAIT_AFTER_S:
            printed[row["workload"]] = what, 0.0
            _print(f"{row['workload']} waits for {row['waits_for']}; {row['remedy']}")


# -- showing -------------------------------------------------------------------------------------------


def _show_plan(run: JsonObject, output: str) -> None:
    plan = run["plan"]
    emit(_partitions(plan), PARTITIONS, output, whole=run)
    if output == "table":
        click.echo()
        emit(_checks(plan), CHECKS, output)
    _print_unknown(one for one in plan["workloads"] if one["why"])
    total = plan["totals"]
    as_of = f", as of {when(total['as_of_ms'])}" if total.get("as_of_ms") is not None else ""
    _print(
        f"{run['id']}: {run['workloads']} workloads, {total['partitions']} partitions; read again at most "
        f"{_shown(total['again'])}, of which {total['passed_over']} are skipped as finished; not here yet "
        f"{_at_least(total['not_replicated'])} ({_at_least(total['unreachable'])} unreachable){as_of}; "
        f"to deliver {_shown(total['lag'])}"
    )
    if any(check["level"] == "blocked" for check in _all_checks(plan)):
        raise CommandFailure(f"plan {run['id']} is blocked; see the checks above", EXIT_PRECONDITION)
    force = " (forced)" * run["forced"]
    _print(f"execute it before {when(run['expires_ms'])}{force}: switchyard failover execute {run['id']}")


def _print_unknown(found: Iterable[JsonObject]) -> None:
    for one in found:
        _print(f"{one['workload']}: its partitions are not known: {one['why']}")


def _at_least(count: int | None) -> str:
    return "unknown" if count is None else f"at least {count}"


def _partitions(plan: JsonObject) -> list[JsonObject]:
    return [
        {**row, "workload": one["workload"], "from_region": one["region"],
         "next_offset": _shown(row["next_offset"]), "again": _shown(row["again"]),
         "not_here_at_least": _shown(row["not_replicated"]),
         "unreachable_at_least": _shown(row["unreachable"]), "lag": _shown(row["lag"])}
        for one in plan["workloads"]
        for row in one["partitions"]
    ]  # fmt: skip


def _all_checks(plan: JsonObject) -> list[JsonObject]:
    found = [{**check, "of": "regions"} for check in plan["checks"]]
    return found + [{**c, "of": one["workload"]} for one in plan["workloads"] for c in one["checks"]]


def _checks(plan: JsonObject) -> list[JsonObject]:
    order = {"blocked": 0, "warn": 1, "ok": 2}
    found = sorted(_all_checks(plan), key=lambda check: order[check["level"]])
    return [{**check, "check": check["name"]} for check in found]


def _rows(run: JsonObject) -> list[JsonObject]:
    return [{**row, "from_region": row["region"], "epoch": _shown(row["epoch"], "-")} for row in run["rows"]]


def _describe(run: JsonObject) -> str:
    words = [f"{run['id']} to {run['to']} is {run['state']}{', forced' * run['forced']}, by {run['by']}"]
    if run["took_s"] is not None:
        words.append(f"{run['took_s']:.1f} s since it began" if run["state"] not in ENDED else
                     f"it took {run['took_s']:.1f} s")  # fmt: skip
    return "; ".join([*words, *filter(None, (run["reason"], run["result"]))])


def _shown(value: Any, other: str | None = None) -> Any:
    return (other or "unknown") if value is None and other != "" else ("" if value is None else value)


def _path(failover_id: str) -> str:
    if not failover_id or "/" in failover_id:
        raise CommandFailure(
            f"{failover_id!r} names no failover; write its id, as failover runs shows it", EXIT_USAGE
        )
    return f"/failover/{quote(failover_id, safe='')}"


def _print(text: str) -> None:
    click.echo("\n".join(printable(line) for line in text.split("\n")), err=True)


VERBS = (plan, execute, abort, failback, drill, runs, show)
