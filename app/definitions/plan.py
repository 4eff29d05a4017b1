"""What a deployment would change: pure, so that a dry run and the deployment cannot differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.alerts.definition import AlertDefinition
from app.audit.definition import AuditPlan
from app.dispatch.definition import Workload
from app.failover.definition import FailoverDefinition
from app.kernel.durations import format_duration
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import conflicts as route_conflicts
from app.replicate.model.copy_graph import ALONE, OtherRegions

# Of a route: what makes its copies other topics.
IDENTITY = ("spec.from", "spec.to", "spec.rename.from", "spec.rename.to")
SHOWN = 5  # topics, in a warning
RECOUNTED = ("spec.window", "spec.timestamp")  # of an audit plan: which window a record is in


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field, before and after (None: not there)."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """What happens to one definition: create, update, delete or unchanged."""

    action: str
    key: str
    fields: tuple[FieldChange, ...] = ()
    workload: Workload | None = None
    kind: str = "Workload"
    route: RouteDefinition | None = None
    failover: FailoverDefinition | None = None
    audit: AuditPlan | None = None
    alert: AlertDefinition | None = None

    @property
    def name(self) -> str:
        """What it happens to, for people."""
        return f"route {self.key}" if self.kind == "Route" else self.key

    @property
    def definition(
        self,
    ) -> Workload | RouteDefinition | FailoverDefinition | AuditPlan | AlertDefinition | None:
        """What there is to be; None: nothing."""
        return self.workload or self.route or self.failover or self.audit or self.alert


@dataclass(frozen=True, slots=True)
class DefinitionsPlan:
    """All changes, what forbids them, and what to know before they are carried out."""

    changes: tuple[DefinitionChange, ...]
    conflicts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing would change."""
        return all(change.action == "unchanged" for change in self.changes)


def plan(
    current: Mapping[str, Workload],
    wanted: Sequence[Workload | RouteDefinition | FailoverDefinition | AuditPlan | AlertDefinition],
    *,
    prune: bool = False,
    routes: Mapping[str, RouteDefinition] | None = None,
    failovers: Mapping[str, FailoverDefinition] | None = None,
    audits: Mapping[str, AuditPlan] | None = None,
    alerts: Mapping[str, AlertDefinition] | None = None,
    other_regions: OtherRegions = ALONE,
    is_local: bool = True,
    clusters: Collection[str] | None = None,
) -> DefinitionsPlan:
    """The changes from `current` workloads, `routes`, `failovers`, `audits` and `alerts` (by key) to
    `wanted`; `other_regions` is what is known beyond this region's routes. Unless `is_local`, clusters of
    workloads with a mode are as they were written, which may be any region's: whether one changes is not
    known. `clusters` are those that switchyard.yaml names; one that it does not name any more has another
    alias now.

    What is not wanted is deleted only with `prune`. Routes that a failover definition makes are not among it.
    """
    changes: list[DefinitionChange] = []
    conflicts: list[str] = []
    warnings: list[str] = []
    ordered = sorted((w for w in wanted if isinstance(w, Workload)), key=lambda w: w.key)
    keys = Counter(workload.key for workload in ordered)
    conflicts += _several(keys)
    for workload in ordered:
        if keys[workload.key] > 1:
            continue
        before = current.get(workload.key)
        if before is None:
            changes.append(DefinitionChange("create", workload.key, workload=workload))
            continue
        fields = tuple(_differences("", before.to_wire(), workload.to_wire()))
        is_known = is_local or workload.spec.mode is None
        is_other = is_known and before.metadata.cluster != workload.metadata.cluster
        if is_other and clusters is not None and before.metadata.cluster not in clusters:
            warnings.append(
                f"{workload.key}: cluster {before.metadata.cluster} is {workload.metadata.cluster} now: "
                "positions stay if it is the same cluster by its id, else delivery begins again at the start"
            )
        elif is_other:
            conflicts.append(
                f"{workload.key}: its cluster cannot change from {before.metadata.cluster} to "
                f"{workload.metadata.cluster}, whose offsets mean something else; use workload move, "
                "or delete it first"
            )
        warnings += _stranded(before, workload)
        changes.append(DefinitionChange("update" if fields else "unchanged", workload.key, fields, workload))
    kept = [w for key, w in sorted(current.items()) if key not in keys and not prune]
    conflicts += _shared_topics([*kept, *ordered])
    if prune:
        changes += [DefinitionChange("delete", key) for key in sorted(current) if key not in keys]
    of_routes = _plan_routes(
        routes or {}, [r for r in wanted if isinstance(r, RouteDefinition)], prune, other_regions
    )
    of_failovers = _plan_failovers(
        failovers or {}, [f for f in wanted if isinstance(f, FailoverDefinition)], prune
    )
    of_audits = _plan_audits(audits or {}, [a for a in wanted if isinstance(a, AuditPlan)], prune)
    of_alerts = _plan_alerts(alerts or {}, [a for a in wanted if isinstance(a, AlertDefinition)], prune)
    others = (of_routes, of_failovers, of_audits, of_alerts)
    return DefinitionsPlan(
        (*changes, *(change for one in others for change in one.changes)),
        (*conflicts, *(conflict for one in others for conflict in one.conflicts)),
        (*warnings, *(warning for one in others for warning in one.warnings)),
    )


