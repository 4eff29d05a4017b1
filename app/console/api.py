"""The REST API under /api/v1, as INTERFACES names it. Reads what this worker knows; changes go through the
control log, so that it does not matter which worker is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from app.clock import now_ms
from app.config.definitions import Workload, json_schema, parse_definition
from app.config.plan import plan
from app.config.problems import Document, read_documents
from app.console import dlq, overview
from app.console.acts import actor_of
from app.console.answers import ApiError, is_number, json_response, number, paged
from app.console.dlq_tools import DlqTools, query_of, told
from app.console.metrics import exposition
from app.console.operators import OperatorRoutes
from app.control.runtime import Runtime
from app.core.control import ALL, AnyControlEvent, Paused, WorkloadDeleted, WorkloadPut
from app.core.job import JobId, Kind
from app.pump.chains import payload_codec

MAX_RANGES = 2_000
PROXY_S = 5.0
EVENTS_S = 1.0
PATIENCE_S = 10.0
MAX_STREAMS = 64


class Api:
    """Handlers over one worker's `Runtime`."""

    def __init__(self, runtime: Callable[[], Runtime | None], region: str) -> None:
        self._runtime = runtime
        self.region = region
        self._streams = 0
        self._snapshot: tuple[float, bytes] = (float("-inf"), b"")
        self.dlq_tools = DlqTools(self)

    @property
    def runtime(self) -> Runtime:
        """Raises ApiError while the worker is starting: before it has read the control log, "there is no such
        workload" would be a lie."""
        runtime = self._runtime()
        if runtime is None or not runtime.control.caught_up:
            raise ApiError(503, "Starting", "the worker is starting; ask again in a moment")
        return runtime

    def routes(self) -> list[web.RouteDef]:
        """Everything there is."""
        workload = "/api/v1/workloads/{group}/{topic}"
        dlq_path = "/api/v1/dlq/{group}/{topic}"
        return [
            web.get("/health/live", self.live),
            web.get("/health/ready", self.ready),
            web.get("/metrics", self.metrics),
            web.get("/api/v1/overview", self.get_overview),
            web.get("/api/v1/events", self.events),
            web.get("/api/v1/workers", self.get_workers),
            web.get("/api/v1/assignments", self.get_assignments),
            web.get("/api/v1/activity", self.get_activity),
            web.get("/api/v1/incidents", self.get_incidents),
            web.get("/api/v1/workloads", self.get_workloads),
            web.get(workload, self.get_workload),
            web.put(workload, self.put_workload),
            web.delete(workload, self.delete_workload),
            web.get(workload + "/partitions/{partition}/tracker", self.get_tracker),
            web.get(dlq_path, self.get_dlq),
            web.get(dlq_path + "/messages", told(self.get_dlq_messages)),
            *self.dlq_tools.routes(),
            *OperatorRoutes(self).routes(),
            web.get("/api/v1/schema", self.get_schema),
            web.get("/api/v1/openapi.json", self.get_openapi),
        ]

    # -- outside ---------------------------------------------------------------------------------

    async def live(self, _: web.Request) -> web.Response:
        """The process answers."""
        return json_response({"status": "live"})

    async def ready(self, _: web.Request) -> web.Response:
        """It has read the control log and holds its lease."""
        runtime = self.runtime
        holds = runtime.lease.holds(time.monotonic())
        ok = holds and not runtime.draining
        detail = {
            "control_log_read": True,
            "lease_holds": holds,
            "draining": runtime.draining,
        }
        return json_response({"status": "ready" if ok else "not ready", **detail}, 200 if ok else 503)

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
            now_ms(), now_s,
        )  # fmt: skip

    def _shared_overview(self) -> bytes:
        """The overview as JSON, made about once a second however many pages are open."""
        now_s = time.monotonic()
        if now_s - self._snapshot[0] > EVENTS_S / 2:
            self._snapshot = (now_s, orjson.dumps(self._overview()))
        return self._snapshot[1]

    async def get_overview(self, _: web.Request) -> web.Response:
        return json_response(self._overview())

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The overview every second, as server-sent events."""
        if self._streams >= MAX_STREAMS:
            raise ApiError(503, "Too many streams", f"{MAX_STREAMS} pages are live already; close some")
        runtime = self.runtime
        answer = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        self._streams += 1
        try:
            await answer.prepare(request)
            while not runtime.should_stop:
                async with asyncio.timeout(PATIENCE_S):  # a page that no longer reads must not be kept
                    await answer.write(b"data: " + self._shared_overview() + b"\n\n")
                await asyncio.sleep(EVENTS_S)
        except (ConnectionResetError, TimeoutError):
            pass  # the page is gone
        finally:
            self._streams -= 1
        return answer

    async def get_workers(self, request: web.Request) -> web.Response:
        return json_response(paged(self._overview()["workers"], request))

    async def get_assignments(self, request: web.Request) -> web.Response:
        held = self.runtime.control.view.assignments
        items = [
            {"job": job, "worker": a.worker or None, "epoch": a.epoch, "term": a.term, "release": a.release,
             "reason": a.reason, "at_ms": a.at_ms}
            for job, a in sorted(held.items())
        ]  # fmt: skip
        return json_response(paged(items, request))

    async def get_activity(self, request: web.Request) -> web.Response:
        return json_response(paged(list(reversed(self.runtime.control.recent)), request))

    async def get_incidents(self, request: web.Request) -> web.Response:
        return json_response(paged([overview.incident(i) for i in reversed(self.runtime.incidents)], request))

    async def get_workloads(self, request: web.Request) -> web.Response:
        return json_response(paged(self._overview()["workloads"], request))

    def _put_of(self, request: web.Request) -> WorkloadPut:
        key = f"{request.match_info['group']}/{request.match_info['topic']}"
        put = self.runtime.control.view.workloads.get(key)
        if put is None:
            raise ApiError(
                404, "No such workload", f"there is no workload {key}; GET /api/v1/workloads lists them"
            )
        return put

    async def get_workload(self, request: web.Request) -> web.Response:
        put = self._put_of(request)
        live = self.runtime.members.live(time.monotonic())
        jobs = overview.Jobs(self.runtime.control.view, live, now_ms())
        body = {
            "definition": put.definition,
            "status": jobs.workload(put),
            "partitions": jobs.partitions(put.key),
            "deployed": {"at_ms": put.at_ms, "by": put.actor},
        }
        return json_response(body, headers={"ETag": f'"{put.etag}"'})

    async def get_schema(self, _: web.Request) -> web.Response:
        return json_response(json_schema())

    async def get_openapi(self, _: web.Request) -> web.Response:
        paths: dict[str, Any] = {}
        for route in self.routes():
            path = route.path
            doc = (route.handler.__doc__ or route.handler.__name__.replace("_", " ")).strip().split("\n")[0]
            names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
            paths.setdefault(path, {})[route.method.lower()] = {
                "summary": doc,
                "operationId": route.handler.__name__,
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in names
                ],
                "responses": {
                    "200": {"description": "done"},
                    "default": {"description": "a problem (RFC 9457)"},
                },
            }
        info = {"title": "Switchyard", "version": "1"}
        return json_response({"openapi": "3.1.0", "info": info, "paths": paths})

    # -- changing --------------------------------------------------------------------------------

    async def put_workload(self, request: web.Request) -> web.Response:
        """Defines or changes a workload; 201, or 200 when it was there. `?dry_run=true` only checks."""
        names = self.runtime.clusters.specs.keys()
        body = await self._body(request)
        workload, warnings = parse_definition(body.data, clusters=names, file=body.file, node=body.node)
        told = f"{request.match_info['group']}/{request.match_info['topic']}"
        if workload.key != told:
            raise ApiError(
                422, "Wrong address", f"the definition is of {workload.key}, the address of {told}"
            )
        try:
            await payload_codec(workload)
        except ValueError as error:  # as this worker sees the file; the others need it at the same path
            raise ApiError(422, "Payload descriptors cannot be used", str(error)) from error
        current = self.runtime.control.view.workloads.get(workload.key)
        self._match(request, current)
        etag = workload.etag()
        catalog = self.runtime.catalog
        known = {key: w for key in self.runtime.control.view.workloads if (w := catalog.workload(key))}
        planned = plan(known, [workload])
        if planned.conflicts:
            raise ApiError(409, "Conflict", "; ".join(planned.conflicts))
        changed = current is None or current.etag != etag
        dry_run = request.query.get("dry_run", "false") == "true"
        if changed and not dry_run:
            await self.runtime.control.append(
                WorkloadPut(
                    at_ms=now_ms(),
                    key=workload.key,
                    definition=workload.to_wire(),
                    etag=etag,
                    actor=actor_of(request),
                )
            )
        told_back = {"key": workload.key, "etag": etag, "changed": changed, "dry_run": dry_run,
                "warnings": [*map(str, warnings), *planned.warnings]}  # fmt: skip
        created = current is None and not dry_run
        return json_response(told_back, 201 if created else 200, {"ETag": f'"{etag}"'})

    async def delete_workload(self, request: web.Request) -> web.Response:
        """Deletes a workload; it stops once what is in flight has ended."""
        put = self._put_of(request)
        self._match(request, put)
        actor, at_ms = actor_of(request), now_ms()
        events: list[AnyControlEvent] = [WorkloadDeleted(at_ms=at_ms, key=put.key, actor=actor)]
        if put.key in self.runtime.control.view.paused:
            # Compaction may drop the deletion, and a pause must not come back with the next definition.
            events.append(Paused(at_ms=at_ms, key=put.key, partition=ALL, paused=False, actor=actor))
        await self.runtime.control.append(*events)
        return json_response({"key": put.key, "deleted": True})

    @staticmethod
    def _match(request: web.Request, current: WorkloadPut | None) -> None:
        if request.headers.get("If-None-Match") == "*" and current is not None:
            raise ApiError(412, "There already", f"{current.key} was defined meanwhile; read it, then decide")
        wanted = request.headers.get("If-Match")
        if wanted is None:
            return
        have = None if current is None else current.etag
        if wanted != "*" and have not in {
            tag.strip().removeprefix("W/").strip('"') for tag in wanted.split(",")
        }:
            raise ApiError(
                412, "Changed meanwhile", f"the definition's ETag is {have}; read it again, then decide"
            )
        if wanted == "*" and current is None:
            raise ApiError(412, "Not there", "If-Match: * needs a workload that exists")

    @staticmethod
    async def _body(request: web.Request) -> Document:
        raw = await request.read()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ApiError(400, "Not UTF-8", f"the body is not UTF-8 (byte {error.start})") from error
        # YAML is read by a patient parser: away from the loop that pushes messages.
        documents = await asyncio.to_thread(read_documents, text, "body")
        if len(documents) != 1:
            raise ApiError(400, "Bad body", f"the body must be one definition, it has {len(documents)}")
        return documents[0]

    # -- one partition ---------------------------------------------------------------------------

    async def get_tracker(self, request: web.Request) -> web.Response:
        """One partition's tracker, by the worker that owns it (`?topic=` for a retry topic)."""
        put = self._put_of(request)
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
                404, "No such partition", f"nobody owns {job}; GET the workload to see its partitions"
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
        if request.headers.get("X-Switchyard-Hop"):
            raise ApiError(503, "Moving", f"{job} is on its way to {held.worker}; ask again in a moment")
        return await self._ask_owner(request, held.worker)

    async def _ask_owner(self, request: web.Request, worker: str) -> web.Response:
        beat = self.runtime.members.live(time.monotonic()).get(worker)
        if beat is None:
            raise ApiError(
                503, "Owner away", f"{worker} owns the partition but is not heard; it moves within seconds"
            )
        timeout = aiohttp.ClientTimeout(total=PROXY_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(beat.url + request.path_qs, headers={"X-Switchyard-Hop": "1"}) as answer,
            ):
                body = await answer.read()
                return web.Response(body=body, status=answer.status, content_type=answer.content_type,
                                    headers={"Cache-Control": "no-store"})  # fmt: skip
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(
                502, "Owner unreachable", f"{worker} at {beat.url} does not answer: {error}"
            ) from error

    # -- dead letters ----------------------------------------------------------------------------

    async def get_dlq(self, request: web.Request) -> web.Response:
        """How many messages the dead letter queue holds, by partition."""
        workload = self.workload_of(request)
        return json_response(await dlq.sizes(await self.cluster_of(workload), workload))

    async def get_dlq_messages(self, request: web.Request) -> web.Response:
        """The dead letters, newest first; by reason, code, since, until, key, attempt_min, partition."""
        workload, query = self.workload_of(request), query_of(request)
        limit = number(request, "limit", 50, 1, 500)
        cursor = request.query.get("cursor", "")
        cluster = await self.cluster_of(workload)
        return json_response(await dlq.newest(cluster, workload, limit, cursor, query))

    def workload_of(self, request: web.Request) -> Workload:
        """The workload that the request's address names. Raises ApiError."""
        return Workload.from_wire(self._put_of(request).definition)

    async def cluster_of(self, workload: Workload) -> Any:
        """The workload's cluster. Raises ApiError."""
        try:
            return await self.runtime.clusters.get(workload.metadata.cluster)
        except Exception as error:
            raise ApiError(502, "Cluster unreachable", f"{workload.metadata.cluster}: {error}") from error
