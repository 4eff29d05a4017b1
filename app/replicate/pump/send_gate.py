"""When the next batch of a replica may go.

Rules
1. Not while its route is paused, nor unless the lease holds.
2. Within its route's limits, and behind routes of a higher priority on this worker.
3. Not while too much is copied that no snapshot covers (`app.replicate.pump.unsnapshotted_budget`): that is
   told after `SNAPSHOT_TIMEOUT_S`.
4. Not while too many copies wait to be compared, of a route of which all are
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
    """See the module; of one replica.

    Attributes:
        paused: it is.
        limited: it waits for the route's rate, for routes of a higher priority, or for what is compared.
        unsaved_s: since when it waits for a snapshot, monotonic; 0: it does not.
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
        self._goes = asyncio.Event()  # not paused
        self._goes.set()

    def pause(self, paused: bool) -> None:
        """Nothing goes while paused."""
        self.paused = paused
        if paused:
            self._goes.clear()
        else:
            self._goes.set()

    async def wait(self, copy: VerbatimCopy) -> None:
        """Until the batch may go; it counts as gone then."""
        runtime, records, size_bytes = self._runtime, copy.record_count, len(copy.data)
        while True:
            if self.paused:
                await self._goes.wait()
            now_s = time.monotonic()
            wait_s = runtime.wait_s(now_s, records, size_bytes)
            behind = runtime.verifier.is_behind
            self.limited = wait_s > 0 or behind
            if not (wait_s or behind) and not self._is_full(now_s) and runtime.lease.holds(now_s):
                runtime.spend(now_s, records, size_bytes, self._job, is_behind=self._intake.is_behind)
                return
            await asyncio.sleep(min(1.0, wait_s or GATE_POLL_INTERVAL_S))

    def _is_full(self, now_s: float) -> bool:
        """Rule 3."""
        if not self._unsnapshotted.is_full:
            if self.unsaved_s and self._session.why == NOT_SAVED:
                self._session.why = ""
            self.unsaved_s = 0.0
            return False
        self.unsaved_s = self.unsaved_s or now_s
        if now_s - self.unsaved_s > SNAPSHOT_TIMEOUT_S:
            self._session.why = NOT_SAVED
        return True