def _plan_alerts(
    current: Mapping[str, AlertDefinition], wanted: Sequence[AlertDefinition], prune: bool
) -> DefinitionsPlan:
    keys = Counter(alert.key for alert in wanted)
    gone = sorted(current.keys() - keys.keys()) if prune else []
    changes = [DefinitionChange("delete", key, kind="Alert") for key in gone]
    for alert in sorted(wanted, key=lambda alert: alert.key):
        before = current.get(alert.key)
        if keys[alert.key] > 1:
            continue
        fields = () if before is None else tuple(_differences("", before.to_wire(), alert.to_wire()))
        action = "create" if before is None else "update" if fields else "unchanged"
        changes.append(DefinitionChange(action, alert.key, fields, kind="Alert", alert=alert))
    return DefinitionsPlan(tuple(changes), tuple(_several(keys)))


def _plan_audits(
    current: Mapping[str, AuditPlan], wanted: Sequence[AuditPlan], prune: bool
) -> DefinitionsPlan:
    keys = Counter(audit.key for audit in wanted)
    changes, warnings = [], []
    if prune:
        changes += [
            DefinitionChange("delete", key, kind="AuditPlan") for key in sorted(current.keys() - keys.keys())
        ]
    for audit in sorted(wanted, key=lambda audit: audit.key):
        before = current.get(audit.key)
        if keys[audit.key] > 1:
            continue
        fields = () if before is None else tuple(_differences("", before.to_wire(), audit.to_wire()))
        action = "create" if before is None else "update" if fields else "unchanged"
        changes.append(DefinitionChange(action, audit.key, fields, kind="AuditPlan", audit=audit))
        if any(change.field.startswith(RECOUNTED) for change in fields):
            warnings.append(
                f"{audit.key}: records are put into other windows from now on; what was counted so far stays"
            )
    return DefinitionsPlan(tuple(changes), tuple(_several(keys)), tuple(warnings))


def _plan_failovers(
    current: Mapping[str, FailoverDefinition], wanted: Sequence[FailoverDefinition], prune: bool
) -> DefinitionsPlan:
    keys = Counter(failover.key for failover in wanted)
    changes, warnings = [], []
    if prune:
        changes += [
            DefinitionChange("delete", key, kind="Failover") for key in sorted(current.keys() - keys.keys())
        ]
    for failover in sorted(wanted, key=lambda failover: failover.key):
        before = current.get(failover.key)
        if keys[failover.key] > 1:
            continue
        fields = () if before is None else tuple(_differences("", before.to_wire(), failover.to_wire()))
        action = "create" if before is None else "update" if fields else "unchanged"
        changes.append(DefinitionChange(action, failover.key, fields, kind="Failover", failover=failover))
        gone = () if before is None else sorted(set(before.spec.regions) - set(failover.spec.regions))
        warnings += [
            f"{failover.key}: region {region} is named no more: nothing is copied from or to it, and no "
            "workload can be moved there; deploy the same in every region"
            for region in gone
        ]
    return DefinitionsPlan(tuple(changes), tuple(_several(keys)), tuple(warnings))


