"""Ends a worker that cannot save what its jobs finish, if others can or a restart helps.

Nothing is pushed meanwhile (`app.kernel.lease`), heartbeats go on, and so nobody takes its jobs over.

    unsaved for UNSAVED_AFTER_S, while the lease holds: not ready; a new connection tries to write
        it writes ──────────────────────────▶ still unsaved after CONFIRM_S: the worker ends
        it is refused, and others can save ─▶ the worker ends
        it is refused as others are, or nobody answers ─▶ an incident, and it goes on trying

While the lease does not hold, the control cluster is away altogether. Its producers outlast that.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import structlog
from mode import Service

from app.worker.runtime.watchdog import end_process
from app.worker.tracker.write_health import ProbeFailure, WriteHealth, WriteTrouble

log = structlog.get_logger(__name__)

UNSAVED_AFTER_S = 30.0
CONFIRM_S = 10.0  # as long as an old connection may need that waits for an answer
SAVE_POLL_INTERVAL_S = 5.0
RESTART = "start it again, as a supervisor does"

Probe = Callable[[], Awaitable[ProbeFailure | None]]  # a new connection writes to the tracker topic
Tell = Callable[[str, str, str], Awaitable[None]]  # an incident: kind, message, remedy; others have it then


class SaveWatch(Service):
    """See the module.

    Args:
        writes: of the tracker topic, whose name is `topic`.
        holds: whether the lease does.
        others_save: whether another worker that has jobs can save.
    """

    def __init__(
        self, topic: str, writes: WriteHealth, holds: Callable[[], bool], probe: Probe,
        others_save: Callable[[], bool], tell: Tell, end: Callable[[], None] = end_process,
    ) -> None:  # fmt: skip
        super().__init__()
        self._topic = topic
        self._writes = writes
        self._holds = holds
        self._probe = probe
        self._others_save = others_save
        self._tell = tell
        self._end = end
        self._has_told = False

    def unsaved(self, now_s: float) -> WriteTrouble | None:
        """What has not been saved for `UNSAVED_AFTER_S`, if anything."""
        trouble = self._writes.trouble(now_s)
        return trouble if trouble is not None and now_s - trouble.since_s > UNSAVED_AFTER_S else None

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            await self.sleep(SAVE_POLL_INTERVAL_S)
            if not self.should_stop:
                await self.look()

    async def look(self) -> None:
        """One look; see the module."""
        now_s = time.monotonic()
        if not self._holds():
            self._writes.begin_again(now_s)
        unsaved = self.unsaved(now_s)
        if unsaved is None:
            self._has_told = False
            return
        met = await self._probe()
        if met is None:
            await self.sleep(CONFIRM_S)
            if self.should_stop or self.unsaved(time.monotonic()) is not unsaved:
                return
            words = f"{self._words(unsaved)}, although it takes what a new connection writes"
            await self._end_because(words, RESTART)
        elif met.is_refusal and self._others_save():
            await self._end_because(self._words(met), f"{self._remedy(met)}; then {RESTART}")
        elif not self._has_told:
            self._has_told = True
            words = f"{self._words(met)}. It pushes nothing meanwhile"
            await self._tell("unsaved", words, self._remedy(met))

    def _words(self, trouble: WriteTrouble | ProbeFailure) -> str:
        return (
            f"partition {trouble.partition} of {self._topic} has taken nothing of this worker's progress for"
            f" {UNSAVED_AFTER_S:.0f} s: {trouble.why or 'no broker answers'}"
        )

    def _remedy(self, met: ProbeFailure) -> str:
        if met.is_refusal:
            return f"see max.message.bytes of {self._topic}, this worker's Write permission, and its clock"
        return f"see that all partitions of {self._topic} have a leader and enough replicas in sync"

    async def _end_because(self, why: str, remedy: str) -> None:
        log.critical("this worker ends, and its jobs move", why=why, remedy=remedy)
        await self._tell("worker-ended", f"this worker ended by itself, and its jobs move: {why}", remedy)
        self._end()
