"""The tasks of one replica: if one fails, the job begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.kafka.append.errors import AppendError
from app.kernel.job import JobId

log = structlog.get_logger(__name__)


class ReplicaTasks:
    """`failed` takes the reason."""

    def __init__(self, job: JobId, failed: Callable[[str], None]) -> None:
        self._job = job
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (AppendError, ValueError) as error:
            self._failed(str(error))
        except Exception as error:
            log.exception("a replica failed; its job begins again", job=str(self._job))
            self._failed(repr(error))
