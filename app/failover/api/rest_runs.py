"""REST handlers for failovers: plan, execute, abort, failback, drill, and the progress of each.

A plan is only recorded, and expires. Any worker of the region that workloads move to accepts these requests.
Its leader carries the failover out.
"""

from __future__ import annotations

import math
import time
import uuid

import msgspec
from aiohttp import web

from app.controllog.events import FailoverRun, OperatorAct
from app.controllog.failover_run import ABORTED, DONE, EXECUTING, PLANNED, leader_of
from app.dispatch.dlq.query import BadQuery
from app.failover.api import schemas_runs
from app.failover.plan.document import Plan, read
from app.failover.plan.drill import Drill
from app.failover.plan.planner import FailoverPlanner, PlanRefused, is_expired
from app.failover.run.runner import end_remedy
from app.failover.run.runner import remedy as remedy_of
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonMapping, JsonObject
from app.web.http.context import ApiContext
from app.web.http.operations import STARTED, ReportProgress
from app.web.http.operator_requests import actor_of, flag_of, read_body, reason_of
from app.web.http.responses import ApiError, errors_as_problems, json_response, paged
from app.web.http.route_docs import ACTOR, PAGE, Page, described

run_errors_as_problems = errors_as_problems((BadQuery, 400, "Bad request"), (PlanRefused, 409, "Refused"))


