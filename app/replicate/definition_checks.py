"""What no single field of a route shows: clusters there are not, topics that nobody could copy, loops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from app.config.problems import ConfigProblem, Document, suggest
from app.config.syntax_tree import Path_
from app.dispatch.definition_checks import problem_at, value_at
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
from app.replicate.model.route import Route

TOPICS: Path_ = ("spec", "topics")


def route_checks(
    document: Document, definition: RouteDefinition | None, clusters: Collection[str] | None
) -> Iterator[ConfigProblem]:
    """All of it; `definition` is None when a field is wrong, `clusters` are the names there are, if known."""
    for end in ("from", "to"):
        cluster = value_at(document.data, ("spec", end))
        if clusters is not None and isinstance(cluster, str) and cluster not in clusters:
            yield problem_at(document, ("spec", end), "no such cluster", suggest(cluster, list(clusters)))
    if all(value_at(document.data, ("spec", "headers", name)) for name in ("keep", "drop")):
        yield problem_at(
            document, ("spec", "headers", "drop"), "keep already says which headers come along",
            "write keep or drop, not both",
        )  # fmt: skip
    if definition is None:
        return
    try:
        route = definition.route()
        words = LanguageTable()
        if words.shortest(route.domain(words)) is None:
            what = "is copied by it: all of them are excluded, or internal"
            yield problem_at(document, TOPICS, f"no topic {what}", "exclude less, or name the internal topic")
        loop = find_loop([route])
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield problem_at(document, TOPICS, message, remedy)
    else:
        if loop is not None:
            yield problem_at(document, TOPICS, f"would loop: {loop}", loop.remedy)


def between_routes(routes: Sequence[tuple[Document, Route]]) -> Iterator[ConfigProblem]:
    """Loops and duplicates that routes make together; each of them is sound by itself."""
    documents = {route.name: document for document, route in routes}
    for message, remedy, name in conflicts([route for _, route in routes]):
        yield problem_at(documents[name], TOPICS, message, remedy)


def folded_copies(routes: Sequence[Route], other_regions: OtherRegions = ALONE) -> Iterator[FoldedCopies]:
    """Copies of topics that these routes name, which Kafka takes for another copy by its name."""
    known = [*other_regions.routes, *sorted(routes, key=lambda route: route.name)]
    own = {route.name for route in routes}
    found = find_folded(((route, route.named_copies()) for route in known), other_regions)
    return (twins for twins in found if twins.one[0] in own)


def conflicts(
    routes: Sequence[Route], changed: Collection[str] | None = None, other_regions: OtherRegions = ALONE
) -> Iterator[tuple[str, str, str]]:
    """The same, in words: what is wrong, what to do, and one of the routes to do it in.

    `changed` are the names of those that are new or changed, when the others are known to be sound together.
    """
    own = {route.name for route in routes}
    try:
        if loop := find_loop(routes, changed=changed, other_regions=other_regions):
            mine = [name for name, _, _ in loop.hops if name in own]
            yield f"would loop: {loop}", loop.remedy, (mine or [loop.hops[-1][0]])[-1]
        if double := find_duplicate(routes, other_regions):
            yield f"would copy twice: {double}", double.remedy, double.routes[1]
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield message, remedy, routes[0].name


class RemoteRoute(NamedTuple):
    """A route of another region: its definition, and the ids of its clusters, "" where they are not known."""

    region: str
    definition: Mapping[str, Any]
    source_id: str = ""
    target_id: str = ""


def beside_of(ids: Mapping[str, str], routes: Iterable[RemoteRoute]) -> OtherRegions:
    """What is known beyond this region's routes; `ids` has every cluster that is configured here, "" for one
    whose id is not known. A cluster of another region is one of these if its id is, or, while that is not
    known, if its name is. A definition that cannot be read is left out."""
    known = {name: found for name, found in ids.items() if found}
    names = {found: name for name, found in sorted(known.items(), reverse=True)}
    made = []
    for at in routes:
        try:
            definition = RouteDefinition.from_wire(at.definition)
            route = definition.route()
        except (ValueError, TooComplicated):
            continue
        ends = []
        for name, found in ((route.source, at.source_id), (route.target, at.target_id)):
            here = names.get(found) or (name if name in ids and not found else "")
            ends.append(here or f"{at.region}/{name}")
            if found and not here:
                known[ends[-1]] = found
        name = f"{route.name} of region {at.region}"
        made.append(replace(route, name=name, source=ends[0], target=ends[1]))
    return OtherRegions(known, tuple(made))
