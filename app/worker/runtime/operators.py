"""Operators' acts on jobs of every kind: pause, resume, reset. The control log records each act.

`app.dispatch.jobs.operator_acts` and `app.replicate.jobs.operator_acts` have the acts of a single kind.

Rules
1. Only a job's owner acts on its offsets, under its epoch and while its lease holds.
2. A pause is an event of the control log. Each worker obeys it when it reads it, and any worker may write it.
3. A reset starts the job in a new lineage, which replaces the former one's progress. It counts as done
   when the tracker topic and the group's commit have followed; until then an operator may repeat it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog

from app.controllog.events import ALL, OperatorAct, Paused
from app.controllog.log import ControlLog
from app.kafka.client.cluster import EARLIEST, LATEST
from app.kafka.data_clusters import DataClusters
from app.kernel.clock import now_ms
from app.kernel.job import JobId
from app.worker.jobs.operator_acts import NotHere, OperationRefused, PositionMove
from app.worker.jobs.pump import Pump
from app.worker.runtime.job_manager import JobManager

log = structlog.get_logger(__name__)

RESET_FOLLOW_TIMEOUT_S = 6.0  # for table and commit to follow a reset; after this it counts as not done
FOLLOW_POLL_INTERVAL_S = 0.2


class OperatorActions:
    """The acts on the jobs of one worker, for every kind of job. It has no state of its own."""

    def __init__(self, jobs: JobManager, control: ControlLog, clusters: DataClusters) -> None:
        self._jobs = jobs
        self._control = control
        self._clusters = clusters

    # -- pause and resume ------------------------------------------------------------------------

    async def pause(self, key: str, partitions: Iterable[int], paused: bool, actor: str) -> bool:
        """Pauses or resumes partitions of the main topic; `ALL` includes the retry topics. Returns whether
        that changes anything.

        A resume of all is always written: a worker that read a compacted log may know of a pause that the
        others have forgotten. Raises OperationRefused: the whole workload is paused.
        """
        now = self._control.view.paused.get(key, set())
        wanted = set(partitions)
        if ALL in wanted:
            wanted = {ALL}
            moving = key in self._control.view.moves  # a move pauses, too; a pause or a resume ends it
            changing = wanted if moving or (ALL not in now if paused else now) else set()
        else:
            if not paused and ALL in now:
                raise OperationRefused("the whole workload is paused: resume it, then pause partitions")
            changing = wanted - now if paused else wanted & now
        events = [
            Paused(at_ms=now_ms(), key=key, partition=partition, paused=paused, actor=actor)
            for partition in sorted(changing or ({ALL} & wanted if not paused else ()))  # see above
        ]
        if events:
            await self._control.append(*events)
        return bool(changing)

    # -- reset -----------------------------------------------------------------------------------

    async def foresee_reset(self, job: JobId, wanted: int, *, at_ms: bool = False) -> PositionMove:
        """The move of a reset to an offset, EARLIEST, LATEST, or (`at_ms`) a time; any worker can answer.

        Raises:
            OperationRefused: There is no such workload or route, or the job is an audit.
            LookupError, ClusterUnreachable: The partition's leader, or the cluster, does not answer.
        """
        try:
            home, group = self._jobs.kinds.of(str(job)).position_of(job)
        except LookupError as error:
            raise OperationRefused(str(error)) from error
        cluster = await self._clusters.get(home)
        at = (job.topic, job.partition)
        first = await cluster.fetch.offsets_at(*at, EARLIEST)
        end = await cluster.fetch.offsets_at(*at, LATEST)
        to, note = wanted, ""
        if at_ms:
            to = await cluster.fetch.offsets_at(*at, wanted)
            if to < 0:
                to, note = end, "no message is that new: the log's end"
        elif wanted in {EARLIEST, LATEST}:
            to = first if wanted == EARLIEST else end
        if not first <= to <= end:
            note = f"the log has [{first}, {end}) only, not {to}"
            to = min(max(to, first), end)
        committed = (await cluster.committer.committed(group, [at])).get(at)
        return PositionMove(str(job), committed, to, note)

    async def reset(self, job: str, wanted: int, actor: str) -> PositionMove:
        """Starts the job again at an offset. Raises as `foresee_reset` does, and OperationRefused: it is
        not possible now, or the result may be lost; repeating it is harmless."""
        self.own_pump(job)
        if JobId.parse(job).name in self._control.view.moves:
            raise OperationRefused(
                "the workload is moving to another cluster; wait for the move, or resume the workload first"
            )
        move = await self.foresee_reset(JobId.parse(job), wanted)
        pump = self.own_pump(job)
        move = PositionMove(job, pump.base, move.to, move.note)
        lineage = pump.lineage + 1
        await self._jobs.reset_to(pump, lineage, move.to)
        await self.wait_until_lasting(job, "reset", lineage, move.to, move.describe(), actor)
        await self.record(job, "reset", move.describe(), actor)
        return move

    async def wait_until_lasting(
        self, job: str, action: str, lineage: int, to: int, detail: str, actor: str
    ) -> None:
        """Waits until the new lineage survives this worker's end. Raises NotHere: that is not certain."""
        held = self._control.view.owner(job)
        try:
            async with asyncio.timeout(RESET_FOLLOW_TIMEOUT_S):
                await self._follow(job, -1 if held is None else held.epoch, lineage, to)
        except TimeoutError:
            await self.record(job, action, f"{detail}; not certain: table or commit lag behind", actor)
            why = f"{job} starts again at {to} ({action}), but that is not safe yet; ask again"
            raise NotHere(why) from None

    async def _follow(self, job: str, epoch: int, lineage: int, to: int) -> None:
        while True:
            pump = self._jobs.flowing.get(job)
            held = self._control.view.owner(job)
            if held is None or held.epoch != epoch:
                raise NotHere(f"{job} moved to another worker while it was reset; ask again")
            if pump is not None and pump.lineage >= lineage and pump.snapshot_version >= 0:
                (home, group), at = pump.commits_to, (pump.job.topic, pump.job.partition)
                cluster = await self._clusters.get(home)
                committed = (await cluster.committer.committed(group, [at])).get(at)
                # A commit of the former lineage within this range is true of the new one, too.
                if committed is not None and to <= committed <= pump.base:
                    return
            await asyncio.sleep(FOLLOW_POLL_INTERVAL_S)

    # -- inside ----------------------------------------------------------------------------------

    def own_pump(self, job: str) -> Pump:
        """The job's pump (rule 1). Raises NotHere."""
        jobs, held = self._jobs, self._control.view.owner(job)
        pump = jobs.flowing.get(job)
        if held is None or held.worker != jobs.worker:
            raise NotHere(f"{job} belongs to {held.worker if held else 'no worker'} now; ask again")
        if pump is None or pump.epoch != held.epoch or pump.closed or pump.draining or jobs.draining:
            raise NotHere(f"{job} is starting or stopping; ask again in a moment")
        if not jobs.lease.holds(time.monotonic()):
            raise NotHere("this worker's lease does not hold; ask again in a moment")
        return pump

    async def record(self, subject: str, action: str, detail: str, actor: str) -> None:
        """If the control log fails, the worker's log has the act, because it is done already."""
        event = OperatorAct(at_ms=now_ms(), subject=subject, action=action, detail=detail, actor=actor)
        try:
            await self._control.append(event)
        except Exception as error:  # noqa: BLE001 - after any error the act must not look undone
            log.error("the control log has no record of an operator's act", act=str(event), error=repr(error))
