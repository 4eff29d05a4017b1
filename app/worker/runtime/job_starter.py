"""Starts a job on this worker: takeover, start position, pump.

A job that cannot start is tried again every `START_RETRY_S`, and `troubles` says why it cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from app.audit.jobs.controller import AuditController
from app.controllog.events import Assignment, Released
from app.controllog.log import ControlLog
from app.dispatch.definition import Workload
from app.dispatch.jobs.interceptor_chain import make_chain
from app.dispatch.jobs.remote_progress_import import RemoteProgressImport
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.scheduler.clients import GrpcTargets
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.dispatch.topics.leftovers import tier_of
from app.dispatch.topics.settings import create_delayed
from app.kafka.data_clusters import DataCluster, DataClusters
from app.kernel.clock import now_ms
from app.kernel.counters import highest
from app.kernel.fencing import TakeoverAnswer
from app.kernel.job import JobId, Kind
from app.kernel.lease import Lease
from app.payload.event_time.instant import UnusableField
from app.payload.interceptors import Interceptor
from app.payload.schema_files import DescriptorError
from app.payload.schema_loader import SchemaLoader
from app.replicate.jobs.controller import ReplicaController
from app.worker.catalog import Catalog
from app.worker.jobs.pump import StartedJob, StartPostponed
from app.worker.jobs.start_position import LineageReset, ReportIncident, find_start_position
from app.worker.tracker.client import TrackerClient

log = structlog.get_logger(__name__)

START_RETRY_S = 1.0


@dataclass
class JobStarter:
    """Makes pumps, and the runtimes of their workloads.

    Attributes:
        troubles: Job -> why it cannot start yet.
        resets: Job -> where its next pump starts, in another lineage.
    """

    worker: str
    control: ControlLog
    catalog: Catalog
    clusters: DataClusters
    trackers: TrackerClient
    lease: Lease
    runtimes: dict[str, WorkloadRuntime]
    report_incident: ReportIncident
    interceptors: Sequence[tuple[str, Interceptor]]
    replicas: ReplicaController
    audits: AuditController
    remote_progress_import: RemoteProgressImport
    schemas: SchemaLoader
    troubles: dict[str, str] = field(default_factory=dict)
    resets: dict[str, LineageReset] = field(default_factory=dict)

    def keep(self, jobs: Collection[str]) -> None:
        self.resets = {job: reset for job, reset in self.resets.items() if job in jobs}
        self.troubles = {job: trouble for job, trouble in self.troubles.items() if job in jobs}

    async def start(self, job: str, held: Assignment) -> StartedJob | None:
        """Tries until the job can flow; None when this worker no longer owns it under that epoch.

        The result is valid only until the caller's next await.
        """
        identity = JobId.parse(job)
        while True:
            try:
                started = await self._take_over(identity, held)
            except Exception as error:  # noqa: BLE001 - any error is reported, and the start tried again
                message = str(error) or repr(error)
                is_known, self.troubles[job] = self.troubles.get(job) == message, message
                if not is_known and not isinstance(error, StartPostponed):
                    log.warning("a job cannot start yet; the worker tries again", job=job, error=message)
                    remedy = "the worker tries again every second"
                    if isinstance(error, UnusableField | DescriptorError):
                        remedy = "deploy the definition with a field or schema that this worker can read"
                    self.report_incident("job-cannot-start", job, message, remedy)
                await asyncio.sleep(START_RETRY_S)
            else:
                self.troubles.pop(job, None)
                return started

    async def _take_over(self, identity: JobId, held: Assignment) -> StartedJob | None:
        job = str(identity)
        # A wrong definition or an unreachable cluster is found before the takeover fences the former owner.
        controllers: dict[Kind, ReplicaController | AuditController]
        controllers = {Kind.REPLICATE: self.replicas, Kind.AUDIT: self.audits}
        controller = controllers.get(identity.kind)
        if controller is None:
            await self._dispatched(identity.name)
        else:
            await controller.check(identity)
        answer = await self.trackers.takeover(job, held.epoch)
        if not answer.granted and answer.known_epoch > highest(self.control.view.next_offset):
            self.report_incident(
                "epoch-refused", job,
                f"the tracker topic has epoch {answer.known_epoch}, above every possible one; it is ignored",
                "find the program that writes to that topic, and withdraw its permission",
            )  # fmt: skip
            answer = await self.trackers.takeover(job, held.epoch, over=answer.known_epoch)
        if not answer.granted:
            await self._refused(job, held, answer.known_epoch)
            return None
        reset = self.resets.get(job)
        reset = reset if reset is not None and reset.epoch == held.epoch else None

        def is_mine() -> bool:
            current = self.control.view.assignments.get(job)
            return current is not None and current.epoch == held.epoch and current.worker == self.worker

        start = self._start_dispatch if controller is None else controller.start_pump
        started = await start(identity, held.epoch, answer, reset, is_mine)
        if started is not None:
            self.resets.pop(job, None)
        return started

    async def _dispatched(self, key: str) -> tuple[Workload, DataCluster]:
        """A workload and its writable cluster. Raises LookupError, ClusterUnreachable, KafkaError."""
        workload = self.catalog.workload(key)
        if workload is None:
            raise LookupError(f"this worker has no definition of {key} that it can read")
        name = workload.metadata.cluster
        if name not in self.clusters.specs:
            raise LookupError(f"cluster {name!r} is not in this worker's configuration")
        cluster = await self.clusters.get(name)
        await cluster.written_to()  # for its retry topics and its dead letter queue
        return workload, cluster

    async def _start_dispatch(
        self,
        identity: JobId,
        epoch: int,
        answer: TakeoverAnswer,
        reset: LineageReset | None,
        is_mine: Callable[[], bool],
    ) -> StartedJob | None:
        workload, cluster = await self._dispatched(identity.name)
        carried = await self.remote_progress_import.imported_progress(identity, workload, answer, reset)
        beginning = await find_start_position(
            identity,
            workload,
            cluster,
            answer,
            recorded=self.control.view.start_of(identity.name),
            reset=reset,
            report_incident=self.report_incident,
            carried=carried,
        )
        counts = await self.audits.consumers.counts_from(identity, workload, cluster, answer, beginning)
        chain = await make_chain(workload, self.interceptors, self.schemas)
        if not is_mine():
            return None
        runtime = self.runtimes.get(identity.name)
        if runtime is not None and runtime.workload.metadata.cluster != workload.metadata.cluster:
            raise LookupError(f"this worker still ends jobs of {identity.name} on its former cluster")
        made = runtime or WorkloadRuntime(
            workload, GrpcTargets(self.worker), cluster.producer, self.lease, chain
        )
        made.announce_role(self.catalog.sender_role(workload))
        try:
            pump = DispatchPump(
                identity,
                epoch,
                made,
                tier=tier_of(workload, identity.topic),
                merged=identity.topic in (workload.merge_topic(), workload.delayed_topic()),
                next_offset=beginning.snapshot.base,
                snapshot=beginning.snapshot,
                capacity=workload.spec.tracker.capacity,
                group=workload.metadata.group,
                lineage=beginning.lineage,
                topic_id=beginning.log.topic_id,
            )
            if answer.lineage == beginning.lineage:
                pump.inherit_risks(answer.note)
            self.remote_progress_import.attach(pump, workload, answer, beginning, reset, carried)
            self.audits.consumers.attach(pump, beginning, counts)
        except BaseException:
            if runtime is None:
                await made.close()
            raise
        if runtime is None:  # kept only with a pump, because it ends with its last pump
            made.retry_publisher.make_delayed = partial(create_delayed, cluster.client, workload)
            self.runtimes[identity.name] = made
        return StartedJob(pump, beginning, cluster, next_offset=counts and counts.next_offset)

    async def _refused(self, job: str, held: Assignment, known_epoch: int) -> None:
        """The tracker table outlived the control log: the leader must assign a higher epoch."""
        reason = "the tracker table has a later epoch"
        log.warning("a takeover was refused", job=job, epoch=held.epoch, known_epoch=known_epoch, why=reason)
        await self.control.append(
            Released(at_ms=now_ms(), job=job, worker=self.worker, epoch=held.epoch,
                     known_epoch=known_epoch, reason=reason)
        )  # fmt: skip
