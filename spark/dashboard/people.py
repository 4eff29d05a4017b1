"""Workloads, their owners and their failover readiness, from the small tables of all regions. Pure.

A workload is ready for another region on three conditions. By the tables of the other region it is deployed
there. All that it reads is copied there by routes that keep up. No window of the topic is lossy. The copies
must cover all partitions of the workload's own cluster. If that cluster has copies itself, they must cover
each cluster that those come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from app.audit.folds.plan_terms import PlanTerms
from app.audit.folds.tier import CONSUMER
from app.controllog.codec import checkpoint_line, control_event, tracker_record
from app.controllog.events import Assignment, RoutePut, WorkloadPut
from app.kernel.fencing import TrackerRecord
from app.kernel.json_types import JsonMapping, JsonObject
from app.offsets.model.offset_map import OffsetMapLine
from app.placement.model.plan import name_of, topic_of
from spark.dashboard import decode
from spark.dashboard.plans import Plans
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.places import place_of

NO_OWNER = "(none)"  # the owner of a definition that names none
RANKS = (0.5, 0.95, 0.99)
STALE_MS = (
    15 * 60_000
)  # a line is stale if its newest barrier is this much older than the topic's newest window


class SmallTables:
    """The decoded small tables of all regions, by region and key."""

    def __init__(self, rows: Iterable[tuple[str, str, str, bytes]]) -> None:
        """`rows`: region, table, key, value."""
        self.workloads: dict[tuple[str, str], WorkloadPut] = {}
        self.routes: dict[tuple[str, str], RoutePut] = {}
        self.assignments: dict[tuple[str, str], Assignment] = {}
        self.trackers: dict[tuple[str, str], TrackerRecord] = {}
        self.lines: dict[tuple[str, str], OffsetMapLine] = {}
        self.audit_plans: list[tuple[str, PlanTerms]] = []
        for region, table, key, value in rows:
            at = (region, key)
            if table == decode.TRACKERS:
                self.trackers[at] = tracker_record(value)
            elif table == decode.CHECKPOINTS:
                self.lines[at] = checkpoint_line(value)
            elif table == decode.PLANS:
                self.audit_plans.append((region, decode.plan_terms(value)))
            elif table in (decode.WORKLOADS, decode.ROUTES, decode.ASSIGNMENTS):
                event = control_event(value)
                if isinstance(event, WorkloadPut):
                    self.workloads[at] = event
                elif isinstance(event, RoutePut):
                    self.routes[at] = event
                elif isinstance(event, Assignment):
                    self.assignments[at] = event

    def plans(self) -> Plans:
        """The audit plans, with the cluster that each workload reads."""
        return Plans(self.audit_plans, {at: cluster_of(event) for at, event in self.workloads.items()})


class Use(NamedTuple):
    """A job's use: core seconds and bytes in the report's time; memory, arrival rate and lag at its end."""

    core_s: float = 0.0
    network_bytes: float = 0.0
    memory_bytes: float = 0.0
    arriving: float = 0.0
    lag_messages: int = -1

    def plus(self, other: Use) -> Use:
        """The sum; an unknown lag adds nothing."""
        lags = [one.lag_messages for one in (self, other) if one.lag_messages >= 0]
        return Use(
            self.core_s + other.core_s,
            self.network_bytes + other.network_bytes,
            self.memory_bytes + other.memory_bytes,
            self.arriving + other.arriving,
            sum(lags) if lags else -1,
        )


class GroupDelivery(NamedTuple):
    """The records of a topic that a group has finished in the report's time, as its audit counted them."""

    records: int = 0
    duplicates: int = 0
    late: int = 0
    missing: int = 0
    extra: int = 0
    latencies: bytes = b""  # a histogram

    def plus(self, other: GroupDelivery) -> GroupDelivery:
        """The sum; the histograms are merged."""
        both = Latencies.from_bytes(self.latencies)
        both.merge(Latencies.from_bytes(other.latencies))
        return GroupDelivery(
            self.records + other.records,
            self.duplicates + other.duplicates,
            self.late + other.late,
            self.missing + other.missing,
            self.extra + other.extra,
            both.to_bytes(),
        )


Deliveries = Mapping[tuple[str, str, str], GroupDelivery]  # by region, group and topic
DELIVERIES, TOPIC_ONLY, NOT = "deliveries", "topic only", "not audited"  # the audited part of a workload


def percentiles_ms(latencies: bytes | None) -> dict[str, float | None]:
    """The percentiles of a histogram; None if nothing was measured."""
    found = Latencies.quantiles_of(bytes(latencies or b""), RANKS)
    return {f"p{rank * 100:.0f}_ms": None if one < 0 else one for rank, one in zip(RANKS, found, strict=True)}


def delivered_row(found: GroupDelivery | None) -> JsonObject:
    """The counts as JSON; None where nothing was counted or measured."""
    names = ("delivered", "duplicates", "late", "missing", "extra")
    counts = [None] * len(names) if found is None else found[:-1]
    return dict(zip(names, counts, strict=True)) | percentiles_ms(found.latencies if found else None)


