"""Checks a route beyond its single fields: unknown clusters, entries that match no topic, loops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from app.config.problems import ConfigProblem, Document, suggest
from app.config.syntax_tree import Path_
from app.dispatch.definition_checks import problem_at, value_at
from app.kernel.job import MAX_TOPIC_CHARS
from app.kernel.json_types import JsonMapping
from app.replicate.definition import RouteDefinition
from app.replicate.model.copy_graph import (
    ALONE,
    FoldedCopies,
    OtherRegions,
    find_duplicate,
    find_folded,
    find_loop,
)
from app.replicate.model.regular_language import LanguageTable, TooComplicated
from app.replicate.model.route import RENAME, Route, is_topic

TOPICS: Path_ = ("spec", "topics")


def route_checks(
    document: Document, definition: RouteDefinition | None, clusters: Collection[str] | None
) -> Iterator[ConfigProblem]:
    """All checks. `definition`: None if a field is wrong. `clusters`: names of clusters, None: not known."""
    for end in ("from", "to"):
        cluster = value_at(document.data, ("spec", end))
        if clusters is not None and isinstance(cluster, str) and cluster not in clusters:
            yield problem_at(document, ("spec", end), "no such cluster", suggest(cluster, list(clusters)))
    if all(value_at(document.data, ("spec", "headers", name)) for name in ("keep", "drop")):
        yield problem_at(
            document, ("spec", "headers", "drop"), "keep already says which headers are copied",
            "write keep or drop, not both",
        )  # fmt: skip
    if definition is None:
        return
    try:
        route = definition.route()
        yield from _impossible_copies(document, route)
        words = LanguageTable()
        if words.shortest(route.domain(words)) is None:
            why = "all that match are excluded or internal"
            yield problem_at(
                document, TOPICS, f"no topic is copied: {why}", "exclude less, or name the internal topic"
            )
        loop = find_loop([route])
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield problem_at(document, TOPICS, message, remedy)
    else:
        if loop is not None:
            yield problem_at(document, TOPICS, f"would loop: {loop}", loop.remedy)


def _impossible_copies(document: Document, route: Route) -> Iterator[ConfigProblem]:
    """Problems of topics that the route names, and whose copies' names Kafka does not accept."""
    for number, entry in enumerate(route.topics):
        if entry in route.names and not is_topic(copy := route.rename(entry)):
            why = f"the copy of topic {entry} would be called {copy}, with {len(copy)} characters"
            yield problem_at(document, (*TOPICS, number), f"{why}; Kafka allows {MAX_TOPIC_CHARS}", RENAME)


def between_routes(routes: Sequence[tuple[Document, Route]]) -> Iterator[ConfigProblem]:
    """Loops and duplicates that sound routes make together."""
    documents = {route.name: document for document, route in routes}
    for message, remedy, name in conflicts([route for _, route in routes]):
        yield problem_at(documents[name], TOPICS, message, remedy)


def folded_copies(routes: Sequence[Route], other_regions: OtherRegions = ALONE) -> Iterator[FoldedCopies]:
    """Copies, of topics that these routes name, whose names collide with other copies' names in Kafka."""
    known = [*other_regions.routes, *sorted(routes, key=lambda route: route.name)]
    own = {route.name for route in routes}
    found = find_folded(((route, route.named_copies()) for route in known), other_regions)
    return (twins for twins in found if twins.one[0] in own)


def conflicts(
    routes: Sequence[Route], changed: Collection[str] | None = None, other_regions: OtherRegions = ALONE
) -> Iterator[tuple[str, str, str]]:
    """Loops and duplicates as texts: the fault, the remedy, and a route in which to change something.

    `changed` are the names of new or changed routes; the others are known to be sound together."""
    own = {route.name for route in routes}
    try:
        if loop := find_loop(routes, changed=changed, other_regions=other_regions):
            own_names = [name for name, _, _ in loop.hops if name in own]
            yield f"would loop: {loop}", loop.remedy, (own_names or [loop.hops[-1][0]])[-1]
        if double := find_duplicate(routes, other_regions):
            yield f"would copy twice: {double}", double.remedy, double.routes[1]
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield message, remedy, routes[0].name


class RemoteRoute(NamedTuple):
    """A route of another region: its definition, and the ids of its clusters; "": not known."""

    region: str
    definition: JsonMapping
    source_id: str = ""
    target_id: str = ""


def beside_of(ids: Mapping[str, str], routes: Iterable[RemoteRoute]) -> OtherRegions:
    """The clusters and routes beyond this region's routes, without unreadable definitions.

    `ids` has every cluster that is configured here; "": its id is not known. A cluster of another region is
    one of these if its id is. While its id is not known, its name decides."""
    known = {name: found for name, found in ids.items() if found}
    names = {found: name for name, found in sorted(known.items(), reverse=True)}
    remote_routes = []
    for remote in routes:
        try:
            definition = RouteDefinition.from_wire(remote.definition)
            route = definition.route()
        except (ValueError, TooComplicated):
            continue
        ends = []
        for name, found in ((route.source, remote.source_id), (route.target, remote.target_id)):
            local_name = names.get(found) or (name if name in ids and not found else "")
            ends.append(local_name or f"{remote.region}/{name}")
            if found and not local_name:
                known[ends[-1]] = found
        name = f"{route.name} of region {remote.region}"
        remote_routes.append(replace(route, name=name, source=ends[0], target=ends[1]))
    return OtherRegions(known, tuple(remote_routes))
