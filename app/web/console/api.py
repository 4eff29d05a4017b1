"""The REST API under /api/v1: all rooms' routes, the worker's health, and the descriptions of the API.

Any worker of the region answers any request: it reads its own copy of the region's state, and writes changes
into the control log.
"""

from __future__ import annotations

import time

from aiohttp import web

from app.alerts.api.rest import AlertRoutes
from app.audit.api.rest import AuditRoutes
from app.audit.api.rest_drilldown import AuditMissingRoutes
from app.audit.api.rest_records import AuditRecordRoutes
from app.definitions.registry import json_schema
from app.dispatch.api.rest import WorkloadRoutes
from app.dispatch.api.rest_dlq import DlqTools
from app.dispatch.api.rest_move import MoveRoutes
from app.dispatch.api.rest_operators import OperatorRoutes
from app.dispatch.api.rest_trace import TraceRoutes
from app.failover.api.rest import FailoverRoutes
from app.failover.api.rest_runs import FailoverRunRoutes
from app.offsets.api.rest import OffsetRoutes
from app.placement.api.rest import PlacementRoutes
from app.replicate.api.rest import RouteRoutes
from app.replicate.api.rest_operators import RouteActRoutes
from app.sizing.api.rest import SizingRoutes
from app.web.console.metrics import exposition
from app.web.http import schemas
from app.web.http.context import ApiContext
from app.web.http.openapi import openapi
from app.web.http.responses import json_response
from app.web.http.route_docs import JSON, TEXT, AnswerDoc, described
from app.worker.api.rest_operations import OperationRoutes
from app.worker.api.rest_overview import OverviewRoutes

READY = {503: AnswerDoc({JSON: schemas.Ready, "application/problem+json": schemas.Problem}, "not ready")}


def api_routes(api: ApiContext) -> list[web.RouteDef]:
    """All routes."""
    routes, audit = RouteRoutes(api), AuditRoutes(api)
    rooms = (
        HealthRoutes(api), OverviewRoutes(api), WorkloadRoutes(api), TraceRoutes(api),
        routes, RouteActRoutes(api, routes), audit, AuditMissingRoutes(api, audit), AuditRecordRoutes(api),
        AlertRoutes(api), FailoverRoutes(api), FailoverRunRoutes(api), DlqTools(api), OperationRoutes(api),
        OperatorRoutes(api), MoveRoutes(api), OffsetRoutes(api), PlacementRoutes(api), SizingRoutes(api),
        DescriptionRoutes(api),
    )  # fmt: skip
    return [route for room in rooms for route in room.routes()]


class HealthRoutes:
    """The worker's health and metrics."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health/live", self.live),
            web.get("/health/ready", self.ready),
            web.get("/metrics", self.metrics),
        ]

    @described(schemas.Live)
    async def live(self, _: web.Request) -> web.Response:
        """The process answers with its worker's id (`app.worker.members.sentinel` calls this)."""
        return json_response({"status": "live", "worker": self._api.worker})

    @described(schemas.Ready, answers=READY)
    async def ready(self, _: web.Request) -> web.Response:
        """Ready: the worker has read the control log, holds its lease, can save, and its event loop runs."""
        runtime = self._api.runtime
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
            "disk": runtime.disk.trouble,
        }
        return json_response({"status": "ready" if ok else "not ready", **detail}, 200 if ok else 503)

    @described(answers={200: AnswerDoc({"text/plain": TEXT}, "Prometheus' text")}, problems=(503,))
    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus' text."""
        body, content_type = exposition(self._api.runtime)
        return web.Response(body=body, headers={"Content-Type": content_type})


class DescriptionRoutes:
    """What describes definitions and the API."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/schema", self.get_schema),
            web.get("/api/v1/openapi.json", self.get_openapi),
        ]

    @described({"type": "object"}, problems=())
    async def get_schema(self, _: web.Request) -> web.Response:
        """The JSON Schema of definitions."""
        return json_response(json_schema())

    @described({"type": "object"}, problems=())
    async def get_openapi(self, _: web.Request) -> web.Response:
        """This description."""
        return json_response(openapi(api_routes(self._api)))
