"""The REST calls of operators' acts on workloads: pause, resume, reset; skip and stash of single offsets.

Resets, skips and stashes answer with a forecast (200), and act only with `"execute": true`. Any worker
takes the request. It forwards an act to the job's owner, with a mark that keeps the owner from forwarding
it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from aiohttp import web

from app.controllog.events import ALL
from app.dispatch.definition import DISPATCH_JOBS, Workload, dispatch_job
from app.dispatch.dlq.query import BadQuery
from app.dispatch.jobs.operator_acts import DispatchActs
from app.kernel.json_types import JsonMapping, JsonObject
from app.web.http import request_bodies, schemas
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER, hand_over, reset_by
from app.web.http.operator_requests import (
    MAX_PARTITIONS,
    PARTITIONS_AT_ONCE,
    acting,
    actor_of,
    end_of,
    ended_fields,
    flag_of,
    offsets_of,
    partitions_of,
    ranges_of,
    read_body,
    reason_of,
    reset_fields,
)
from app.web.http.responses import ApiError, is_number, json_response
from app.web.http.route_docs import ACTOR, TIER, described
from app.worker.jobs.operator_acts import OperationRefused, PositionMove


class OperatorRoutes:
    """The handlers; `api` finds workloads and the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        workload = "/api/v1/workloads/{group}/{topic}"
        tracker = workload + "/partitions/{partition}/tracker"
        return [
            web.post(workload + "/pause", acting(self.pause)),
            web.post(workload + "/resume", acting(self.resume)),
            web.post(workload + "/reset", acting(self.reset)),
            web.post(tracker + "/skip", acting(self.skip)),
            web.post(tracker + "/stash", acting(self.stash)),
        ]

    # -- pause and resume ------------------------------------------------------------------------

    @described(schemas.PausedNow, headers=ACTOR, body=request_bodies.PauseBody, problems=(404, 409))
    async def pause(self, request: web.Request) -> web.Response:
        """Pauses a workload, or some `partitions` of its topic; fetched messages wait."""
        return await self._pause(request, paused=True)

    @described(schemas.PausedNow, headers=ACTOR, body=request_bodies.PauseBody, problems=(404, 409))
    async def resume(self, request: web.Request) -> web.Response:
        """Resumes a workload, or some `partitions` of its topic."""
        return await self._pause(request, paused=False)

    async def _pause(self, request: web.Request, *, paused: bool) -> web.Response:
        workload = self._api.workload_of(request)
        wanted = self._chosen(workload, await read_body(request, request_bodies.PauseBody))
        changed = await self._api.operators.pause(workload.key, wanted or [ALL], paused, actor_of(request))
        now = self._api.runtime.control.view.paused.get(workload.key, set())
        return json_response(
            {"key": workload.key, "changed": changed, "all": ALL in now, "partitions": sorted(now - {ALL})}
        )

    def _chosen(self, workload: Workload, body: JsonMapping) -> list[int]:
        """The partitions that a body names; empty: all."""
        wanted = partitions_of(body)
        self._check(workload, wanted)
        return sorted(set(wanted))

    def _partitions(self, workload: Workload) -> list[int]:
        prefix = f"{DISPATCH_JOBS}{workload.key}:{workload.metadata.topic}:"
        held = self._api.runtime.control.view.assignments
        return sorted(int(job.removeprefix(prefix)) for job in held if job.startswith(prefix))

    def _check(self, workload: Workload, wanted: Iterable[int]) -> None:
        known = self._partitions(workload)
        if unknown := sorted(set(wanted) - set(known)):
            raise ApiError(
                404, "No such partition",
                f"{workload.metadata.topic} has no partition {unknown[0]} that a worker ever owned; "
                f"there are {len(known)}",
            )  # fmt: skip

    # -- reset -----------------------------------------------------------------------------------

    @described(schemas.Reset, headers=ACTOR, body=request_bodies.RESET_BODY, problems=(404, 409))
    async def reset(self, request: web.Request) -> web.Response:
        """Moves a workload's position: `to` earliest or latest, `at` a time, or `offsets` by partition."""
        workload = self._api.workload_of(request)
        body = await read_body(request, request_bodies.ResetBody)
        wanted, at_ms = self._wanted(workload, body)
        gate = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def foresee(partition: int) -> PositionMove:
            async with gate:
                job = dispatch_job(workload.key, workload.metadata.topic, partition)
                return await self._api.operators.foresee_reset(job, wanted[partition], at_ms=at_ms)

        moves = dict(zip(wanted, await asyncio.gather(*map(foresee, wanted)), strict=True))
        execute = flag_of(body, "execute")
        rows = {partition: reset_fields(partition, move) for partition, move in moves.items()}
        if execute:
            for partition, row in (await self._reset_all(request, workload, moves)).items():
                rows[partition] |= row | {"note": row.get("note") or rows[partition]["note"]}
        done = sum(bool(row.get("done")) for row in rows.values())
        answer = {"key": workload.key, "execute": execute, "done": done, "partitions": list(rows.values())}
        return json_response(answer)

    def _wanted(self, workload: Workload, body: JsonMapping) -> tuple[dict[int, int], bool]:
        """Partition -> target; and whether the target is a time. Raises BadQuery, ApiError."""
        if sum(name in body for name in ("to", "at", "offsets")) != 1:
            raise BadQuery('say where to: {"to": "earliest"}, {"to": "latest"}, {"at": "2h"} '
                           'or {"offsets": {"0": 1042}}')  # fmt: skip
        if "offsets" in body:
            found = offsets_of(body)
            self._check(workload, found)
        else:
            where = end_of(body)
            found = dict.fromkeys(self._chosen(workload, body) or self._partitions(workload), where)
        if not 0 < len(found) <= MAX_PARTITIONS:
            raise ApiError(
                409,
                "Not so many",
                f"{len(found)} partitions; name 1 to {MAX_PARTITIONS} of them",
            )
        return dict(sorted(found.items())), "at" in body

    async def _reset_all(
        self, request: web.Request, workload: Workload, moves: Mapping[int, PositionMove]
    ) -> dict[int, JsonObject]:
        """Resets each partition on its owner; returns the result of each."""
        runtime = self._api.runtime
        by_owner: dict[str, dict[int, int]] = {}
        here: list[int] = []
        for partition, move in moves.items():
            held = runtime.control.view.owner(move.job)
            if held is None or held.worker == runtime.worker or request.headers.get(HOP_HEADER):
                here.append(partition)
            else:
                by_owner.setdefault(held.worker, {})[partition] = move.to
        results = await asyncio.gather(
            *(self._reset_here(request, partition, moves[partition]) for partition in here),
            *(self._reset_there(request, worker, offsets) for worker, offsets in by_owner.items()),
        )
        return {row["partition"]: row for rows in results for row in rows}

    async def _reset_here(self, request: web.Request, partition: int, move: PositionMove) -> list[JsonObject]:
        try:
            done = await self._api.operators.reset(move.job, move.to, actor_of(request))
        except (OperationRefused, LookupError) as error:
            return [{"partition": partition, "done": False, "why": str(error)}]
        return [reset_fields(partition, done) | {"done": True}]

    async def _reset_there(
        self, request: web.Request, worker: str, offsets: Mapping[int, int]
    ) -> list[JsonObject]:
        body = {"offsets": {str(p): offset for p, offset in offsets.items()}, "execute": True}
        rows = await reset_by(self._api, request, worker, body)
        if isinstance(rows, str):
            return [{"partition": partition, "done": False, "why": rows} for partition in offsets]
        return rows

    # -- single offsets --------------------------------------------------------------------------

    @described(
        schemas.Ended, query=TIER, headers=ACTOR, body=request_bodies.EndBody, problems=(404, 409, 502)
    )
    async def skip(self, request: web.Request) -> web.Response:
        """Finishes messages of a partition without delivering them (`?topic=` for a retry topic)."""
        return await self._end(request, "skip")

    @described(
        schemas.Ended, query=TIER, headers=ACTOR, body=request_bodies.EndBody, problems=(404, 409, 502)
    )
    async def stash(self, request: web.Request) -> web.Response:
        """Moves messages of a partition into the dead letter queue (`?topic=` for a retry topic)."""
        return await self._end(request, "stash")

    async def _end(self, request: web.Request, action: str) -> web.Response:
        workload = self._api.workload_of(request)
        body = await read_body(request, request_bodies.EndBody)
        ranges = ranges_of(body)
        reason = reason_of(body)
        job = tracker_job(request, workload.key, workload.metadata.topic)
        runtime, execute = self._api.runtime, flag_of(body, "execute")
        held = runtime.control.view.owner(job)
        if held is None:
            raise ApiError(404, "No such partition", f"no worker owns {job}; GET the workload for its jobs")
        if held.worker != runtime.worker and not request.headers.get(HOP_HEADER):
            return await hand_over(self._api, request, held.worker, body)
        acts = DispatchActs(self._api.operators, runtime.kinds.dispatch.pumps)
        if not execute:
            ended = acts.foresee(job, ranges)
        elif action == "skip":
            ended = await acts.skip(job, ranges, actor_of(request), reason)
        else:
            ended = await acts.stash(job, ranges, actor_of(request), reason)
        return json_response({"job": job, "action": action, "execute": execute, **ended_fields(ended)})


def tracker_job(request: web.Request, key: str, topic: str) -> str:
    """The job of a workload's partition in the path; `topic`: its main topic, unless the query names another
    (`?topic=`). Raises ApiError: no job can have that name."""
    text = request.match_info["partition"]
    topic = request.query.get("topic") or topic
    try:
        return str(dispatch_job(key, topic, int(text) if is_number(text) else -1))
    except ValueError as error:
        detail = f"{text[:40]!r} of {topic[:80]!r} is no partition: {error}"
        raise ApiError(400, "No partition", detail) from error