def _delivered(
    tables: SmallTables, deliveries: Deliveries, region: str, key: str, plans: Plans
) -> tuple[str, GroupDelivery | None]:
    """Which part of a workload is audited, and its deliveries; None if no plan counts those."""
    group, _, topic = key.rpartition("/")
    cluster = cluster_of(tables.workloads[region, key])
    found = deliveries.get((region, group, topic))
    if found is not None or plans.of(topic, (CONSUMER, place_of(cluster, group)), region) is not None:
        return DELIVERIES, found or GroupDelivery()
    return (TOPIC_ONLY if plans.is_audited(topic) else NOT), None


def owner_of(event: WorkloadPut | RoutePut) -> str:
    """The owner that the definition names."""
    metadata = event.definition.get("metadata")
    owner = metadata.get("owner") if isinstance(metadata, dict) else None
    return owner if isinstance(owner, str) and owner else NO_OWNER


def cluster_of(event: Any) -> str:
    """The cluster that a workload reads, by its definition; "" if the event is not a workload."""
    if not isinstance(event, WorkloadPut):
        return ""
    metadata = event.definition.get("metadata")
    return str(metadata.get("cluster", "")) if isinstance(metadata, dict) else ""


def topic_owners(tables: SmallTables) -> dict[str, list[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for (_, key), event in tables.workloads.items():
        found[key.rpartition("/")[2]].add(owner_of(event))
    return {topic: sorted(owners) for topic, owners in found.items()}


def workload_rows(
    tables: SmallTables, use: Mapping[tuple[str, str], Use], deliveries: Deliveries, now_ms: int
) -> list[JsonObject]:
    """A row for each workload or route of a region. `use`: by region and job."""
    plans = tables.plans()
    jobs: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for region, job in (*tables.assignments, *use):
        jobs[region, name_of(job)].add(job)
    rows = []
    defined: dict[tuple[str, str], WorkloadPut | RoutePut] = {**tables.workloads, **tables.routes}
    for (region, key), event in sorted(defined.items()):
        its = jobs[region, key]
        total = Use()
        for job in its:
            total = total.plus(use.get((region, job), Use()))
        workers = {
            tables.assignments[region, job].worker for job in its if (region, job) in tables.assignments
        }
        saved = [
            tables.trackers[region, job].at_ms for job in its if (region, job) in tables.trackers
        ]  # an old position: the partition has no traffic, or is stuck
        audited, delivered = "", None
        if isinstance(event, WorkloadPut):
            audited, delivered = _delivered(tables, deliveries, region, key, plans)
        rows.append(
            {
                "region": region,
                "kind": "workload" if isinstance(event, WorkloadPut) else "route",
                "key": key,
                "topic": key.rpartition("/")[2] if isinstance(event, WorkloadPut) else None,
                "owner": owner_of(event),
                "jobs": len(its),
                "workers": len(workers - {""}),
                "lag_messages": total.lag_messages if total.lag_messages >= 0 else None,
                "arriving": round(total.arriving, 3),
                "core_hours": round(total.core_s / 3600, 4),
                "network_bytes": round(total.network_bytes),
                "memory_bytes": round(total.memory_bytes),
                "position_age_ms": max(0, now_ms - max(saved)) if saved else None,
                "audited": audited,
                **delivered_row(delivered),
            }
        )
    return rows


def owner_rows(
    workloads: Iterable[JsonMapping],
    topics: Iterable[JsonMapping],
    owners: Mapping[str, list[str]],
    deliveries: Deliveries,
    readiness: Iterable[JsonMapping],
) -> list[JsonObject]:
    """A row for each owner: workloads, use, loss, latencies and readiness.

    A topic of several owners counts for each. `records`, `missing` and `extra` cover the topic's whole way;
    None if none of the owner's workloads is audited. Deliveries are of the owner's own workloads. `topics`:
    with `topic`, `records`, `missing`, `extra`.
    """
    found: dict[str, JsonObject] = {}
    finished: dict[str, GroupDelivery] = {}
    whole = ("records", "missing", "extra")

    def row(owner: str) -> JsonObject:
        empty = {"workloads": 0, "not_audited": 0, "topics": 0, **dict.fromkeys(whole), "lag_messages": 0}
        used = {"core_hours": 0.0, "network_bytes": 0, "ready": 0, "not_ready": 0}
        return found.setdefault(owner, {"owner": owner, **empty, **used})

    for one in workloads:
        its, is_workload = row(one["owner"]), one["kind"] == "workload"
        its["workloads"] += is_workload
        its["not_audited"] += is_workload and one["audited"] == NOT
        its["lag_messages"] += one["lag_messages"] or 0
        its["core_hours"] = round(its["core_hours"] + one["core_hours"], 4)
        its["network_bytes"] += one["network_bytes"]
        if is_workload and one["delivered"] is not None:
            at = (one["region"], *one["key"].rpartition("/")[::2])
            known = finished.get(one["owner"], GroupDelivery())
            finished[one["owner"]] = known.plus(deliveries.get(at, GroupDelivery()))
    for topic in topics:
        for owner in owners.get(topic["topic"], [NO_OWNER]):
            its = row(owner)
            its["topics"] += 1
            for name in whole:
                its[name] = (its[name] or 0) + topic[name]
    for one in readiness:
        row(one["owner"])["ready" if one["ready"] else "not_ready"] += 1
    for owner, its in found.items():
        if its["not_audited"] < its["workloads"] or not its["workloads"]:
            its.update({name: its[name] or 0 for name in whole})  # audited, with a count of 0
        of_groups = delivered_row(finished.get(owner))
        its.update({name: value for name, value in of_groups.items() if name not in whole})
    return sorted(found.values(), key=lambda one: (-one["core_hours"], one["owner"]))


def readiness_rows(
    tables: SmallTables,
    regions: Iterable[str],
    lossy: Mapping[str, int],
    newest_ms: Mapping[str, int],
    now_ms: int,
) -> list[JsonObject]:
    """A row for each workload and other region. `newest_ms`: by topic, of the newest window with records."""
    partitions: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for region, job in tables.assignments:
        partitions[region, name_of(job), topic_of(job)] += 1
    lines = _lines(tables)
    rows = []
    for region, key in sorted(tables.workloads):
        topic = key.rpartition("/")[2]
        needed = partitions[region, key, topic]
        for other in sorted(set(regions) - {region}):
            why = []
            if (other, key) not in tables.workloads:
                why.append(f"it is not deployed in {other}")
            copies = _copies(tables, lines, region, key, other, needed)
            copied = [line for one in copies for line in one.lines]
            if not needed:
                why.append(f"region {region} has no assignments of its partitions")
            if not copied:
                why.append(f"no route copies the {topic} that it reads to {other}")
            why += [
                f"{len(one.lines)} of {one.needed} partitions are copied to {other}"
                for one in copies
                if copied and len(one.lines) < one.needed
            ]
            at_ms = min((_barrier_ms(line) for line in copied), default=-1)
            if copied and newest_ms.get(topic, -1) - at_ms > STALE_MS:
                why.append("a copy's newest offset sync is over 15 min older than the topic's newest window")
            if lossy.get(topic):
                why.append(f"lossy windows of {topic}: {lossy[topic]}")
            rows.append(
                {
                    "workload": key,
                    "owner": owner_of(tables.workloads[region, key]),
                    "region": region,
                    "to": other,
                    "ready": not why,
                    "why": why,
                    "partitions": sum(one.needed for one in copies) or needed,
                    "partitions_copied": len(copied),
                    "barrier_age_ms": max(0, now_ms - at_ms) if at_ms >= 0 else None,
                }
            )
    return rows


class _Copies(NamedTuple):
    """The offset map lines from a source, and the number of partitions that must have one."""

    lines: list[OffsetMapLine]
    needed: int


# region and copy -> source -> partition
_Lines = Mapping[tuple[str, str], Mapping[str, Mapping[int, OffsetMapLine]]]


def _lines(tables: SmallTables) -> _Lines:
    """Lines by the source cluster's id. If routes overlap, the line with the newest barrier counts."""
    found: defaultdict[tuple[str, str], defaultdict[str, dict[int, OffsetMapLine]]]
    found = defaultdict(lambda: defaultdict(dict))
    for (region, key), line in tables.lines.items():
        number = key.rpartition("/")[2]
        if number.isdigit() and line.source.cluster_id:
            into = found[region, line.target_topic][line.source.cluster_id]
            known = into.get(int(number))
            if known is None or _barrier_ms(known) < _barrier_ms(line):
                into[int(number)] = line
    return found


def _copies(
    tables: SmallTables, lines: _Lines, region: str, key: str, other: str, needed: int
) -> list[_Copies]:
    """The copies of a workload's topic in another region (see the module)."""
    topic = key.rpartition("/")[2]
    there = lines.get((other, topic), {})
    own = {
        tracker.cluster_id
        for (of, job), tracker in tables.trackers.items()
        if of == region and name_of(job) == key and tracker.cluster_id
    }
    if direct := [_Copies(list(there[source].values()), needed) for source in sorted(own & there.keys())]:
        return direct
    found = []
    for source, here in sorted(lines.get((region, topic), {}).items()):
        its = {number for number, line in here.items() if not own or line.target.cluster_id in own}
        if its:
            at = there.get(source, {})
            found.append(_Copies([at[number] for number in sorted(its & at.keys())], len(its)))
    return found


def _barrier_ms(line: OffsetMapLine) -> int:
    return line.barriers[-1].at_ms if line.barriers else -1
