"""Ends a worker that looks alive and does nothing: a restart heals more, and its jobs move at once.

It ends when the lease holds and jobs are here, but for `STALLED_AFTER_S`
- no round of commits came to an end, or
- a cluster answered no commit, although it answers a new connection that asks the same. A cluster that is
  away for everybody is no reason: a restart would not bring it back, and would stop the flow of the others.
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
    """Whether the cluster tells a group's commits to a connection made for this."""
    client = ClusterClient(spec)
    try:
        await client.start(timeout_s=WATCHDOG_POLL_INTERVAL_S)
        await OffsetCommitter(client).committed(group, [])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is away for a new connection too
        log.warning("a cluster answers no commit, nor a new connection", cluster=spec.name, error=repr(error))
        return False
    finally:
        await client.stop()
    return True


def end_process() -> None:
    """At once: what hangs would hang a tidy end too."""
    os._exit(EXIT_STALLED)


class Watchdog(Service):
    """See the module."""

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
                    "commits stand still; this worker ends, its jobs move", why=why,
                    remedy="start it again, as a supervisor does; if it recurs, see to the cluster it names",
                )  # fmt: skip
                self._end()

    async def stalled(self, now_s: float) -> str:
        """Why the worker has to end; "" when it need not."""
        if self._idle():
            return ""
        if now_s - self._progress_saver.round_at_s > self._stall_s:
            return f"no round of commits ended in {self._stall_s:.0f} s"
        for cluster, (since_s, group) in list(self._progress_saver.unanswered.items()):
            if now_s - since_s > self._stall_s and await self._answers(cluster, group):
                return f"{cluster} answers, but no commit came through in {self._stall_s:.0f} s"
        return ""
