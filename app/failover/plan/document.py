"""The contents of a failover plan, for the control log, the API and people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from app.kernel.json_types import JsonObject

MAX_KEPT_BYTES = 300_000  # of a plan in the control log; `kept` leaves parts of a larger one out
MAX_RECORD_BYTES = 1_000_000  # of a run with its plan; a producer's limit is 1,048,576
MAX_DETAIL_CHARS = 200
LASTING = frozenset({"topic", "regions"})  # checks that `FailoverPlanner.in_the_way` does not repeat

Level = Literal["ok", "warn", "blocked"]


class PlanPart(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all parts of a plan. A null number is not known."""


class Check(PlanPart, frozen=True, kw_only=True):
    """A precondition. A check that is not `ok` has a `remedy`.

    `may_force`: a forced failover runs although this check blocks.
    """

    name: str
    level: Level
    detail: str
    remedy: str = ""
    may_force: bool = False


class Unreplicated(PlanPart, frozen=True, kw_only=True):
    """Records of a source partition that are not copied here yet.

    `records` is at least this many, as the job of the copy reported at `as_of_ms`. Producers may have written
    more since then. Without `reachable` its cluster does not answer, and the records arrive once `region`
    returns.
    """

    route: str
    cluster: str
    region: str
    records: int | None
    reachable: bool
    as_of_ms: int | None = None


class PlannedSource(PlanPart, frozen=True, kw_only=True):
    """The position in one source of a partition (`app.offsets.model.translation`).

    The group has read the source up to `read_up_to`, so from `next_offset` on it misses none of its records.
    At most `again` of them are read again; `passed_over` of these are known to be finished, and are not
    delivered.
    """

    cluster: str
    topic: str
    partition: int
    read_up_to: int | None
    next_offset: int | None
    again: int | None
    passed_over: int
    why: str = ""


class PlannedPartition(PlanPart, frozen=True, kw_only=True):
    """The position in a partition here.

    `mapped` is the other region's position, in offsets of this partition. `own` is the group's commit here,
    and `next_offset` the higher of the two. `own_is_foreign`: another program than Switchyard made that
    commit. `least` is the source that limits `mapped`. `lag` counts the records here that are still to be
    delivered. `not_replicated` counts those that are not here yet, at least (`Unreplicated`), and
    `unreachable` those of clusters that do not answer.
    """

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
    """A workload, with its active region and epoch. `why` says why its partitions are not known."""

    workload: str
    mode: str
    region: str
    epoch: int
    checks: list[Check]
    partitions: list[PlannedPartition] = []
    why: str = ""


class Totals(PlanPart, frozen=True, kw_only=True):
    """Sums over all partitions; null when the number of one partition is not known.

    `not_replicated` and `unreachable` are lower bounds, as of `as_of_ms`: the oldest report among them.
    """

    partitions: int
    again: int | None
    passed_over: int
    not_replicated: int | None
    unreachable: int | None
    lag: int | None
    as_of_ms: int | None = None


class Plan(PlanPart, frozen=True, kw_only=True):
    """A whole plan. `checks` are those of the regions.

    `left_out` says which parts the control log does not keep, because the plan is too large.
    """

    at_ms: int
    checks: list[Check]
    workloads: list[PlannedWorkload]
    totals: Totals
    left_out: str = ""


def totals(workloads: Iterable[PlannedWorkload]) -> Totals:
    """The sums over the partitions of all workloads."""
    found = list(workloads)
    rows = [row for one in found for row in one.partitions]
    known = not any(one.why for one in found)
    reported_ms = [route.as_of_ms for row in rows for route in row.routes if route.as_of_ms is not None]

    def add(values: list[int | None]) -> int | None:
        return sum(value or 0 for value in values) if known and None not in values else None

    return Totals(
        partitions=len(rows),
        again=add([row.again for row in rows]),
        passed_over=sum(row.passed_over for row in rows),
        not_replicated=add([row.not_replicated for row in rows]),
        unreachable=add([row.unreachable for row in rows]),
        lag=add([row.lag for row in rows]),
        as_of_ms=min(reported_ms, default=None),
    )


def blocked(checks: Iterable[Check], *, forced: bool) -> list[Check]:
    """The checks that block the failover."""
    return [one for one in checks if one.level == "blocked" and not (forced and one.may_force)]


def all_checks(plan: Plan) -> list[tuple[str, Check]]:
    """The checks of the regions, under "", and of each workload, under its key."""
    found = [("", check) for check in plan.checks]
    return found + [(one.workload, check) for one in plan.workloads for check in one.checks]


def kept(plan: Plan, most_bytes: int = MAX_KEPT_BYTES) -> JsonObject | None:
    """The part of a plan that the control log keeps, at most `most_bytes`; None: the least part is longer.

    The sources are left out. Until the plan fits, partitions, checks that are ok, details, and workloads
    follow. The blocking checks in `LASTING` always stay, at least as a summary.
    """
    for reduce in (_without_sources, _without_partitions, _without_ok, _without_details, _without_workloads):
        plan = reduce(plan)
        if len(msgspec.json.encode(plan)) <= most_bytes:
            found: JsonObject = msgspec.to_builtins(plan)
            return found
    return None


def _left_out(plan: Plan, what: str, workloads: list[PlannedWorkload]) -> Plan:
    left_out = f"the plan was too large to keep {what}; the output of failover plan had them"
    return msgspec.structs.replace(plan, workloads=workloads, left_out=left_out)


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
    what = "its partitions, and the checks that are ok"
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
    what = "its partitions, and the checks that do not block it"
    return _left_out(plan, what, [one for one in rows if one.checks])


def _without_workloads(plan: Plan) -> Plan:
    found = [(one.workload, check) for one in plan.workloads for check in one.checks]
    lasts = [(key, one) for key, one in found if one.level == "blocked" and one.name in LASTING]
    checks = list(plan.checks)
    if lasts:
        (key, first), count = lasts[0], len({key for key, _ in lasts})
        checks.append(Check(
            name="topic", level="blocked", may_force=all(check.may_force for _, check in lasts),
            detail=f"{count} workloads are blocked, the first of them {key}: {first.detail}",
            remedy="remove the cause, and plan again; failover plan shows each",
        ))  # fmt: skip
    return _left_out(msgspec.structs.replace(plan, checks=checks), "its workloads", [])


def lasting(plan: Plan | None, *, forced: bool) -> list[tuple[str, Check]]:
    """The blocking checks in `LASTING`, of the regions ("") and of workloads."""
    if plan is None:
        return []
    return [
        (of, check)
        for of, check in all_checks(plan)
        if check.name in LASTING and blocked([check], forced=forced)
    ]


def read(kept: JsonObject | None) -> Plan | None:
    """The plan that `kept` wrote; None when it cannot be read."""
    if kept is None:
        return None
    try:
        return msgspec.convert(kept, Plan)
    except msgspec.ValidationError:
        return None