def _several(keys: Counter[str]) -> list[str]:
    return [
        f"{key}: it is defined {count} times; remove all but one" for key, count in keys.items() if count > 1
    ]


def _plan_routes(
    current: Mapping[str, RouteDefinition],
    wanted: Sequence[RouteDefinition],
    prune: bool,
    other_regions: OtherRegions,
) -> DefinitionsPlan:
    """Routes: what is to run together must neither loop nor copy twice."""
    ordered = sorted(wanted, key=lambda route: route.key)
    keys = Counter(route.key for route in ordered)
    once = [route for route in ordered if keys[route.key] == 1]
    changes, warnings = [], []
    if prune:  # before what may only be without them
        changes += [
            DefinitionChange("delete", key, kind="Route") for key in sorted(current.keys() - keys.keys())
        ]
    for route in once:
        before = current.get(route.key)
        fields = () if before is None else tuple(_differences("", before.to_wire(), route.to_wire()))
        action = "create" if before is None else "update" if fields else "unchanged"
        changes.append(DefinitionChange(action, route.key, fields, kind="Route", route=route))
        if before is not None and any(change.field in IDENTITY for change in fields):
            warnings.append(
                f"{route.key}: its clusters or names change: copies begin again from spec.start, and those "
                "made so far stay where they are; where only a cluster's alias changes they go on, by its id"
            )
        elif before is not None:
            warnings += _renamed(before, route)
    kept = [route for key, route in sorted(current.items()) if key not in keys and not prune]
    together = [route.route() for route in (*kept, *once)]
    changed = {change.key for change in changes if change.action in {"create", "update"}}
    found = []
    if changed:
        wrong = route_conflicts(together, changed, other_regions)
        found = [f"{name}: {what}; {remedy}" for what, remedy, name in wrong]
    return DefinitionsPlan(tuple(changes), (*_several(keys), *found), tuple(warnings))


def _renamed(before: RouteDefinition, after: RouteDefinition) -> list[str]:
    """Topics whose copies go to another topic by `rename.names`."""
    names = before.spec.rename.names.keys() | after.spec.rename.names.keys()
    ends = [
        (name, before.route().destination(name), after.route().destination(name)) for name in sorted(names)
    ]
    moved = [f"{name} to {now} ({was} before)" for name, was, now in ends if was and now and was != now]
    if not moved:
        return []
    some = ", ".join(moved[:SHOWN]) + (f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else "")
    return [
        f"{after.key}: rename.names sends copies to other topics: {some}; they begin again from spec.start, "
        "and those made so far stay where they are"
    ]


def _stranded(before: Workload, after: Workload) -> list[str]:
    """Retry tiers that go: what waits in them does not wait any longer."""
    kept = len(after.spec.retry)
    return [
        f"{after.key}: what waits in {topic} is delivered at once, without its delay of "
        f"{format_duration(tier.delay)}; then nobody reads the topic any more"
        for topic, tier in list(zip(before.retry_topics(), before.spec.retry, strict=True))[kept:]
    ]


def _shared_topics(workloads: Sequence[Workload]) -> list[str]:
    """Workloads whose retry or dead letter topics would be the same: each would get the other's messages."""
    owners: dict[tuple[str, str], str] = {}
    found = []
    for workload in workloads:
        other = (workload.dlq_topic(), workload.merge_topic(), workload.delayed_topic())
        for topic in (*workload.retry_topics(), *other):
            owner = owners.setdefault((workload.metadata.cluster, topic), workload.key)
            if owner != workload.key:
                found.append(f"{workload.key}: its topic {topic} is also that of {owner}; rename its group")
    return found


def _differences(path: str, old: Any, new: Any) -> list[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name in sorted(old.keys() | new.keys()):
            found += _differences(f"{path}.{name}" if path else name, old.get(name), new.get(name))
        return found
    return [] if old == new else [FieldChange(path, old, new)]
