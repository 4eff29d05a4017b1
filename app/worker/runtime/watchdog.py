"""Ends a worker that looks alive and does nothing: a restart heals more, and its jobs move at once.

It ends when the lease holds, jobs are here, and for `STALLED_AFTER_S`
- no round of commits ended, or
- a cluster answered no commit, although it answers the same request on a new connection. A cluster that
  answers no connection is no reason: a restart would not help, and would stop the jobs of the other
  clusters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

import structlog
from mode import Service

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from app.worker.runtime.progress_saver import ProgressSaver

log = structlog.get_logger(__name__)

STALLED_AFTER_S = 60.0
WATCHDOG_POLL_INTERVAL_S = 5.0
EXIT_STALLED = 70

Answers = Callable[[str, str], Awaitable[bool]]  # cluster, group -> whether a new connection gets an answer


async def answers(spec: ClusterSpec, group: str) -> bool:
    """Whether the cluster returns a group's commits on a new connection."""
    client = ClusterClient(spec)
    try:
        await client.start(timeout_s=WATCHDOG_POLL_INTERVAL_S)
        await OffsetCommitter(client).committed(group, [])
    except Exception as error:  # noqa: BLE001 - any error means that a new connection fails, too
        log.warning("a cluster answers no commit and no new connection", cluster=spec.name, error=repr(error))
        return False
    finally:
        await client.stop()
    return True


def end_process() -> None:
    """Ends at once: a tidy end could hang, too."""
    os._exit(EXIT_STALLED)


class Watchdog(Service):
    """`idle`: whether this worker has no commits to make. `end`: ends the process."""

    def __init__(
        self,
        progress_saver: ProgressSaver,
        idle: Callable[[], bool],
        answers: Answers,
        end: Callable[[], None] = end_process,
        *,
        stall_s: float = STALLED_AFTER_S,
        look_s: float = WATCHDOG_POLL_INTERVAL_S,
    ) -> None:
        super().__init__()
        self._progress_saver = progress_saver
        self._idle = idle
        self._answers = answers
        self._end = end
        self._stall_s = stall_s
        self._look_s = look_s

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            await self.sleep(self._look_s)
            if not self.should_stop and (why := await self.stalled(time.monotonic())):
                log.critical(
                    "commits stand still; this worker ends, and its jobs move",
                    why=why,
                    remedy="start it again, as a supervisor does; if it recurs, check the named cluster",
                )
                self._end()

    async def stalled(self, now_s: float) -> str:
        """Why the worker must end; "" if it need not."""
        if self._idle():
            return ""
        if now_s - self._progress_saver.round_at_s > self._stall_s:
            return f"no round of commits ended in {self._stall_s:.0f} s"
        for cluster, (since_s, group) in list(self._progress_saver.unanswered.items()):
            if now_s - since_s > self._stall_s and await self._answers(cluster, group):
                return f"{cluster} answers, but no commit succeeded in {self._stall_s:.0f} s"
        return ""
