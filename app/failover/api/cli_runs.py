"""failover plan|execute|abort|failback|drill|runs|show: workloads become active in another region."""

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

PARTITIONS = ["workload", "partition", "from_region", "next_offset", "again", "passed_over",
              "not_here_at_least", "unreachable_at_least", "lag", "why"]  # fmt: skip
CHECKS = ["level", "of", "check", "detail", "remedy"]
ROWS = ["workload", "from_region", "stage", "epoch", "waits_for", "note"]
RUNS = ["id", "to", "state", "forced", "workloads", "by", "made", "took_s", "back_of", "reason", "result"]
DRILLED = ["workload", "partition", "committed", "first_record", "took_ms", "again", "lag", "error"]
RUN_POLL_INTERVAL_S = 0.2
SHOW_WAIT_AFTER_S = 3.0  # what is waited for is told then
ENDED = {"done", "aborted"}

TO = click.option(
    "--to", metavar="REGION", required=True, help="The region that becomes active; ask its worker."
)
WORKLOADS = click.option("--workload", "workloads", metavar="GROUP/TOPIC", multiple=True,
                         help="Only this one (again: and); else all that are active elsewhere.")  # fmt: skip
FORCE = click.option("--force", is_flag=True, help="Active at once, without waiting for the region that had "
                     "it: for one that is lost.")  # fmt: skip
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

    NEXT_OFFSET is where it goes on in this region's topic. Of what lies behind it at most AGAIN records were
    read before; of those PASSED_OVER are known to be finished, and are not delivered again. NOT_HERE are
    records that are not copied yet, of which UNREACHABLE cannot be until their cluster answers: at least so
    many, as what was written there since it last answered is not known. LAG is here and waits to be
    delivered. Sources and barriers: -o json. Below stands what was checked. Exit code 5: something is in the
    way.

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
    """Plans to take back what a failover took away; asked of the region that gets it. Changes nothing.

    ID is of the failover, in whichever region it was; without one it is the last that took something away
    from here. What it plans is carried out by failover execute.

    \b
    switchyard failover failback
    switchyard failover failback failover-3f9a2c11 --reason "east is well again"
    """
    body = {"force": force, "reason": reason} | ({"id": failover_id} if failover_id else {})
    _show_plan(Client(url).ask("POST", "/failover/failback", body), output)


@click.command()
@click.argument("failover_id", metavar="ID")
@click.option(
    "--force", is_flag=True, help="Do not wait (any more) for the region that had it: for one that is lost."
)
@click.option("--dry-run", is_flag=True, help="Only say whether it may begin. Exit code 5: it may not.")
@click.option("--no-wait", is_flag=True, help="Do not follow it to its end.")
@YES
@url_option
@output_option
@guarded
def execute(
    failover_id: str, force: bool, dry_run: bool, no_wait: bool, yes: bool, url: str | None, output: str
) -> None:
    """Carries out a planned failover, and follows it until it is done.

    It is refused when the plan has expired, when a role has changed since, or when something is in the way.
    One that waits for a region that is lost goes on with --force. Ctrl-C ends the watching, not the failover.

    \b
    switchyard failover execute failover-3f9a2c11
    switchyard failover execute failover-3f9a2c11 --dry-run
    switchyard failover execute failover-3f9a2c11 --force --yes
    """
    client = Client(url)
    if dry_run:
        told = client.ask("POST", "/failover/execute", {"id": failover_id, "force": force, "dry_run": True})
        emit(_rows(told), ROWS, output, whole=told)
        for why in told["in_the_way"]:
            _print(f"in the way: {why}")
        if told["in_the_way"]:
            raise CommandFailure("it may not begin", EXIT_PRECONDITION)
        _print("it may begin; nothing was changed")
        return
    if not yes:
        run = client.ask("GET", _path(failover_id))
        how = (
            "at once, whoever still acts"
            if force or run["forced"]
            else "once the region that has it has let go"
        )
        confirm(f"{run['workloads']} workloads become active in {run['to']}, {how}?", yes)
    told = client.ask("POST", "/failover/execute", {"id": failover_id, "force": force})
    if not no_wait:
        told = _follow(client, told)
    emit(_rows(told), ROWS, output, whole=told)
    if told["state"] == "aborted":
        raise CommandFailure(f"{told['id']} was aborted: {told['result']}", EXIT_FAILURE)
    _print(
        f"{told['id']} is {told['state']}"
        + (f" after {told['took_s']:.1f} s: {told['result']}" * (not no_wait))
    )


@click.command()
@click.argument("failover_id", metavar="ID")
@REASON
@YES
@url_option
@output_option
@guarded
def abort(failover_id: str, reason: str, yes: bool, url: str | None, output: str) -> None:
    """Ends a failover: what is under way goes back to where it was, what is active already stays.

    \b
    switchyard failover abort failover-3f9a2c11 --reason "east has recovered"
    """
    client = Client(url)
    if not yes:
        run = client.ask("GET", _path(failover_id))
        moving = [row for row in run["rows"] if row["stage"] in {"releasing", "positions", "activating"}]
        active = [row for row in run["rows"] if row["stage"] == "active"]
        confirm(f"{len(moving)} workloads go back, {len(active)} that are active in {run['to']} stay?", yes)
    told = client.ask("POST", "/failover/abort", {"id": failover_id, "reason": reason})
    emit(_rows(told), ROWS, output, whole=told)
    stays = [row["workload"] for row in told["rows"] if row["stage"] == "active"]
    _print(
        f"{told['id']} is aborted"
        + (f"; active in {told['to']} already, and stays: {', '.join(stays)}" * bool(stays))
    )


