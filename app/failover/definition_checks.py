"""Checks of a failover definition that no single field shows: unknown regions, topics that nothing shares."""

from __future__ import annotations

from collections.abc import Iterator

from app.config.problems import ConfigProblem, Document, suggest
from app.config.syntax_tree import Path_
from app.dispatch.definition_checks import problem_at
from app.failover.definition import FailoverDefinition
from app.failover.topology import AGGREGATE, REGIONAL, RESERVED, Layout
from app.replicate.definition_checks import TOPICS
from app.replicate.model.regular_language import LanguageTable, TooComplicated
from app.replicate.model.route import Route

REGIONS: Path_ = ("spec", "regions")


def failover_checks(
    document: Document, definition: FailoverDefinition | None, layout: Layout | None
) -> Iterator[ConfigProblem]:
    """The problems of a definition that was parsed.

    `definition` is None when a field is wrong: then there are none. Without a `layout` the regions are not
    checked.
    """
    if definition is None:
        return
    for index, region in enumerate(definition.spec.regions if layout is not None else ()):
        assert layout is not None, "without a layout the loop is empty"
        at: Path_ = (*REGIONS, index)
        if region not in layout.names:
            yield problem_at(document, at, "no such region", suggest(region, layout.names))
            continue
        for tier in (REGIONAL, AGGREGATE):
            try:
                layout.cluster(region, tier)
            except LookupError as error:
                message, _, remedy = str(error).rpartition("; ")
                yield problem_at(document, at, message, remedy)
    if layout is not None and layout.own not in definition.spec.regions:
        yield problem_at(
            document, REGIONS, f"this region, {layout.own}, is not in the list",
            "add it, or this region copies nothing by this definition", "warning",
        )  # fmt: skip
    failover = definition.failover()
    for index, topic in enumerate(definition.spec.topics):
        if topic.startswith((RESERVED, "__")):
            yield problem_at(
                document, (*TOPICS, index), "is an internal topic of one cluster",
                "leave it out; Switchyard copies the control topics that other regions need by itself",
            )  # fmt: skip
    try:
        words = LanguageTable()
        route = Route(failover.name, "", "", failover.topics, failover.exclude)
        if words.shortest(route.domain(words)) is None:
            remedy = "exclude less, or name a topic that is not internal"
            yield problem_at(
                document, TOPICS, "the regions share no topic: every topic is excluded or internal", remedy
            )
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield problem_at(document, TOPICS, message, remedy)
