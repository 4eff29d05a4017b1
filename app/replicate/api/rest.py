"""The REST interface of routes: their definitions, their topics, their pauses.

The leader reads the clusters, so it knows the state of each topic; other workers forward such requests to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog
from aiohttp import web

from app.controllog.events import ALL, RoutePut
from app.definitions.api.requests import (
    DEFINITIONS,
    DRY_RUN,
    MATCH,
    YAML,
    ask_cluster,
    check_address,
    condition,
    define,
    defined,
    delete,
    paged_definitions,
    put_answers,
    read_definition,
    unmade_topics,
)
from app.definitions.plan import plan
from app.definitions.registry import parse_route
from app.failover.api.rest import refuse_derived
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.kernel.topic_names import NAME_REFUSED
from app.replicate.api import schemas as replicate_schemas
from app.replicate.api.foreseen_topics import ForeseenTopics, foresee_topics
from app.replicate.api.topic_edit import NoSuchEdit, with_topic, without_topic
from app.replicate.definition import RouteDefinition
from app.replicate.model.copy_graph import ALONE
from app.replicate.model.name_patterns import is_name
from app.replicate.model.route import RENAME, is_topic
from app.replicate.topics.new_copies import new_copies, refused_copies
from app.web.http import schemas as http_schemas
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER, hand_over
from app.web.http.operator_requests import actor_of
from app.web.http.responses import ApiError, flag, json_response, paged
from app.web.http.route_docs import ACTOR, JSON, PAGE, AnswerDoc, Page, described
from app.worker.api import overview

log = structlog.get_logger(__name__)

LISTED_S = 10.0  # one listing of topics serves a deployment of many routes
PUT = put_answers("route")
EDITED = {
    200: AnswerDoc({JSON: replicate_schemas.RouteEdited}, "changed, unchanged, or a dry run", ("ETag",))
}


class RouteRoutes:
    """The handlers; `api` finds the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._listed: dict[str, tuple[float, Mapping[str, int]]] = {}  # by cluster: when, its topics

    def routes(self) -> list[web.RouteDef]:
        route = "/api/v1/routes/{name}"
        return [
            web.get("/api/v1/routes", self.get_routes),
            web.get("/api/v1/routes-elsewhere", self.get_elsewhere),
            web.get(route, self.get_route),
            web.put(route, self.put_route),
            web.delete(route, self.delete_route),
            web.get(route + "/topics", self.get_route_topics),
            web.put(route + "/topics/{topic}", self.add_topic),
            web.delete(route + "/topics/{topic}", self.drop_topic),
            web.post(route + "/pause", self.pause_route),
            web.post(route + "/resume", self.resume_route),
        ]

    # -- reading -----------------------------------------------------------------------------------

    def _jobs(self) -> overview.JobsOverview:
        return overview.JobsOverview(self._api.runtime.control.view, self._api.beats(), now_ms())

    @described(Page[http_schemas.Route], query=(DEFINITIONS, *PAGE))
    async def get_routes(self, request: web.Request) -> web.Response:
        """Lists all routes, with their numbers. `?definitions=true` adds their definitions."""
        jobs = self._jobs()
        if not flag(request, "definitions"):
            page = paged([put for _, put in sorted(jobs.state.routes.items())], request)
            return json_response({**page, "items": [jobs.route(put) for put in page["items"]]})
        page = paged_definitions(jobs.state.routes.values(), request)
        items = [
            {**jobs.route(put), "definition": put.definition, "made_by": put.made_by} for put in page["items"]
        ]
        return json_response({**page, "items": items})

    @described(replicate_schemas.Elsewhere)
    async def get_elsewhere(self, _: web.Request) -> web.Response:
        """Lists the known routes of other regions, and cluster ids. A deployment is checked against them."""
        regions = self._api.runtime.regions
        if regions is None:
            return json_response({"clusters": {}, "routes": []})
        await regions.remote_routes.refresh(self._api.runtime.clusters.specs.keys())
        return json_response(
            {
                "clusters": regions.remote_routes.ids,
                "routes": [remote._asdict() for remote in regions.remote_routes.routes],
            }
        )

    @described(
        answers={200: AnswerDoc({JSON: replicate_schemas.RouteDetail}, headers=("ETag",))}, problems=(404,)
    )
    async def get_route(self, request: web.Request) -> web.Response:
        """Returns a route: its definition, and its partitions with their owners, states and lags."""
        put, jobs, view = self.put_of(request), self._jobs(), self._api.runtime.control.view
        body = {
            "definition": put.definition,
            "status": jobs.route(put),
            "partitions": jobs.partitions(put.key),
            "deployed": {"at_ms": put.at_ms, "by": put.actor, "made_by": put.made_by},
            "begins_ms": max((start.at_ms for start in view.start_parts_of(put.key)), default=None),
        }
        return json_response(body, headers={"ETag": f'"{put.etag}"'})

    @described(replicate_schemas.RouteTopics, query=PAGE, problems=(404, 502))
    async def get_route_topics(self, request: web.Request) -> web.Response:
        """Lists each topic that entries match: its copy's name, or why it is not copied. The leader knows."""
        put, runtime = self.put_of(request), self._api.runtime
        leader = runtime.control.view.leader
        if not runtime.leader.leads and leader and not request.headers.get(HOP_HEADER):
            return await hand_over(self._api, request, leader)
        topics = runtime.catalog.routes.topics_of(put.key)
        read_s = None if topics is None else round(time.monotonic() - topics.read_at_s, 1)
        page = paged([] if topics is None else topics.topics, request)
        items = [] if topics is None else list(map(topics.row, page["items"]))
        unmatched = 0 if topics is None else topics.unmatched_count
        return json_response({**page, "items": items, "read_s_ago": read_s, "others": unmatched})

    def put_of(self, request: web.Request) -> RoutePut:
        """The route that the request's path names. Raises ApiError."""
        name = request.match_info["name"]
        put = self._api.runtime.control.view.routes.get(name)
        if put is None:
            detail = f"there is no route {name[:100]!r}; GET /api/v1/routes lists them"
            raise ApiError(404, "No such route", detail)
        return put

    def _definition_of(self, put: RoutePut) -> RouteDefinition:
        found = self._api.runtime.catalog.routes.definition(put.key)
        if found is None:
            detail = f"this worker cannot read the definition of {put.key}; deploy it again, or ask another"
            raise ApiError(503, "Unreadable definition", detail)
        return found

    # -- changing ----------------------------------------------------------------------------------

    @described(
        answers=PUT, query=DRY_RUN, headers=(*MATCH, *ACTOR), body=RouteDefinition, kinds=(JSON, *YAML),
        problems=(409, 412, 422),
    )  # fmt: skip
    async def put_route(self, request: web.Request) -> web.Response:
        """Creates a route (201) or changes it (200). `?dry_run=true` only checks."""
        names, dry_run = self._api.runtime.clusters.specs.keys(), flag(request, "dry_run")
        body = await read_definition(request)
        route, warnings = await asyncio.to_thread(
            parse_route, body.data, clusters=names, file=body.file, node=body.node
        )
        check_address(request, route.key)
        current = self._api.runtime.control.view.routes.get(route.key)
        refuse_derived(current)
        expected = condition(request, current)
        answer = await self._define(request, route, current, expected, dry_run=dry_run)
        return defined(answer, warnings, current, answer["doubts"])

    async def _define(
        self,
        request: web.Request,
        route: RouteDefinition,
        current: RoutePut | None,
        expected: str | None,
        *,
        dry_run: bool,
    ) -> JsonObject:
        """Writes the route to the control log if it agrees with all others. Raises ApiError."""
        catalog, view = self._api.runtime.catalog, self._api.runtime.control.view
        known = {
            name: found
            for name in list(view.routes)
            if (found := catalog.routes.definition(name)) is not None
        }
        # Proofs about names take long, so they run in a thread, beside the loop that delivers messages.
        regions = self._api.runtime.regions
        ends = (route.spec.source, route.spec.target)
        beside = ALONE if regions is None else await regions.remote_routes.refresh(ends)
        planned = await asyncio.to_thread(plan, known, [route], other_regions=beside)
        doubts = await self._check_copies(route, known.get(route.key))
        answer = await define(
            self._api, request, RoutePut, route, current, expected, planned, dry_run=dry_run
        )
        foreseen = ForeseenTopics([], [])
        if dry_run and answer["changed"]:
            foreseen = await foresee_topics(self._api, route, known.values(), self._topics_at)
        return {**answer, "doubts": [*doubts, *foreseen.notes], "topics": foreseen.changes}

    async def _check_copies(self, definition: RouteDefinition, before: RouteDefinition | None) -> list[str]:
        """Warnings about topics that the destination would refuse to create. Raises ApiError."""
        if definition == before:
            return []
        route, earlier = definition.route(), None if before is None else before.route()
        is_named = all(map(is_name, route.topics))
        source_topics = {} if is_named else await self._topics_at(route.source) or {}
        copies = await asyncio.to_thread(new_copies, route, earlier, source_topics)
        if copies.twins is not None:
            raise ApiError(409, NAME_REFUSED, f"{route.name}: {copies.twins}; {copies.twins.remedy}")
        if not copies.names:
            return []
        return await unmade_topics(
            self._api, route.target, lambda client: refused_copies(client, copies.names), RENAME
        )

    async def _topics_at(self, cluster: str) -> Mapping[str, int] | None:
        """The cluster's topics; None if it does not answer. The leader reports uncreatable copies later."""
        now_s = time.monotonic()
        self._listed = {name: one for name, one in self._listed.items() if now_s < one[0] + LISTED_S}
        if cluster in self._listed:
            return self._listed[cluster][1]
        found = await ask_cluster(self._api, cluster, lambda client: client.topics())
        if found is not None:
            self._listed[cluster] = time.monotonic(), found
        return found

    @described(http_schemas.Deleted, headers=(*MATCH, *ACTOR), problems=(404, 409, 412))
    async def delete_route(self, request: web.Request) -> web.Response:
        """Deletes a route. It stops once what is in flight has arrived; no topic is deleted at either end."""
        put = self.put_of(request)
        refuse_derived(put)
        return await delete(self._api, request, put)

    @described(answers=EDITED, query=DRY_RUN, headers=(*MATCH, *ACTOR), problems=(404, 409, 412, 422))
    async def add_topic(self, request: web.Request) -> web.Response:
        """Adds a topic to a route, by its name or by ending its exclusion."""
        return await self._edit(request, with_topic)

    @described(answers=EDITED, query=DRY_RUN, headers=(*MATCH, *ACTOR), problems=(404, 409, 412, 422))
    async def drop_topic(self, request: web.Request) -> web.Response:
        """Removes a topic from a route, by removing its name or by an exclusion."""
        return await self._edit(request, without_topic)

    async def _edit(self, request: web.Request, edit: Any) -> web.Response:
        put, topic, dry_run = self.put_of(request), request.match_info["topic"], flag(request, "dry_run")
        definition = self._definition_of(put)
        refuse_derived(put)
        condition(request, put)
        if not is_topic(topic):
            raise ApiError(400, "Bad topic", f"{topic[:60]!r} is not a topic name; name one topic at a time")
        try:
            route, done = await asyncio.to_thread(edit, definition, topic)
        except NoSuchEdit as error:
            raise ApiError(409, "Refused", str(error)) from error
        # On the condition of this definition's etag, so that it does not undo a change that came meanwhile.
        answer = await self._define(request, route, put, put.etag, dry_run=dry_run)
        answer["warnings"] += answer["doubts"]
        return json_response({**answer, "done": done}, headers={"ETag": f'"{answer["etag"]}"'})

    @described(replicate_schemas.RoutePaused, headers=ACTOR, problems=(404,))
    async def pause_route(self, request: web.Request) -> web.Response:
        """Pauses copying until the route is resumed; positions stay."""
        return await self._pause(request, paused=True)

    @described(replicate_schemas.RoutePaused, headers=ACTOR, problems=(404,))
    async def resume_route(self, request: web.Request) -> web.Response:
        """Resumes copying where it was paused."""
        return await self._pause(request, paused=False)

    async def _pause(self, request: web.Request, *, paused: bool) -> web.Response:
        put = self.put_of(request)
        changed = await self._api.operators.pause(put.key, [ALL], paused, actor_of(request))
        return json_response({"key": put.key, "changed": changed, "paused": paused})
