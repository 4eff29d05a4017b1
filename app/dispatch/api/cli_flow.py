"""The throughput section of `workload describe`: why the workload is no faster, then the numbers.

It is printed only as a table. JSON and YAML contain all of it anyway, and CSV has the partitions only.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from app.cli.output import emit, printable
from app.dispatch.model.dead_letter_budget import spelled
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonMapping

FlowRow = JsonMapping


def print_flow(body: FlowRow, output: str) -> None:
    """Prints `flow` of the API's answer for a workload; an answer of an older worker has none."""
    flow = body.get("flow")
    if output != "table" or not flow:
        return
    where = f" (on {flow['worker']})" if flow["worker"] else ""
    _line(f"{body['status']['key']}: {flow['bound']}: {flow['why']}{where}")
    for trouble in body["status"]["troubles"]:
        if trouble not in flow["why"]:
            _line(f"trouble: {trouble}")
    for words in sorted({words for row in flow["workers"] for words in row.get("throttles", ())}):
        if words not in flow["why"]:
            _line(f"throttled: {words}")
    _section("Receivers", [_receiver(row) for row in flow["receivers"]])
    receivers = flow["receivers"]
    _section("Endpoints", [_endpoint(row, one) for row in receivers for one in row.get("endpoints", ())])
    for row in receivers:
        if row.get("unresolved"):
            _line(f"{row['address']} has no endpoint on {row['worker']}: {row['unresolved']}")
        if row.get("more_endpoints"):
            _line(f"and {row['more_endpoints']} more of {row['address']} on {row['worker']}")
    _section("Workers", [_worker(row) for row in flow["workers"]])
    _section(
        "Failed, and not dead-lettered yet",
        [_withheld(row) for row in flow["workers"] if row.get("withheld")],
    )
    head = flow["head_of_line"]
    full, unfinished = head["use_threshold"] * 100, head["unfinished_threshold"] * 100
    patience_s = head.get("patience_s", 1)  # what workers of an earlier version have
    _section(
        f"Head of line (thresholds: {full:g}% in use, less than {unfinished:g}% unfinished,"
        f" for {patience_s:g} s; or {head['after_s']:g} s)",
        [_candidate(row) for row in head["candidates"]],
    )
    if head["more_candidates"]:
        _line(f"and {head['more_candidates']} more")
    _section(
        f"Moved away: {head['stashed']}, the last of them", [_decision(row) for row in head["decisions"]]
    )
    _line("\nPartitions")


def _line(text: str) -> None:
    click.echo("\n" + printable(text[1:]) if text.startswith("\n") else printable(text))


def _section(title: str, rows: Sequence[FlowRow]) -> None:
    if rows:
        _line(f"\n{title}")
        emit(rows, list(rows[0]), "table")


def _receiver(row: FlowRow) -> FlowRow:
    breaker = row["breaker"]
    if row["probe_in_s"] is not None:
        breaker = f"{breaker} ({row['why_open'] or 'no reason'}; probe in {row['probe_in_s']:.1f} s)"
    limit = (
        f"{row['limit']}" if row["ceiling"] is None else f"{row['limit']}/{row['ceiling']} ({row['phase']})"
    )
    if row["allowed"] < row["limit"]:
        limit = f"{limit}, slow start {row['allowed']}"
    base_s, timeout_s = row["base_timeout_s"], row["timeout_s"]
    return {
        "address": row["address"],
        "contract": row["contract"],
        "breaker": breaker,
        "health": row["health"],
        "in_flight": row["in_flight"],
        "limit": limit,
        "credit": "-" if row["credit"] is None else row["credit"],
        "held": row["held"],
        "timeout": f"{timeout_s:g} s" + ("" if timeout_s == base_s else f" (defined {base_s:g} s)"),
        "failed": "-" if row["failed_share"] is None else f"{row['failed_share']:.1%} of {row['calls']}",
        "worker": row["worker"],
    }


def _endpoint(receiver: FlowRow, row: FlowRow) -> FlowRow:
    why = f" ({row['why']})" if row["why"] else ""
    return {
        "address": receiver["address"],
        "endpoint": row["name"] + (" (same zone)" if row.get("local") else ""),
        "state": f"{row['state']} for {row['for_s']:.0f} s{why}",
        "health": row["health"],
        "in_flight": f"{row['in_flight']} of {row['limit']}",
        "share": "-" if row["share"] is None else f"{row['share']:.0%}",
        "failed": "-" if row["failed_share"] is None else f"{row['failed_share']:.1%}",
        "latency": "-" if row["latency_ms"] is None else f"{row['latency_ms']:g} ms",
        "worker": receiver["worker"],
    }


def _worker(row: FlowRow) -> FlowRow:
    states = [
        f"{row[name]} {name.replace('_', ' ')}" for name in ("paused", "catching_up", "emptying") if row[name]
    ]
    rates = [
        f"{row[f'{unit}_per_s']:g} {unit}/s"
        + (f", {row[f'{unit}_short']:.0f} short" if row[f"{unit}_short"] else "")
        for unit in ("messages", "bytes")
        if row[f"{unit}_per_s"] is not None
    ]
    due = "" if row["due_in_s"] is None else f" (first in {row['due_in_s']:.1f} s)"
    return {
        "worker": row["worker"],
        "held back by": row["bound"],
        "jobs": f"{row['jobs']}" + (f" ({', '.join(states)})" if states else ""),
        "in_flight": row["in_flight"],
        "ready": row["ready"],
        "behind": row["behind"],
        "postponed": f"{row['postponed']}{due}",
        "backoff": row["backoff"],
        "outgoing": row.get("outgoing", 0),
        "unread": row["unread"],
        "rate": "; ".join(rates) or "-",
        "memory": f"{row['budget_used']:.0%} ({row['buffered_bytes']} bytes its own)",
        "why": row["why"],
    }


def _withheld(row: FlowRow) -> FlowRow:
    return {
        "worker": row["worker"],
        "messages": row["withheld"],
        "failures": spelled(row["withheld_by"]),
        "letters now": "-" if row["letters"] is None else f"{row['letters']:g}",
        "last": row["withheld_last"] or "-",
    }


def _candidate(row: FlowRow) -> FlowRow:
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "age_s": "-" if row["age_s"] is None else row["age_s"],
        "in use": f"{row['tracker_used']:.1%}",
        "unfinished": f"{row['unfinished_share']:.2%}",
        "why not yet": row["why_not"],
    }


def _decision(row: FlowRow) -> FlowRow:
    return {
        "ago_s": max(0.0, (now_ms() - row["at_ms"]) / 1000),
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "rule": row["rule"],
        "reason": row["reason"],
    }
