"""The kind of definition `Workload`: its checks, and what a plan has to say about its changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.config.definition_kind import DefinitionKind, KnownPlaces, PlannedKind, PlanNotes
from app.config.problems import ConfigProblem, Document
from app.dispatch.definition import Workload
from app.dispatch.definition_checks import checks, problem_at
from app.kernel.durations import format_duration
from app.kernel.job import MAX_TOPIC_CHARS
from app.kernel.topic_names import folded


def _check(document: Document, workload: Workload | None, known: KnownPlaces) -> Iterator[ConfigProblem]:
    yield from checks(document, known.clusters, known.layout, known.receivers)
    if workload is None:
        return
    longest = max(workload.own_topics(), key=len)
    if (excess := len(longest) - MAX_TOPIC_CHARS) > 0:
        group = workload.metadata.group
        yield problem_at(
            document,
            ("metadata", "topic"),
            f"its topic {longest} would have {len(longest)} characters, and Kafka allows {MAX_TOPIC_CHARS}",
            f"shorten the group's name by {excess} characters"
            if len(group) > excess
            else "no group's name is short enough: have a route copy the topic to one with a shorter name",
        )


def _rules(planned: PlannedKind[Workload]) -> PlanNotes:
    conflicts: list[str] = []
    warnings: list[str] = []
    for key, workload in planned.wanted.items():
        before = planned.current.get(key)
        if before is not None:
            conflict, warning = _other_cluster(before, workload, planned)
            conflicts += conflict
            warnings += [*warning, *_stranded(before, workload)]
    shared = _shared_topics([*planned.kept, *planned.wanted.values()])
    other = {
        key
        for key, workload in planned.wanted.items()
        if key not in planned.current or _own_topics(planned.current[key]) != _own_topics(workload)
    }
    conflicts += [f"{words}; rename its group" for first, second, words in shared if {first, second} & other]
    warnings += [f"{words}; delete one" for first, second, words in shared if not {first, second} & other]
    return PlanNotes(conflicts, warnings)


def _other_cluster(
    before: Workload, workload: Workload, planned: PlannedKind[Workload]
) -> tuple[list[str], list[str]]:
    """A conflict or a warning where the workload's cluster changes."""
    was, now, scope = before.metadata.cluster, workload.metadata.cluster, planned.scope
    is_known = scope.is_local or workload.spec.mode is None
    if not is_known or was == now:
        return [], []
    if scope.clusters is not None and was not in scope.clusters:
        return [], [
            f"{workload.key}: cluster {was} is {now} now: "
            "positions stay if it is the same cluster by its id, else delivery begins again at the start"
        ]
    return [
        f"{workload.key}: its cluster cannot change from {was} to "
        f"{now}, whose offsets mean something else; use workload move, "
        "or delete it first"
    ], []


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


WORKLOAD = DefinitionKind(
    "Workload",
    Workload,
    _check,
    "/workloads",
    named_by=("group", "topic"),
    rules=_rules,
    may_take_over=True,
    is_listed_whole=False,
    deletes_first=False,
)
