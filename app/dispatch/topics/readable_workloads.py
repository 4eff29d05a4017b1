"""The workloads of the control log, parsed. A workload with a mode is on this region's own cluster."""

from __future__ import annotations

from typing import Protocol

from app.controllog.definition_cache import DefinitionCache
from app.controllog.log import ControlLog
from app.dispatch.definition import Workload, dispatch_job
from app.dispatch.push.metadata import SenderRole
from app.dispatch.topics.leftovers import candidates
from app.failover.topology import Layout
from app.kernel.incidents import ReportIncident
from app.kernel.json_types import JsonMapping

REMEDY = "deploy it again"


class WorkloadRoles(Protocol):
    """This region's part in workloads with a mode (`app.failover.run.role_keeper`)."""

    def runs_here(self, workload: Workload) -> bool | None:
        """Whether the workload has jobs in this region; None: not known yet."""
        ...

    def sender_role(self, workload: Workload) -> SenderRole | None:
        """The role that receivers learn; None: the workload has no mode."""
        ...


class ReadableWorkloads:
    """The workloads that this version can read, by key."""

    def __init__(self, control: ControlLog, report_incident: ReportIncident, layout: Layout | None) -> None:
        self._cache = DefinitionCache(
            lambda: control.view.workloads,
            lambda key, data: local(_parsed(key, data), layout),
            lambda key, why, is_over: report_incident("workload-trouble", key, why, REMEDY, is_over),
        )

    def get(self, key: str) -> Workload | None:
        """The last readable definition of `key`; None: there is none."""
        return self._cache.get(key)

    def troubles(self) -> dict[str, str]:
        """Why workloads' last definitions cannot be read, with the remedy."""
        return {key: f"{why}; {REMEDY}" for key, why in self._cache.unreadable.items()}


def _parsed(key: str, definition: JsonMapping) -> Workload:
    """Raises ValueError: it is another workload's, or its jobs have no valid names (`app.kernel.job`)."""
    workload = Workload.from_wire(definition)
    if workload.key != key:
        raise ValueError(f"the definition under {key!r} is one of {workload.key!r}")
    for topic in (workload.metadata.topic, *workload.retry_topics(), *candidates(workload)):
        dispatch_job(key, topic, 0)
    return workload


def local(workload: Workload, layout: Layout | None) -> Workload:
    """The workload on this region's cluster, if it has a mode. Raises ValueError: there is none, or
    several."""
    if workload.spec.mode is None or layout is None:
        return workload
    try:
        cluster = layout.local(workload.metadata.cluster)
    except LookupError as error:
        raise ValueError(str(error)) from error
    metadata = workload.metadata.model_copy(update={"cluster": cluster})
    return workload.model_copy(update={"metadata": metadata})