@click.command()
@TO
@WORKLOADS
@click.option("--force", is_flag=True, help="Rehearse a forced one, which asks nothing of the other region.")
@url_option
@output_option
@guarded
def drill(to: str, workloads: tuple[str, ...], force: bool, url: str | None, output: str) -> None:
    """Rehearses a failover with shadow groups, which are deleted in the end; touches nothing else.

    Per partition: commits the position where it would go on, reads it back, and reads the first record from
    there. TOOK_MS is from the command to read to that record. Should the worker be killed meanwhile, a group
    switchyard-drill-... stays until the next drill, which deletes those older than ten minutes. Exit code 5:
    something is in the way of the failover; 1: a partition did not do well, or not all of them are known.

    \b
    switchyard failover drill --to west
    switchyard failover drill --to west --force                  # as if east were lost
    switchyard failover drill --to west --workload billing/orders -o json
    """
    client = Client(url)
    begun = client.ask("POST", "/failover/drill", {"to": to, "workloads": list(workloads), "force": force})
    told = watch(client, begun, "drill again")["progress"]
    rows = [
        {**row, "again": _or(row["again"]), "lag": _or(row["lag"]),
         "committed": _or(row["committed"], "none"), "first_record": _or(row["offset"], "none yet"),
         "took_ms": _or(row["took_ms"], "-")}
        for row in told["partitions"]
    ]  # fmt: skip
    emit(rows, DRILLED, output, whole=told)
    for check in told["checks"]:
        if check["level"] != "ok":
            _print(f"{check['level']}: {check['of']}: {check['detail']}; {check['remedy']}")
    _say_what_is_unknown(told["unknown"])
    if told["blocked"]:
        what = f"the failover is blocked, by {told['blocked']} preconditions; see above"
        raise CommandFailure(what, EXIT_PRECONDITION)
    if told["failed"]:
        raise CommandFailure(
            f"{told['failed']} of {told['looked_at']} partitions did not do well", EXIT_FAILURE
        )
    if told["unknown"] or told["looked_at"] < told["of"]:
        tried = f"{told['looked_at']} of {told['of']} known partitions were tried, and did well"
        raise CommandFailure(f"{tried}; of {len(told['unknown'])} workloads not all is known", EXIT_FAILURE)
    if not told["workloads"]:
        _print("nothing to rehearse: no active-passive workload is among them, the others run here already")
        return
    slowest = max((row["took_ms"] for row in told["partitions"] if row["took_ms"] is not None), default=None)
    first = f"; the slowest first record came after {slowest:.0f} ms" if slowest is not None else ""
    _print(f"{told['looked_at']} partitions would go on as planned{first}")


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
    rows = [{**run, "made": when(run["made_ms"]), "took_s": _or(run["took_s"], "")} for run in found]
    emit(rows, RUNS, output, whole=found)


@click.command()
@click.argument("failover_id", metavar="ID")
@url_option
@output_option
@guarded
def show(failover_id: str, url: str | None, output: str) -> None:
    """One failover: how far each workload is, what that waits for, and the plan as it was read.

    \b
    switchyard failover show failover-3f9a2c11
    switchyard failover show failover-3f9a2c11 -o json | jq '.rows[] | {workload, stage, waits_for}'
    """
    told = Client(url).ask("GET", _path(failover_id))
    emit(_rows(told), ROWS, output, whole=told)
    if output == "table" and told["plan"] is not None:
        click.echo()
        emit(_partitions(told["plan"]), PARTITIONS, output)
        click.echo()
        emit(_checks(told["plan"]), CHECKS, output)
        if told["plan"]["left_out"]:
            _print(told["plan"]["left_out"])
    for row in _waiting(told):
        _print(f"{row['workload']} waits for {row['waits_for']}: {row['remedy']}")
    _print(_describe(told))


# -- following -----------------------------------------------------------------------------------------


