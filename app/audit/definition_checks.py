"""Checks of an audit plan that involve several fields, its topic patterns or the configured clusters."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.definition import AuditPlan
from app.config.problems import ConfigProblem, Document, suggest
from app.config.syntax_tree import Path_
from app.dispatch.definition_checks import problem_at, value_at
from app.failover.topology import AGGREGATE, REGIONAL, Layout
from app.payload.event_time.instant import UnusableField
from app.payload.event_time.json_field import JsonTime
from app.replicate.definition_checks import TOPICS
from app.replicate.model.regular_language import LanguageTable, TooComplicated
from app.replicate.model.route import Route

TIMESTAMP: Path_ = ("spec", "timestamp")
CLUSTERS: Path_ = ("spec", "clusters")
# For each source, beside `source` and `otherwise`: the required fields, and the optional ones.
NEEDS = {
    "record": ((), ()),
    "header": (("header",), ("format", "binary")),
    "json": (("field",), ("format",)),
    "avro": (("field", "schema"), ("format", "framing")),
    "protobuf": (("field", "descriptor", "message"), ("format", "framing")),
}
DEFAULTS = {"framing": "none", "binary": False}


def audit_checks(
    document: Document, plan: AuditPlan | None, layout: Layout | None
) -> Iterator[ConfigProblem]:
    """All problems. `plan`: None if a field is wrong. `layout`: the configured clusters, if known."""
    source = value_at(document.data, (*TIMESTAMP, "source")) or "record"
    required, optional = NEEDS.get(source, ((), ()))
    given = value_at(document.data, TIMESTAMP)
    fields = given.items() if isinstance(given, dict) else ()
    names = {name for name, value in fields if value != DEFAULTS.get(name)}  # the wire has them all
    for name in required:
        if name not in names:
            yield problem_at(document, (*TIMESTAMP, name), f"missing, and source {source} needs it", "add it")
    for name in sorted(names - {"source", "otherwise", *required, *optional}) if source in NEEDS else ():
        known = ", ".join((*required, *optional)) or "no others"
        yield problem_at(
            document, (*TIMESTAMP, name), f"has no meaning with source {source}",
            f"leave it out; beside source and otherwise there are {known}",
        )  # fmt: skip
    if plan is None:
        return
    yield from _time(document, plan)
    yield from _topics(document, plan)
    if layout is not None:
        yield from _clusters(document, plan, layout)


def _time(document: Document, plan: AuditPlan) -> Iterator[ConfigProblem]:
    timestamp = plan.spec.timestamp
    if timestamp.source == "header" and timestamp.binary and timestamp.format == "iso-8601":
        yield problem_at(
            document,
            (*TIMESTAMP, "format"),
            "8 binary bytes cannot hold a text",
            "give the number's unit: epoch-ms",
        )
    if timestamp.source == "json" and timestamp.field is not None:
        try:
            JsonTime(timestamp.field.split("."))
        except UnusableField as error:
            yield problem_at(document, (*TIMESTAMP, "field"), error.problem, error.remedy)


def _topics(document: Document, plan: AuditPlan) -> Iterator[ConfigProblem]:
    try:
        words = LanguageTable()
        route = Route(plan.name, "", "", plan.spec.topics, plan.spec.exclude)
        if words.shortest(route.domain(words)) is None:
            remedy = "exclude fewer topics, or name the internal topic"
            yield problem_at(document, TOPICS, "no topic is counted: all are excluded or internal", remedy)
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield problem_at(document, TOPICS, message, remedy)


def _clusters(document: Document, plan: AuditPlan, layout: Layout) -> Iterator[ConfigProblem]:
    tiers = sorted({site.tier for site in layout.sites.values() if site.region == layout.own})
    for index, entry in enumerate(plan.spec.clusters):
        if entry not in layout.sites and entry not in tiers:
            known = [*layout.sites, *tiers]
            yield problem_at(
                document,
                (*CLUSTERS, index),
                "no cluster or tier of this region has this name",
                suggest(entry, known),
            )
    counted = plan.clusters(layout)
    if any(layout.sites[name].tier == AGGREGATE for name in counted):
        omitted = [n for n, site in layout.sites.items() if site.tier == REGIONAL and n not in counted]
        if omitted:
            named = ", ".join(sorted(omitted))
            yield problem_at(
                document, CLUSTERS, f"aggregate clusters may have records of {named}, which the plan omits",
                "add it to clusters, unless nothing is copied from it", "warning",
            )  # fmt: skip
