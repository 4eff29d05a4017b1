"""Decides when a replica may send its next batch.

Rules
1. Nothing is sent while the route is paused, or without a lease.
2. A batch waits for the route's limits, and for routes of a higher priority on this worker.
3. Nothing is sent while too many copied records have no snapshot (`app.replicate.pump.unsnapshotted_budget`).
   The replica reports that after `SNAPSHOT_TIMEOUT_S`.
4. If a route compares all copies, nothing is sent while too many of them wait
   (`app.replicate.destination.verification`).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from app.kafka.records.verbatim_copy import VerbatimCopy
from app.replicate.destination.session import NOT_SAVED, SNAPSHOT_TIMEOUT_S, DestinationSession

if TYPE_CHECKING:
    from app.kernel.job import JobId
    from app.replicate.pump.intake import BatchIntake
    from app.replicate.pump.route_runtime import RouteRuntime
    from app.replicate.pump.unsnapshotted_budget import UnsnapshottedRecords

GATE_POLL_INTERVAL_S = 0.02


class SendGate:
    """The gate of one replica.

    Attributes:
        paused: An operator has paused it.
        limited: It waits for the route's rate, for routes of a higher priority, or for copies to be compared.
        unsaved_s: Since when it waits for a snapshot, monotonic; 0: it does not.
    """

    def __init__(
        self,
        job: JobId,
        runtime: RouteRuntime,
        intake: BatchIntake,
        session: DestinationSession,
        unsnapshotted: UnsnapshottedRecords,
    ) -> None:
        self.paused = self.limited = False
        self.unsaved_s = 0.0
        self._job = job
        self._runtime = runtime
        self._intake = intake
        self._session = session
        self._unsnapshotted = unsnapshotted
        self._is_running = asyncio.Event()  # not paused
        self._is_running.set()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        if paused:
            self._is_running.clear()
        else:
            self._is_running.set()

    async def wait(self, copy: VerbatimCopy) -> None:
        """Waits until the batch may be sent, and accounts for it."""
        runtime, records, size_bytes = self._runtime, copy.record_count, len(copy.data)
        while True:
            if self.paused:
                await self._is_running.wait()
            now_s = time.monotonic()
            wait_s = runtime.wait_s(now_s, records, size_bytes)
            behind = runtime.verifier.is_behind
            self.limited = wait_s > 0 or behind
            if not (wait_s or behind) and not self._is_full(now_s) and runtime.lease.holds(now_s):
                runtime.spend(now_s, records, size_bytes, self._job, is_behind=self._intake.is_behind)
                return
            await asyncio.sleep(min(1.0, wait_s or GATE_POLL_INTERVAL_S))

    def _is_full(self, now_s: float) -> bool:
        """Whether too many records have no snapshot (rule 3)."""
        if not self._unsnapshotted.is_full:
            if self.unsaved_s and self._session.why == NOT_SAVED:
                self._session.why = ""
            self.unsaved_s = 0.0
            return False
        self.unsaved_s = self.unsaved_s or now_s
        if now_s - self.unsaved_s > SNAPSHOT_TIMEOUT_S:
            self._session.why = NOT_SAVED
        return True
