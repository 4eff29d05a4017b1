"""Controls this worker's dispatch jobs: starts pumps, brings changed definitions into force, and pauses.

Rules
1. `runtimes` has a runtime only while it has a pump; it is closed with its last one.
2. A job that failed at a batch starts again (`app.worker.jobs.failures`). So do all jobs of a workload that
   gets another order or cluster: messages in flight must not follow the new one.
3. A pause applies when this worker reads it (`app.dispatch.jobs.pause_controller`). A suspended worker reads
   it before it can renew its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec
import structlog
from mode import Service

from app.audit.counts.handover import CountsFrom
from app.controllog.codec import JobStatus, WorkloadStatus
from app.dispatch.definition import Workload
from app.dispatch.jobs.catch_up_controller import CatchUpController
from app.dispatch.jobs.definition_rollout import DefinitionRollout
from app.dispatch.jobs.head_of_line_monitor import HeadOfLineMonitor
from app.dispatch.jobs.heartbeat_status import job_status, workload_statuses
from app.dispatch.jobs.interceptor_chain import make_chain
from app.dispatch.jobs.pause_controller import PauseController
from app.dispatch.jobs.receiver_access import check_access
from app.dispatch.jobs.remote_progress_import import RemoteProgressImport
from app.dispatch.jobs.start_position import find_start_position
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.scheduler.clients import TargetClients
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.dispatch.topics.catalog import WorkloadsCatalog
from app.dispatch.topics.leftovers import tier_of
from app.dispatch.topics.settings import create_delayed
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import FetchItem, FetchKey
from app.kernel.broker_throttle import FETCH
from app.kernel.fencing import TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.limit_shares import NOTHING, LimitNeed, WorkerShare
from app.payload.interceptors import Interceptor, InterceptorChain
from app.worker.jobs.deliveries import pass_to_pump
from app.worker.jobs.kind import JobPorts, JobRestarts
from app.worker.jobs.pump import StartedJob
from app.worker.jobs.start_position import LineageReset, StartPosition

log = structlog.get_logger(__name__)


class ConsumerCounts(Protocol):
    """Counts what dispatch jobs finish (`app.audit.jobs.consumer_counts`)."""

    async def counts_from(
        self,
        job: JobId,
        workload: Workload,
        cluster: DataCluster,
        answer: TakeoverAnswer,
        start: StartPosition,
    ) -> CountsFrom | None: ...

    def attach(self, pump: DispatchPump, start: StartPosition, counts: CountsFrom | None) -> None: ...


class DispatchController(Service):
    """The kind `dispatch` (`app.worker.jobs.kind`).

    Attributes:
        pumps: By job.
        runtimes: By workload.
    """

    def __init__(
        self,
        ports: JobPorts,
        jobs: JobRestarts,
        catalog: WorkloadsCatalog,
        pumps: dict[str, DispatchPump],
        consumers: ConsumerCounts,
        remote_progress_import: RemoteProgressImport,
        interceptors: Sequence[tuple[str, Interceptor]] = (),
    ) -> None:
        super().__init__()
        self.pumps = pumps
        self.runtimes: dict[str, WorkloadRuntime] = {}
        self.pause_controller = PauseController(ports.control, catalog, pumps, ports.report_incident)
        self._remote_progress_import = remote_progress_import
        self._ports = ports
        self._jobs = jobs
        self._catalog = catalog
        self._consumers = consumers
        self._interceptors = interceptors
        self._definition_rollout = DefinitionRollout(
            catalog, self.runtimes, self._prepare, ports.report_incident,
            changed=self._on_definition, moved=self._restart_all, ended=jobs.reconcile_soon,
        )  # fmt: skip

    async def on_start(self) -> None:
        self._ports.control.on_change(self._on_log)
        report_incident = self._ports.report_incident
        for part in (
            self._remote_progress_import,
            HeadOfLineMonitor(self.pumps, self.runtimes, report_incident),
            CatchUpController(self.pumps, self._ports.clusters, report_incident),
        ):
            await self.add_runtime_dependency(part)

    def _on_log(self) -> None:
        try:
            self.pause_controller.reconcile()
        except Exception:
            log.exception("the worker could not pause jobs; it tries again")

    # -- batches, through the agent `dispatch` -----------------------------------------------------

    def accept(self, item: FetchItem) -> None:
        """Hands a fetched batch to the job's pump, or to its backlog's. Never raises."""
        pump = self.pumps.get(item.key.job)
        if pump is not None and item.key.is_backlog:
            pump = None if pump.backlog is None else pump.backlog.pump
        pass_to_pump(pump, item, self._jobs, self._ports.report_incident)

    # -- one job -----------------------------------------------------------------------------------

    async def check(self, job: JobId) -> tuple[Workload, DataCluster]:
        """A job's workload and its writable cluster.

        Raises:
            LookupError, ClusterUnreachable, KafkaError: One of them is not there.
            ValueError: It may not reach its receiver from here (`check_access`).
        """
        workload, clusters = self._catalog.workload(job.name), self._ports.clusters
        if workload is None:
            raise LookupError(f"this worker has no definition of {job.name} that it can read")
        name = workload.metadata.cluster
        if name not in clusters.specs:
            raise LookupError(f"cluster {name!r} is not in this worker's configuration")
        self._check_access(workload)
        cluster = await clusters.get(name)
        await cluster.written_to()  # for its retry topics and its dead letter queue
        return workload, cluster

    def _check_access(self, workload: Workload) -> None:
        """See `check_access`."""
        check_access(workload, self._ports.credentials, self._ports.receiver_rules)

    async def _prepare(self, workload: Workload) -> InterceptorChain | None:
        """The interceptors of a definition that can be in force here. Raises ValueError: it cannot, with the
        remedy."""
        self._check_access(workload)
        return await make_chain(workload, self._interceptors, self._ports.schemas)

    async def start_pump(
        self,
        job: JobId,
        epoch: int,
        answer: TakeoverAnswer,
        reset: LineageReset | None,
        is_mine: Callable[[], bool],
    ) -> StartedJob | None:
        """The pump of a job that was taken over; None if it is no longer this worker's.

        Raises:
            LookupError, KafkaError, ClusterUnreachable: Something that the pump needs is not known yet.
            ValueError: The workload's schema cannot be used here, or it may not reach its receiver.
        """
        workload, cluster = await self.check(job)
        carried = await self._remote_progress_import.imported_progress(job, workload, answer, reset)
        beginning = await find_start_position(
            job,
            workload,
            cluster,
            answer,
            recorded=self._ports.control.view.start_of(job.name),
            reset=reset,
            report_incident=self._ports.report_incident,
            carried=carried,
        )
        counts = await self._consumers.counts_from(job, workload, cluster, answer, beginning)
        chain = await self._prepare(workload)
        if not is_mine():
            return None
        runtime = self.runtimes.get(job.name)
        if runtime is not None and runtime.workload.metadata.cluster != workload.metadata.cluster:
            raise LookupError(f"this worker still ends jobs of {job.name} on its former cluster")
        made = runtime or WorkloadRuntime(
            workload,
            TargetClients(self._ports.worker, self._ports.zone, self._ports.credentials),
            cluster.producer,
            self._ports.lease,
            partial(create_delayed, cluster.client, workload),
            chain,
        )
        made.announce_role(self._catalog.sender_role(workload))
        try:
            pump = DispatchPump(
                job,
                epoch,
                made,
                beginning,
                tier=tier_of(workload, job.topic),
                merged=job.topic in (workload.merge_topic(), workload.delayed_topic()),
            )
            if answer.lineage == beginning.lineage:
                pump.inherit_risks(answer.note)
            self._remote_progress_import.attach(pump, workload, answer, beginning, reset, carried)
            self._consumers.attach(pump, beginning, counts)
            self.add(pump)
        except BaseException:
            if runtime is None:
                await made.close()
            raise
        if runtime is None:
            self.runtimes[job.name] = made
        return StartedJob(pump, beginning, cluster, next_offset=counts and counts.next_offset)

    def add(self, pump: DispatchPump) -> None:
        """Takes a pump that was not fed yet."""
        job = str(pump.job)
        self.pause_controller.attach(pump)
        for at, why in self._ports.failures.given_up(job, pump.epoch).items():
            pump.give_up(at, why)
        self.pumps[job] = pump

    def drop(self, job: str) -> None:
        pump = self.pumps.pop(job, None)
        if pump is None:
            return
        for cluster in self._ports.clusters.started():
            cluster.fetch.remove(FetchKey(job, pump.epoch, is_backlog=True))
        if not any(other.job.name == pump.job.name for other in self.pumps.values()):
            runtime = self.runtimes.pop(pump.job.name, None)
            if runtime is not None:
                asyncio.get_running_loop().create_task(runtime.close())

    def status(self, job: str) -> JobStatus:
        pump = self.pumps[job]
        cluster = pump.runtime.settings.workload.metadata.cluster
        status = job_status(pump)
        if throttles := self._ports.clusters.throttles((cluster, FETCH)):
            status = msgspec.structs.replace(status, throttles=throttles)
        return status

    def position_of(self, job: JobId) -> tuple[str, str]:
        workload = self._catalog.workload(job.name)
        if workload is None:
            raise LookupError(f"there is no workload {job.name}")
        return workload.metadata.cluster, workload.metadata.group

    # -- all jobs ----------------------------------------------------------------------------------

    def reconcile(self) -> None:
        for job, pump in list(self.pumps.items()):
            if (fault := pump.fault) is not None:
                self._jobs.restart_after_failure(job, pump, fault.at, fault.error)
        self.pause_controller.reconcile()
        self._definition_rollout.reconcile()

    def _on_definition(self, runtime: WorkloadRuntime, reordered: bool) -> None:
        for pump in self.pumps.values():
            if pump.runtime is runtime:
                pump.apply_settings()
        if reordered:
            self._restart_all(runtime)
        runtime.send()

    def _restart_all(self, runtime: WorkloadRuntime) -> None:
        for job, pump in list(self.pumps.items()):
            if pump.runtime is runtime:
                self._jobs.restart_soon(job, pump)

    def share(self, shares: Mapping[str, WorkerShare]) -> None:
        for key, runtime in self.runtimes.items():
            try:
                runtime.apply_share(shares.get(key, NOTHING))
            except ValueError:  # a wrong definition must not stop the other workloads
                log.exception("the worker cannot set a workload's limits", workload=key)

    def needs(self, now_s: float) -> list[LimitNeed]:
        found = [runtime.need(now_s) for runtime in self.runtimes.values()]
        return [need for need in found if need is not None]

    def workload_statuses(self, cpu_throttled: float) -> list[WorkloadStatus]:
        """The workloads and receivers as this worker sees them. `cpu_throttled`: as in `WorkloadStatus`."""
        budget = self._ports.clusters.budget
        return workload_statuses(self.runtimes, self.pumps.values(), budget, cpu_throttled)
