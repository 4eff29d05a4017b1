"""Work that outlasts its request: started with 202, then followed and canceled under /api/v1/operations/{id}.

A running operation is in the memory of the worker that started it; other workers forward requests for it. Its
lasting results are kept where it makes them; the summary stays here as `progress`. So when a worker ends,
only the progress is lost: a merge continues when it is requested again under its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.web.http import schemas
from app.web.http.responses import ApiError
from app.web.http.route_docs import JSON, AnswerDoc

log = structlog.get_logger(__name__)

MAX_KEPT = 200  # ended operations, for late requests
MAX_RUNNING = 8  # they share the event loop with deliveries

STARTED = {202: AnswerDoc({JSON: schemas.Operation}, "it has begun; watch it at Location", ("Location",))}

ReportProgress = Callable[[JsonObject], None]
Work = Callable[[ReportProgress], Awaitable[JsonObject]]


@dataclass
class TrackedOperation:
    """An operation. `state`: running, done, failed or canceled."""

    id: str
    kind: str
    subject: str
    actor: str
    started_ms: int
    state: str = "running"
    ended_ms: int | None = None
    error: str | None = None
    failure: Exception | None = None
    progress: JsonObject = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    def to_json(self) -> JsonObject:
        """Its JSON in the API."""
        return {
            "id": self.id, "kind": self.kind, "subject": self.subject, "actor": self.actor,
            "state": self.state, "error": self.error, "progress": self.progress,
            "started_ms": self.started_ms, "ended_ms": self.ended_ms,
        }  # fmt: skip


class Operations:
    """This worker's operations."""

    def __init__(self) -> None:
        self._all: dict[str, TrackedOperation] = {}

    def start(self, operation_id: str, kind: str, subject: str, actor: str, work: Work) -> TrackedOperation:
        """Starts `work`, which reports its progress and returns the result.

        Raises:
            ApiError: The same work runs already, or too many operations run.
        """
        running = [op for op in self._all.values() if op.state == "running"]
        for op in running:
            if op.id == operation_id or (op.kind, op.subject) == (kind, subject):
                raise ApiError(
                    409,
                    "Under way",
                    f"{kind} {op.id} of {subject} runs already; watch it, or DELETE it first",
                )
        if len(running) >= MAX_RUNNING:
            raise ApiError(
                503, "Busy", f"{MAX_RUNNING} operations run here; wait for one, or ask another worker"
            )
        op = TrackedOperation(operation_id, kind, subject, actor, now_ms())
        self._all.pop(operation_id, None)  # started again: now the newest
        self._all[operation_id] = op
        ended = [name for name, other in self._all.items() if other.state != "running"]
        for name in ended[:-MAX_KEPT]:
            del self._all[name]
        op.task = asyncio.get_running_loop().create_task(self._run(op, work))
        return op

    async def _run(self, op: TrackedOperation, work: Work) -> None:
        def report(progress: JsonObject) -> None:
            op.progress = progress

        log.info("an operation begins", operation=op.id, kind=op.kind, subject=op.subject, actor=op.actor)
        try:
            op.progress = await work(report)
            op.state = "done"
        except asyncio.CancelledError:
            op.state, op.error = "canceled", "canceled; what is done is done"
            raise
        except Exception as error:  # noqa: BLE001 - told to whoever asks
            op.state, op.failure, op.error = "failed", error, str(error) or repr(error)
        finally:
            op.ended_ms = now_ms()
            log.info("an operation ended", operation=op.id, state=op.state, error=op.error)

    def running(self, kind: str, subject: str) -> TrackedOperation | None:
        """The same work, if it runs here."""
        of = (op for op in self._all.values() if op.state == "running")
        return next((op for op in of if (op.kind, op.subject) == (kind, subject)), None)

    def get(self, operation_id: str) -> TrackedOperation | None:
        """The operation, if it is or was here."""
        return self._all.get(operation_id)

    async def cancel(self, op: TrackedOperation) -> None:
        """Cancels it, and waits until it has ended."""
        if op.task is not None and not op.task.done():
            op.task.cancel()
            await asyncio.wait([op.task])

    async def stop(self, _: web.Application) -> None:
        """Cancels all operations, because the server stops."""
        for op in list(self._all.values()):
            await self.cancel(op)
