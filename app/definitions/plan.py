"""The plan of a deployment: its changes, conflicts and warnings. Pure, so that a dry run and the
deployment agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from app.alerts.definition import AlertDefinition
from app.audit.definition import AuditPlan
from app.dispatch.definition import Workload
from app.failover.definition import FailoverDefinition
from app.kernel.durations import format_duration
from app.kernel.topic_names import folded
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import conflicts as route_conflicts
from app.replicate.definition_checks import folded_copies
from app.replicate.model.copy_graph import ALONE, OtherRegions

# Fields of a route whose change means other copies.
IDENTITY = ("spec.from", "spec.to", "spec.rename.from", "spec.rename.to")
SHOWN = 5  # topics in a warning
RECOUNTED = ("spec.window", "spec.timestamp")  # fields of an audit plan that decide a record's window


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field's old and new value (None: absent)."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """The change of one definition: create, update, delete or unchanged."""

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
        """The definition's name for people."""
        return f"route {self.key}" if self.kind == "Route" else self.key

    @property
    def definition(
        self,
    ) -> Workload | RouteDefinition | FailoverDefinition | AuditPlan | AlertDefinition | None:
        """The new definition; None for a deletion."""
        return self.workload or self.route or self.failover or self.audit or self.alert


@dataclass(frozen=True, slots=True)
class UnreadableDefinition:
    """A definition of this `kind` in the control log that this version cannot read, because of `why`. A
    newer version may have written it."""

    kind: str
    data: Any
    why: str


@dataclass(frozen=True, slots=True)
class DefinitionsPlan:
    """All changes, the conflicts that forbid them, and warnings."""

    changes: tuple[DefinitionChange, ...]
    conflicts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        return all(change.action == "unchanged" for change in self.changes)