def _follow(client: Client, told: dict[str, Any]) -> dict[str, Any]:
    """Until it has ended. Raises Failure: nobody can be asked any more."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    said: dict[str, tuple[str, float]] = {}
    try:
        with bar:
            task = bar.add_task(printable(told["id"]), total=told["workloads"])
            while told["state"] not in ENDED:
                time.sleep(RUN_POLL_INTERVAL_S)
                told = client.ask("GET", _path(told["id"]))
                waiting = _waiting(told)
                first = waiting[0]["waits_for"] if waiting else ""
                what = f"{told['id']}: waits for {first}" if first else told["id"]
                ready = sum(row["stage"] in {"active", "taken", "gone"} for row in told["rows"])
                bar.update(task, completed=ready, description=printable(what)[:100])
                _say_what_is_waited_for(waiting, said)
    except CommandFailure as failure:
        raise CommandFailure(
            f"{failure}. It goes on; see failover show {told['id']}", failure.code
        ) from failure
    except KeyboardInterrupt:
        _print(f"\n{told['id']} goes on without you; see failover show {told['id']}, or failover abort it")
        raise SystemExit(EXIT_PARTIAL) from None
    return told


def _waiting(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Its workloads that wait for something; or itself, when only its end does."""
    end = {"workload": told["id"], "waits_for": told.get("waits_for"), "remedy": told.get("remedy")}
    return [row for row in (*told["rows"], end) if row["waits_for"]]


def _say_what_is_waited_for(waiting: Iterable[dict[str, Any]], said: dict[str, tuple[str, float]]) -> None:
    """Once each, of what takes long; numbers that change stand in brackets."""
    for row in waiting:
        what, since_s = said.get(row["workload"], ("", 0.0))
        now = row.get("stage", "") + row["waits_for"].partition(" (")[0]
        if what != now:
            said[row["workload"]] = now, time.monotonic()
        elif since_s and time.monotonic() - since_s > SHOW_WAIT_AFTER_S:
            said[row["workload"]] = what, 0.0
            _print(f"{row['workload']} waits for {row['waits_for']}; {row['remedy']}")


# -- showing -------------------------------------------------------------------------------------------


def _show_plan(told: dict[str, Any], output: str) -> None:
    plan = told["plan"]
    emit(_partitions(plan), PARTITIONS, output, whole=told)
    if output == "table":
        click.echo()
        emit(_checks(plan), CHECKS, output)
    _say_what_is_unknown(one for one in plan["workloads"] if one["why"])
    total = plan["totals"]
    as_of = f", as of {when(total['as_of_ms'])}" if total.get("as_of_ms") is not None else ""
    _print(
        f"{told['id']}: {told['workloads']} workloads, {total['partitions']} partitions; read again at most "
        f"{_or(total['again'])}, of which {total['passed_over']} are passed over; not here yet "
        f"{_at_least(total['not_replicated'])} ({_at_least(total['unreachable'])} unreachable){as_of}; "
        f"to be delivered {_or(total['lag'])}"
    )
    if any(check["level"] == "blocked" for check in _all_checks(plan)):
        raise CommandFailure(f"plan {told['id']} is blocked; see the checks above", EXIT_PRECONDITION)
    force = " (forced)" * told["forced"]
    _print(
        f"it may be carried out until {when(told['expires_ms'])}{force}: "
        f"switchyard failover execute {told['id']}"
    )


def _say_what_is_unknown(found: Iterable[dict[str, Any]]) -> None:
    for one in found:
        _print(f"{one['workload']}: its partitions are not known: {one['why']}")


def _at_least(count: int | None) -> str:
    return "unknown" if count is None else f"at least {count}"


def _partitions(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {**row, "workload": one["workload"], "from_region": one["region"],
         "next_offset": _or(row["next_offset"]), "again": _or(row["again"]),
         "not_here_at_least": _or(row["not_replicated"]), "unreachable_at_least": _or(row["unreachable"]),
         "lag": _or(row["lag"])}
        for one in plan["workloads"]
        for row in one["partitions"]
    ]  # fmt: skip


def _all_checks(plan: dict[str, Any]) -> list[dict[str, Any]]:
    found = [{**check, "of": "regions"} for check in plan["checks"]]
    return found + [{**c, "of": one["workload"]} for one in plan["workloads"] for c in one["checks"]]


def _checks(plan: dict[str, Any]) -> list[dict[str, Any]]:
    order = {"blocked": 0, "warn": 1, "ok": 2}
    found = sorted(_all_checks(plan), key=lambda check: order[check["level"]])
    return [{**check, "check": check["name"]} for check in found]


def _rows(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**row, "from_region": row["region"], "epoch": _or(row["epoch"], "-")} for row in told["rows"]]


def _describe(told: dict[str, Any]) -> str:
    words = [f"{told['id']} to {told['to']} is {told['state']}{', forced' * told['forced']}, by {told['by']}"]
    if told["took_s"] is not None:
        words.append(f"{told['took_s']:.1f} s since it began" if told["state"] not in ENDED else
                     f"it took {told['took_s']:.1f} s")  # fmt: skip
    return "; ".join([*words, *filter(None, (told["reason"], told["result"]))])


def _or(value: Any, other: str | None = None) -> Any:
    return (other or "unknown") if value is None and other != "" else ("" if value is None else value)


def _path(failover_id: str) -> str:
    if not failover_id or "/" in failover_id:
        raise CommandFailure(
            f"{failover_id!r} names no failover; write its id, as failover runs tells it", EXIT_USAGE
        )
    return f"/failover/{quote(failover_id, safe='')}"


def _print(text: str) -> None:
    click.echo("\n".join(printable(line) for line in text.split("\n")), err=True)


VERBS = (plan, execute, abort, failback, drill, runs, show)