class FailoverRunRoutes:
    """The handlers. `api` has the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """All routes of these handlers."""
        return [
            web.post("/api/v1/failover/plan", run_errors_as_problems(self.plan_failover)),
            web.post("/api/v1/failover/execute", run_errors_as_problems(self.execute_failover)),
            web.post("/api/v1/failover/abort", run_errors_as_problems(self.abort_failover)),
            web.post("/api/v1/failover/failback", run_errors_as_problems(self.plan_failback)),
            web.post("/api/v1/failover/drill", run_errors_as_problems(self.drill_failover)),
            web.get("/api/v1/failover/runs", self.get_failover_runs),
            web.get(
                "/api/v1/failover/{id:failover-[^/]+}", self.get_failover_run
            ),  # not "plan", "execute", ...
        ]

    # -- reading -----------------------------------------------------------------------------------

    @described(Page[schemas_runs.Run], query=PAGE)
    async def get_failover_runs(self, request: web.Request) -> web.Response:
        """Every failover to this region, the newest first."""
        runs = sorted(
            self._api.runtime.control.view.runs, key=lambda run: (run.made_ms, run.id), reverse=True
        )
        page = paged(runs, request)
        return json_response({**page, "items": [_run(run) for run in page["items"]]})

    @described(schemas_runs.RunDetail, problems=(404,))
    async def get_failover_run(self, request: web.Request) -> web.Response:
        """One failover: the stage of each workload, and the plan."""
        return json_response(self._detail(self._of(request.match_info["id"])))

    def _of(self, name: object) -> FailoverRun:
        run = self._api.runtime.control.view.runs.get(name) if isinstance(name, str) else None
        if run is None:
            raise ApiError(
                404, "No such failover",
                f"region {self._api.region} has no failover {str(name)[:100]!r}; ask the region that its "
                "workloads move to, or list this region's: GET /api/v1/failover/runs",
            )  # fmt: skip
        return run

    def _detail(self, run: FailoverRun) -> JsonObject:
        standings = self._api.runtime.failover.runs.standings(run)
        roles = self._api.runtime.control.view.roles
        rows = []
        for planned, one in zip(run.workloads, standings, strict=True):
            role = roles.of(one.key)
            mine = role is not None and role.plan == run.id
            rows.append({
                "workload": one.key, "region": planned.region, "stage": one.stage.value,
                "waits_for": "" if one.has_ended else self._named(run, one.waits_for),
                "remedy": remedy_of(run, one) if one.waits_for and not one.has_ended else "",
                "epoch": role.epoch if role is not None and mine else None,
                "note": role.reason if role is not None and mine else one.waits_for * one.has_ended,
            })  # fmt: skip
        plan = read(run.plan)
        end = self._api.runtime.failover.runs.end_waits_for(run, standings)
        return {
            **_run(run), "rows": rows, "plan": None if plan is None else msgspec.to_builtins(plan),
            "waits_for": self._named(run, end), "remedy": end_remedy(run, end) if end else "",
        }  # fmt: skip

    def _named(self, run: FailoverRun, waits_for: str) -> str:
        """`waits_for`, with the leader's name and the age of its last heartbeat."""
        runtime, whose = self._api.runtime, leader_of(run)
        if not (name := runtime.control.view.leader):
            return waits_for.replace(whose, f"{whose} (there is none)")
        age_s = runtime.members.silent_s(name, time.monotonic())
        age = "not heard" if math.isinf(age_s) else f"last heard {age_s:.1f} s ago"
        return waits_for.replace(whose, f"{whose} ({name}, {age})")

    # -- planning ----------------------------------------------------------------------------------

    @described(schemas_runs.RunDetail, headers=ACTOR, body=schemas_runs.MoveTo, problems=(409,))
    async def plan_failover(self, request: web.Request) -> web.Response:
        """Plans to make workloads active in this region: the effects, partition by partition.

        The plan may be executed for ten minutes, as long as no role changes meanwhile.
        """
        body = await read_body(request, schemas_runs.MoveTo)
        to, keys = body.get("to"), _keys(body)
        if not isinstance(to, str) or not to:
            raise BadQuery('to: name the region, as in {"to": "west"}')
        return await self._plan(request, to, keys, flag_of(body, "force"), reason_of(body))

    @described(schemas_runs.RunDetail, headers=ACTOR, body=schemas_runs.FailbackBody, problems=(409,))
    async def plan_failback(self, request: web.Request) -> web.Response:
        """Plans to take back here what a failover took away from here."""
        body = await read_body(request, schemas_runs.FailbackBody)
        name = body.get("id")
        if name is not None and not isinstance(name, str):
            raise BadQuery("id: must be text")
        force, reason = flag_of(body, "force"), reason_of(body)
        planner = FailoverPlanner(self._api.runtime)
        back_of, keys = planner.went_away(name)
        reason = reason or f"back after {back_of}"
        return await self._plan(request, planner.own, keys, force, reason, back_of)

    async def _plan(
        self, request: web.Request, to: str, keys: list[str], force: bool, reason: str, back_of: str = ""
    ) -> web.Response:  # fmt: skip
        planner = FailoverPlanner(self._api.runtime)
        chosen = planner.choose(to, keys)
        plan = await planner.plan(chosen, forced=force)
        run = planner.made(
            to, chosen, plan, forced=force, actor=actor_of(request), reason=reason, back_of=back_of,
            name=f"failover-{uuid.uuid4().hex[:8]}",
        )  # fmt: skip
        await self._api.runtime.control.append(run)
        return json_response({**self._detail(self._of(run.id)), "plan": msgspec.to_builtins(plan)})

    # -- acting ------------------------------------------------------------------------------------

    @described(schemas_runs.Executed, headers=ACTOR, body=schemas_runs.ExecuteBody, problems=(404, 409, 412))
    async def execute_failover(self, request: web.Request) -> web.Response:
        """Begins a planned failover. `force` ends the wait for the former region, also later."""
        body = await read_body(request, schemas_runs.ExecuteBody)
        run = self._of(_id(body))
        force, dry_run = flag_of(body, "force") or run.forced, flag_of(body, "dry_run")
        if run.state in {DONE, ABORTED}:
            what = f"failover {run.id} is {run.state}: {run.result or run.reason}; make another plan"
            raise ApiError(409, "It has ended", what)
        in_the_way: list[str] = []
        if run.state == PLANNED:
            if is_expired(run, now_ms()):
                raise ApiError(
                    412, "Expired", f"plan {run.id} has expired; plan again, and read the new plan"
                )
            in_the_way = FailoverPlanner(self._api.runtime).in_the_way(run, forced=force)
        if in_the_way and not dry_run:
            raise ApiError(412, "Not as planned", ". ".join(in_the_way))
        changed = (run.state, run.forced) != (EXECUTING, force)
        if changed and not dry_run:
            at_ms = now_ms()
            await self._api.runtime.control.append(msgspec.structs.replace(
                run, at_ms=at_ms, state=EXECUTING, forced=force, actor=actor_of(request),
                began_ms=run.began_ms or at_ms, plan=None,
            ))  # fmt: skip
            self._api.runtime.failover.on_news()
        answer = {
            **self._detail(self._of(run.id)),
            "in_the_way": in_the_way,
            "changed": changed and not dry_run,
        }
        return json_response(answer)

    @described(schemas_runs.RunDetail, headers=ACTOR, body=schemas_runs.AbortBody, problems=(404, 409))
    async def abort_failover(self, request: web.Request) -> web.Response:
        """Ends a failover. Workloads that are moving go back; those that are active here stay."""
        body = await read_body(request, schemas_runs.AbortBody)
        run, reason = self._of(_id(body)), reason_of(body)
        _refuse_done(run)
        if run.state != ABORTED:
            await self._api.runtime.control.append(msgspec.structs.replace(
                run, at_ms=now_ms(), state=ABORTED, actor=actor_of(request), reason=reason or run.reason,
                plan=None, result="aborted before it was begun" if run.state == PLANNED else "aborted",
            ))  # fmt: skip
            self._api.runtime.failover.on_news()
            _refuse_done(self._of(run.id))  # the leader's record may have come first
        return json_response(self._detail(self._of(run.id)))

    @described(answers=STARTED, headers=ACTOR, body=schemas_runs.DrillBody, problems=(409,))
    async def drill_failover(self, request: web.Request) -> web.Response:
        """Rehearses a failover with shadow groups: commits positions, reads them and the first records back.

        Its `progress` has the result of each partition, the checks that block the failover, and what is
        unknown.
        """
        runtime = self._api.runtime
        body = await read_body(request, schemas_runs.DrillBody)
        to, keys, actor = body.get("to"), _keys(body), actor_of(request)
        if not isinstance(to, str) or not to:
            raise BadQuery('to: name the region, as in {"to": "west"}')
        force, planner = flag_of(body, "force"), FailoverPlanner(runtime)
        chosen = planner.choose(to, keys)
        if runtime.draining:
            raise ApiError(503, "Stopping", "this worker stops; ask another worker")
        name = f"drill-{uuid.uuid4().hex[:8]}"

        async def work(report_progress: ReportProgress) -> JsonObject:
            plan: Plan = await planner.plan(chosen, forced=force)
            drill = Drill(runtime, name.removeprefix("drill-"), plan, forced=force)
            drilled = await drill.run(report_progress)
            ok = drilled["looked_at"] - drilled["failed"]
            detail = f"{len(chosen)} workloads to {to}: {ok} of {drilled['of']} partitions as planned"
            if drilled["blocked"]:
                detail += f", {drilled['blocked']} checks block it"
            if drilled["unknown"]:
                detail += f", {len(drilled['unknown'])} workloads not fully known"
            act = OperatorAct(
                at_ms=now_ms(), subject=name, action="failover-drill", detail=detail, actor=actor
            )
            await runtime.control.append(act)
            return drilled

        op = self._api.operations.start(name, "drill", to, actor, work)
        return json_response(op.to_json(), 202, {"Location": f"/api/v1/operations/{op.id}"})


