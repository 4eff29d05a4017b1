"""Operators' acts on single messages: skip and stash.

Rule 1 of `app.worker.runtime.operators` holds. A skipped message finishes as if it were acknowledged, a
stashed one when its copy in the DLQ is safe. A message that waits for its turn or its time ends at once, and
the messages behind it continue in order. The answer names the offsets that cannot end now, with the reason;
the worker does not try them later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from app.dispatch.model.outcome import Action, DeliveryDecision
from app.dispatch.pump.partition import DispatchPump
from app.kernel.ranges import Range
from app.worker.jobs.operator_acts import (
    SETTLE_POLL_INTERVAL_S,
    SETTLE_TIMEOUT_S,
    EndedOffsets,
    JobActs,
    NotHere,
    OperationRefused,
    offsets_of,
    runs,
    text,
)

OFFSETS_PER_TURN = 16  # of the event loop: each one may need the search of a long queue

FINISHED, NOT_READ, COPYING = "already finished", "not read yet", "its copy is on its way"
ENDING, MOVED = "is being ended already", "its job moved meanwhile"


class DispatchActs:
    """The acts on the dispatch jobs of one worker. `pumps`: these, by job."""

    def __init__(self, acts: JobActs, pumps: Mapping[str, DispatchPump]) -> None:
        self._acts = acts
        self._pumps = pumps

    def foresee(self, job: str, ranges: Sequence[Range]) -> EndedOffsets:
        """The offsets that `skip` and `stash` would end now. Raises OperationRefused."""
        pump = self._own_pump(job)
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
        pump = self._own_pump(job)
        if not pump.runtime.settings.policy.dlq_enabled:
            raise OperationRefused("the workload has no DLQ; enable dlq, or skip")
        return await self._end(job, ranges, Action.DLQ, "stash", actor, why)

    async def _end(
        self, job: str, ranges: Sequence[Range], action: Action, verb: str, actor: str, why: str
    ) -> EndedOffsets:
        pump = self._own_pump(job)
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
        await self._acts.record(job, verb, detail, actor)
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

    def _own_pump(self, job: str) -> DispatchPump:
        """The job's pump, if this worker may act on it. Raises NotHere."""
        self._acts.own_pump(job)
        return self._pumps[job]

    def _is_mine(self, job: str, pump: DispatchPump) -> bool:
        try:
            return self._own_pump(job) is pump
        except NotHere:
            return False


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
