"""The REST interface of what operators do to a route's positions: reset, and skip batches that cannot be
copied.

Both show first what they would do (200), and act only with `"execute": true`. Any worker takes the request;
it forwards what only a job's owner may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiohttp import web

from app.dispatch.dlq.query import BadQuery
from app.kernel.job import JobId
from app.kernel.json_types import JsonMapping, JsonObject
from app.placement.model.round import is_gone
from app.replicate.api import schemas
from app.replicate.definition import REPLICATE_JOBS, replicate_job
from app.replicate.jobs.operator_acts import ReplicaActs
from app.web.http import request_bodies
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER, hand_over, reset_by
from app.web.http.operator_requests import (
    MAX_PARTITIONS,
    PARTITIONS_AT_ONCE,
    acting,
    actor_of,
    end_of,
    flag_of,
    offsets_of,
    partitions_of,
    read_body,
    reason_of,
    reset_fields,
)
from app.web.http.responses import ApiError, is_number, json_response
from app.web.http.route_docs import ACTOR, described
from app.worker.jobs.operator_acts import OperationRefused, PositionMove

if TYPE_CHECKING:
    from app.replicate.api.rest import RouteRoutes

TopicAndPartition = tuple[str, int]  # topic and partition


class RouteActRoutes:
    """The handlers; `api` finds the runtime, `routes` the route that a path names."""

    def __init__(self, api: ApiContext, routes: RouteRoutes) -> None:
        self._api = api
        self._routes = routes

    def routes(self) -> list[web.RouteDef]:
        route = "/api/v1/routes/{name}"
        return [
            web.post(route + "/reset", acting(self.reset_route)),
            web.post(route + "/topics/{topic}/partitions/{partition}/skip", acting(self.skip_route)),
        ]

    # -- reset -----------------------------------------------------------------------------------

    @described(schemas.RouteReset, headers=ACTOR, body=request_bodies.ROUTE_RESET_BODY, problems=(404, 409))
    async def reset_route(self, request: web.Request) -> web.Response:
        """Moves a route's position: `to` earliest or latest, `at` a time, or `offsets` by partition.

        Moved back, the route copies records again, behind the copies that exist. Moved forward, it leaves
        records out."""
        name = self._routes.put_of(request).key
        body = await read_body(request, request_bodies.RouteResetBody)
        wanted, at_ms = self._wanted(name, body)
        gate = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def foresee(at: TopicAndPartition) -> PositionMove:
            async with gate:
                return await self._api.operators.foresee_reset(
                    replicate_job(name, *at), wanted[at], at_ms=at_ms
                )

        moves = dict(zip(wanted, await asyncio.gather(*map(foresee, wanted)), strict=True))
        execute = flag_of(body, "execute")
        rows = {at: {"topic": at[0], **reset_fields(at[1], move)} for at, move in moves.items()}
        if execute:
            for at, row in (await self._reset_all(request, moves)).items():
                rows[at] |= row | {"note": row.get("note") or rows[at]["note"]}
        done = sum(bool(row.get("done")) for row in rows.values())
        return json_response(
            {"key": name, "execute": execute, "done": done, "partitions": list(rows.values())}
        )

    def _wanted(self, name: str, body: JsonMapping) -> tuple[dict[TopicAndPartition, int], bool]:
        """The wanted offset by topic and partition, and whether it is a time. Raises BadQuery, ApiError."""
        if sum(field in body for field in ("to", "at", "offsets")) != 1:
            raise BadQuery('say where to: {"to": "earliest"}, {"to": "latest"}, {"at": "2h"} '
                           'or {"topic": "orders", "offsets": {"0": 1042}}')  # fmt: skip
        topic = body.get("topic")
        if not isinstance(topic, str) and ("topic" in body or "offsets" in body or body.get("partitions")):
            raise BadQuery("topic: name a topic of the source; offsets and partitions belong to one topic")
        known = self._partitions(name, topic)
        if topic is not None and not known:
            raise ApiError(404, "No such topic", f"route {name} copies no topic {topic[:100]}")
        if "offsets" in body:
            found = {(str(topic), partition): offset for partition, offset in offsets_of(body).items()}
        else:
            where = end_of(body)
            found = dict.fromkeys([(str(topic), number) for number in partitions_of(body)] or known, where)
        if unknown := sorted(found.keys() - set(known)):
            missing, partition = unknown[0]
            raise ApiError(
                404, "No such partition",
                f"route {name} copies no partition {partition} of {missing[:100]}; "
                f"it copies {len(known)} partitions",
            )  # fmt: skip
        if not found:
            raise ApiError(
                409, "Nothing to reset", f"route {name} copies nothing yet; GET its topics to see why"
            )
        if len(found) > MAX_PARTITIONS:
            remedy = "name a topic, or up to" if topic is None else "name up to"
            raise ApiError(
                409, "Not so many", f"{len(found)} partitions; {remedy} {MAX_PARTITIONS} partitions of it"
            )
        return dict(sorted(found.items())), "at" in body

    def _partitions(self, name: str, topic: str | None) -> list[TopicAndPartition]:
        """The partitions that the route copies, of all topics or of one."""
        prefix = f"{REPLICATE_JOBS}{name}:" + (f"{topic}:" if topic is not None else "")
        held = self._api.runtime.control.view.assignments
        jobs = [JobId.parse(job) for job in held if job.startswith(prefix) and not is_gone(held[job])]
        return sorted((job.topic, job.partition) for job in jobs)

    async def _reset_all(
        self, request: web.Request, moves: Mapping[TopicAndPartition, PositionMove]
    ) -> dict[TopicAndPartition, JsonObject]:
        """Resets each partition on its owner; returns the result of each."""
        runtime = self._api.runtime
        by_owner: dict[tuple[str, str], dict[int, int]] = {}  # (worker, topic) -> partition -> offset
        here: list[TopicAndPartition] = []
        for at, move in moves.items():
            held = runtime.control.view.owner(move.job)
            if held is None or held.worker == runtime.worker or request.headers.get(HOP_HEADER):
                here.append(at)
            else:
                by_owner.setdefault((held.worker, at[0]), {})[at[1]] = move.to
        results = await asyncio.gather(
            *(self._reset_here(request, at, moves[at]) for at in here),
            *(self._reset_there(request, *place, offsets) for place, offsets in by_owner.items()),
        )
        return {(row["topic"], row["partition"]): row for rows in results for row in rows}

    async def _reset_here(
        self, request: web.Request, at: TopicAndPartition, move: PositionMove
    ) -> list[JsonObject]:
        row = {"topic": at[0], "partition": at[1]}
        try:
            done = await self._api.operators.reset(move.job, move.to, actor_of(request))
        except (OperationRefused, LookupError) as error:
            return [row | {"done": False, "why": str(error)}]
        return [row | reset_fields(at[1], done) | {"done": True}]

    async def _reset_there(
        self, request: web.Request, worker: str, topic: str, offsets: Mapping[int, int]
    ) -> list[JsonObject]:
        body = {"topic": topic, "offsets": {str(p): offset for p, offset in offsets.items()}, "execute": True}
        rows = await reset_by(self._api, request, worker, body)
        if isinstance(rows, str):
            return [{"topic": topic, "partition": p, "done": False, "why": rows} for p in offsets]
        return rows

    # -- skip ------------------------------------------------------------------------------------

    @described(schemas.RouteSkipped, headers=ACTOR, body=request_bodies.SkipBody, problems=(404, 409, 502))
    async def skip_route(self, request: web.Request) -> web.Response:
        """Leaves those of [`start`, `end`) out of the copy that cannot be copied; the others are copied."""
        name = self._routes.put_of(request).key
        body = await read_body(request, request_bodies.SkipBody)
        start, end = body.get("start"), body.get("end")
        if type(start) is not int or type(end) is not int or not 0 <= start < end < 1 << 63:
            raise BadQuery("start, end: give offsets of the source, with 0 <= start < end")
        text, topic = request.match_info["partition"], request.match_info["topic"]
        at = (topic, int(text) if is_number(text) else -1)
        if at not in self._partitions(name, topic):
            raise ApiError(404, "No such partition", f"route {name} copies no {topic[:100]}-{text[:20]}")
        job, runtime, execute = str(replicate_job(name, *at)), self._api.runtime, flag_of(body, "execute")
        reason = reason_of(body)
        held = runtime.control.view.owner(job)
        if held is not None and held.worker != runtime.worker and not request.headers.get(HOP_HEADER):
            return await hand_over(self._api, request, held.worker, body)
        acts = ReplicaActs(self._api.operators, runtime.kinds.replicate.pumps)
        skipped, why = acts.foresee_pass(job, start, end)
        if execute:
            skipped = await acts.pass_over(job, start, end, actor_of(request), reason)
        count = sum(end - start for start, end in skipped)
        answer = {"job": job, "execute": execute, "skipped": skipped, "count": count, "why": why}
        return json_response(answer)