def _keys(body: JsonMapping) -> list[str]:
    keys = body.get("workloads", [])
    if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
        raise BadQuery('workloads: write a list of group/topic, as in ["billing/orders"]')
    return keys


def _id(body: JsonMapping) -> str:
    name = body.get("id")
    if not isinstance(name, str) or not name:
        raise BadQuery("id: missing; POST /api/v1/failover/plan first, and use the id of its answer")
    return name


def _refuse_done(run: FailoverRun) -> None:
    if run.state == DONE:
        what = f"failover {run.id} is done: {run.result}"
        remedy = "to move its workloads back, plan a failback in the region that had them"
        raise ApiError(409, "It has ended", f"{what}; {remedy}")


def _run(run: FailoverRun) -> JsonObject:
    at_ms = now_ms()
    ended = run.state in {DONE, ABORTED}
    took = ((run.at_ms if ended else at_ms) - run.began_ms) / 1000 if run.began_ms else None
    return {
        "id": run.id, "to": run.to, "state": "expired" if is_expired(run, at_ms) else run.state,
        "forced": run.forced, "by": run.actor, "reason": run.reason, "made_ms": run.made_ms,
        "expires_ms": run.expires_ms, "began_ms": run.began_ms or None, "at_ms": run.at_ms,
        "took_s": None if took is None else round(max(0.0, took), 3), "back_of": run.back_of,
        "result": run.result, "workloads": len(run.workloads),
    }  # fmt: skip
