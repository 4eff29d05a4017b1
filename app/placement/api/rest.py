"""Placement by REST: why every job is where it is, the moves of a round, moves by hand, drains.

Any worker answers with the leader's plan. A plan has an id; it is applied as it was read or not at all.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import TypedDict

import msgspec
import orjson
from aiohttp import web

from app.controllog.events import Drain, MoveWish
from app.controllog.state import ControlState
from app.dispatch.dlq.query import BadQuery
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonMapping, JsonObject
from app.placement.api import schemas
from app.placement.inputs import group_of, members_of
from app.placement.model.plan import PlacementDecision, PlacementRules, RoundPlan, name_of
from app.web.http import request_bodies
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER, hand_over
from app.web.http.operator_requests import acting, actor_of, flag_of, read_body, reason_of
from app.web.http.request_bodies import MAX_MOVES
from app.web.http.responses import ApiError, json_response
from app.web.http.route_docs import ACTOR, described

EVEN = PlacementRules(even=2, moves=MAX_MOVES, worker_share=1.0, region_share=1.0)


class WishReleased(TypedDict):
    """The canceled wish: the worker that an operator wanted the job on; null: there was none."""

    job: str
    wish: str | None
    changed: bool
    execute: bool


class PlacementRoutes:
    """The handlers."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """All routes of placement."""
        return [
            web.post("/api/v1/placement/plan", acting(self.plan)),
            web.post("/api/v1/placement/apply", acting(self.apply)),
            web.post("/api/v1/placement/release", acting(self.release)),
            web.post("/api/v1/workers/{worker}/drain", acting(self.drain)),
        ]

    @described(schemas.PlacementPlan, headers=ACTOR, body=request_bodies.PlanBody, problems=(409, 502))
    async def plan(self, request: web.Request) -> web.Response:
        """The moves of a round now, with `moves` by hand, or `even`; changes nothing."""
        body = await read_body(request, request_bodies.PlanBody)
        moves, even = self._moves(body), flag_of(body, "even")
        if (leader := self._other_leader(request)) is not None:
            return await hand_over(self._api, request, leader, body)
        made, plan_id = await self._planned(moves, even)
        return json_response(self._plan_fields(made, plan_id))

    @described(
        schemas.PlacementApplied, headers=ACTOR, body=request_bodies.ApplyBody, problems=(409, 412, 502)
    )
    async def apply(self, request: web.Request) -> web.Response:
        """Carries out the moves of a plan, if the plan is still current."""
        body = await read_body(request, request_bodies.ApplyBody)
        moves, even = self._moves(body), flag_of(body, "even")
        reason = reason_of(body)
        if not isinstance(body.get("plan"), str):
            raise BadQuery("plan: missing; POST /api/v1/placement/plan first, and give the id of its answer")
        if (leader := self._other_leader(request)) is not None:
            return await hand_over(self._api, request, leader, body)
        made, plan_id = await self._planned(moves, even)
        if plan_id != body["plan"]:
            raise ApiError(412, "Stale plan", "something changed since that plan was made; make another plan")
        view = self._api.runtime.control.view
        wishes = [
            MoveWish(
                at_ms=now_ms(), job=decision.job, worker=decision.target, epoch=_epoch(view, decision.job),
                actor=actor_of(request), why=reason,
            )
            for decision in made.decisions
            if decision.release and decision.target
        ]  # fmt: skip
        if wishes:
            await self._api.runtime.control.append(*wishes)
        return json_response({**self._plan_fields(made, plan_id), "wished": len(wishes)})

    @described(WishReleased, headers=ACTOR, body=request_bodies.ReleaseBody, problems=(404,))
    async def release(self, request: web.Request) -> web.Response:
        """Cancels the wish for a job, unless its move was made already."""
        body = await read_body(request, request_bodies.ReleaseBody)
        job, execute, reason = body.get("job"), flag_of(body, "execute"), reason_of(body)
        if not isinstance(job, str):
            raise BadQuery("job: missing; GET /api/v1/assignments lists the jobs and their wishes")
        control = self._api.runtime.control
        wish = control.view.wishes.get(job)
        if wish is None and job not in control.view.assignments:
            raise ApiError(404, "No such job", f"there is no job {job[:200]!r}; GET /api/v1/assignments")
        if wish is not None and execute:
            back = MoveWish(
                at_ms=now_ms(), job=job, worker="", epoch=wish.epoch, actor=actor_of(request), why=reason
            )
            await control.append(back)
        wished = None if wish is None else wish.worker
        return json_response({"job": job, "wish": wished, "changed": wish is not None, "execute": execute})

    @described(schemas.Drained, headers=ACTOR, body=request_bodies.DrainBody, problems=(404, 409))
    async def drain(self, request: web.Request) -> web.Response:
        """Makes a worker hand over its jobs and get no more (`draining: false`: get jobs again)."""
        worker = request.match_info["worker"]
        body = await read_body(request, request_bodies.DrainBody)
        draining = flag_of({"draining": True} | dict(body), "draining")
        runtime = self._api.runtime
        live = self._api.beats()
        if worker not in live:
            raise ApiError(404, "No such worker", f"no worker {worker[:100]!r} lives; GET /api/v1/workers")
        view = runtime.control.view
        owned = view.owned_by(worker)
        able = {one.group for one in members_of(view, live) if one.worker != worker and not one.draining}
        keys = Counter(map(name_of, owned))
        stuck = Counter[str]()
        for key, count in keys.items():
            if (group := self._group(key)) not in able:
                stuck[group] += count
        if draining and stuck:
            group, count = stuck.most_common(1)[0]
            whose = f" of the isolation group {group!r}" if group else ""
            raise ApiError(
                409,
                "Refused",
                f"no other worker could take {count} of its jobs; start another worker{whose} first",
            )
        changed = draining != (worker in view.draining)
        execute = flag_of(body, "execute")
        if changed and execute:
            await runtime.control.append(
                Drain(at_ms=now_ms(), worker=worker, draining=draining, actor=actor_of(request))
            )
        answer = {
            "worker": worker,
            "draining": draining,
            "changed": changed,
            "jobs": len(owned),
            "execute": execute,
        }
        return json_response(answer)

    def _group(self, key: str) -> str:
        put = self._api.runtime.control.view.workloads.get(key)
        return "" if put is None else group_of(put, self._api.runtime.catalog.workloads.workload(key))

    def _other_leader(self, request: web.Request) -> str | None:
        """The leader, when it is another worker. Raises ApiError when there is none."""
        runtime = self._api.runtime
        leader = runtime.control.view.leader
        if runtime.leader.leads:
            return None
        if not leader or request.headers.get(HOP_HEADER):
            raise ApiError(503, "No leader", "the region is choosing its leader; try again in some seconds")
        return leader

    def _moves(self, body: JsonMapping) -> dict[str, str]:
        """The body's moves, job -> worker. Raises BadQuery."""
        wanted = body.get("moves", [])
        if not isinstance(wanted, list) or len(wanted) > MAX_MOVES:
            raise BadQuery(f"moves: must be a list of at most {MAX_MOVES}")
        moves: dict[str, str] = {}
        view, live = self._api.runtime.control.view, self._api.beats()
        for move in wanted:
            if not isinstance(move, dict) or set(move) != {"job", "to"}:
                raise BadQuery('moves: write [{"job": "dispatch:group/topic:topic:0", "to": "worker"}]')
            job, worker = str(move["job"]), str(move["to"])
            if view.owner(job) is None:
                raise BadQuery(f"moves: no worker owns {job[:200]!r}; GET /api/v1/assignments lists the jobs")
            if worker not in live:
                raise BadQuery(f"moves: no worker {worker[:100]!r} lives; GET /api/v1/workers lists them")
            moves[job] = worker
        return moves

    async def _planned(self, moves: Mapping[str, str], even: bool) -> tuple[RoundPlan, str]:
        """The plan and its id, a hash of its decisions and the epochs that they end."""
        made = await self._api.runtime.leader.foresee(moves, EVEN if even else PlacementRules())
        view = self._api.runtime.control.view
        basis = [[d.job, d.worker, d.release, d.target, _epoch(view, d.job)] for d in made.decisions]
        return made, hashlib.sha256(orjson.dumps(sorted(basis))).hexdigest()[:16]

    def _plan_fields(self, made: RoundPlan, plan_id: str) -> JsonObject:
        view = self._api.runtime.control.view
        return {
            "plan": plan_id,
            "moves": [_move(view, decision) for decision in made.decisions],
            "notices": [msgspec.to_builtins(notice) for notice in made.notices],
            "levels": {worker: round(level, 4) for worker, level in sorted(made.levels.items())},
        }


def _epoch(view: ControlState, job: str) -> int:
    held = view.assignments.get(job)
    return 0 if held is None else held.epoch


def _move(view: ControlState, decision: PlacementDecision) -> JsonObject:
    held = view.owner(decision.job)
    return {
        "job": decision.job,
        "from": None if held is None else held.worker,
        "to": (decision.target if decision.release else decision.worker) or None,
        "reason": decision.reason,
    }
