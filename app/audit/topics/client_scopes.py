"""Whether what a client counts is as planned; and if not, in what words."""

from __future__ import annotations

from collections.abc import Collection

from app.audit.definition import AuditPlan
from switchyard.audit.model.reports import Scope


def oddity(
    scope: Scope, here: AuditPlan | None, anywhere: AuditPlan | None, clusters: Collection[str]
) -> str:
    """What is not as planned in what a client counts; "": nothing.

    Args:
        here, anywhere: the plan that means the topic in the scope's cluster, and in any.
        clusters: that are known. A client need not name one.
    """
    plan = here or anywhere
    if plan is None:
        return f"no audit plan means topic {scope.topic}: its windows close by no plan's bounds"
    found = []
    if here is None and scope.cluster and scope.cluster not in clusters:
        found.append(f"cluster {scope.cluster} is none of {', '.join(sorted(clusters))}")
    elif here is None and scope.cluster:
        found.append(f"no audit plan means topic {scope.topic} in cluster {scope.cluster}")
    if scope.width_ms != plan.width_ms:
        found.append(
            f"its windows are of {scope.width_ms} ms, those of plan {plan.name} of {plan.width_ms} ms, with "
            f"which they cannot be compared: its client needs window_ms={plan.width_ms}"
        )
    return "; ".join(found)
