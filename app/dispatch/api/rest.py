"""The REST calls for workloads: list, get, put, delete, and a partition's tracker.

`app.dispatch.api.rest_operators` has operators' acts.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import structlog
from aiohttp import web
from aiokafka.errors import KafkaError

from app.controllog.events import WorkloadPut
from app.definitions.api.requests import (
    CHECK_TIMEOUT_S,
    DEFINITIONS,
    DRY_RUN,
    MATCH,
    YAML,
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
from app.definitions.registry import parse_definition
from app.definitions.schema_checks import check_schemas
from app.dispatch.api.rest_operators import tracker_job
from app.dispatch.definition import Workload
from app.dispatch.topics.readable_workloads import local
from app.dispatch.topics.settings import refused_topics
from app.grpc_client.credentials import shown
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.group_members import SHARE
from app.kernel.clock import now_ms
from app.web.http import schemas
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER, hand_over
from app.web.http.responses import ApiError, flag, json_response, paged
from app.web.http.route_docs import ACTOR, JSON, PAGE, TIER, AnswerDoc, Page, Param, described
from app.worker.api import overview
from app.worker.api.rest_overview import region_overview

log = structlog.get_logger(__name__)

MAX_RANGES = 2_000  # of offsets of one partition, in one answer
PUT = put_answers("workload")
TAKE_OVER = Param(
    "take_over", {"type": "boolean", "default": False}, "deploy although other consumers are in the group"
)


class WorkloadRoutes:
    """The handlers."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        workload = "/api/v1/workloads/{group}/{topic}"
        return [
            web.get("/api/v1/workloads", self.get_workloads),
            web.get(workload, self.get_workload),
            web.put(workload, self.put_workload),
            web.delete(workload, self.delete_workload),
            web.get(workload + "/partitions/{partition}/tracker", self.get_tracker),
        ]

    @described(Page[schemas.Workload], query=(DEFINITIONS, *PAGE))
    async def get_workloads(self, request: web.Request) -> web.Response:
        """Every workload in numbers. `?definitions=true` adds its definition."""
        if not flag(request, "definitions"):
            return json_response(paged(region_overview(self._api)["workloads"], request))
        jobs = self._jobs()
        page = paged_definitions(jobs.state.workloads.values(), request)
        items = [{**jobs.workload(put), "definition": put.definition} for put in page["items"]]
        return json_response({**page, "items": items})

    def _jobs(self) -> overview.JobsOverview:
        runtime = self._api.runtime
        live, returned = runtime.members.live(time.monotonic()), runtime.failover.keeper.has_just_returned()
        return overview.JobsOverview(
            runtime.control.view, live, now_ms(), self._api.region, returned=returned
        )

    @described(answers={200: AnswerDoc({JSON: schemas.WorkloadDetail}, headers=("ETag",))}, problems=(404,))
    async def get_workload(self, request: web.Request) -> web.Response:
        """One workload: its definition, its partitions, and what limits its throughput, with the numbers."""
        put, jobs = self._api.put_of(request), self._jobs()
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
            body.data, clusters=names, layout=layout, receivers=self._api.runtime.receiver_rules,
            file=body.file, node=body.node,
        )  # fmt: skip
        addressed_key = f"{request.match_info['group']}/{request.match_info['topic']}"
        if workload.key != addressed_key:
            raise ApiError(
                422,
                "Wrong address",
                f"the definition is of {workload.key}, the address of {addressed_key}",
            )
        doubts = await check_schemas(workload, self._api.runtime.schemas, body)
        credentials, name = self._api.runtime.credentials, workload.credentials()
        if name is not None and (problem := credentials.problems.get(name)):
            doubts.append(f"this worker cannot read {shown(name)} now: {problem}")
        for name in sorted(workload.tokens()):
            if problem := credentials.tokens.problems.get(name):
                doubts.append(f"this worker cannot read token {name!r} now: {problem}")
        current = self._api.runtime.control.view.workloads.get(workload.key)
        expected = condition(request, current)
        catalog = self._api.runtime.catalog
        known = {
            key: known_workload
            for key in self._api.runtime.control.view.workloads
            if (known_workload := catalog.workloads.workload(key))
        }
        local_workload = local(workload, layout)
        takes_over = flag(request, "take_over")
        await self._check_group(
            local_workload, catalog.workloads.workload(workload.key), takes_over=takes_over
        )
        doubts += await self._check_topics(local_workload, catalog.workloads.workload(workload.key))
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

    @described(schemas.Tracker, query=TIER, problems=(404, 502))
    async def get_tracker(self, request: web.Request) -> web.Response:
        """One partition's tracker, from the worker that owns it (`?topic=` for a retry topic)."""
        put = self._api.put_of(request)
        job = tracker_job(request, put.key, request.match_info["topic"])
        runtime = self._api.runtime
        held = runtime.control.view.owner(job)
        if held is None:
            raise ApiError(
                404, "No such partition", f"no worker owns {job}; GET the workload to see its partitions"
            )
        pump = runtime.kinds.dispatch.pumps.get(job)
        if pump is not None and held.worker == runtime.worker:
            tracker = pump.tracker
            finished = tracker.snapshot().finished
            return json_response({
                "job": job, "worker": runtime.worker, "epoch": pump.epoch, "state": pump.status().state,
                "base": tracker.base, "end": tracker.end, "high_watermark": pump.high_watermark,
                "capacity": tracker.limit, "room": tracker.room, "in_flight": len(pump.calls),
                "unfinished": tracker.unfinished, "acked": tracker.acked, "nacked": tracker.nacked,
                "canceled": tracker.canceled, "utilisation": round(tracker.utilisation, 4),
                "unfinished_ranges": tracker.unfinished_ranges(MAX_RANGES),
                "finished_ranges": finished[:MAX_RANGES], "more_ranges": max(0, len(finished) - MAX_RANGES),
                "in_flight_offsets": sorted(pump.calls)[:MAX_RANGES], "trouble": pump.troubles.words,
            })  # fmt: skip
        if request.headers.get(HOP_HEADER):
            raise ApiError(503, "Moving", f"{job} is on its way to {held.worker}; ask again in a moment")
        return await hand_over(self._api, request, held.worker)
