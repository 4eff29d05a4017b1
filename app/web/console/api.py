"""The REST API under /api/v1. Any worker of the region answers any request: it reads its own copy of the
region's state, and writes changes into the control log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from app.alerts.api.rest import AlertRoutes
from app.audit.api.rest import AuditRoutes
from app.audit.api.rest_drilldown import AuditMissingRoutes
from app.audit.api.rest_records import AuditRecordRoutes
from app.controllog.codec import Heartbeat
from app.controllog.events import WorkloadPut
from app.definitions.registry import json_schema
from app.dispatch.api import dlq_view, schemas_dlq
from app.dispatch.api.rest import WorkloadRoutes
from app.dispatch.api.rest_dlq import LETTERS, DlqTools, dlq_errors_as_problems, query_of
from app.dispatch.api.rest_move import MoveRoutes
from app.dispatch.definition import Workload
from app.failover.api.rest import FailoverRoutes
from app.failover.api.rest_runs import FailoverRunRoutes
from app.kernel.clock import iso, now_ms
from app.kernel.job import JobId, Kind
from app.offsets.api.rest import OffsetRoutes
from app.placement.api.rest import PlacementRoutes
from app.replicate.api.rest import RouteRoutes
from app.replicate.api.rest_operators import RouteActRoutes
from app.sizing.api.rest import SizingRoutes
from app.web.console.metrics import exposition
from app.web.http import schemas
from app.web.http.forwarding import HOP_HEADER, hand_over
from app.web.http.openapi import openapi
from app.web.http.responses import ApiError, is_number, json_response, number, paged
from app.web.http.route_docs import JSON, PAGE, TEXT, TIER, AnswerDoc, Page, Param, described, whole
from app.worker.api import overview
from app.worker.api.rest import OperatorRoutes
from app.worker.runtime.operators import OperatorActions
from app.worker.runtime.service import Runtime

MAX_RANGES = 2_000
EVENTS_INTERVAL_S = 1.0
EVENT_STREAM_TIMEOUT_S = 10.0
MAX_STREAMS = 64
CURSOR = {"type": "string", "pattern": "^([0-9]{1,18}:[0-9]{1,18}(,[0-9]{1,18}:[0-9]{1,18})*)?$"}
READY = {503: AnswerDoc({JSON: schemas.Ready, "application/problem+json": schemas.Problem}, "not ready")}


class Api:
    """The handlers of one worker's `Runtime`."""

    def __init__(self, runtime: Callable[[], Runtime | None], region: str) -> None:
        self._runtime = runtime
        self.region = region
        self.away_until_s: dict[str, float] = {}  # clusters that did not answer a check of a definition
        self._streams = 0
        self._snapshot: tuple[float, bytes] = (float("-inf"), b"")
        self.dlq_tools = DlqTools(self)
        self._audit = AuditRoutes(self)
        self._audit_missing = AuditMissingRoutes(self, self._audit)

    @property
    def runtime(self) -> Runtime:
        """The runtime. Raises ApiError while the worker starts: before it has read the control log, it
        cannot say "no such workload"."""
        runtime = self._runtime()
        if runtime is None or not runtime.control.caught_up:
            raise ApiError(503, "Starting", "the worker is starting; ask again in a moment")
        return runtime

    @property
    def operators(self) -> OperatorActions:
        """Operators' actions on jobs. Raises as `runtime`."""
        runtime = self.runtime
        return OperatorActions(runtime.jobs, runtime.control)

    def beats(self) -> dict[str, Heartbeat]:
        """The last heartbeat of every live worker."""
        return self.runtime.members.live(time.monotonic())

    def routes(self) -> list[web.RouteDef]:
        """All routes."""
        workload = "/api/v1/workloads/{group}/{topic}"
        dlq_path = "/api/v1/dlq/{group}/{topic}"
        return [
            web.get("/health/live", self.live),
            web.get("/health/ready", self.ready),
            web.get("/metrics", self.metrics),
            web.get("/api/v1/overview", self.get_overview),
            web.get("/api/v1/events", self.events, allow_head=False),
            web.get("/api/v1/workers", self.get_workers),
            web.get("/api/v1/assignments", self.get_assignments),
            web.get("/api/v1/activity", self.get_activity),
            web.get("/api/v1/incidents", self.get_incidents),
            web.get("/api/v1/workloads", self.get_workloads),
            *WorkloadRoutes(self).routes(),
            *(routes := RouteRoutes(self)).routes(),
            *RouteActRoutes(self, routes).routes(),
            *self._audit.routes(),
            *self._audit_missing.routes(),
            *AuditRecordRoutes(self).routes(),
            *AlertRoutes(self).routes(),
            *FailoverRoutes(self).routes(),
            *FailoverRunRoutes(self).routes(),
            web.get(workload + "/partitions/{partition}/tracker", self.get_tracker),
            web.get(dlq_path, self.get_dlq),
            web.get(dlq_path + "/messages", dlq_errors_as_problems(self.get_dlq_messages)),
            *self.dlq_tools.routes(),
            *OperatorRoutes(self).routes(),
            *MoveRoutes(self).routes(),
            *OffsetRoutes(self).routes(),
            *PlacementRoutes(self).routes(),
            *SizingRoutes(self).routes(),
            web.get("/api/v1/schema", self.get_schema),
            web.get("/api/v1/openapi.json", self.get_openapi),
        ]

    # -- outside ---------------------------------------------------------------------------------

    @described(schemas.Live)
    async def live(self, _: web.Request) -> web.Response:
        """The process answers with its worker's id (`app.worker.members.sentinel` calls this)."""
        runtime = self._runtime()
        return json_response({"status": "live", "worker": runtime.worker if runtime else ""})

    @described(schemas.Ready, answers=READY)
    async def ready(self, _: web.Request) -> web.Response:
        """Ready: the worker has read the control log, holds its lease, can save, and its event loop runs."""
        runtime = self.runtime
        holds = runtime.lease.holds(time.monotonic())
        unsaved = runtime.save_watch.unsaved(time.monotonic())
        too_many = runtime.open_files.trouble
        busy = runtime.loop_watch.trouble(time.monotonic())
        ok = holds and unsaved is None and busy is None and not (too_many or runtime.draining)
        detail = {
            "control_log_read": True,
            "lease_holds": holds,
            "draining": runtime.draining,
            "unsaved": "" if unsaved is None else unsaved.why or "no broker answers",
            "open_files": too_many,
            "clock": runtime.heartbeats.host_clock.trouble,
            "loop": "" if busy is None else str(busy),
        }
        return json_response({"status": "ready" if ok else "not ready", **detail}, 200 if ok else 503)

    @described(answers={200: AnswerDoc({"text/plain": TEXT}, "Prometheus' text")}, problems=(503,))
    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus' text."""
        body, content_type = exposition(self.runtime)
        return web.Response(body=body, headers={"Content-Type": content_type})

    # -- reading ---------------------------------------------------------------------------------

    def _overview(self) -> dict[str, Any]:
        runtime, now_s = self.runtime, time.monotonic()
        members = runtime.members
        return overview.overview(
            self.region, runtime.control.view, members.heard, members.live(now_s), list(runtime.incidents),
            now_ms(), now_s, returned=runtime.failover.keeper.has_just_returned(),
        )  # fmt: skip

    def _shared_overview(self) -> bytes:
        """The overview as JSON, made about once a second for all open pages."""
        now_s = time.monotonic()
        if now_s - self._snapshot[0] > EVENTS_INTERVAL_S / 2:
            self._snapshot = (now_s, orjson.dumps(self._overview()))
        return self._snapshot[1]

    @described(schemas.Overview)
    async def get_overview(self, _: web.Request) -> web.Response:
        """Everything on the first page: workers, workloads, totals, the last incidents."""
        return json_response(self._overview())

    @described(answers={200: AnswerDoc({"text/event-stream": TEXT}, "one `data:` a second, an Overview")})
    async def events(self, request: web.Request) -> web.StreamResponse:
        """The overview every second, as server-sent events."""
        if self._streams >= MAX_STREAMS:
            raise ApiError(503, "Too many streams", f"{MAX_STREAMS} pages are open already; close some")
        runtime = self.runtime
        answer = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store",
                     "X-Accel-Buffering": "no"}  # nginx would hold events back
        )  # fmt: skip
        self._streams += 1
        try:
            await answer.prepare(request)
            while not runtime.should_stop:
                # the stream of a page that no longer reads must end
                async with asyncio.timeout(EVENT_STREAM_TIMEOUT_S):
                    await answer.write(b"data: " + self._shared_overview() + b"\n\n")
                await asyncio.sleep(EVENTS_INTERVAL_S)
        except (ConnectionResetError, TimeoutError):
            pass  # the page is gone
        finally:
            self._streams -= 1
        return answer

    @described(Page[schemas.Worker], query=PAGE)
    async def get_workers(self, request: web.Request) -> web.Response:
        """Every worker with a recent heartbeat, and those that died lately."""
        return json_response(paged(self._overview()["workers"], request))

    @described(Page[schemas.Job], query=PAGE)
    async def get_assignments(self, request: web.Request) -> web.Response:
        """Every job: its worker, why and since when it runs there, and its load."""
        view = self.runtime.control.view
        loads = {status.job: status.load for beat in self.beats().values() for status in beat.jobs}
        items = [
            {"job": job, "worker": a.worker or None, "epoch": a.epoch, "term": a.term, "release": a.release,
             "reason": a.reason, "at_ms": a.at_ms, "since": iso(a.at_ms),
             "cpu_cores": load.cpu_cores if (load := loads.get(job)) else None,
             "memory_bytes": load.memory_bytes if load else None,
             "network_bytes_per_s": load.network_bytes_per_s if load else None,
             "wish": view.wishes[job].worker if job in view.wishes else None}
            for job, a in sorted(view.assignments.items())
        ]  # fmt: skip
        return json_response(paged(items, request))

    @described(Page[schemas.Activity], query=PAGE)
    async def get_activity(self, request: web.Request) -> web.Response:
        """Activities of the control log, the newest first."""
        return json_response(paged(list(reversed(self.runtime.control.recent)), request))

    @described(Page[schemas.Incident], query=PAGE)
    async def get_incidents(self, request: web.Request) -> web.Response:
        """Incidents, the newest first."""
        return json_response(paged([overview.incident(i) for i in reversed(self.runtime.incidents)], request))

    @described(Page[schemas.Workload], query=PAGE)
    async def get_workloads(self, request: web.Request) -> web.Response:
        """Every workload in numbers."""
        return json_response(paged(self._overview()["workloads"], request))

    def put_of(self, request: web.Request) -> WorkloadPut:
        """The definition of the workload in the request's address. Raises ApiError when there is none."""
        key = f"{request.match_info['group']}/{request.match_info['topic']}"
        put = self.runtime.control.view.workloads.get(key)
        if put is None:
            raise ApiError(
                404, "No such workload", f"there is no workload {key}; GET /api/v1/workloads lists them"
            )
        return put

    @described({"type": "object"}, problems=())
    async def get_schema(self, _: web.Request) -> web.Response:
        """The JSON Schema of definitions."""
        return json_response(json_schema())

    @described({"type": "object"}, problems=())
    async def get_openapi(self, _: web.Request) -> web.Response:
        """This description."""
        return json_response(openapi(self.routes()))

    # -- one partition ---------------------------------------------------------------------------

    @described(schemas.Tracker, query=TIER, problems=(404, 502))
    async def get_tracker(self, request: web.Request) -> web.Response:
        """One partition's tracker, from the worker that owns it (`?topic=` for a retry topic)."""
        put = self.put_of(request)
        text = request.match_info["partition"]
        topic = request.query.get("topic") or request.match_info["topic"]
        try:
            job = str(JobId(Kind.DISPATCH, put.key, topic, int(text) if is_number(text) else -1))
        except ValueError as error:
            raise ApiError(
                400, "No partition", f"{text[:40]!r} of {topic[:80]!r} is none: {error}"
            ) from error
        held = self.runtime.control.view.owner(job)
        if held is None:
            raise ApiError(
                404, "No such partition", f"no worker owns {job}; GET the workload to see its partitions"
            )
        pump = self.runtime.jobs.pumps.get(job)
        if pump is not None and held.worker == self.runtime.worker:
            tracker = pump.tracker
            finished = tracker.snapshot().finished
            return json_response({
                "job": job, "worker": self.runtime.worker, "epoch": pump.epoch, "state": pump.status().state,
                "base": tracker.base, "end": tracker.end, "high_watermark": pump.high_watermark,
                "capacity": tracker.capacity, "room": tracker.room, "in_flight": len(pump.calls),
                "unfinished": tracker.unfinished, "acked": tracker.acked, "nacked": tracker.nacked,
                "canceled": tracker.canceled, "utilisation": round(tracker.utilisation, 4),
                "unfinished_ranges": tracker.unfinished_ranges(MAX_RANGES),
                "finished_ranges": finished[:MAX_RANGES], "more_ranges": max(0, len(finished) - MAX_RANGES),
                "in_flight_offsets": sorted(pump.calls)[:MAX_RANGES], "trouble": pump.trouble,
            })  # fmt: skip
        if request.headers.get(HOP_HEADER):
            raise ApiError(503, "Moving", f"{job} is on its way to {held.worker}; ask again in a moment")
        return await hand_over(self, request, held.worker)

    # -- dead letters ----------------------------------------------------------------------------

    @described(schemas_dlq.Queue, problems=(404, 502))
    async def get_dlq(self, request: web.Request) -> web.Response:
        """The number of messages in the dead letter queue, by partition."""
        workload = self.workload_of(request)
        return json_response(await dlq_view.sizes(await self.cluster_of(workload), workload))

    @described(
        schemas_dlq.FoundPage,
        query=(
            *LETTERS,
            Param("limit", whole(1, 500, 50), "how many"),
            Param("cursor", CURSOR, PAGE[1].about),
        ),
        problems=(404, 502),
    )
    async def get_dlq_messages(self, request: web.Request) -> web.Response:
        """The dead letters, newest first; by reason, code, since, until, key, attempt_min, partition."""
        workload, query = self.workload_of(request), query_of(request)
        limit = number(request, "limit", 50, 1, 500)
        cursor = request.query.get("cursor", "")
        cluster = await self.cluster_of(workload)
        return json_response(await dlq_view.newest(cluster, workload, limit, cursor, query))

    def workload_of(self, request: web.Request) -> Workload:
        """The workload in the request's address. Raises ApiError when there is none."""
        put = self.put_of(request)
        workload = self.runtime.catalog.workload(put.key)
        if workload is None:
            detail = f"this worker cannot read the definition of {put.key}; deploy it again, or ask another"
            raise ApiError(503, "Unreadable definition", detail)
        return workload

    async def cluster_of(self, workload: Workload) -> Any:
        """The workload's cluster. Raises ApiError."""
        try:
            return await self.runtime.clusters.get(workload.metadata.cluster)
        except Exception as error:
            raise ApiError(502, "Cluster unreachable", f"{workload.metadata.cluster}: {error}") from error
