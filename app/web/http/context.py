"""The common context of the REST handlers: the worker's runtime, its region, and lookups for a request."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from app.controllog.codec import Heartbeat
from app.controllog.events import WorkloadPut
from app.dispatch.definition import Workload
from app.kafka.data_clusters import DataCluster
from app.web.http.operations import Operations
from app.web.http.responses import ApiError
from app.worker.runtime.operators import OperatorActions
from app.worker.runtime.service import Runtime


class ApiContext:
    """The context of one worker's API.

    Attributes:
        region: The worker's region.
        operations: Long work that requests started.
        away_until_s: Clusters that did not answer a check of a definition: not asked before this time.
    """

    def __init__(self, runtime: Callable[[], Runtime | None], region: str) -> None:
        self._runtime = runtime
        self.region = region
        self.operations = Operations()
        self.away_until_s: dict[str, float] = {}

    @property
    def runtime(self) -> Runtime:
        """The runtime. Raises ApiError while the worker starts: before it has read the control log, it
        cannot say "no such workload"."""
        runtime = self._runtime()
        if runtime is None or not runtime.control.caught_up:
            raise ApiError(503, "Starting", "the worker is starting; ask again in a moment")
        return runtime

    @property
    def worker(self) -> str:
        """The worker's id; "" before there is a runtime."""
        runtime = self._runtime()
        return runtime.worker if runtime else ""

    @property
    def operators(self) -> OperatorActions:
        """Operators' actions on jobs. Raises as `runtime`."""
        runtime = self.runtime
        return OperatorActions(runtime.jobs, runtime.control, runtime.clusters)

    def beats(self) -> dict[str, Heartbeat]:
        """The last heartbeat of every live worker."""
        return self.runtime.members.live(time.monotonic())

    def put_of(self, request: web.Request) -> WorkloadPut:
        """The definition of the workload in the request's address. Raises ApiError when there is none."""
        key = f"{request.match_info['group']}/{request.match_info['topic']}"
        put = self.runtime.control.view.workloads.get(key)
        if put is None:
            raise ApiError(
                404, "No such workload", f"there is no workload {key}; GET /api/v1/workloads lists them"
            )
        return put

    def workload_of(self, request: web.Request) -> Workload:
        """The workload in the request's address. Raises ApiError when there is none."""
        put = self.put_of(request)
        workload = self.runtime.catalog.workloads.workload(put.key)
        if workload is None:
            detail = f"this worker cannot read the definition of {put.key}; deploy it again, or ask another"
            raise ApiError(503, "Unreadable definition", detail)
        return workload

    async def cluster_of(self, workload: Workload) -> DataCluster:
        """The workload's cluster. Raises ApiError."""
        try:
            return await self.runtime.clusters.get(workload.metadata.cluster)
        except Exception as error:
            raise ApiError(502, "Cluster unreachable", f"{workload.metadata.cluster}: {error}") from error
