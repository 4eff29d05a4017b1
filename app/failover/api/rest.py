"""REST handlers for failover definitions, and for the roles of workloads."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiohttp import web

from app.controllog.events import FailoverPut
from app.definitions.api.requests import (
    DRY_RUN,
    MATCH,
    YAML,
    check_address,
    condition,
    define,
    defined,
    delete,
    paged_definitions,
    put_answers,
    read_definition,
)
from app.definitions.plan import DefinitionsPlan, plan
from app.definitions.registry import parse_failover
from app.dispatch.definition import Workload
from app.failover.api import schemas as failover_schemas
from app.failover.definition import PREFIX, FailoverDefinition
from app.failover.run.participant import FailoverParticipant
from app.failover.run.region_bridge import UNHEARD_S
from app.failover.run.role_keeper import MAX_WAIT_FOR_REGIONS_S
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.web.http import schemas as http_schemas
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER, hand_over
from app.web.http.responses import ApiError, flag, json_response
from app.web.http.route_docs import ACTOR, JSON, PAGE, AnswerDoc, Page, described

PUT = put_answers("definition")
LEADER_ANSWER_TIMEOUT_S = 1.0  # then this worker answers itself
DETAIL = {200: AnswerDoc({JSON: failover_schemas.FailoverDetail}, headers=("ETag",))}


class FailoverRoutes:
    """The handlers. `api` has the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """All routes of these handlers."""
        one = "/api/v1/failovers/{name}"
        return [
            web.get("/api/v1/failover", self.get_status),
            web.get("/api/v1/failovers", self.get_failovers),
            web.get(one, self.get_failover),
            web.put(one, self.put_failover),
            web.delete(one, self.delete_failover),
        ]

    @property
    def _participant(self) -> FailoverParticipant:
        return self._api.runtime.failover

    # -- reading -----------------------------------------------------------------------------------

    @described(failover_schemas.FailoverStatus)
    async def get_status(self, request: web.Request) -> web.Response:
        """The active region of each workload with a mode, and the age of the other regions' last reports."""
        runtime = self._api.runtime
        leader = runtime.control.view.leader
        if not runtime.leader.leads and leader and not request.headers.get(HOP_HEADER):
            with contextlib.suppress(ApiError):  # without the leader only `offsets` are missing
                answer = await hand_over(self._api, request, leader, patience_s=LEADER_ANSWER_TIMEOUT_S)
                if answer.status == 200:
                    return answer
        participant, own, at_ms = self._participant, self._api.region, now_ms()
        heard = participant.last_pulse_ms()
        regions: list[JsonObject] = [{"region": own, "own": True, "copy_age_s": None}]
        for region in sorted(participant.derived_routes.others()):
            at = heard.get(region)
            age_s = None if at is None else max(0.0, round((at_ms - at) / 1000, 1))
            regions.append({"region": region, "own": False, "copy_age_s": age_s})
        roles = [self._role(workload) for workload in participant.keeper.moded()]
        roles.sort(key=lambda role: str(role["workload"]))
        return json_response({
            "region": own, "returned": self._returned(), "regions": regions, "roles": roles,
        })  # fmt: skip

    def _returned(self) -> JsonObject | None:
        """Why this region acts for no workload yet, if it has just returned."""
        if not self._participant.keeper.has_just_returned():
            return None
        last = self._api.runtime.control.view.pulses.get(self._api.region)
        others = ", ".join(sorted(self._participant.derived_routes.others()))
        return {
            "since_ms": (last.returned_ms if last is not None else 0) or None,
            "why": "it lay still, and has not read yet what other regions decided meanwhile. Until then it "
            "acts for no workload that other regions share",
            "remedy": f"it continues once {others} answered, or was silent for {UNHEARD_S:.0f} s, at the "
            f"latest after {MAX_WAIT_FOR_REGIONS_S:.0f} s; if not, check that the region has a leader "
            "(worker list), and read its log",
        }

    def _role(self, workload: Workload) -> JsonObject:
        key, roles = workload.key, self._api.runtime.control.view.roles
        role, regions = roles.of(key), self._api.runtime.regions
        return {
            "workload": key,
            "mode": workload.spec.mode,
            "region": None if role is None else role.region,
            "epoch": None if role is None else role.epoch,
            "state": "unknown" if role is None else role.state,
            "active_here": roles.is_active(key, self._api.region)
            and not self._participant.keeper.has_just_returned(),
            "previous": "" if role is None else role.previous,
            "since_ms": None if role is None else role.at_ms,
            "by": "" if role is None else role.actor,
            "reason": "" if role is None else role.reason,
            "plan": "" if role is None else role.plan,
            "regions": list(self._participant.derived_routes.regions_of(workload)),
            "released": {region: event.epoch for region, event in sorted(roles.released(key).items())},
            "offsets": None if regions is None else regions.passive_sync_fields(key),
        }

    @described(Page[failover_schemas.FailoverDetail], query=PAGE)
    async def get_failovers(self, request: web.Request) -> web.Response:
        """Every failover definition."""
        page = paged_definitions(self._api.runtime.control.view.failovers.values(), request)
        return json_response({**page, "items": [self._detail(put) for put in page["items"]]})

    @described(answers=DETAIL, problems=(404,))
    async def get_failover(self, request: web.Request) -> web.Response:
        """One failover definition, and the routes that this region derives from it."""
        put = self._put_of(request)
        return json_response(self._detail(put), headers={"ETag": f'"{put.etag}"'})

    def _detail(self, put: FailoverPut) -> JsonObject:
        name = put.key.removeprefix(PREFIX)
        routes = self._api.runtime.control.view.routes
        return {
            "name": name,
            "definition": put.definition,
            "etag": put.etag,
            "routes": sorted(route for route, made in routes.items() if made.made_by == name),
            "deployed": {"at_ms": put.at_ms, "by": put.actor},
        }

    def _put_of(self, request: web.Request) -> FailoverPut:
        name = request.match_info["name"]
        put = self._api.runtime.control.view.failovers.get(f"{PREFIX}{name}")
        if put is None:
            detail = f"there is no failover definition {name[:100]!r}; GET /api/v1/failovers lists them"
            raise ApiError(404, "No such definition", detail)
        return put

    # -- changing ----------------------------------------------------------------------------------

    @described(
        answers=PUT, query=DRY_RUN, headers=(*MATCH, *ACTOR), body=FailoverDefinition, kinds=(JSON, *YAML),
        problems=(409, 412, 422),
    )  # fmt: skip
    async def put_failover(self, request: web.Request) -> web.Response:
        """Creates or changes regions that share topics: 201, or 200 if the definition existed.

        Deploy the same definition in all of them. `?dry_run=true` only checks it.
        """
        dry_run, body = flag(request, "dry_run"), await read_definition(request)
        failover, warnings = await asyncio.to_thread(
            parse_failover,
            body.data,
            layout=self._participant.derived_routes.layout,
            file=body.file,
            node=body.node,
        )
        check_address(request, failover.name)
        view, catalog = self._api.runtime.control.view, self._api.runtime.catalog
        current = view.failovers.get(failover.key)
        expected = condition(request, current)
        known = {key: found.definition for key, found in self._participant.derived_routes.all().items()}
        by_hand = [
            route for name, put in list(view.routes.items())
            if not put.made_by and (route := catalog.routes.route(name)) is not None
        ]  # fmt: skip
        planned = plan(known, [failover])
        conflicts = await asyncio.to_thread(self._participant.derived_routes.conflicts, failover, by_hand)
        planned = DefinitionsPlan(planned.changes, (*planned.conflicts, *conflicts), planned.warnings)
        answer = await define(
            self._api, request, FailoverPut, failover, current, expected, planned, dry_run=dry_run
        )
        return defined(answer, warnings, current)

    @described(http_schemas.Deleted, headers=(*MATCH, *ACTOR), problems=(404, 412))
    async def delete_failover(self, request: web.Request) -> web.Response:
        """Deletes a failover definition, and the routes that this region derives from it. Roles stay."""
        put = self._put_of(request)
        return await delete(self._api, request, put)


def refuse_derived(put: Any) -> None:
    """Raises ApiError when a failover definition made the route: the leader would restore it."""
    if put is not None and put.made_by:
        raise ApiError(
            409, "Derived",
            f"route {put.key} is made by failover definition {put.made_by}, which would restore it; change "
            f"{put.made_by} instead (GET /api/v1/failovers/{put.made_by})",
        )  # fmt: skip
