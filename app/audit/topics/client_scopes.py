"""Describes how a client's counts deviate from the audit plan."""

from __future__ import annotations

from collections.abc import Collection

from app.audit.definition import AuditPlan
from switchyard.audit.model.reports import Scope


def oddity(
    scope: Scope, here: AuditPlan | None, anywhere: AuditPlan | None, clusters: Collection[str]
) -> str:
    """How a client's scope deviates from the plan; "": it does not. `here`, `anywhere`: the plan that matches
    the topic in the scope's cluster, and in any. `clusters`: the known ones; a client need not name one."""
    plan = here or anywhere
    if plan is None:
        return f"no audit plan matches topic {scope.topic}: its windows close by default bounds"
    found = []
    if here is None and scope.cluster and scope.cluster not in clusters:
        found.append(f"cluster {scope.cluster} is not one of {', '.join(sorted(clusters))}")
    elif here is None and scope.cluster:
        found.append(f"no audit plan matches topic {scope.topic} in cluster {scope.cluster}")
    if scope.width_ms != plan.width_ms:
        found.append(
            f"its windows have {scope.width_ms} ms and cannot be compared with those of plan {plan.name}, "
            f"which have {plan.width_ms} ms: its client needs window_ms={plan.width_ms}"
        )
    return "; ".join(found)
