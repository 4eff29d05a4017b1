"""This worker's jobs: it starts them when assigned, fences them when they move, drains them when released.

    assigned -> takeover -> join(table's snapshot, Kafka's commit) -> fetch from there -> flow
    released by the leader -> drain -> last snapshot -> commit -> `Released`
    assigned to another worker -> closed at once: nothing of it counts any more

Rules
1. A pump exists only under the epoch that the control log names for this worker.
2. `app.worker.jobs.start_position` says where a job starts, `app.worker.runtime.progress_saver` how its
   progress is saved.
3. `app.worker.runtime.job_starter` says how a job starts. A job that cannot start is released when the
   leader asks for it.
4. A job's failure stops only this job.
5. A job that moved is closed when this worker reads the new assignment, before it can renew its lease.
6. A stopping worker gives back the jobs that it is still assigned.
7. A paused workload (`app.dispatch.jobs.pause_controller`) stops when this worker reads the pause. A
   suspended worker reads it before it can renew its lease.
"""

from __future__ import annotations

import asyncio
import time
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog
from mode import Service

from app.audit.jobs.controller import AuditController
from app.audit.pump.partition import AuditPump
from app.controllog.codec import JobStatus, WorkloadStatus
from app.controllog.events import Assignment, Released
from app.controllog.log import ControlLog
from app.dispatch.jobs.catch_up_controller import BACKLOG, CatchUpController
from app.dispatch.jobs.definition_rollout import DefinitionRollout
from app.dispatch.jobs.head_of_line_monitor import HeadOfLineMonitor
from app.dispatch.jobs.pause_controller import PauseController
from app.dispatch.jobs.remote_progress_import import RemoteProgressImport
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import FetchedBatches, FetchIncident, LogGap
from app.kernel.clock import now_ms
from app.kernel.lease import Lease
from app.kernel.limit_shares import NOTHING, LimitNeed, WorkerShare
from app.kernel.load import Load
from app.kernel.rates import JobRates
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.payload.interceptors import Interceptor
from app.payload.schema_loader import SchemaLoader
from app.placement.limit_divider import shares_of
from app.replicate.jobs.controller import ReplicaController
from app.replicate.pump.partition import ReplicaPump
from app.worker.catalog import Catalog
from app.worker.jobs.failures import MOST_FAILURES, NOWHERE, JobFailures
from app.worker.jobs.pump import Pump
from app.worker.jobs.start_position import LineageReset, ReportIncident
from app.worker.runtime.heartbeat_status import UNMEASURED, apply_fetch_state, job_statuses, workload_statuses
from app.worker.runtime.job_starter import START_RETRY_S, JobStarter
from app.worker.runtime.progress_saver import ProgressSaver
from app.worker.tracker.client import TrackerClient

log = structlog.get_logger(__name__)

STOPPED = "its worker stopped"


