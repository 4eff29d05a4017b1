"""What a failover plan says, for the control log, the API and people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

MAX_KEPT_BYTES = 300_000  # of a plan in the control log; of a larger one some is left out (`kept`)
MAX_RECORD_BYTES = 1_000_000  # of a run with its plan: a producer takes no more than 1,048,576
MAX_DETAIL_CHARS = 200
LASTING = frozenset({"topic", "regions"})  # checks that nobody makes again before the plan is carried out

Level = Literal["ok", "warn", "blocked"]


class PlanPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all here. Null is not known."""


class Check(PlanPart, frozen=True, kw_only=True):
    """A precondition; `remedy` of one that is not ok. `may_force`: what it blocks may be forced."""

    name: str
    level: Level
    detail: str
    remedy: str = ""
    may_force: bool = False


class Unreplicated(PlanPart, frozen=True, kw_only=True):
    """What of a source partition has not been copied here: `records` at least, as the copy's job said at
    `as_of_ms`; there are more of them when its cluster has not answered since. Not `reachable` until `region`
    returns."""

    route: str
    cluster: str
    region: str
    records: int | None
    reachable: bool
    as_of_ms: int | None = None


class PlannedSource(PlanPart, frozen=True, kw_only=True):
    """What one source says of a partition (`app.offsets.model.translation`): read below `read_up_to`, so that
    nothing of it is missed from `next_offset` on; `again` are read again at most, of which `passed_over` are
    known to be finished and are not delivered."""

    cluster: str
    topic: str
    partition: int
    read_up_to: int | None
    next_offset: int | None
    again: int | None
    passed_over: int
    why: str = ""


class PlannedPartition(PlanPart, frozen=True, kw_only=True):
    """A partition here. `mapped` is where the region that is left is, in offsets of this one; `own` what the
    group has committed here, `next_offset` the higher of the two. `own_is_foreign`: nothing of Switchyard
    committed it. `least` is the source that held it back. `lag` is what is here to be delivered,
    `not_replicated` what at least is not here yet (`Unreplicated`); `unreachable` is the part of it whose
    cluster does not answer."""

    partition: int
    mapped: int | None = None
    own: int | None = None
    own_is_foreign: bool = False
    next_offset: int | None = None
    log_end: int | None = None
    lag: int | None = None
    again: int | None = None
    passed_over: int = 0
    not_replicated: int | None = None
    unreachable: int | None = None
    least: str = ""
    why: str = ""
    sources: list[PlannedSource] = []
    routes: list[Unreplicated] = []


class PlannedWorkload(PlanPart, frozen=True, kw_only=True):
    """A workload: where it is active, and under which epoch; `why` of one whose partitions are not known."""

    workload: str
    mode: str
    region: str
    epoch: int
    checks: list[Check]
    partitions: list[PlannedPartition] = []
    why: str = ""


class Totals(PlanPart, frozen=True, kw_only=True):
    """Sums over all partitions; null when one is not known. `not_replicated` and `unreachable` are what at
    least is not here, as of `as_of_ms`, the oldest of what they are made of."""

    partitions: int
    again: int | None
    passed_over: int
    not_replicated: int | None
    unreachable: int | None
    lag: int | None
    as_of_ms: int | None = None


class Plan(PlanPart, frozen=True, kw_only=True):
    """All of it; `checks` are of the regions. `left_out`: what was too much to be kept."""

    at_ms: int
    checks: list[Check]
    workloads: list[PlannedWorkload]
    totals: Totals
    left_out: str = ""


def totals(workloads: Iterable[PlannedWorkload]) -> Totals:
    """Of all partitions of active-passive workloads' positions, and of what all have to deliver."""
    found = list(workloads)
    rows = [row for one in found for row in one.partitions]
    known = not any(one.why for one in found)
    told_ms = [route.as_of_ms for row in rows for route in row.routes if route.as_of_ms is not None]

    def add(values: list[int | None]) -> int | None:
        return sum(value or 0 for value in values) if known and None not in values else None

    return Totals(
        partitions=len(rows),
        again=add([row.again for row in rows]),
        passed_over=sum(row.passed_over for row in rows),
        not_replicated=add([row.not_replicated for row in rows]),
        unreachable=add([row.unreachable for row in rows]),
        lag=add([row.lag for row in rows]),
        as_of_ms=min(told_ms, default=None),
    )


