"""The kind of definition `AuditPlan`: its checks, and what a plan has to say about its changes."""

from __future__ import annotations

from collections.abc import Iterator

from app.audit.definition import AuditPlan
from app.audit.definition_checks import audit_checks
from app.audit.folds.plan_terms import PREFIX
from app.config.definition_kind import DefinitionKind, KnownPlaces, PlannedKind, PlanNotes
from app.config.problems import ConfigProblem, Document

RECOUNTED = ("spec.window", "spec.timestamp")  # fields that decide a record's window


def _check(document: Document, plan: AuditPlan | None, known: KnownPlaces) -> Iterator[ConfigProblem]:
    return audit_checks(document, plan, known.layout)


def _rules(planned: PlannedKind[AuditPlan]) -> PlanNotes:
    warnings = [
        f"{key}: records are put into other windows from now on; what was counted so far stays"
        for key, change in planned.changes.items()
        if any(field.field.startswith(RECOUNTED) for field in change.fields)
    ]
    return PlanNotes((), warnings)


AUDIT_PLAN = DefinitionKind("AuditPlan", AuditPlan, _check, "/audit/plans", prefix=PREFIX, rules=_rules)