class JobManager(Service):
    """Reconciles this worker's pumps with the control log."""

    def __init__(
        self, worker: str, control: ControlLog, catalog: Catalog, clusters: DataClusters,
        trackers: TrackerClient, lease: Lease, report_incident: ReportIncident, *, grace_s: float,
        interceptors: Sequence[tuple[str, Interceptor]] = (), barriers: BarrierSender | None = None,
        schemas: SchemaLoader,
    ) -> None:  # fmt: skip
        super().__init__()
        self.worker = worker
        self.pumps: dict[str, DispatchPump] = {}
        self._failures = JobFailures()
        self.replicas = ReplicaController(
            control, catalog, clusters, lease, report_incident, barriers, self._failures
        )
        self.audits = AuditController(catalog.audits, clusters, report_incident, self.pumps, schemas)
        pumps: list[Any] = [self.pumps, self.replicas.pumps, self.audits.pumps]
        self.flowing: Mapping[str, Pump] = ChainMap(*pumps)
        self.runtimes: dict[str, WorkloadRuntime] = {}
        self.draining = False
        self.pause_controller = PauseController(control, catalog, self.pumps)
        self.progress_saver = ProgressSaver(self.flowing, clusters, trackers, lease, report_incident, worker)
        self._control = control
        self._catalog = catalog
        self._clusters = clusters
        self._lease = lease
        self._report_incident = report_incident
        self._grace_s = grace_s
        self._changed = asyncio.Event()
        self._shares: tuple[int, dict[str, WorkerShare]] = -1, {}  # as of this offset of the control log
        self._work: dict[str, asyncio.Task[None]] = {}
        self._starting: set[str] = set()  # the jobs of `_work` that start
        self._leaving: set[str] = set()  # their releases are being written to the log
        self.remote_progress_import = RemoteProgressImport(
            control, catalog, self.pumps, self.replicas.pumps, report_incident
        )
        self._starter = JobStarter(
            worker, control, catalog, clusters, trackers, lease, self.runtimes, report_incident, interceptors,
            self.replicas, self.audits, self.remote_progress_import, schemas,
        )  # fmt: skip
        self._definition_rollout = DefinitionRollout(
            catalog, self.runtimes, interceptors, schemas, report_incident,
            changed=self._on_definition, moved=self._restart_all, ended=self._changed.set,
        )  # fmt: skip

    async def on_start(self) -> None:
        self._control.on_change(self._on_log)
        others = (
            HeadOfLineMonitor(self.pumps, self._report_incident),
            CatchUpController(self.pumps, self._clusters, self._report_incident),
        )
        for part in (self.progress_saver, self.replicas, self.audits, self.remote_progress_import, *others):
            await self.add_runtime_dependency(part)
        self._changed.set()

    # -- batches of the fetch services, through the agents -----------------------------------------

    def hand_to_pump(self, item: FetchedBatches | LogGap | FetchIncident) -> None:
        """Hands a fetched batch, a gap or a fetch incident to its pump. Never raises."""
        job, epoch, *part = item.key
        pump: Pump | None = self.flowing.get(job)
        if part:
            main = self.pumps.get(job)
            pump = None if main is None or main.backlog is None else main.backlog.pump
        if pump is None or pump.epoch != epoch or (isinstance(item, FetchedBatches) and item.is_stale):
            if isinstance(item, FetchedBatches):
                item.release()
            return
        try:
            match item:
                case FetchedBatches():
                    pump.accept(item)
                    if not pump.closed and pump.trouble.startswith("fetch: "):
                        pump.trouble = ""
                case LogGap() if isinstance(pump, ReplicaPump):
                    self.replicas.skip(pump, item)
                case LogGap() if item.begun_anew:
                    # The offsets belong to another log now, so the job starts in a new lineage.
                    next_offset = item.resume_offset(pump.base)
                    self.restart_in_new_lineage(pump, pump.lineage + 1, next_offset, item.reason)
                case LogGap():
                    pump.skip(item)
                    self._report_incident(
                        "offsets-lost",
                        job,
                        f"offsets [{item.start}, {item.end}) of {item.topic}-{item.partition} "
                        f"were deleted before they were read: {item.reason}",
                        "lengthen the topic's retention, or find out why the consumer was that far behind",
                    )
                case FetchIncident():
                    pump.trouble = f"fetch: {item.message}"
                    self._report_incident("fetch-trouble", job, item.message, item.remedy)
        except Exception as error:
            # A programming error stops this job loudly, and only this job.
            log.exception("a pump failed; its job stops and starts again", job=job)
            self._note_failure(job, pump.epoch, NOWHERE, error)
            self._close(job)
            if isinstance(item, FetchedBatches):
                item.release()
            self._changed.set()

    def _begin_faulty_again(self) -> None:
        for job, pump in list(self.pumps.items()):
            if (fault := pump.fault) is not None and job not in self._work:
                log.error("a job fails at a batch; it starts again", job=job, exc_info=fault.error)
                self._note_failure(job, pump.epoch, fault.at, fault.error)
                self._restart_soon(job, pump)

    def _note_failure(self, job: str, epoch: int, at: int, error: Exception) -> None:
        failure = self._failures.failed(job, epoch, at, repr(error), time.monotonic())
        self._starter.troubles[job] = failure.words
        if failure.count == MOST_FAILURES:
            self._report_incident(
                "job-fails", job, failure.words,
                "report it as an error of Switchyard; the worker's log has the traceback. "
                + ("The worker tries again, less and less often" if at == NOWHERE else
                   "The batch goes to the dead letter queue as it is"),
            )  # fmt: skip

    def restart_in_new_lineage(
        self, pump: Pump, lineage: int, next_offset: int, reason: str = "", source_epoch: int | None = None
    ) -> None:
        """Ends this pump; the job starts again in another lineage (`app.worker.jobs.start_position`)."""
        self._failures.forget(str(pump.job))
        reset = LineageReset(pump.epoch, lineage, next_offset, reason, source_epoch)
        self._starter.resets[str(pump.job)] = reset
        self._close(str(pump.job))
        self._changed.set()

    # -- reconciling -----------------------------------------------------------------------------

    def _on_log(self) -> None:
        try:
            self._close_moved()
            self.pause_controller.reconcile()
            self.share_limits()
        except Exception:
            log.exception("the worker could not stop jobs that moved or paused; it tries again")
        self._changed.set()

    def _close_moved(self) -> None:
        for job, pump in list(self.flowing.items()):
            held = self._control.view.assignments.get(job)
            if held is None or held.worker != self.worker or held.epoch != pump.epoch:
                log.warning("this worker no longer owns a job; it is closed here", job=job, epoch=pump.epoch)
                self._end_task(job)
                self._close(job)

    @Service.task
    async def _reconcile_for_ever(self) -> None:
        while not self.should_stop:
            try:
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                self._reconcile()
            except Exception:
                log.exception("the worker could not reconcile its jobs; it tries again")
                await self.sleep(START_RETRY_S)

    def _reconcile(self) -> None:
        self._close_moved()
        self._begin_faulty_again()
        mine = self._control.view.owned_by(self.worker)
        for job in [job for job in self._work if job not in mine]:
            self._end_task(job)
        self._starter.keep(mine)
        self._failures.keep(mine)
        if self.draining:
            self._give_back()
            return
        for job, held in mine.items():
            if held.release and job in self._starting:
                self._end_task(job)  # it may never start, and the leader must not wait for that
            if job in self._work:
                continue
            if held.release:
                self._spawn(job, self._release(job, held, held.reason))
            elif job not in self.flowing and self._failures.may_begin(job, held.epoch, time.monotonic()):
                self._spawn(job, self._start_job(job, held))
                self._starting.add(job)
        self.pause_controller.reconcile()
        self._definition_rollout.reconcile()
        self.replicas.reconcile(self._restart_soon, self.restart_in_new_lineage)
        self.audits.reconcile(self._restart_soon)
        self.share_limits()

    def _spawn(self, job: str, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work[job] = task

        def done(ended: asyncio.Task[None]) -> None:
            if self._work.get(job) is ended:
                del self._work[job]
                self._starting.discard(job)
            if not ended.cancelled() and (error := ended.exception()) is not None:
                log.error("work on a job failed", job=job, error=repr(error))
            self._changed.set()

        task.add_done_callback(done)

    def _end_task(self, job: str) -> None:
        task = self._work.pop(job, None)
        self._starting.discard(job)
        if task is not None:
            task.cancel()

    def _close(self, job: str) -> None:
        self.flowing[job].close()
        self._drop(job)

    def _drop(self, job: str) -> None:
        """Forgets a closed or released pump; its runtime ends with the last one."""
        pump = self.flowing.get(job)
        self.pumps.pop(job, None)
        self.progress_saver.forget(job)
        if pump is None:
            return
        for cluster in self._clusters.started():
            cluster.fetch.remove((job, pump.epoch))
            cluster.fetch.remove((job, pump.epoch, BACKLOG))
        key = pump.job.name
        self.audits.pumps.pop(job, None)
        if self.replicas.pumps.pop(job, None) is not None:
            self.replicas.drop(key)
        elif not any(other.job.name == key for other in self.pumps.values()):
            runtime = self.runtimes.pop(key, None)
            if runtime is not None:
                asyncio.get_running_loop().create_task(runtime.close())

    def _on_definition(self, runtime: WorkloadRuntime, reordered: bool) -> None:
        for pump in self.pumps.values():
            if pump.runtime is runtime:
                pump.tracker.capacity = runtime.workload.spec.tracker.capacity
                pump.refill()  # a delay may be shorter now, or gone
        if reordered:
            self._restart_all(runtime)
        runtime.send()

    def _restart_all(self, runtime: WorkloadRuntime) -> None:
        """Messages in flight must not follow another order or cluster."""
        for job, pump in list(self.pumps.items()):
            if pump.runtime is runtime:
                self._restart_soon(job, pump)

    def _restart_soon(self, job: str, pump: Pump) -> None:
        if job not in self._work:
            self._spawn(job, self._restart(pump))

    async def _restart(self, pump: Pump) -> None:
        """Starts the job again from its finished offsets."""
        await pump.drain(self._grace_s)
        await self.progress_saver.try_save(pump)  # in either case: a drained pump cannot continue
        if self.flowing.get(str(pump.job)) is pump:
            self._close(str(pump.job))

    def share_limits(self) -> None:
        """Applies the shares of limits that the control log names, as far as it was read."""
        view = self._control.view
        if self._shares[0] != view.next_offset:
            self._shares = view.next_offset, shares_of(view, self.worker)
        self.replicas.share(self._shares[1])
        for key, runtime in self.runtimes.items():
            try:
                runtime.shared(self._shares[1].get(key, NOTHING))
            except ValueError:  # a wrong definition must not stop the other workloads
                log.exception("the worker cannot set a workload's limits", workload=key)

    # -- one job ---------------------------------------------------------------------------------

    async def _start_job(self, job: str, held: Assignment) -> None:
        if (started := await self._starter.start(job, held)) is None:
            return
        pump, beginning = started.pump, started.start
        self.progress_saver.track(pump, beginning.log, known=beginning.known)
        match pump:
            case ReplicaPump():
                self.replicas.add(job, pump)
            case AuditPump():
                self.audits.pumps[job] = pump
            case DispatchPump():
                self.pumps[job] = pump
                self.pause_controller.attach(pump)
                for at, why in self._failures.given_up(job, pump.epoch).items():
                    pump.give_up(at, why)
        self.share_limits()
        above = sum(end - start for start, end in beginning.snapshot.finished)
        log.info("job flows", job=job, epoch=held.epoch, next_offset=beginning.snapshot.base,
                 already_finished_above=above)  # fmt: skip
        if beginning.gap is None:
            started.fetch()

    async def _release(self, job: str, held: Assignment, reason: str) -> None:
        pump = self.flowing.get(job)
        if pump is not None:
            ended = await pump.drain(self._grace_s)
            await self.progress_saver.save([pump])
            if not ended:
                log.warning("messages in flight at the end of the grace time were abandoned", job=job)
            pump.close()
            self._drop(job)
        release = Released(at_ms=now_ms(), job=job, worker=self.worker, epoch=held.epoch, reason=reason)
        await self._control.append(release)
        log.info("job released", job=job, epoch=held.epoch)

    async def drain_all(self) -> None:
        """SIGTERM: each job finishes what is in flight within the grace time, saves, and is released."""
        self.draining = True
        for job in list(self._work):
            if job not in self.flowing:
                self._end_task(job)
        pumps = [pump for job, pump in self.flowing.items() if job not in self._work]
        self._give_back()
        releases = [*self._work.values()]
        for pump in pumps:
            pump.stop_intake()
        # Idle jobs first, and each busy one by itself: a job that hangs delays no other.
        await self._let_go([str(pump.job) for pump in pumps if not pump.is_busy])

        async def finish(pump: Pump) -> None:
            await pump.drain(self._grace_s)
            await self._let_go([str(pump.job)])

        await asyncio.gather(*(finish(pump) for pump in pumps if str(pump.job) in self.flowing))
        if releases:
            await asyncio.wait(releases, timeout=self._grace_s)

    def _give_back(self) -> None:
        """Releases the jobs assigned to this worker that will not start here."""
        mine = self._control.view.owned_by(self.worker)
        for job in mine.keys() - self.flowing.keys() - self._work.keys() - self._leaving:
            self._spawn(job, self._release(job, mine[job], STOPPED))

    async def _let_go(self, jobs: Iterable[str]) -> None:
        """Saves the progress of these jobs and releases them."""
        pumps = [self.flowing[job] for job in jobs if job in self.flowing]
        await self.progress_saver.save(pumps)
        mine = self._control.view.owned_by(self.worker)
        for pump in pumps:
            self._close(str(pump.job))
        events = [
            Released(at_ms=now_ms(), job=job, worker=self.worker, epoch=mine[job].epoch, reason=STOPPED)
            for job in jobs
            if job in mine
        ]
        leaving = {event.job for event in events}
        self._leaving |= leaving
        try:
            if events:
                await self._control.append(*events)
        finally:
            self._leaving -= leaving

    # -- state -----------------------------------------------------------------------------------

    def statuses(
        self, loads: Mapping[str, Load] = UNMEASURED, rates: Mapping[str, JobRates] = UNMEASURED
    ) -> list[JobStatus]:
        """The jobs' statuses for the heartbeat, with measured loads and rates."""
        apply_fetch_state(self.flowing.values(), [cluster.fetch for cluster in self._clusters.started()])
        mine = self._control.view.owned_by(self.worker)
        return job_statuses(self.flowing.values(), mine, self._starter.troubles, loads, rates)

    def needs(self, now_s: float) -> list[LimitNeed]:
        found = [runtime.need(now_s) for runtime in self.runtimes.values()]
        found += [route.need(now_s) for route in self.replicas.routes.values()]
        return [need for need in found if need is not None]

    def workload_statuses(self) -> list[WorkloadStatus]:
        return workload_statuses(self.runtimes, self.pumps.values(), self._clusters.budget)