def plan(
    current: Mapping[str, Workload],
    wanted: Sequence[Workload | RouteDefinition | FailoverDefinition | AuditPlan | AlertDefinition],
    *,
    prune: bool = False,
    allow_empty: bool = False,
    routes: Mapping[str, RouteDefinition] | None = None,
    failovers: Mapping[str, FailoverDefinition] | None = None,
    audits: Mapping[str, AuditPlan] | None = None,
    alerts: Mapping[str, AlertDefinition] | None = None,
    unreadable: Mapping[str, UnreadableDefinition] = MappingProxyType({}),
    other_regions: OtherRegions = ALONE,
    is_local: bool = True,
    clusters: Collection[str] | None = None,
) -> DefinitionsPlan:
    """The changes from the current definitions (by key) to `wanted`.

    Args: current: The current workloads. prune: Delete definitions that `wanted` lacks. routes: The current
    routes, without those that a failover definition makes. allow_empty: `prune` may delete all definitions of
    a kind, or more than half of all. unreadable: By key. They are replaced or deleted like others, but not
    compared. other_regions: Routes beyond this region. is_local: False: workloads with a mode may name any
    region's cluster, so a change of cluster is not known. clusters: The clusters of switchyard.yaml. A
    current cluster that is not among them was renamed there; (): not known, so each change of cluster is only
    a warning.
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
    shared = _shared_topics([*kept, *ordered])
    other = {w.key for w in ordered if w.key not in current or _own_topics(current[w.key]) != _own_topics(w)}
    conflicts += [f"{words}; rename its group" for first, second, words in shared if {first, second} & other]
    warnings += [f"{words}; delete one" for first, second, words in shared if not {first, second} & other]
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
    all_changes = _with_unreadable(
        [*changes, *(change for one in others for change in one.changes)], unreadable, prune=prune
    )
    warnings += _of_unreadable(all_changes, unreadable)
    if prune and not allow_empty:
        conflicts += _deletes_too_much(all_changes)
    return DefinitionsPlan(
        tuple(all_changes),
        (*conflicts, *(conflict for one in others for conflict in one.conflicts)),
        (*warnings, *(warning for one in others for warning in one.warnings)),
    )


def _with_unreadable(
    changes: Sequence[DefinitionChange], unreadable: Mapping[str, UnreadableDefinition], *, prune: bool
) -> list[DefinitionChange]:
    """The changes, where a new definition under the key of an unreadable one is an update; others are
    deleted only with `prune`."""
    found = [
        replace(change, action="update") if change.key in unreadable and change.action == "create" else change
        for change in changes
    ]
    named = {change.key for change in changes}
    gone = sorted(unreadable.keys() - named) if prune else []
    return [*(DefinitionChange("delete", key, kind=unreadable[key].kind) for key in gone), *found]


def _of_unreadable(
    changes: Sequence[DefinitionChange], unreadable: Mapping[str, UnreadableDefinition]
) -> list[str]:
    """A warning for each unreadable definition."""
    actions = {change.key: change.action for change in changes}
    fates = {"update": "is replaced", "delete": "is deleted"}
    stays = "stays as it is. Deploy it again, or delete it, with the version that wrote it"
    return [
        f"{key}: this version cannot read it: {one.why}. A newer one may have written it. It"
        f" {fates.get(actions.get(key, ''), stays)}"
        for key, one in sorted(unreadable.items())
    ]


def _deletes_too_much(changes: Sequence[DefinitionChange]) -> list[str]:
    """Conflicts where a prune would delete so much that the files are probably the wrong ones."""
    there = Counter(change.kind for change in changes if change.action != "create")
    deleted = [change for change in changes if change.action == "delete"]
    gone = Counter(change.kind for change in deleted)
    found = [f"every {kind} there is: {count}" for kind, count in gone.items() if count == there[kind]]
    if not found and 2 * len(deleted) > there.total():
        found = [f"{len(deleted)} of {there.total()} definitions"]
    some = ", ".join(change.name for change in deleted[:SHOWN]) + ", ..." * (len(deleted) > SHOWN)
    return [
        f"--prune would delete {what} ({some}); see whether these are all the files, or add --allow-empty"
        for what in found
    ]


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
    """The changes of routes. All routes together must neither loop nor copy twice."""
    ordered = sorted(wanted, key=lambda route: route.key)
    keys = Counter(route.key for route in ordered)
    once = [route for route in ordered if keys[route.key] == 1]
    changes, warnings = [], []
    if prune:  # first: new routes may depend on it
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
    for twins in folded_copies(together, other_regions):
        words = f"{twins.one[0]}: {twins}; {twins.remedy}"
        own = [copy for copy in (twins.one, twins.other) if copy[0] in {route.name for route in together}]
        is_there = all(_makes(current, *copy, twins.cluster) for copy in own)
        (warnings if is_there else found).append(words)
    return DefinitionsPlan(tuple(changes), (*_several(keys), *found), tuple(warnings))


def _makes(current: Mapping[str, RouteDefinition], name: str, copy: str, cluster: str) -> bool:
    """Whether the current route makes this copy already."""
    before = current.get(name)
    return before is not None and (before.spec.target == cluster and copy in before.route().named_copies())


def _renamed(before: RouteDefinition, after: RouteDefinition) -> list[str]:
    """A warning where `rename.names` sends copies to another topic."""
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
    """Warnings about removed retry tiers: their waiting messages lose their delay."""
    kept = len(after.spec.retry)
    return [
        f"{after.key}: what waits in {topic} is delivered at once, without its delay of "
        f"{format_duration(tier.delay)}; then nobody reads the topic any more"
        for topic, tier in list(zip(before.retry_topics(), before.spec.retry, strict=True))[kept:]
    ]


def _own_topics(workload: Workload) -> tuple[str, tuple[str, ...]]:
    """The cluster and names of the workload's own topics."""
    return workload.metadata.cluster, workload.own_topics()


def _shared_topics(workloads: Sequence[Workload]) -> list[tuple[str, str, str]]:
    """Pairs of workloads that would share a topic of their own, each with the conflict's text.

    With the same topic, each would get the other's messages. Where names differ only in . and _, the second
    topic could not be created.
    """
    owners: dict[tuple[str, str], tuple[str, str]] = {}
    found: dict[tuple[str, str], str] = {}
    for workload in workloads:
        cluster, topics = _own_topics(workload)
        for topic in topics:
            place = cluster, folded(topic)
            owner, other = owners.setdefault(place, (workload.key, topic))
            if owner == workload.key:
                continue
            is_same = f"its topic {topic} is also that of {owner}"
            is_one = f"its topic {topic} collides with {other} of {owner}: to Kafka . and _ are equal"
            words = f"{workload.key}: {is_same if topic == other else is_one}"
            found.setdefault((owner, workload.key), words)
    return [(*pair, words) for pair, words in found.items()]


def _differences(path: str, old: Any, new: Any) -> list[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name in sorted(old.keys() | new.keys()):
            found += _differences(f"{path}.{name}" if path else name, old.get(name), new.get(name))
        return found
    return [] if old == new else [FieldChange(path, old, new)]
