"""The REST calls for workloads' definitions: get, put, delete. `app.worker.api.rest` has operators' acts."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import structlog
from aiohttp import web
from aiokafka.errors import KafkaError

from app.config.problems import InvalidConfiguration
from app.controllog.events import WorkloadPut
from app.definitions.api.requests import (
    CHECK_TIMEOUT_S,
    DRY_RUN,
    MATCH,
    YAML,
    condition,
    define,
    defined,
    delete,
    flag,
    put_answers,
    read_definition,
    unmade_topics,
)
from app.definitions.plan import plan
from app.definitions.registry import parse_definition
from app.definitions.schema_checks import schema_problem
from app.dispatch.definition import Workload
from app.dispatch.topics.settings import refused_topics
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.group_members import SHARE
from app.kernel.clock import now_ms
from app.web.http import schemas
from app.web.http.responses import ApiError, json_response
from app.web.http.route_docs import ACTOR, JSON, AnswerDoc, Param, described
from app.worker.api import overview
from app.worker.catalog import local

if TYPE_CHECKING:
    from app.web.console.api import Api

log = structlog.get_logger(__name__)

PUT = put_answers("workload")
TAKE_OVER = Param(
    "take_over", {"type": "boolean", "default": False}, "deploy although other consumers are in the group"
)


class WorkloadRoutes:
    """The handlers; `api` finds workloads and the runtime."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        workload = "/api/v1/workloads/{group}/{topic}"
        return [
            web.get(workload, self.get_workload),
            web.put(workload, self.put_workload),
            web.delete(workload, self.delete_workload),
        ]

    @described(answers={200: AnswerDoc({JSON: schemas.WorkloadDetail}, headers=("ETag",))}, problems=(404,))
    async def get_workload(self, request: web.Request) -> web.Response:
        """One workload: its definition, its partitions, and what limits its throughput, with the numbers."""
        put = self._api.put_of(request)
        live = self._api.runtime.members.live(time.monotonic())
        returned = self._api.runtime.failover.keeper.has_just_returned()
        view = self._api.runtime.control.view
        jobs = overview.JobsOverview(view, live, now_ms(), self._api.region, returned=returned)
        body = {
            "definition": put.definition,
            "status": jobs.workload(put),
            "partitions": jobs.partitions(put.key),
            "flow": msgspec.to_builtins(jobs.flow(put)),
            "deployed": {"at_ms": put.at_ms, "by": put.actor},
        }
        return json_response(body, headers={"ETag": f'"{put.etag}"'})

    @described(
        answers=PUT, query=(*DRY_RUN, TAKE_OVER), headers=(*MATCH, *ACTOR), body=Workload,
        kinds=(JSON, *YAML),
        problems=(409, 412, 422),
    )  # fmt: skip
    async def put_workload(self, request: web.Request) -> web.Response:
        """Creates a workload (201) or changes it (200). `?dry_run=true` only checks.

        409 if a new workload's group has members already; `?take_over=true` deploys it still. Also 409 if the
        cluster refuses the name of one of its topics, because an existing topic's name is too similar.
        """
        names, dry_run = self._api.runtime.clusters.specs.keys(), flag(request, "dry_run")
        body = await read_definition(request)
        layout = self._api.runtime.failover.derived_routes.layout
        workload, warnings = parse_definition(
            body.data, clusters=names, layout=layout, file=body.file, node=body.node
        )
        addressed_key = f"{request.match_info['group']}/{request.match_info['topic']}"
        if workload.key != addressed_key:
            raise ApiError(
                422,
                "Wrong address",
                f"the definition is of {workload.key}, the address of {addressed_key}",
            )
        if (problem := await schema_problem(workload, self._api.runtime.schemas, body)) is not None:
            raise InvalidConfiguration([problem])
        current = self._api.runtime.control.view.workloads.get(workload.key)
        expected = condition(request, current)
        catalog = self._api.runtime.catalog
        known = {
            key: known_workload
            for key in self._api.runtime.control.view.workloads
            if (known_workload := catalog.workload(key))
        }
        local_workload = local(workload, layout)
        takes_over = flag(request, "take_over")
        await self._check_group(local_workload, catalog.workload(workload.key), takes_over=takes_over)
        doubts = await self._check_topics(local_workload, catalog.workload(workload.key))
        planned = plan(known, [local_workload], clusters=names)
        answer = await define(
            self._api, request, WorkloadPut, workload, current, expected, planned, dry_run=dry_run
        )
        if doubt := self._api.runtime.failover.keeper.doubt(workload):
            doubts.append(doubt)
        return defined(answer, warnings, current, doubts)

    async def _check_group(self, workload: Workload, before: Workload | None, *, takes_over: bool) -> None:
        """Checks that a workload that is new in its cluster may commit in its group.

        Switchyard commits without a membership, so every member is another consumer. A cluster that does not
        answer refuses nothing: the workload waits for it, and its jobs report members that they find then.

        Raises:
            ApiError: A share group takes no commits; or the group has members, and `takes_over` is False.
        """
        cluster, group = workload.metadata.cluster, workload.metadata.group
        if before is not None and before.metadata.cluster == cluster:
            return
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                members = await (await self._api.runtime.clusters.get(cluster)).committer.members(group)
        except (ClusterUnreachable, KafkaError, TimeoutError, OSError) as error:
            log.info(
                "a group's members could not be read, so they are not checked",
                group=group,
                cluster=cluster,
                error=repr(error),
            )
            return
        if members.type_ == SHARE:
            raise ApiError(
                409, "Group in use",
                f"group {group} in cluster {cluster} {members.words}; give the workload a group of its own",
            )  # fmt: skip
        if members.words and not takes_over:
            raise ApiError(
                409, "Group in use",
                f"group {group} in cluster {cluster} {members.words}, and they are not Switchyard's; stop "
                "these consumers first, or deploy with --take-over (REST: ?take_over=true)",
            )  # fmt: skip

    async def _check_topics(self, workload: Workload, before: Workload | None) -> list[str]:
        """Warnings about the workload's own topics that its cluster would not create. Raises ApiError."""
        cluster, own = workload.metadata.cluster, workload.own_topics()
        if before is not None and before.metadata.cluster == cluster and before.own_topics() == own:
            return []
        return await unmade_topics(
            self._api, cluster, lambda client: refused_topics(client, workload), "rename its group"
        )

    @described(schemas.Deleted, headers=(*MATCH, *ACTOR), problems=(404, 412))
    async def delete_workload(self, request: web.Request) -> web.Response:
        """Deletes a workload; it stops once its messages in flight have ended."""
        put = self._api.put_of(request)
        return await delete(self._api, request, put)
