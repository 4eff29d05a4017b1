"""The kind of definition `Failover`: its checks, and what a plan has to say about its changes."""

from __future__ import annotations

from collections.abc import Iterator

from app.config.definition_kind import DefinitionKind, KnownPlaces, PlannedKind, PlanNotes
from app.config.problems import ConfigProblem, Document
from app.failover.definition import PREFIX, FailoverDefinition
from app.failover.definition_checks import failover_checks


def _check(
    document: Document, definition: FailoverDefinition | None, known: KnownPlaces
) -> Iterator[ConfigProblem]:
    return failover_checks(document, definition, known.layout)


def _rules(planned: PlannedKind[FailoverDefinition]) -> PlanNotes:
    warnings = []
    for key, failover in planned.wanted.items():
        before = planned.current.get(key)
        gone = () if before is None else sorted(set(before.spec.regions) - set(failover.spec.regions))
        warnings += [
            f"{key}: region {region} is named no more: nothing is copied from or to it, and no "
            "workload can be moved there; deploy the same in every region"
            for region in gone
        ]
    return PlanNotes((), warnings)


FAILOVER = DefinitionKind("Failover", FailoverDefinition, _check, "/failovers", prefix=PREFIX, rules=_rules)
