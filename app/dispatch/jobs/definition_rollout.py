"""Brings changed workload definitions into force on this worker, and announces the region's role.
A definition whose interceptors cannot be made, or whose credentials are not there, leaves the former one in
force."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from app.dispatch.definition import Workload
from app.dispatch.scheduler.workload import WorkloadRuntime
from app.dispatch.topics.catalog import WorkloadsCatalog
from app.kernel.incidents import ReportIncident
from app.payload.interceptors import InterceptorChain

log = structlog.get_logger(__name__)

ROLLOUT_RETRY_INTERVAL_S = 1.0


class DefinitionRollout:
    """Compares the definitions in force with those in the control log.

    `prepare` makes a definition's interceptors. It raises ValueError if the definition cannot be in force
    here, with the remedy.

    Calls `changed(runtime, reordered)` once a changed definition is in force, and `ended` after each attempt.
    If a definition names another cluster (the workload was moved, or deleted and deployed again), it calls
    `moved` instead, to end the runtime.
    """

    def __init__(
        self,
        catalog: WorkloadsCatalog,
        runtimes: Mapping[str, WorkloadRuntime],
        prepare: Callable[[Workload], Awaitable[InterceptorChain | None]],
        report_incident: ReportIncident,
        changed: Callable[[WorkloadRuntime, bool], None],
        moved: Callable[[WorkloadRuntime], None],
        ended: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._runtimes = runtimes
        self._prepare = prepare
        self._report_incident = report_incident
        self._changed = changed
        self._moved = moved
        self._ended = ended
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._troubles: dict[str, str] = {}

    def reconcile(self) -> None:
        """Announces roles, and starts to bring each changed definition into force."""
        for key in [key for key in self._troubles if key not in self._runtimes]:
            del self._troubles[key]
        for key, runtime in list(self._runtimes.items()):
            workload = self._catalog.workload(key)
            if workload is not None:
                runtime.announce_role(self._catalog.sender_role(workload))
            if workload is None or workload is runtime.workload or key in self._changing:
                continue
            if workload.metadata.cluster != runtime.workload.metadata.cluster:
                self._moved(runtime)
            else:
                self._changing[key] = asyncio.get_running_loop().create_task(self._change(runtime, workload))

    async def _change(self, runtime: WorkloadRuntime, workload: Workload) -> None:
        key = workload.key
        try:
            chain = await self._prepare(workload)
        except ValueError as error:
            why = str(error)
            if self._troubles.get(key) != why:
                self._troubles[key] = why
                self._report_incident(
                    "definition-not-in-force", key, why,
                    "the former definition stays in force, with its connections; correct what is wrong, or "
                    "deploy another definition",
                    lambda: self._troubles.get(key) != why,
                )  # fmt: skip
            await asyncio.sleep(ROLLOUT_RETRY_INTERVAL_S)
        else:
            self._troubles.pop(key, None)
            reordered = runtime.workload.spec.ordering != workload.spec.ordering
            runtime.change(workload, chain)
            self._changed(runtime, reordered)
            log.info("a changed definition is in force", workload=key)
        finally:
            del self._changing[key]
            self._ended()
