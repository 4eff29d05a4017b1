"""What no single field of a route shows: clusters there are not, topics that nobody could copy, loops."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from app.config.checks import problem_at, value_at
from app.config.problems import Document, Problem, suggest
from app.config.route import RouteDefinition
from app.config.trees import Path_
from app.core.route import Route
from app.core.routes_graph import find_duplicate, find_loop
from app.core.routes_words import TooComplicated, Words

TOPICS: Path_ = ("spec", "topics")
OFFSETS: Path_ = ("spec", "offsets")


def route_checks(
    document: Document, definition: RouteDefinition | None, clusters: Collection[str] | None
) -> Iterator[Problem]:
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
    if definition.spec.offsets is not None:
        message = "not in force yet (groups are kept in step with a later release)"
        yield problem_at(document, OFFSETS, message, "it is kept and ignored", "warning")
    try:
        route = definition.route()
        words = Words()
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


def between_routes(routes: Sequence[tuple[Document, Route]]) -> Iterator[Problem]:
    """Loops and duplicates that routes make together; each of them is sound by itself."""
    documents = {route.name: document for document, route in routes}
    for message, remedy, name in conflicts([route for _, route in routes]):
        yield problem_at(documents[name], TOPICS, message, remedy)


def conflicts(
    routes: Sequence[Route], changed: Collection[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """The same, in words: what is wrong, what to do, and one of the routes to do it in.

    `changed` are the names of those that are new or changed, when the others are known to be sound together.
    """
    try:
        if loop := find_loop(routes, changed=changed):
            yield f"would loop: {loop}", loop.remedy, loop.hops[-1][0]
        if double := find_duplicate(routes):
            yield f"would copy twice: {double}", double.remedy, double.routes[1]
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield message, remedy, routes[0].name
