"""The plan of a deployment: its changes, conflicts and warnings. Pure, so that a dry run and the
deployment agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from app.config.definition_base import Definition
from app.config.definition_kind import DefinitionChange, DefinitionKind, FieldChange, PlannedKind, PlanScope
from app.definitions.registry import KINDS
from app.kernel.json_types import JsonObject
from app.replicate.model.copy_graph import ALONE, OtherRegions

SHOWN = 5  # deletions in a conflict


@dataclass(frozen=True, slots=True)
class UnreadableDefinition:
    """A definition of this `kind` in the control log that this version cannot read, because of `why`. A
    newer version may have written it."""

    kind: DefinitionKind[Any]
    data: object
    why: str


@dataclass(frozen=True, slots=True)
class DefinitionsPlan:
    """All changes, the conflicts that forbid them, and warnings.

    `topics`: the changes of topics that follow, as the API has them (`app.web.http.schemas.TopicChange`).
    """

    changes: tuple[DefinitionChange, ...]
    conflicts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    topics: tuple[JsonObject, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        return all(change.action == "unchanged" for change in self.changes)


def plan(
    current: Mapping[str, Definition],
    wanted: Sequence[Definition],
    *,
    prune: bool = False,
    allow_empty: bool = False,
    unreadable: Mapping[str, UnreadableDefinition] = MappingProxyType({}),
    other_regions: OtherRegions = ALONE,
    is_local: bool = True,
    clusters: Collection[str] | None = None,
) -> DefinitionsPlan:
    """The changes from the current definitions to `wanted`.

    Args:
        current: By key, of all kinds; without the routes that a failover definition makes.
        prune: Delete definitions that `wanted` lacks.
        allow_empty: `prune` may delete all definitions of a kind, or more than half of all.
        unreadable: By key. They are replaced or deleted like others, but not compared.
        other_regions: Routes beyond this region.
        is_local: False: workloads with a mode may name any region's cluster, so a change of cluster is not
            known.
        clusters: The clusters of switchyard.yaml. A current cluster that is not among them was renamed there;
            (): not known, so each change of cluster is only a warning.
    """
    scope = PlanScope(prune, other_regions, is_local, clusters)
    parts = [_plan_kind(kind, current, wanted, scope) for kind in KINDS]
    changes = _with_unreadable([change for part in parts for change in part.changes], unreadable, prune=prune)
    too_much = _deletes_too_much(changes) if prune and not allow_empty else []
    return DefinitionsPlan(
        tuple(changes),
        (*too_much, *(conflict for part in parts for conflict in part.conflicts)),
        (*_of_unreadable(changes, unreadable), *(warning for part in parts for warning in part.warnings)),
    )


def _plan_kind(
    kind: DefinitionKind[Any],
    all_current: Mapping[str, Definition],
    all_wanted: Sequence[Definition],
    scope: PlanScope,
) -> DefinitionsPlan:
    current = {key: one for key, one in all_current.items() if isinstance(one, kind.model)}
    ordered = sorted((one for one in all_wanted if isinstance(one, kind.model)), key=lambda one: one.key)
    counts = Counter(one.key for one in ordered)
    wanted = {one.key: one for one in ordered if counts[one.key] == 1}
    changes = {key: _change(kind, key, current.get(key), one) for key, one in wanted.items()}
    gone = sorted(current.keys() - counts.keys()) if scope.prune else []
    deletions = [DefinitionChange("delete", kind, key) for key in gone]
    several = [
        f"{key}: it is defined {count} times; remove all but one"
        for key, count in counts.items()
        if count > 1
    ]
    comparable = {key: one for key, one in current.items() if counts[key] < 2}
    notes = kind.rules(PlannedKind(scope, comparable, wanted, changes))
    in_order = (deletions, changes.values()) if kind.deletes_first else (changes.values(), deletions)
    return DefinitionsPlan(
        tuple(change for some in in_order for change in some),
        (*several, *notes.conflicts),
        tuple(notes.warnings),
    )


def _change(
    kind: DefinitionKind[Any], key: str, before: Definition | None, after: Definition
) -> DefinitionChange:
    if before is None:
        return DefinitionChange("create", kind, key, (), after)
    fields = tuple(_differences("", before.to_wire(), after.to_wire()))
    return DefinitionChange("update" if fields else "unchanged", kind, key, fields, after)


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
    return [*(DefinitionChange("delete", unreadable[key].kind, key) for key in gone), *found]


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
    there = Counter(change.kind.name for change in changes if change.action != "create")
    deleted = [change for change in changes if change.action == "delete"]
    gone = Counter(change.kind.name for change in deleted)
    found = [f"every {kind} there is: {count}" for kind, count in gone.items() if count == there[kind]]
    if not found and 2 * len(deleted) > there.total():
        found = [f"{len(deleted)} of {there.total()} definitions"]
    some = ", ".join(change.name for change in deleted[:SHOWN]) + ", ..." * (len(deleted) > SHOWN)
    return [
        f"--prune would delete {what} ({some}); see whether these are all the files, or add --allow-empty"
        for what in found
    ]


def _differences(path: str, old: Any, new: Any) -> list[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name in sorted(old.keys() | new.keys()):
            found += _differences(f"{path}.{name}" if path else name, old.get(name), new.get(name))
        return found
    return [] if old == new else [FieldChange(path, old, new)]