def blocked(checks: Iterable[Check], *, forced: bool) -> list[Check]:
    """Those that stand in the way."""
    return [one for one in checks if one.level == "blocked" and not (forced and one.may_force)]


def all_checks(plan: Plan) -> list[tuple[str, Check]]:
    """Of all of it (""), and of each workload."""
    found = [("", check) for check in plan.checks]
    return found + [(one.workload, check) for one in plan.workloads for check in one.checks]


def kept(plan: Plan, most_bytes: int = MAX_KEPT_BYTES) -> dict[str, Any] | None:
    """What the control log keeps of it: without sources; of one that has more than `most_bytes` then also
    without partitions, checks that are ok, details, and in the end without workloads. What is in the way of
    carrying it out stays, at least as a word that something is. None: not even that fits."""
    for reduce in (_without_sources, _without_partitions, _without_ok, _without_details, _without_workloads):
        plan = reduce(plan)
        if len(msgspec.json.encode(plan)) <= most_bytes:
            found: dict[str, Any] = msgspec.to_builtins(plan)
            return found
    return None


def _left_out(plan: Plan, what: str, workloads: list[PlannedWorkload]) -> Plan:
    told = f"too large to be kept with {what}: failover plan showed them"
    return msgspec.structs.replace(plan, workloads=workloads, left_out=told)


def _without_sources(plan: Plan) -> Plan:
    bare = msgspec.structs.replace
    rows = [
        bare(one, partitions=[bare(row, sources=[], routes=[]) for row in one.partitions])
        for one in plan.workloads
    ]
    return bare(plan, workloads=rows)


def _without_partitions(plan: Plan) -> Plan:
    rows = [msgspec.structs.replace(one, partitions=[]) for one in plan.workloads]
    return _left_out(plan, "its partitions", rows)


def _without_ok(plan: Plan) -> Plan:
    rows = [
        msgspec.structs.replace(one, checks=[check for check in one.checks if check.level != "ok"])
        for one in plan.workloads
    ]
    what = "its partitions, and what was checked and is well"
    return _left_out(plan, what, [one for one in rows if one.checks or one.why])


def _without_details(plan: Plan) -> Plan:
    rows = [
        msgspec.structs.replace(
            one, why=one.why[:MAX_DETAIL_CHARS],
            checks=[
                msgspec.structs.replace(check, detail=check.detail[:MAX_DETAIL_CHARS], remedy="")
                for check in one.checks
                if check.level == "blocked"
            ],
        )
        for one in plan.workloads
    ]  # fmt: skip
    what = "its partitions, and what is not in the way"
    return _left_out(plan, what, [one for one in rows if one.checks])


def _without_workloads(plan: Plan) -> Plan:
    found = [(one.workload, check) for one in plan.workloads for check in one.checks]
    lasts = [(key, one) for key, one in found if one.level == "blocked" and one.name in LASTING]
    checks = list(plan.checks)
    if lasts:
        (key, first), count = lasts[0], len({key for key, _ in lasts})
        checks.append(Check(
            name="topic", level="blocked", may_force=all(check.may_force for _, check in lasts),
            detail=f"something is in the way of {count} workloads, the first of them {key}: {first.detail}",
            remedy="mend that, and plan again; failover plan shows each",
        ))  # fmt: skip
    return _left_out(msgspec.structs.replace(plan, checks=checks), "its workloads", [])


def lasting(plan: Plan | None, *, forced: bool) -> list[tuple[str, Check]]:
    """What stood in the way of all of it ("") or of a workload, and nobody looks at again."""
    if plan is None:
        return []
    return [
        (of, check)
        for of, check in all_checks(plan)
        if check.name in LASTING and blocked([check], forced=forced)
    ]


def read(kept: dict[str, Any] | None) -> Plan | None:
    """What `kept` made; None when it cannot be read."""
    if kept is None:
        return None
    try:
        return msgspec.convert(kept, Plan)
    except msgspec.ValidationError:
        return None
