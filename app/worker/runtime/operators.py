"""What operators do by hand: pause and resume, skip, stash, reset. Each act stands in the control log.

Rules
1. Offsets are acted on by the job's owner only, under its epoch and while its lease holds.
2. A pause is an event of the control log: every worker heeds it from where it reads it, and any may write it.
3. A skipped message is finished as if it were acknowledged, a stashed one once its copy in the DLQ is safe.
   What waits, for its turn in an order or for its time, is ended at once, and those behind it go on in order.
   What cannot be ended now is told with the reason; nothing is kept for later.
   Of a route only what it cannot copy can be skipped: anything else it goes on to copy.
4. A reset starts the job over in a new lineage, which replaces what the former one saved. It is told as done
   only once the tracker table's log and the group's commit follow it; until then it may be asked for again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import cast

import structlog

from app.controllog.events import ALL, OperatorAct, Paused
from app.controllog.log import ControlLog
from app.dispatch.model.outcome import Action, DeliveryDecision
from app.dispatch.pump.partition import DispatchPump
from app.kafka.client.cluster import EARLIEST, LATEST
from app.kernel.clock import now_ms
from app.kernel.job import JobId, Kind
from app.kernel.ranges import Range, union
from app.replicate.pump.partition import ReplicaPump
from app.replicate.pump.route_runtime import group_of
from app.worker.jobs.operator_acts import EndedOffsets, PositionMove, count, offsets_of, runs, text
from app.worker.jobs.pump import Pump
from app.worker.runtime.job_manager import JobManager

log = structlog.get_logger(__name__)

OFFSETS_PER_TURN = 16  # looked for before the loop is given back: each may be looked for in a long queue
SETTLE_TIMEOUT_S = 3.0  # calls that were given up answer, copies are taken
RESET_DRAIN_TIMEOUT_S = 3.0  # what is in flight at a reset is waited for so long; it may be delivered again
RESET_FOLLOW_TIMEOUT_S = 6.0  # table and commit follow a reset within this, or it is told as not done
SETTLE_POLL_INTERVAL_S, FOLLOW_POLL_INTERVAL_S = 0.02, 0.2

FINISHED, NOT_READ, COPYING = "already finished", "not read yet", "its copy is on its way"
ENDING, MOVED = "is being ended already", "its job moved meanwhile"


class OperationRefused(Exception):
    """The act is not possible as things stand."""


class NotHere(OperationRefused):
    """Not by this worker, or not now: the job moves, or its worker may not act at the moment."""


class OperatorActions:
    """See the module. Holds nothing: made where it is needed."""

    def __init__(self, jobs: JobManager, control: ControlLog) -> None:
        self._jobs = jobs
        self._control = control

    # -- pause and resume ------------------------------------------------------------------------

    async def pause(self, key: str, partitions: Iterable[int], paused: bool, actor: str) -> bool:
        """Pauses or resumes partitions of a workload's main topic, `ALL` for all and its retry topics too.

        Returns whether that changes anything. That all go on is written in any case: a worker that read a
        compacted log may know of a pause that others have forgotten.

        Raises:
            OperationRefused: single partitions cannot be resumed while the whole workload is paused.
        """
        now = self._control.view.paused.get(key, set())
        wanted = set(partitions)
        if ALL in wanted:
            wanted = {ALL}
            moving = key in self._control.view.moves  # a move pauses too, and ends by either word
            changing = wanted if moving or (ALL not in now if paused else now) else set()
        else:
            if not paused and ALL in now:
                raise OperationRefused(
                    "the whole workload is paused; resume it, then pause single partitions"
                )
            changing = wanted - now if paused else wanted & now
        events = [
            Paused(at_ms=now_ms(), key=key, partition=partition, paused=paused, actor=actor)
            for partition in sorted(changing or ({ALL} & wanted if not paused else ()))  # see above
        ]
        if events:
            await self._control.append(*events)
        return bool(changing)

    # -- single offsets --------------------------------------------------------------------------

    def foresee(self, job: str, ranges: Sequence[Range]) -> EndedOffsets:
        """What `skip` and `stash` would end now. Raises Refused."""
        pump, _ = self._mine(job)
        can: list[int] = []
        refused: dict[str, list[int]] = {}
        for offset in offsets_of(ranges):
            if why := why_not(pump, offset):
                refused.setdefault(why, []).append(offset)
            else:
                can.append(offset)
        return EndedOffsets(runs(can), (), {reason: runs(found) for reason, found in refused.items()})

    async def skip(self, job: str, ranges: Sequence[Range], actor: str, why: str = "") -> EndedOffsets:
        """Finishes messages without delivering them. Raises Refused."""
        return await self._end(job, ranges, Action.ACK, "skip", actor, why)

    async def stash(self, job: str, ranges: Sequence[Range], actor: str, why: str = "") -> EndedOffsets:
        """Moves messages into the DLQ. Raises Refused."""
        pump, _ = self._mine(job)
        if not pump.runtime.policy.dlq_enabled:
            raise OperationRefused("the workload has no DLQ; enable dlq, or skip")
        return await self._end(job, ranges, Action.DLQ, "stash", actor, why)

    async def _end(
        self, job: str, ranges: Sequence[Range], action: Action, verb: str, actor: str, why: str
    ) -> EndedOffsets:
        pump, _ = self._mine(job)
        told = f"{'skipped' if action is Action.ACK else 'stashed'} by {actor}" + (f": {why}" if why else "")
        decision = DeliveryDecision(action, None, 0.0, told)
        done: list[int] = []
        refused: dict[str, list[int]] = {}
        here = True
        for at, offset in enumerate(offsets_of(ranges)):
            if at % OFFSETS_PER_TURN == 0:
                await asyncio.sleep(0)
                here = self._is_mine(job, pump)
            reason = why_not(pump, offset) if here else MOVED
            if not reason and pump.finish_by_operator(offset, decision):
                done.append(offset)
            else:
                refused.setdefault(reason or ENDING, []).append(offset)
        pending = await self._settle(pump, done)
        ended = EndedOffsets(
            runs(offset for offset in done if offset not in pending),
            runs(pending),
            {reason: runs(found) for reason, found in refused.items()},
        )
        detail = f"{text(ranges)}: {ended.describe()}" + (f" ({why})" if why else "")
        await self._record(job, verb, detail, actor)
        return ended

    @staticmethod
    async def _settle(pump: DispatchPump, offsets: Iterable[int]) -> set[int]:
        """Those of `offsets` that are not finished although there was time for it."""
        left, until_s = set(offsets), time.monotonic() + SETTLE_TIMEOUT_S
        while left and not pump.closed:
            left = {offset for offset in left if not _part(pump, offset).tracker.is_finished(offset)}
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(SETTLE_POLL_INTERVAL_S)
        return left

    # -- what a route cannot copy ------------------------------------------------------------------

    def foresee_pass(self, job: str, start: int, end: int) -> tuple[tuple[Range, ...], str]:
        """What of [start, end) cannot be copied and waits, so that `pass_over` would leave it out, and why it
        waits.

        Raises:
            OperationRefused: nothing of it waits, or not all that waits together lies in it. NotHere.
        """
        pump = self._replica(job)
        if not pump.stuck:
            raise OperationRefused(
                f"nothing of {job} waits for anybody: only what cannot be copied can be skipped"
            )
        found = _within(pump, start, end)
        if not found:
            (first, before), *_ = pump.stuck
            raise OperationRefused(f"[{first}, {before}) waits, all of it together: skip that, or more")
        return found, pump.status().trouble

    async def pass_over(
        self, job: str, start: int, end: int, actor: str, reason: str = ""
    ) -> tuple[Range, ...]:
        """Leaves out what of [start, end) cannot be copied; what of it can be is. Returns what was left out.

        Raises:
            OperationRefused: see `foresee_pass`; or it is not certain that it will last, and may be asked for
            again.
        """
        self.foresee_pass(job, start, end)
        passed: list[Range] = []
        follow: tuple[int, int] | None = None  # the lineage that begins, and where
        until_s = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < until_s:
            try:
                pump = self._replica(job)
            except NotHere:
                if not passed:
                    raise
                break  # it begins anew behind what was left out: what was done is recorded
            anew_at, lineage = pump.intake.new_lineage_at, pump.lineage + 1
            done = [stuck for stuck in _within(pump, start, end) if pump.finish_by_operator(*stuck)]
            passed += done
            if anew_at is not None and pump.halted is None:
                follow = lineage, anew_at
                break
            if not done and pump.base >= end:
                break
            await asyncio.sleep(SETTLE_POLL_INTERVAL_S)
        passed_over = union(passed)
        detail = f"{text(passed_over)}: {count(passed_over)} offsets are not copied"
        detail += f" ({reason})" if reason else ""
        if follow is not None:
            await self._lasts(job, "skip", *follow, detail, actor)
        await self._record(job, "skip", detail, actor)
        return passed_over

    def _replica(self, job: str) -> ReplicaPump:
        return cast("ReplicaPump", self._flowing(job)[0])

    # -- reset -----------------------------------------------------------------------------------

    async def foresee_reset(self, job: JobId, wanted: int, *, at_ms: bool = False) -> PositionMove:
        """Where a reset to `wanted` leads: an offset, EARLIEST or LATEST, or (with `at_ms`) a time.

        Any worker can tell.

        Raises:
            OperationRefused: there is no such workload, or route.
            LookupError: the partition has no leader that answers now.
            app.kafka.client.cluster.ClusterUnreachable: the cluster does not answer.
        """
        home, group = self._read_as(job)
        cluster = await self._jobs._clusters.get(home)
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

    def _read_as(self, job: JobId) -> tuple[str, str]:
        """The cluster that a job reads, and as which group. Raises Refused."""
        catalog = self._jobs._catalog
        if job.kind is Kind.REPLICATE:
            route = catalog.route(job.name)
            if route is None:
                raise OperationRefused(f"there is no route {job.name} that this worker can read")
            return route.spec.source, group_of(job.name)
        workload = catalog.workload(job.name)
        if workload is None:
            raise OperationRefused(f"there is no workload {job.name}")
        return workload.metadata.cluster, workload.metadata.group

    async def reset(self, job: str, wanted: int, actor: str) -> PositionMove:
        """Begins the job again at an offset (see `foresee_reset`). Messages in flight have a short time to
        end; copies in retry topics stay there and are delivered from there.

        Raises:
            OperationRefused: not now, or it is not certain that it will last; asking again is harmless.
            LookupError, ClusterUnreachable: see `foresee_reset`.
        """
        self._flowing(job)
        if JobId.parse(job).name in self._control.view.moves:
            raise OperationRefused(
                "the workload is being moved to another cluster; wait for that, or resume it first"
            )
        move = await self.foresee_reset(JobId.parse(job), wanted)
        pump, _ = self._flowing(job)
        move = PositionMove(job, pump.base, move.to, move.note)
        lineage = pump.lineage + 1
        await self._renew(pump, lineage, move.to)
        await self._lasts(job, "reset", lineage, move.to, move.describe(), actor)
        await self._record(job, "reset", move.describe(), actor)
        return move

    async def _lasts(self, job: str, action: str, lineage: int, to: int, detail: str, actor: str) -> None:
        """Waits until the job's new lineage outlives the worker. Raises NotHere: that is not certain."""
        held = self._control.view.owner(job)
        try:
            async with asyncio.timeout(RESET_FOLLOW_TIMEOUT_S):
                await self._follow(job, -1 if held is None else held.epoch, lineage, to)
        except TimeoutError:
            await self._record(job, action, f"{detail}; not certain: table or commit lag behind", actor)
            told = f"{job} begins anew at {to} ({action}), but that is not safe yet; ask again"
            raise NotHere(told) from None

    async def _renew(self, pump: Pump, lineage: int, offset: int) -> None:
        jobs, job = self._jobs, str(pump.job)
        if job in jobs._work:
            raise NotHere(f"{job} is being started or released; ask again in a moment")

        begun = False

        async def begin_anew() -> None:
            nonlocal begun
            await pump.drain(RESET_DRAIN_TIMEOUT_S)
            # Should the worker end before the new lineage is known.
            begun = await jobs.progress_saver.saved(pump)
            if jobs.flowing.get(job) is not pump or pump.closed:
                return
            if begun:
                jobs.restart_in_new_lineage(pump, lineage, offset)
            else:
                jobs._close(job)  # nothing wakes a drained pump: it begins again from what is saved

        jobs._spawn(job, begin_anew())
        await asyncio.wait([jobs._work[job]])
        if not begun or jobs.flowing.get(job) is pump:
            raise NotHere(f"{job} could not be stopped, and goes on; the worker's log says why")

    async def _follow(self, job: str, epoch: int, lineage: int, to: int) -> None:
        """Until the new lineage is in the tracker's log, and the group's commit is one of it."""
        while True:
            pump = self._jobs.flowing.get(job)
            held = self._control.view.owner(job)
            if held is None or held.epoch != epoch:
                raise NotHere(f"{job} moved to another worker while it was reset; ask again")
            if pump is not None and pump.lineage >= lineage and pump.snapshot_version >= 0:
                (home, group), at = pump.commits_to, (pump.job.topic, pump.job.partition)
                cluster = await self._jobs._clusters.get(home)
                committed = (await cluster.committer.committed(group, [at])).get(at)
                # A commit of the former lineage that lies in here is true of this one too.
                if committed is not None and to <= committed <= pump.base:
                    return
            await asyncio.sleep(FOLLOW_POLL_INTERVAL_S)

    # -- inside ----------------------------------------------------------------------------------

    def _mine(self, job: str) -> tuple[DispatchPump, int]:
        """The same, of a workload's job. Raises NotHere."""
        pump, epoch = self._flowing(job)
        return cast("DispatchPump", pump), epoch  # whoever asks has made sure of the job's kind

    def _flowing(self, job: str) -> tuple[Pump, int]:
        """The job's pump and epoch (rule 1). Raises NotHere."""
        jobs, held = self._jobs, self._control.view.owner(job)
        pump = jobs.flowing.get(job)
        if held is None or held.worker != jobs.worker:
            raise NotHere(f"{job} belongs to {held.worker if held else 'nobody'} now; ask again")
        if pump is None or pump.epoch != held.epoch or pump.closed or pump.draining or jobs.draining:
            raise NotHere(f"{job} is starting or stopping; ask again in a moment")
        if not jobs._lease.holds(time.monotonic()):
            raise NotHere("this worker's lease does not hold; ask again in a moment")
        return pump, held.epoch

    def _is_mine(self, job: str, pump: DispatchPump) -> bool:
        try:
            return self._mine(job)[0] is pump
        except NotHere:
            return False

    async def _record(self, subject: str, action: str, detail: str, actor: str) -> None:
        """The act is done: should the log not take the record, it is told in the worker's log instead."""
        event = OperatorAct(at_ms=now_ms(), subject=subject, action=action, detail=detail, actor=actor)
        try:
            await self._control.append(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not look as if nothing was done
            log.error("an operator's act is not in the control log", act=str(event), error=repr(error))


def _within(pump: ReplicaPump, start: int, end: int) -> tuple[Range, ...]:
    """What cannot be copied and lies in [start, end) as a whole."""
    return tuple(stuck for stuck in pump.stuck if start <= stuck[0] and stuck[1] <= end)


def why_not(pump: DispatchPump, offset: int) -> str:
    """Why a message cannot be ended now; "" when it can."""
    pump = _part(pump, offset)
    tracker = pump.tracker
    if tracker.is_finished(offset):
        return FINISHED
    if offset >= tracker.end:
        return NOT_READ
    return COPYING if offset in pump.copying else ""


def _part(pump: DispatchPump, offset: int) -> DispatchPump:
    """The pump that has the message: while a job catches up, what lies behind has one of its own."""
    backlog = pump.backlog
    return backlog.pump if backlog is not None and offset < backlog.end else pump
