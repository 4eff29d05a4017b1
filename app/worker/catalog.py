"""The jobs that there should be: every partition of every topic that workloads read
(`app.dispatch.topics.catalog`), routes copy (`app.replicate.topics.catalog`) or plans audit
(`app.audit.topics.catalog`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from app.audit.topics.catalog import AuditsCatalog
from app.controllog.leader_reports import NewTerm, as_leader
from app.controllog.log import ControlLog
from app.dispatch.topics.catalog import WorkloadsCatalog
from app.dispatch.topics.readable_workloads import WorkloadRoles
from app.kafka.data_clusters import DataClusters
from app.kernel.incidents import ReportIncident
from app.placement.model.round import is_hibernated
from app.replicate.model.copy_graph import ALONE, OtherRegions
from app.replicate.topics.catalog import RoutesCatalog
from app.worker.jobs.vanished_topics import TopicPresence, VanishedTopics
from app.worker.readable_definitions import ReadableDefinitions

# The control log's jobs that do not hibernate, by their name without the partition.
HeldJobs = Mapping[str, Collection[str]]


class KindCatalog(Protocol):
    """The definitions of one kind of job, and the jobs that they ask for. Only the leader calls these."""

    async def refresh(self, held: HeldJobs) -> None:
        """Reads clusters again where that is due, without a long wait for them."""
        ...

    def found(self, held: HeldJobs) -> Iterator[tuple[str, TopicPresence]]:
        """The states of the topics that have, or had, jobs, by the jobs' name without the partition."""
        ...

    def jobs(self, held: HeldJobs) -> Iterator[str]:
        """Every job that there should be."""
        ...


class Catalog:
    """The catalogs of all kinds of jobs.

    Args:
        roles: This region's part in workloads with a mode.
        other_regions: As for `RoutesCatalog`.
    """

    def __init__(
        self,
        control: ControlLog,
        clusters: DataClusters,
        report_incident: ReportIncident,
        definitions: ReadableDefinitions,
        roles: WorkloadRoles,
        other_regions: Callable[[], OtherRegions] = lambda: ALONE,
    ) -> None:
        self._control = control
        self.layout = layout = definitions.layout
        self.workloads = WorkloadsCatalog(control, clusters, report_incident, definitions.workloads, roles)
        self.routes = RoutesCatalog(control, clusters, report_incident, definitions.routes, other_regions)
        self.audits = AuditsCatalog(control, clusters, report_incident, layout, definitions.workloads.get)
        self.vanished_topics = VanishedTopics(clusters, as_leader(control, report_incident))
        self._new_term = NewTerm()
        self._kinds: tuple[KindCatalog, ...] = self.routes, self.audits, self.workloads

    async def jobs(self) -> set[str]:
        held: dict[str, list[str]] = {}
        for job, assigned in self._control.view.assignments.items():
            if not is_hibernated(assigned):
                held.setdefault(job.rpartition(":")[0], []).append(job)
        await asyncio.gather(*(kind.refresh(held) for kind in self._kinds))
        begins = self._new_term.has_begun(self._control.view.term)
        self.vanished_topics.update((found for kind in self._kinds for found in kind.found(held)), begins)
        return {job for kind in self._kinds for job in kind.jobs(held)}
