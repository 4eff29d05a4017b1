"""Operators' acts on what a route cannot copy: skip. Only such offsets can be skipped, because the route
copies the others.

Rule 1 of `app.worker.runtime.operators` holds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from app.kernel.ranges import Range, union
from app.replicate.pump.partition import ReplicaPump
from app.replicate.pump.status import trouble_of
from app.worker.jobs.operator_acts import (
    SETTLE_POLL_INTERVAL_S,
    SETTLE_TIMEOUT_S,
    JobActs,
    NotHere,
    OperationRefused,
    count,
    text,
)


class ReplicaActs:
    """The acts on the replicas of one worker. `pumps`: these, by job."""

    def __init__(self, acts: JobActs, pumps: Mapping[str, ReplicaPump]) -> None:
        self._acts = acts
        self._pumps = pumps

    def foresee_pass(self, job: str, start: int, end: int) -> tuple[tuple[Range, ...], str]:
        """The offsets of [start, end) that `pass_over` would skip, and why. Raises OperationRefused,
        NotHere."""
        pump = self._own_pump(job)
        if not pump.stuck:
            raise OperationRefused(f"{job} needs no skip: only records that cannot be copied can be skipped")
        found = _within(pump, start, end)
        if not found:
            (first, before), *_ = pump.stuck
            raise OperationRefused(f"[{first}, {before}) waits as a whole: skip at least these offsets")
        return found, trouble_of(pump)

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
                pump = self._own_pump(job)
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
            await self._acts.wait_until_lasting(job, "skip", *follow, detail, actor)
        await self._acts.record(job, "skip", detail, actor)
        return passed_over

    def _own_pump(self, job: str) -> ReplicaPump:
        """The job's pump, if this worker may act on it. Raises NotHere."""
        self._acts.own_pump(job)
        return self._pumps[job]


def _within(pump: ReplicaPump, start: int, end: int) -> tuple[Range, ...]:
    """The ranges that cannot be copied and lie wholly in [start, end)."""
    return tuple(stuck for stuck in pump.stuck if start <= stuck[0] and stuck[1] <= end)
