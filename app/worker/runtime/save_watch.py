"""Ends a worker that cannot save its jobs' progress, if other workers can or a restart helps.

Meanwhile it pushes nothing (`app.kernel.lease`), but its heartbeats continue, so no worker takes its jobs
over.

    unsaved for UNSAVED_AFTER_S, while the lease holds: not ready; a new connection tries to write
        the write succeeds ─────────────────▶ still unsaved after CONFIRM_S: the worker ends
        it is refused, and others can save ─▶ still unsaved after ALONE_AFTER_S: the worker ends
        all are refused, or no broker answers ─▶ an incident; the worker keeps trying

While the lease does not hold, the whole control cluster is unreachable. Its producers survive that.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import structlog
from mode import Service

from app.kernel.incidents import IsOver
from app.worker.runtime.watchdog import end_process
from app.worker.tracker.write_health import ProbeFailure, WriteHealth, WriteTrouble

log = structlog.get_logger(__name__)

UNSAVED_AFTER_S = 30.0
CONFIRM_S = 10.0  # an old connection may wait this long for an answer
ALONE_AFTER_S = 45.0  # others that cannot save either have said so by then, if they had anything to save
SAVE_POLL_INTERVAL_S = 5.0
RESTART = "start it again, as a supervisor does"

Probe = Callable[[], Awaitable[ProbeFailure | None]]  # a new connection writes to the tracker topic
# reports an incident (`ReportOwnIncident`), and waits until it is written
Report = Callable[[str, str, str, IsOver | None], Awaitable[None]]


class SaveWatch(Service):
    """`holds`: whether the lease holds. `others_save`: whether another worker that has jobs can save."""

    def __init__(
        self, topic: str, writes: WriteHealth, holds: Callable[[], bool], probe: Probe,
        others_save: Callable[[], bool], report: Report, end: Callable[[], None] = end_process,
    ) -> None:  # fmt: skip
        super().__init__()
        self._topic = topic
        self._writes = writes
        self._holds = holds
        self._probe = probe
        self._others_save = others_save
        self._report = report
        self._end = end
        self._is_reported = False

    def unsaved(self, now_s: float) -> WriteTrouble | None:
        """The partition without a successful write for `UNSAVED_AFTER_S`, if any."""
        trouble = self._writes.trouble(now_s)
        return trouble if trouble is not None and now_s - trouble.since_s > UNSAVED_AFTER_S else None

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            await self.sleep(SAVE_POLL_INTERVAL_S)
            if not self.should_stop:
                await self.look()

    async def look(self) -> None:
        now_s = time.monotonic()
        if not self._holds():
            self._writes.begin_again(now_s)
        unsaved = self.unsaved(now_s)
        if unsaved is None:
            self._is_reported = False
            return
        met = await self._probe()
        if met is None:
            await self.sleep(CONFIRM_S)
            if self.should_stop or self.unsaved(time.monotonic()) is not unsaved:
                return
            words = f"{self._words(unsaved)}, although it accepts writes of a new connection"
            await self._end_because(words, RESTART)
        elif met.is_refusal and self._others_save():
            if now_s - unsaved.since_s > ALONE_AFTER_S:
                await self._end_because(self._words(met), f"{self._remedy(met)}; then {RESTART}")
        elif not self._is_reported:
            self._is_reported = True
            words = f"{self._words(met)}. It pushes nothing meanwhile"
            await self._report("unsaved", words, self._remedy(met), lambda: not self._is_reported)

    def _words(self, trouble: WriteTrouble | ProbeFailure) -> str:
        return (
            f"partition {trouble.partition} of {self._topic} has accepted none of this worker's progress for"
            f" {UNSAVED_AFTER_S:.0f} s: {trouble.why or 'no broker answers'}"
        )

    def _remedy(self, met: ProbeFailure) -> str:
        if met.is_refusal:
            return f"check max.message.bytes of {self._topic}, this worker's Write permission, and its clock"
        return f"check that all partitions of {self._topic} have a leader and enough replicas in sync"

    async def _end_because(self, why: str, remedy: str) -> None:
        log.critical("this worker ends, and its jobs move", why=why, remedy=remedy)
        await self._report(
            "worker-ended", f"this worker ended by itself, and its jobs move: {why}", remedy, None
        )
        self._end()
