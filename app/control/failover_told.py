"""What a failover plan says, for the control log, the API and people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

MAX_KEPT_BYTES = (
    300_000  # of a plan in the control log; of a larger one what is told of partitions is left out
)

Level = Literal["ok", "warn", "blocked"]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all here. Null is not known."""


class Check(Told, frozen=True, kw_only=True):
    """A precondition; `remedy` of one that is not ok. `may_force`: what it blocks may be forced."""

    name: str
    level: Level
    detail: str
    remedy: str = ""
    may_force: bool = False


class Unreplicated(Told, frozen=True, kw_only=True):
    """What of a source partition has not been copied here: `records` at the most, as of when its cluster last
    answered. Not `reachable` until `region` returns."""

    route: str
    cluster: str
    region: str
    records: int | None
    reachable: bool


class PlannedSource(Told, frozen=True, kw_only=True):
    """What one source says of a partition (`app.core.resume`): read below `read_up_to`, so that nothing of it
    is missed from `next_offset` on; `again` are read again at most, of which `passed_over` are known to be
    finished and are not delivered."""

    cluster: str
    topic: str
    partition: int
    read_up_to: int | None
    next_offset: int | None
    again: int | None
    passed_over: int
    why: str = ""


class PlannedPartition(Told, frozen=True, kw_only=True):
    """A partition here. `mapped` is where the region that is left is, in offsets of this one; `own` what this
    region has finished itself, `next_offset` the higher of the two. `least` is the source that held it back.
    `lag` is what is here to be delivered, `not_replicated` what is not here yet; `unreachable` is the part of
    it whose cluster does not answer."""

    partition: int
    mapped: int | None = None
    own: int | None = None
    next_offset: int | None = None
    log_end: int | None = None
    lag: int | None = None
    again: int | None = None
    passed_over: int = 0
    not_replicated: int | None = None
    unreachable: int = 0
    least: str = ""
    why: str = ""
    sources: list[PlannedSource] = []
    routes: list[Unreplicated] = []


class PlannedWorkload(Told, frozen=True, kw_only=True):
    """A workload: where it is active, and under which epoch; `why` of one whose partitions are not known."""

    workload: str
    mode: str
    region: str
    epoch: int
    checks: list[Check]
    partitions: list[PlannedPartition] = []
    why: str = ""


class Totals(Told, frozen=True, kw_only=True):
    """Sums over all partitions; null when one is not known."""

    partitions: int
    again: int | None
    passed_over: int
    not_replicated: int | None
    unreachable: int
    lag: int | None


class Plan(Told, frozen=True, kw_only=True):
    """All of it; `checks` are of the regions."""

    at_ms: int
    checks: list[Check]
    workloads: list[PlannedWorkload]
    totals: Totals


def totals(workloads: Iterable[PlannedWorkload]) -> Totals:
    """Of all partitions of active-passive workloads' positions, and of what all have to deliver."""
    found = list(workloads)
    rows = [row for one in found for row in one.partitions]
    known = not any(one.why for one in found)

    def add(values: list[int | None]) -> int | None:
        return sum(value or 0 for value in values) if known and None not in values else None

    return Totals(
        partitions=len(rows),
        again=add([row.again for row in rows]),
        passed_over=sum(row.passed_over for row in rows),
        not_replicated=add([row.not_replicated for row in rows]),
        unreachable=sum(row.unreachable for row in rows),
        lag=add([row.lag for row in rows]),
    )


def blocked(checks: Iterable[Check], *, forced: bool) -> list[Check]:
    """Those that stand in the way."""
    return [one for one in checks if one.level == "blocked" and not (forced and one.may_force)]


def kept(plan: Plan) -> dict[str, Any]:
    """What the control log keeps of it: without sources; of a very large one without partitions."""
    rows = [
        msgspec.structs.replace(
            one,
            partitions=[msgspec.structs.replace(row, sources=[], routes=[]) for row in one.partitions],
        )
        for one in plan.workloads
    ]
    small = msgspec.structs.replace(plan, workloads=rows)
    if len(msgspec.json.encode(small)) > MAX_KEPT_BYTES:
        why = "too many partitions to be kept; failover plan showed them"
        rows = [msgspec.structs.replace(one, partitions=[], why=one.why or why) for one in rows]
        small = msgspec.structs.replace(plan, workloads=rows)
    found: dict[str, Any] = msgspec.to_builtins(small)
    return found


def read(kept: dict[str, Any] | None) -> Plan | None:
    """What `kept` made; None when it cannot be read."""
    if kept is None:
        return None
    try:
        return msgspec.convert(kept, Plan)
    except msgspec.ValidationError:
        return None
