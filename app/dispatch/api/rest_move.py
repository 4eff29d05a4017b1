"""The REST call of a cluster move: a forecast (200), or the move with `"execute": true` (202)."""

from __future__ import annotations

import uuid

from aiohttp import web
from aiokafka.errors import KafkaError

from app.dispatch.dlq.query import BadQuery
from app.dispatch.move.begin_offsets import by_offset_syncs, not_joined
from app.dispatch.move.mover import Mover
from app.dispatch.move.planner import DEFAULT_MARGIN_MS, MovePlanner, MoveRequest, check_repetitions
from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.durations import parse_duration
from app.kernel.json_types import JsonMapping, JsonObject
from app.placement.api import schemas
from app.web.http import request_bodies
from app.web.http.context import ApiContext
from app.web.http.operations import STARTED, ReportProgress
from app.web.http.operator_requests import acting, actor_of, flag_of, read_body
from app.web.http.responses import ApiError, json_response
from app.web.http.route_docs import ACTOR, described

LETTERS = {"copy": True, "leave": False}


class MoveRoutes:
    """The handlers; `api` finds workloads and the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/v1/workloads/{group}/{topic}/move", acting(self.move))]

    @described(
        schemas.ForeseenMove,
        answers=STARTED,
        headers=ACTOR,
        body=request_bodies.MoveBody,
        problems=(404, 409, 502),
    )
    async def move(self, request: web.Request) -> web.Response:
        """Moves a workload to another cluster that has its topic; without `execute`, only forecasts it."""
        runtime = self._api.runtime
        workload = self._api.workload_of(request)
        body = await read_body(request, request_bodies.MoveBody)
        wanted = _requested_move(workload.key, body)
        map_offsets = not_joined if runtime.regions is None else by_offset_syncs(runtime.regions.mapper)
        planner = MovePlanner(wanted, runtime.control, runtime.clusters, runtime.members, map_offsets)
        mover = Mover(planner, runtime.control)
        try:
            forecast = await mover.foresee()
        except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
            raise ApiError(502, "Cluster unreachable", str(error) or repr(error)) from error
        if not flag_of(body, "execute"):
            return json_response(forecast | {"execute": False})
        if forecast["complete"]:
            check_repetitions(forecast, wanted)
        if runtime.draining:
            raise ApiError(503, "Stopping", "this worker is stopping; send the request to another worker")
        name, actor = f"move-{uuid.uuid4().hex[:12]}", actor_of(request)

        async def work(report_progress: ReportProgress) -> JsonObject:
            return await mover.run(name, actor, report_progress)

        op = self._api.operations.start(name, "move", workload.key, actor, work)
        return json_response(op.to_json(), 202, {"Location": f"/api/v1/operations/{op.id}"})


def _requested_move(key: str, body: JsonMapping) -> MoveRequest:
    """The move that a body asks for. Raises BadQuery."""
    to, letters = body.get("to"), body.get("dlq", "copy")
    if not isinstance(to, str) or not to:
        raise BadQuery('to: name the cluster, as in {"to": "west-aggregate"}')
    if not isinstance(letters, str) or letters not in LETTERS:
        raise BadQuery("dlq: must be copy or leave")
    try:
        margin_s = parse_duration(body.get("margin", DEFAULT_MARGIN_MS / 1000))
    except ValueError as error:
        raise BadQuery(f"margin: {error}") from error
    return MoveRequest(key, to, round(margin_s * 1000), LETTERS[letters], flag_of(body, "force"))
