"""Operators' acts: pause and resume, skip, stash, reset. The control log records each act.

Rules
1. Only a job's owner acts on its offsets, under its epoch and while its lease holds.
2. A pause is an event of the control log. Each worker obeys it when it reads it, and any worker may write it.
3. A skipped message finishes as if it were acknowledged, a stashed one when its copy in the DLQ is safe. A
   message that waits for its turn or its time ends at once, and the messages behind it continue in order.
   The answer names the offsets that cannot end now, with the reason; the worker does not try them later.
   A route copies what it can; only the other offsets can be skipped.
4. A reset starts the job in a new lineage, which replaces the former one's progress. It counts as done
   when the tracker topic and the group's commit have followed; until then an operator may repeat it.
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
from app.kernel.job import JobId
from app.kernel.ranges import Range, union
from app.replicate.pump.partition import ReplicaPump
from app.worker.jobs.operator_acts import EndedOffsets, PositionMove, count, offsets_of, runs, text
from app.worker.jobs.pump import Pump
from app.worker.jobs.start_position import LineageReset
from app.worker.runtime.job_manager import JobManager

log = structlog.get_logger(__name__)

OFFSETS_PER_TURN = 16  # of the event loop: each one may need the search of a long queue
SETTLE_TIMEOUT_S = 3.0  # for answers to abandoned calls, and for copies
RESET_DRAIN_TIMEOUT_S = 3.0  # for messages in flight; later ones may be delivered again
RESET_FOLLOW_TIMEOUT_S = 6.0  # for table and commit to follow a reset; after this it counts as not done
SETTLE_POLL_INTERVAL_S, FOLLOW_POLL_INTERVAL_S = 0.02, 0.2

FINISHED, NOT_READ, COPYING = "already finished", "not read yet", "its copy is on its way"
ENDING, MOVED = "is being ended already", "its job moved meanwhile"


class OperationRefused(Exception):
    """The act is not possible in the present state."""


class NotHere(OperationRefused):
    """This worker cannot act now: the job moves, or its lease does not hold."""


class OperatorActions:
    """The acts on the jobs of one worker. It has no state of its own."""

    def __init__(self, jobs: JobManager, control: ControlLog) -> None:
        self._jobs = jobs
        self._control = control

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

    # -- single offsets --------------------------------------------------------------------------

    def foresee(self, job: str, ranges: Sequence[Range]) -> EndedOffsets:
        """The offsets that `skip` and `stash` would end now. Raises OperationRefused."""
        pump = self._mine(job)
        can: list[int] = []
        refused: dict[str, list[int]] = {}
        for offset in offsets_of(ranges):
            if why := why_not(pump, offset):
                refused.setdefault(why, []).append(offset)
            else:
                can.append(offset)
        return EndedOffsets(runs(can), (), {reason: runs(found) for reason, found in refused.items()})

    async def skip(self, job: str, ranges: Sequence[Range], actor: str, why: str = "") -> EndedOffsets:
        """Finishes messages without delivering them. Raises OperationRefused."""
        return await self._end(job, ranges, Action.ACK, "skip", actor, why)

    async def stash(self, job: str, ranges: Sequence[Range], actor: str, why: str = "") -> EndedOffsets:
        """Moves messages into the DLQ. Raises OperationRefused."""
        pump = self._mine(job)
        if not pump.runtime.policy.dlq_enabled:
            raise OperationRefused("the workload has no DLQ; enable dlq, or skip")
        return await self._end(job, ranges, Action.DLQ, "stash", actor, why)

    async def _end(
        self, job: str, ranges: Sequence[Range], action: Action, verb: str, actor: str, why: str
    ) -> EndedOffsets:
        pump = self._mine(job)
        because, verbed = f": {why}" if why else "", "skipped" if action is Action.ACK else "stashed"
        decision = DeliveryDecision(action, None, 0.0, f"{verbed} by {actor}{because}")
        done: list[int] = []
        refused: dict[str, list[int]] = {}
        is_mine = True
        for at, offset in enumerate(offsets_of(ranges)):
            if at % OFFSETS_PER_TURN == 0:
                await asyncio.sleep(0)
                is_mine = self._is_mine(job, pump)
            refusal = why_not(pump, offset) if is_mine else MOVED
            if not refusal and pump.finish_by_operator(offset, decision):
                done.append(offset)
            else:
                refused.setdefault(refusal or ENDING, []).append(offset)
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
        left, until_s = set(offsets), time.monotonic() + SETTLE_TIMEOUT_S
        while left and not pump.closed:
            left = {offset for offset in left if not _part(pump, offset).tracker.is_finished(offset)}
            if time.monotonic() > until_s:
                break
            await asyncio.sleep(SETTLE_POLL_INTERVAL_S)
        return left

    # -- what a route cannot copy ------------------------------------------------------------------

    def foresee_pass(self, job: str, start: int, end: int) -> tuple[tuple[Range, ...], str]:
        """The offsets of [start, end) that `pass_over` would skip, and why. Raises OperationRefused,
        NotHere."""
        pump = self._replica(job)
        if not pump.stuck:
            raise OperationRefused(f"{job} needs no skip: only records that cannot be copied can be skipped")
        found = _within(pump, start, end)
        if not found:
            (first, before), *_ = pump.stuck
            raise OperationRefused(f"[{first}, {before}) waits as a whole: skip at least these offsets")
        return found, pump.status().trouble

    async def pass_over(
        self, job: str, start: int, end: int, actor: str, reason: str = ""
    ) -> tuple[Range, ...]:
        """Skips the offsets of [start, end) that cannot be copied; returns them. Raises OperationRefused,
        also if the result may be lost; the operator may then repeat the act."""
        self.foresee_pass(job, start, end)
        passed: list[Range] = []
        follow: tuple[int, int] | None = None  # the new lineage, and its start
        until_s = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < until_s:
            try:
                pump = self._replica(job)
            except NotHere:
                if not passed:
                    raise
                break  # the job starts again behind the skipped offsets; the log records them
            new_lineage_at, lineage = pump.intake.new_lineage_at, pump.lineage + 1
            done = [stuck for stuck in _within(pump, start, end) if pump.finish_by_operator(*stuck)]
            passed += done
            if new_lineage_at is not None and pump.halted is None:
                follow = lineage, new_lineage_at
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
        return cast("ReplicaPump", self._flowing(job))

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

    async def reset(self, job: str, wanted: int, actor: str) -> PositionMove:
        """Starts the job again at an offset. Raises as `foresee_reset` does, and OperationRefused: it is
        not possible now, or the result may be lost; repeating it is harmless."""
        self._flowing(job)
        if JobId.parse(job).name in self._control.view.moves:
            raise OperationRefused(
                "the workload is moving to another cluster; wait for the move, or resume the workload first"
            )
        move = await self.foresee_reset(JobId.parse(job), wanted)
        pump = self._flowing(job)
        move = PositionMove(job, pump.base, move.to, move.note)
        lineage = pump.lineage + 1
        await self._renew(pump, lineage, move.to)
        await self._lasts(job, "reset", lineage, move.to, move.describe(), actor)
        await self._record(job, "reset", move.describe(), actor)
        return move

    async def _lasts(self, job: str, action: str, lineage: int, to: int, detail: str, actor: str) -> None:
        """Waits until the new lineage survives this worker's end. Raises NotHere: that is not certain."""
        held = self._control.view.owner(job)
        try:
            async with asyncio.timeout(RESET_FOLLOW_TIMEOUT_S):
                await self._follow(job, -1 if held is None else held.epoch, lineage, to)
        except TimeoutError:
            await self._record(job, action, f"{detail}; not certain: table or commit lag behind", actor)
            why = f"{job} starts again at {to} ({action}), but that is not safe yet; ask again"
            raise NotHere(why) from None

    async def _renew(self, pump: Pump, lineage: int, offset: int) -> None:
        jobs, job = self._jobs, str(pump.job)
        if job in jobs._work:
            raise NotHere(f"{job} is being started or released; ask again in a moment")

        is_saved = False

        async def restart() -> None:
            nonlocal is_saved
            await pump.drain(RESET_DRAIN_TIMEOUT_S)
            # The worker may end before the table knows the new lineage.
            is_saved = await jobs.progress_saver.try_save(pump)
            if jobs.flowing.get(job) is not pump or pump.closed:
                return
            if is_saved:
                jobs.restart_in_new_lineage(pump, LineageReset(pump.epoch, lineage, offset))
            else:
                jobs._close(job)  # a drained pump cannot continue: the job starts from its saved position

        jobs._spawn(job, restart())
        await asyncio.wait([jobs._work[job]])
        if not is_saved or jobs.flowing.get(job) is pump:
            raise NotHere(f"{job} could not be stopped, and continues; the worker's log says why")

    async def _follow(self, job: str, epoch: int, lineage: int, to: int) -> None:
        while True:
            pump = self._jobs.flowing.get(job)
            held = self._control.view.owner(job)
            if held is None or held.epoch != epoch:
                raise NotHere(f"{job} moved to another worker while it was reset; ask again")
            if pump is not None and pump.lineage >= lineage and pump.snapshot_version >= 0:
                (home, group), at = pump.commits_to, (pump.job.topic, pump.job.partition)
                cluster = await self._jobs._clusters.get(home)
                committed = (await cluster.committer.committed(group, [at])).get(at)
                # A commit of the former lineage within this range is true of the new one, too.
                if committed is not None and to <= committed <= pump.base:
                    return
            await asyncio.sleep(FOLLOW_POLL_INTERVAL_S)

    # -- inside ----------------------------------------------------------------------------------

    def _mine(self, job: str) -> DispatchPump:
        return cast("DispatchPump", self._flowing(job))  # the caller knows the kind of the job

    def _flowing(self, job: str) -> Pump:
        """The job's pump (rule 1). Raises NotHere."""
        jobs, held = self._jobs, self._control.view.owner(job)
        pump = jobs.flowing.get(job)
        if held is None or held.worker != jobs.worker:
            raise NotHere(f"{job} belongs to {held.worker if held else 'no worker'} now; ask again")
        if pump is None or pump.epoch != held.epoch or pump.closed or pump.draining or jobs.draining:
            raise NotHere(f"{job} is starting or stopping; ask again in a moment")
        if not jobs._lease.holds(time.monotonic()):
            raise NotHere("this worker's lease does not hold; ask again in a moment")
        return pump

    def _is_mine(self, job: str, pump: DispatchPump) -> bool:
        try:
            return self._mine(job) is pump
        except NotHere:
            return False

    async def _record(self, subject: str, action: str, detail: str, actor: str) -> None:
        """If the control log fails, the worker's log has the act, because it is done already."""
        event = OperatorAct(at_ms=now_ms(), subject=subject, action=action, detail=detail, actor=actor)
        try:
            await self._control.append(event)
        except Exception as error:  # noqa: BLE001 - after any error the act must not look undone
            log.error("the control log has no record of an operator's act", act=str(event), error=repr(error))


def _within(pump: ReplicaPump, start: int, end: int) -> tuple[Range, ...]:
    """The ranges that cannot be copied and lie wholly in [start, end)."""
    return tuple(stuck for stuck in pump.stuck if start <= stuck[0] and stuck[1] <= end)


def why_not(pump: DispatchPump, offset: int) -> str:
    """Why a message cannot be ended now; "" if it can."""
    pump = _part(pump, offset)
    tracker = pump.tracker
    if tracker.is_finished(offset):
        return FINISHED
    if offset >= tracker.end:
        return NOT_READ
    return COPYING if offset in pump.copying else ""


def _part(pump: DispatchPump, offset: int) -> DispatchPump:
    """The pump that has the message: during a catch-up the backlog has a pump of its own."""
    backlog = pump.backlog
    return backlog.pump if backlog is not None and offset < backlog.end else pump
