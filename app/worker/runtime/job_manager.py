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
"""

from __future__ import annotations

import asyncio
import time
from collections import ChainMap
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from mode import Service

from app.controllog.codec import JobStatus
from app.controllog.events import Assignment, Released
from app.kafka.fetch.deliveries import FetchItem, FetchKey
from app.kernel.clock import now_ms
from app.kernel.limit_shares import LimitNeed, WorkerShare
from app.kernel.load import Load
from app.kernel.rates import JobRates
from app.placement.limit_divider import shares_of
from app.worker.jobs.deliveries import apply_fetch_state, discard
from app.worker.jobs.failures import MOST_FAILURES, NOWHERE
from app.worker.jobs.kind import JobPorts, JobRestarts
from app.worker.jobs.operator_acts import NotHere
from app.worker.jobs.pump import Pump
from app.worker.jobs.standing_positions import StandingPositions
from app.worker.jobs.start_position import LineageReset
from app.worker.runtime.heartbeat_status import UNMEASURED, job_statuses
from app.worker.runtime.job_kinds import JobKinds
from app.worker.runtime.job_starter import START_RETRY_S, JobStarter
from app.worker.runtime.progress_saver import ProgressSaver
from app.worker.tracker.client import TrackerClient

log = structlog.get_logger(__name__)

STOPPED = "its worker stopped"
RESET_DRAIN_TIMEOUT_S = 3.0  # for messages in flight; later ones may be delivered again


class JobManager(Service):
    """Reconciles this worker's pumps with the control log."""

    def __init__(
        self,
        ports: JobPorts,
        trackers: TrackerClient,
        make_kinds: Callable[[JobRestarts], JobKinds],
        *,
        grace_s: float,
    ) -> None:
        super().__init__()
        self.worker = ports.worker
        self.kinds = kinds = make_kinds(self)
        pumps: list[Any] = [kind.pumps for kind in kinds]
        self.flowing: Mapping[str, Pump] = ChainMap(*pumps)
        self.draining = False
        self.progress_saver = ProgressSaver(
            self.flowing, ports.clusters, trackers, ports.lease, ports.report_incident, ports.worker
        )
        self._control = ports.control
        self._clusters = ports.clusters
        self.lease = ports.lease
        self._report_incident = ports.report_incident
        self._failures = ports.failures
        self._grace_s = grace_s
        self._changed = asyncio.Event()
        self._shares: tuple[int, dict[str, WorkerShare]] = -1, {}  # as of this offset of the control log
        self._standing = StandingPositions()
        self._work: dict[str, asyncio.Task[None]] = {}
        self._starting: set[str] = set()  # the jobs of `_work` that start
        self._leaving: set[str] = set()  # their releases are being written to the log
        self._starter = JobStarter(ports.worker, ports.control, trackers, ports.report_incident, kinds)

    async def on_start(self) -> None:
        self._control.on_change(self._on_log)
        for part in (self.progress_saver, *self.kinds):
            await self.add_runtime_dependency(part)
        self._changed.set()

    # -- for the kinds of jobs (`JobRestarts`) -----------------------------------------------------

    @contextmanager
    def contain_errors(self, item: FetchItem) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # A programming error stops this job loudly, and only this job.
            job, epoch = item.key.job, item.key.epoch
            log.exception("a pump failed; its job stops and starts again", job=job)
            self._note_failure(job, epoch, NOWHERE, error)
            self._close(job)
            discard(item)
            self._changed.set()

    def restart_after_failure(self, job: str, pump: Pump, at: int, error: Exception) -> None:
        if job not in self._work:
            log.error("a job fails at a batch; it starts again", job=job, exc_info=error)
            self._note_failure(job, pump.epoch, at, error)
            self.restart_soon(job, pump)

    def restart_soon(self, job: str, pump: Pump) -> None:
        if job not in self._work:
            self._spawn(job, self._restart(pump))

    def restart_in_new_lineage(self, pump: Pump, reset: LineageReset) -> None:
        self._failures.forget(str(pump.job))
        self._starter.resets[str(pump.job)] = reset
        self._close(str(pump.job))
        self._changed.set()

    async def reset_to(self, pump: Pump, lineage: int, offset: int) -> None:
        """Starts the job again at an offset, in a new lineage. Raises NotHere: it cannot be stopped now."""
        job = str(pump.job)
        if job in self._work:
            raise NotHere(f"{job} is being started or released; ask again in a moment")

        is_saved = False

        async def restart() -> None:
            nonlocal is_saved
            await pump.drain(RESET_DRAIN_TIMEOUT_S)
            # The worker may end before the table knows the new lineage.
            is_saved = await self.progress_saver.try_save(pump)
            if self.flowing.get(job) is not pump or pump.closed:
                return
            if is_saved:
                self.restart_in_new_lineage(pump, LineageReset(pump.epoch, lineage, offset))
            else:
                self._close(job)  # a drained pump cannot continue: the job starts from its saved position

        self._spawn(job, restart())
        await asyncio.wait([self._work[job]])
        if not is_saved or self.flowing.get(job) is pump:
            raise NotHere(f"{job} could not be stopped, and continues; the worker's log says why")

    def reconcile_soon(self) -> None:
        self._changed.set()

    def _note_failure(self, job: str, epoch: int, at: int, error: Exception) -> None:
        failure = self._failures.failed(job, epoch, at, repr(error), time.monotonic())
        self._starter.troubles[job] = failure.words
        if failure.count == MOST_FAILURES:
            self._report_incident(
                "job-fails", job, failure.words,
                "report it as an error of Switchyard; the worker's log has the traceback. "
                + ("The worker tries again, less and less often" if at == NOWHERE else
                   "The batch goes to the dead letter queue as it is"),
                None if at != NOWHERE else
                lambda: self._failures.has_ended(job, failure, time.monotonic()),
            )  # fmt: skip

    # -- reconciling -----------------------------------------------------------------------------

    def _on_log(self) -> None:
        try:
            self._close_moved()
            self.share_limits()
        except Exception:
            log.exception("the worker could not stop jobs that moved; it tries again")
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
        for kind in self.kinds:
            kind.reconcile()
        self.share_limits()

    def _spawn(self, job: str, work: Coroutine[None, None, None]) -> None:
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
        """Forgets a closed or released pump."""
        pump = self.flowing.get(job)
        self.progress_saver.forget(job)
        if pump is not None:
            for cluster in self._clusters.started():
                cluster.fetch.remove(FetchKey(job, pump.epoch))
            self.kinds.of(job).drop(job)

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
        for kind in self.kinds:
            kind.share(self._shares[1])

    # -- one job ---------------------------------------------------------------------------------

    async def _start_job(self, job: str, held: Assignment) -> None:
        if (started := await self._starter.start(job, held)) is None:
            return
        pump, beginning = started.pump, started.start
        self.progress_saver.track(pump, beginning.log, known=beginning.known)
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

    def running_statuses(self) -> dict[str, JobStatus]:
        """The statuses of the jobs that run here."""
        apply_fetch_state(self.flowing.values(), [cluster.fetch for cluster in self._clusters.started()])
        statuses = (self.kinds.of(job).status(job) for job in self.flowing)
        return {status.job: status for status in self._standing.with_ages(statuses, now_ms())}

    def statuses(
        self,
        running: Mapping[str, JobStatus] | None = None,
        loads: Mapping[str, Load] = UNMEASURED,
        rates: Mapping[str, JobRates] = UNMEASURED,
    ) -> list[JobStatus]:
        """The jobs' statuses for the heartbeat, with measured loads and rates. `running`: those of the jobs
        that run here, if they are known already."""
        known = self.running_statuses() if running is None else running
        mine = self._control.view.owned_by(self.worker)
        return job_statuses(known.values(), mine, self._starter.troubles, loads, rates)

    def needs(self, now_s: float) -> list[LimitNeed]:
        return [need for kind in self.kinds for need in kind.needs(now_s)]
