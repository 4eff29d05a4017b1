"""The registry of the kinds of jobs: it builds their controllers. `app.worker.catalog` has their catalogs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.audit.jobs.consumer_counts import AuditConsumers
from app.audit.jobs.controller import AuditController
from app.audit.jobs.report_sender import AuditSender
from app.dispatch.jobs.controller import DispatchController
from app.dispatch.jobs.remote_progress_import import RemoteProgressImport
from app.dispatch.pump.partition import DispatchPump
from app.kernel.job import Kind, kind_of
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.offsets.sync.remote_progress import RemoteProgress
from app.payload.interceptors import Interceptor
from app.replicate.jobs.controller import ReplicaController
from app.replicate.jobs.sealed_sources import SealedSources
from app.replicate.pump.partition import ReplicaPump
from app.worker.catalog import Catalog
from app.worker.jobs.kind import JobKind, JobPorts, JobRestarts


@dataclass(frozen=True, slots=True)
class JobKinds:
    dispatch: DispatchController
    replicate: ReplicaController
    audit: AuditController

    def of(self, job: str) -> JobKind:
        """The kind of a job. Raises ValueError: there is no such kind."""
        kinds: dict[Kind, JobKind]
        kinds = {Kind.DISPATCH: self.dispatch, Kind.REPLICATE: self.replicate, Kind.AUDIT: self.audit}
        return kinds[kind_of(job)]

    def __iter__(self) -> Iterator[JobKind]:
        yield from (self.dispatch, self.replicate, self.audit)


@dataclass(frozen=True, slots=True)
class JobServices:
    """The parts of a worker that single kinds of jobs need beside `JobPorts`.

    Attributes:
        offset_syncs: Sends the offset syncs of routes; None: they are not sent.
        audit_reports: Sends the reports of audits; None: they are not sent.
        remote_progress: The progress of other regions' consumers; None: no regions are known.
        interceptors: By name, as in `switchyard.yaml`.
    """

    offset_syncs: BarrierSender | None = None
    audit_reports: AuditSender | None = None
    remote_progress: RemoteProgress | None = None
    interceptors: Sequence[tuple[str, Interceptor]] = ()


def make_job_kinds(ports: JobPorts, jobs: JobRestarts, catalog: Catalog, services: JobServices) -> JobKinds:
    dispatched: dict[str, DispatchPump] = {}
    replicas: dict[str, ReplicaPump] = {}
    report_incident = ports.report_incident
    consumers = AuditConsumers(catalog.audits, dispatched, report_incident, ports.schemas)
    remote_progress_import = RemoteProgressImport(
        ports.control, catalog.workloads, dispatched, replicas, report_incident, services.remote_progress
    )
    sealed_sources = SealedSources(catalog.layout, ports.clusters, report_incident)
    return JobKinds(
        DispatchController(
            ports,
            jobs,
            catalog.workloads,
            dispatched,
            consumers,
            remote_progress_import,
            services.interceptors,
        ),
        ReplicaController(ports, jobs, catalog.routes, replicas, sealed_sources, services.offset_syncs),
        AuditController(ports, jobs, catalog.audits, consumers, services.audit_reports),
    )
