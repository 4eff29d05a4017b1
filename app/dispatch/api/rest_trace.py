"""The REST call that traces a workload: every worker that owns a partition traces its own, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
from aiohttp import web

from app.dispatch.jobs.tracing import WorkerTrace, trace
from app.dispatch.model.latency_trace import MAX_TRACE_S, STAGES, Durations
from app.kernel.json_types import JsonObject
from app.web.http import schemas
from app.web.http.context import ApiContext
from app.web.http.forwarding import FORWARDED_READ_TIMEOUT_S, HOP_HEADER, ask_worker
from app.web.http.responses import ApiError, json_response, number
from app.web.http.route_docs import Param, described, whole

DEFAULT_S = 10
LOOK_S = 0.5  # between looks whether the one who asks is still there
SECONDS = Param("seconds", whole(1, MAX_TRACE_S, DEFAULT_S), "how long messages are traced")


class TraceRoutes:
    """The handler."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._traced: set[str] = set()  # workloads that this worker traces now

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/v1/workloads/{group}/{topic}/trace", self.get_trace)]

    @described(schemas.LatencyTrace, query=(SECONDS,), problems=(404, 409, 502))
    async def get_trace(self, request: web.Request) -> web.Response:
        """Where the workload's messages wait, from their append to the commit. Answers after `seconds`.

        Only the main topic is traced, and a message counts with its first answer. 409 if the workload is
        being traced.
        """
        put = self._api.put_of(request)
        seconds = number(request, "seconds", DEFAULT_S, 1, MAX_TRACE_S)
        own, view = self._api.runtime.worker, self._api.runtime.control.view
        if request.headers.get(HOP_HEADER):
            found = await self._own(request, put.key, seconds)
            return json_response(msgspec.to_builtins(found, str_keys=True))
        held = [held for job, held in view.assignments.items() if _is_of(job, put.key)]
        owners = sorted({one.worker for one in held if one.worker})
        if not owners:
            why = f"no worker owns a partition of {put.key} now; GET the workload to see why"
            raise ApiError(503, "Not traced", why)
        asked = [
            self._own(request, put.key, seconds) if owner == own else self._of(request, owner, seconds)
            for owner in owners
        ]
        answers = await _while_connected(request, asked)
        traces = [one for one in answers if isinstance(one, WorkerTrace)]
        refusals = [one for one in answers if isinstance(one, ApiError)]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ApiError):
                raise answer
        problems = [one.detail for one in refusals]
        if not traces:
            raise ApiError(refusals[0].status, "Not traced", "; ".join(problems))
        problems += [
            f"{one.worker}: {one.gone} of its partitions moved or began to catch up; trace again"
            for one in traces if one.gone
        ]  # fmt: skip
        return json_response({
            "key": put.key, "seconds": seconds, "stages": _stages(_sum(traces)), "problems": problems,
            "unanswered": sum(one.unanswered for one in traces),
            "workers": [
                {"worker": one.worker, "partitions": one.partitions, "unanswered": one.unanswered,
                 "stages": _stages(one.stages)}
                for one in traces
            ],
        })  # fmt: skip

    async def _own(self, request: web.Request, key: str, seconds: int) -> WorkerTrace:
        runtime = self._api.runtime
        if key in self._traced:
            raise ApiError(
                409, "Not traced", f"{runtime.worker} traces {key} already; ask again when it ends"
            )
        self._traced.add(key)
        try:
            pumps = [pump for job, pump in runtime.kinds.dispatch.pumps.items() if _is_of(job, key)]
            committed = runtime.jobs.progress_saver.committed
            return await trace(runtime.worker, pumps, committed, seconds, lambda: _is_connected(request))
        finally:
            self._traced.discard(key)

    async def _of(self, request: web.Request, worker: str, seconds: int) -> WorkerTrace:
        status, content = await ask_worker(
            self._api, request, worker, patience_s=seconds + FORWARDED_READ_TIMEOUT_S
        )
        try:
            if status == 200:
                found = msgspec.json.decode(content, type=WorkerTrace, strict=False)
                if all(durations.is_valid for durations in found.stages.values()):
                    return found
                why = "its answer has impossible figures"
            elif status == 404:
                why = "it has no traces yet, or does not know the workload; upgrade it, or ask again"
            else:
                why = str(msgspec.json.decode(content, type=dict)["detail"])
        except (msgspec.MsgspecError, KeyError):
            why = f"it answered {status}, which this worker cannot read; upgrade the older of both"
        raise ApiError(status if status in {409, 503} else 502, "Not traced", f"{worker}: {why}")


async def _while_connected(
    request: web.Request, asked: Sequence[Coroutine[Any, Any, WorkerTrace]]
) -> list[WorkerTrace | BaseException]:
    """The answers; the others are given up when the one who asks has gone, so that another may trace."""
    tasks = [asyncio.create_task(one) for one in asked]
    try:
        left: set[asyncio.Task[WorkerTrace]] = set(tasks)
        while left and _is_connected(request):
            _, left = await asyncio.wait(left, timeout=LOOK_S)
    finally:
        for task in tasks:
            task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def _is_connected(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()


def _sum(traces: list[WorkerTrace]) -> dict[str, Durations]:
    found = {name: Durations() for name in STAGES}
    for one in traces:
        for name, durations in one.stages.items():
            if name in found:
                found[name].add(durations)
    return found


def _stages(stages: dict[str, Durations]) -> list[JsonObject]:
    return [
        {
            "stage": name, "count": durations.total,
            "p50_ms": _ms(durations.quantile_s(0.5)), "p99_ms": _ms(durations.quantile_s(0.99)),
            "longest_ms": _ms(durations.longest_s),
        }
        for name in STAGES if (durations := stages.get(name)) is not None and durations.counts
    ]  # fmt: skip


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _is_of(job: str, key: str) -> bool:
    return f":{key}:" in job  # of all the parts of a job, only its name has a slash
