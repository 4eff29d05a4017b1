"""The kind of definition `Route`: its checks, and what a plan has to say about its changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.config.definition_kind import DefinitionKind, KnownPlaces, PlannedKind, PlanNotes
from app.config.problems import ConfigProblem, Document
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import between_routes, conflicts, folded_copies, route_checks

# Fields of a route whose change means other copies.
IDENTITY = ("spec.from", "spec.to", "spec.rename.from", "spec.rename.to")
SHOWN = 5  # topics in a warning


class RouteKind(DefinitionKind[RouteDefinition]):
    """Also refuses routes whose names are too complicated to be compared."""

    def read(self, data: Any) -> RouteDefinition:
        definition = RouteDefinition.from_wire(data)
        definition.route()
        return definition


def _check(
    document: Document, definition: RouteDefinition | None, known: KnownPlaces
) -> Iterator[ConfigProblem]:
    return route_checks(document, definition, known.clusters)


def _check_together(routes: Sequence[tuple[Document, RouteDefinition]]) -> Iterator[ConfigProblem]:
    first: dict[str, tuple[Document, RouteDefinition]] = {}
    for document, route in routes:
        first.setdefault(route.key, (document, route))
    return between_routes([(document, route.route()) for document, route in first.values()])


def _rules(planned: PlannedKind[RouteDefinition]) -> PlanNotes:
    """All routes together must neither loop nor copy twice."""
    found: list[str] = []
    warnings: list[str] = []
    for key, route in planned.wanted.items():
        before = planned.current.get(key)
        if before is None:
            continue
        if any(change.field in IDENTITY for change in planned.changes[key].fields):
            warnings.append(
                f"{key}: its clusters or names change: copies begin again from spec.start, and those "
                "made so far stay where they are; where only a cluster's alias changes they go on, by its id"
            )
        else:
            warnings += _renamed(before, route)
    together = [route.route() for route in (*planned.kept, *planned.wanted.values())]
    changed = {key for key, change in planned.changes.items() if change.action != "unchanged"}
    other_regions = planned.scope.other_regions
    if changed:
        wrong = conflicts(together, changed, other_regions)
        found = [f"{name}: {what}; {remedy}" for what, remedy, name in wrong]
    for twins in folded_copies(together, other_regions):
        words = f"{twins.one[0]}: {twins}; {twins.remedy}"
        own = [copy for copy in (twins.one, twins.other) if copy[0] in {route.name for route in together}]
        is_there = all(_makes(planned.current, *copy, twins.cluster) for copy in own)
        (warnings if is_there else found).append(words)
    return PlanNotes(found, warnings)


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


ROUTE = RouteKind(
    "Route",
    RouteDefinition,
    _check,
    "/routes",
    title="route ",
    rules=_rules,
    check_together=_check_together,
    are_planned_together=True,
    is_listed_whole=False,
)
