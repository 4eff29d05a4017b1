"""The REST calls of the console's first page: overview and its stream, workers, jobs, activity, incidents."""

from __future__ import annotations

import asyncio
import time

import orjson
from aiohttp import web

from app.kernel.clock import iso, now_ms
from app.kernel.json_types import JsonObject
from app.web.http import schemas
from app.web.http.context import ApiContext
from app.web.http.responses import ApiError, flag, json_response, paged
from app.web.http.route_docs import PAGE, TEXT, AnswerDoc, Page, Param, described
from app.worker.api import overview

EVENTS_INTERVAL_S = 1.0
EVENT_STREAM_TIMEOUT_S = 10.0
MAX_STREAMS = 64
OPEN = Param("open", {"type": "boolean", "default": False}, "only those whose state still lasts")


def region_overview(api: ApiContext) -> JsonObject:
    """All numbers of the console's first page. Raises ApiError while the worker starts."""
    runtime, now_s = api.runtime, time.monotonic()
    members = runtime.members
    return overview.overview(
        api.region, runtime.control.view, members.heard, members.live(now_s), runtime.incidents.known,
        now_ms(), now_s, returned=runtime.failover.keeper.has_just_returned(),
    )  # fmt: skip


class OverviewRoutes:
    """The handlers."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._streams = 0
        self._snapshot: tuple[float, bytes] = (float("-inf"), b"")

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/overview", self.get_overview),
            web.get("/api/v1/events", self.events, allow_head=False),
            web.get("/api/v1/workers", self.get_workers),
            web.get("/api/v1/assignments", self.get_assignments),
            web.get("/api/v1/activity", self.get_activity),
            web.get("/api/v1/incidents", self.get_incidents),
        ]

    def _shared_overview(self) -> bytes:
        """The overview as JSON, made about once a second for all open pages."""
        now_s = time.monotonic()
        if now_s - self._snapshot[0] > EVENTS_INTERVAL_S / 2:
            self._snapshot = (now_s, orjson.dumps(region_overview(self._api)))
        return self._snapshot[1]

    @described(schemas.Overview)
    async def get_overview(self, _: web.Request) -> web.Response:
        """Everything on the first page: workers, workloads, totals, the last incidents."""
        return json_response(region_overview(self._api))

    @described(answers={200: AnswerDoc({"text/event-stream": TEXT}, "one `data:` a second, an Overview")})
    async def events(self, request: web.Request) -> web.StreamResponse:
        """The overview every second, as server-sent events."""
        if self._streams >= MAX_STREAMS:
            raise ApiError(503, "Too many streams", f"{MAX_STREAMS} pages are open already; close some")
        runtime = self._api.runtime
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
        return json_response(paged(region_overview(self._api)["workers"], request))

    @described(Page[schemas.Job], query=PAGE)
    async def get_assignments(self, request: web.Request) -> web.Response:
        """Every job: its worker, why and since when it runs there, and its load."""
        view = self._api.runtime.control.view
        loads = {status.job: status.load for beat in self._api.beats().values() for status in beat.jobs}
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
        return json_response(paged(list(reversed(self._api.runtime.control.recent)), request))

    @described(Page[schemas.Incident], query=(*PAGE, OPEN))
    async def get_incidents(self, request: web.Request) -> web.Response:
        """Incidents: first those whose state still lasts, then all others, each the newest first.

        An open one has `open: true`. One that has ended has `ended_ms`, except if its worker is gone, as
        `ended_why` then says. Events of a moment have no end (`lasts: false`).
        """
        live, wanted = self._api.beats(), flag(request, "open")
        found = [overview.incident(one) for one in self._api.runtime.incidents.known.newest_first(live)]
        return json_response(paged([one for one in found if one["open"] or not wanted], request))
