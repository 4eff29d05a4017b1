"""Gives jobs of active-passive workloads that begin here the progress of readers in other regions
(`app.offsets.sync.remote_progress`), and makes them record their own progress for those.

Rules (tests/dispatch/jobs/test_remote_progress_import.py)
1. A job imports progress once under each role of the region: by then the progress under former roles is
   known, or never will be. The job's note records it (`FinishedOffsets.carried`), so its next owners begin at
   once. A job that an operator reset imports nothing, and delivers from the reset on.
2. While the copy here lags behind another region's progress, the replicas into the topic emit offset syncs at
   once. Undecided batches are held (`app.dispatch.pump.remote_progress_filter`), and new progress goes to the
   pump, for at most `BARRIER_LAG_S`. After an orderly handover everything finished will arrive here, so the
   time begins again with each advance. Then the messages are delivered, perhaps for the second time; after an
   orderly handover an incident says so.
3. Missing knowledge is reported, and delays a job by at most `MAP_READ_TIMEOUT_S`. If the role came from
   another region, it is all that was finished there, so the job waits for `FAILOVER_READ_TIMEOUT_S`. Then
   `latest` does not apply: records that came after the deployment here may be unread there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

import structlog
from mode import Service

from app.controllog.events import RolePut
from app.controllog.log import ControlLog
from app.dispatch.definition import Workload
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.topics.catalog import WorkloadsCatalog
from app.kernel.fencing import TakeoverAnswer
from app.kernel.incidents import IsOver, ReportIncident
from app.kernel.job import JobId
from app.offsets.model.producer_progress import CorruptProgress, FinishedOffsets
from app.offsets.sync.remote_progress import MAP_READ_TIMEOUT_S, ImportedProgress, RemoteProgress
from app.replicate.pump.partition import ReplicaPump
from app.worker.jobs.start_position import LineageReset, StartPosition

log = structlog.get_logger(__name__)

REMOTE_PROGRESS_POLL_INTERVAL_S = 0.25
IDLE_RETRY_INTERVAL_S = 2.0  # while no batch is held
FAILOVER_READ_TIMEOUT_S = 30.0
BARRIER_LAG_S = 15.0
# after a role came here; then until the topic's replicas reach the ends that their sources had
FAILOVER_POLL_WINDOW_S = 15.0
BARRIER_INTERVAL_S = 1.0


class _LaggingPump(NamedTuple):
    """A pump for which more progress of other regions may arrive until `until_s` (monotonic).

    `handed_over`: the region that handed the role over in order; "": none did. `reached`: see `PassOver`.
    """

    epoch: int
    workload: Workload
    until_s: float
    handed_over: str = ""
    reached: int = -1


class RemoteProgressImport(Service):
    """Imports progress by the module's rules. `pumps` and `replicas`: this worker's, by job.

    Attributes:
        remote_progress: None: no regions are known, and nothing is imported.
    """

    def __init__(
        self,
        control: ControlLog,
        catalog: WorkloadsCatalog,
        pumps: Mapping[str, DispatchPump],
        replicas: Mapping[str, ReplicaPump],
        report_incident: ReportIncident,
        remote_progress: RemoteProgress | None,
    ) -> None:
        super().__init__()
        self.remote_progress = remote_progress
        self._control = control
        self._catalog = catalog
        self._pumps = pumps
        self._replicas = replicas
        self._report_incident = report_incident
        self._reported: set[tuple[str, str]] = set()
        self._lagging: dict[str, _LaggingPump] = {}
        self._refreshed_s = self._refresh_took_s = 0.0
        self._seen_offset = -1  # of the control log
        self._roles: dict[str, tuple[int, str]] = {}  # epoch and state
        self._taken_s: dict[str, float] = {}  # when the role came here
        self._behind: dict[str, int] = {}  # replica job -> its source's end at that time
        self._barriers_s = 0.0

    # -- beginning -------------------------------------------------------------------------------

    def _role(self, job: JobId, workload: Workload) -> RolePut | None:
        """The role under which the job begins here; None: it imports nothing."""
        if (
            self.remote_progress is None
            or job.topic != workload.metadata.topic
            or not self.remote_progress.others(workload)
        ):
            return None
        return self._control.view.roles.of(workload.key)

    def _role_epoch(self, job: JobId, workload: Workload) -> int:
        """The epoch of `_role`; -1: there is no role."""
        role = self._role(job, workload)
        return -1 if role is None else role.epoch

    async def imported_progress(
        self, job: JobId, workload: Workload, answer: TakeoverAnswer, reset: LineageReset | None
    ) -> ImportedProgress | None:
        """The progress of other regions for a job that begins here; None: it imports nothing (rule 1)."""
        role = self._role(job, workload)
        is_reset = reset is not None and not reset.reason
        if role is None or is_reset or (reset is None and _carried(answer) == role.epoch):
            return None
        try:
            found = await self._find_progress(job, workload, role)
        except Exception as error:  # delivery here must not depend on other regions
            log.exception("the progress of other regions could not be imported", job=str(job))
            found = ImportedProgress(why=f"{error!r}; expect duplicates of finished messages")
        if found.why and self._has_moved(role):
            found = found._replace(was_read=True)  # the other region has read it, up to an unknown offset
        if found.why and (workload.key, found.why) not in self._reported:
            self._reported.add((workload.key, found.why))
            message, _, remedy = found.why.rpartition("; ")
            self._report_incident(
                "carried-in-part", str(job), f"the progress of other regions is known in part: "
                f"{message or found.why}", remedy if message else "expect duplicates of finished messages",
            )  # fmt: skip
        return found

    def _has_moved(self, role: RolePut) -> bool:
        """Whether the role came here from another region."""
        assert self.remote_progress is not None, "there are other regions"
        return role.previous not in {"", self.remote_progress.region}

    async def _find_progress(self, job: JobId, workload: Workload, role: RolePut) -> ImportedProgress:
        assert self.remote_progress is not None, "there are other regions"
        if not self._has_moved(role):
            return await self.remote_progress.imported_progress(job, workload)
        looking = asyncio.ensure_future(
            self.remote_progress.imported_progress(job, workload, FAILOVER_READ_TIMEOUT_S)
        )
        try:
            if not (await asyncio.wait([looking], timeout=MAP_READ_TIMEOUT_S))[0]:
                self._report_late(job, workload, role, looking.done)
            return await looking
        finally:
            looking.cancel()

    def _report_late(self, job: JobId, workload: Workload, role: RolePut, is_over: IsOver) -> None:
        late = f"the positions of region {role.previous} cannot be read yet under epoch {role.epoch}"
        if (workload.key, late) not in self._reported:
            self._reported.add((workload.key, late))
            self._report_incident(
                "carried-late",
                str(job),
                f"{late}; jobs here begin once they can, or after {FAILOVER_READ_TIMEOUT_S:.0f} s",
                "check that the control cluster answers, and that this machine is not overloaded",
                is_over,
            )

    def attach(
        self, pump: DispatchPump, workload: Workload, answer: TakeoverAnswer, start: StartPosition,
        reset: LineageReset | None, carried: ImportedProgress | None,
    ) -> None:  # fmt: skip
        """Gives the imported progress to a pump that has fetched nothing yet."""
        epoch = self._role_epoch(pump.job, workload)
        if epoch < 0:
            return
        continues = reset is None and start.lineage == answer.lineage
        continues = continues and not answer.log.is_another(start.log)
        pump.remember(answer.note if continues else b"", epoch)
        if carried is None:
            return
        until_s = time.monotonic() + BARRIER_LAG_S
        over = carried.over
        if carried.log.is_another(start.log):
            over = None  # the topic was recreated since
        if over is not None and (over.lags or over.until > start.snapshot.base):
            pump.pass_over(over, until_s)
        if carried.why or (over is not None and over.lags):
            from_region = self._handed_over_by(workload)
            self._hold_longer(pump, until_s, from_region)
            self._lagging[str(pump.job)] = _LaggingPump(
                pump.epoch, workload, until_s, from_region, -1 if over is None else over.reached
            )

    def _handed_over_by(self, workload: Workload) -> str:
        """The region that released the role in order before it came here; "": none did."""
        role = self._control.view.roles.of(workload.key)
        run = None if role is None or not role.plan else self._control.view.runs.get(role.plan)
        in_order = role is not None and run is not None and not run.forced and self._has_moved(role)
        return role.previous if role is not None and in_order else ""

    @staticmethod
    def _hold_longer(pump: DispatchPump, until_s: float, from_region: str) -> None:
        for part in pump.remote_progress_filters if from_region else ():
            part.hold_longer(until_s, BARRIER_LAG_S)

    # -- while the copy lags ---------------------------------------------------------------------

    @Service.task
    async def _poll(self) -> None:
        while not self.should_stop:
            await self.sleep(REMOTE_PROGRESS_POLL_INTERVAL_S)
            try:
                self._emit_offset_syncs()
                await self._refresh()
            except Exception:
                log.exception("the progress of other regions could not be imported; retrying")

    async def _refresh(self) -> None:
        now_s, waits = time.monotonic(), False
        for job, lagging in list(self._lagging.items()):
            pump = self._pumps.get(job)
            if pump is None or pump.epoch != lagging.epoch or pump.closed:
                if now_s >= lagging.until_s:  # before that the pump may not be registered yet
                    del self._lagging[job]
                continue
            waits |= pump.resume_held()
            self._report_undecided(job, lagging, pump)
            if now_s >= lagging.until_s:
                del self._lagging[job]
        # an import that takes long takes half of the time
        pause_s = min(IDLE_RETRY_INTERVAL_S, self._refresh_took_s) if waits else IDLE_RETRY_INTERVAL_S
        if self._lagging and now_s - self._refreshed_s >= pause_s:
            await asyncio.gather(*(self._import_again(*at) for at in list(self._lagging.items())))
            self._refreshed_s = time.monotonic()
            self._refresh_took_s = self._refreshed_s - now_s

    def _report_undecided(self, job: str, lagging: _LaggingPump, pump: DispatchPump) -> None:
        count = sum(part.undecided for part in pump.remote_progress_filters) if lagging.handed_over else 0
        reported = job, f"undecided under {lagging.epoch}"
        if count and reported not in self._reported:
            self._reported.add(reported)
            self._report_incident(
                "read-again", job,
                f"up to {count} messages so far, and those that follow, may be delivered again: region "
                f"{lagging.handed_over} may have finished them, but its progress has not advanced here for "
                f"{BARRIER_LAG_S:.0f} s",
                "check that the routes into the topic copy (route list), and that this machine keeps up",
            )  # fmt: skip

    async def _import_again(self, job: str, lagging: _LaggingPump) -> None:
        assert self.remote_progress is not None, "only an import makes a pump lag"
        found = await self.remote_progress.imported_progress(JobId.parse(job), lagging.workload)
        pump = self._pumps.get(job)
        if pump is None or pump.epoch != lagging.epoch or found.over is None:
            return
        pump.pass_over(found.over)
        if not found.over.lags and not found.why:
            self._lagging.pop(job, None)
        elif lagging.handed_over and found.over.reached != lagging.reached and job in self._lagging:
            until_s = time.monotonic() + BARRIER_LAG_S
            self._hold_longer(pump, until_s, lagging.handed_over)
            self._lagging[job] = lagging._replace(until_s=until_s, reached=found.over.reached)

    def _emit_offset_syncs(self) -> None:
        """Rule 2. Also makes pumps record progress that began before a region shared their topic."""
        view, now_s, carrier = self._control.view, time.monotonic(), self.remote_progress
        if carrier is None:
            return
        if view.next_offset != self._seen_offset:
            self._seen_offset = view.next_offset
            for role in view.roles:
                if self._roles.get(role.key) != (role.epoch, role.state):
                    self._roles[role.key] = role.epoch, role.state
                    self._taken_s.pop(role.key, None)
                    if role.region == carrier.region:
                        self._taken_s[role.key], self._barriers_s = now_s, 0.0
        if now_s - self._barriers_s < BARRIER_INTERVAL_S:
            return
        self._barriers_s = now_s
        for pump in self._pumps.values():
            workload = self._catalog.workload(pump.job.name)
            if workload is not None and (epoch := self._role_epoch(pump.job, workload)) >= 0:
                pump.remember(None, epoch)
        topics = self._taken_over(carrier, now_s)
        self._behind = {job: end for job, end in self._behind.items() if job in self._replicas}
        for job, replica in list(self._replicas.items()):
            if (replica.runtime.definition.spec.target, replica.target[0]) in topics:
                self._behind[job] = max(replica.high_watermark, self._behind.get(job, -1))
            elif self._behind.get(job, -1) <= replica.base:
                self._behind.pop(job, None)
                continue
            replica.emit_offset_sync(now_s)

    def _taken_over(self, remote_progress: RemoteProgress, now_s: float) -> set[tuple[str, str]]:
        """(cluster, topic) of the workloads whose role came here in the last `FAILOVER_POLL_WINDOW_S`."""
        self._taken_s = {
            key: at_s for key, at_s in self._taken_s.items() if now_s - at_s < FAILOVER_POLL_WINDOW_S
        }
        workloads = [self._catalog.workload(key) for key in self._taken_s]
        return {
            (workload.metadata.cluster, workload.metadata.topic)
            for workload in workloads
            if workload is not None and remote_progress.others(workload)
        }


def _carried(answer: TakeoverAnswer) -> int:
    """The role's epoch under which a former owner here has imported progress; -1: none has."""
    try:
        return FinishedOffsets.from_bytes(answer.note).carried if answer.note else -1
    except CorruptProgress:
        return -1
