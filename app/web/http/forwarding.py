"""Forwards requests that only one worker can answer. A mark keeps that worker from forwarding them again."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from app.kernel.json_types import JsonMapping, JsonObject
from app.web.http.context import ApiContext
from app.web.http.operator_requests import actor_of
from app.web.http.responses import ApiError
from app.worker.members.peer_requests import PeerUnreachable, ask_peer

HOP_HEADER = "X-Switchyard-Hop"
# the longest request, an owner's reset, takes as long as its drain and the steps after it
FORWARDED_CHANGE_TIMEOUT_S = 12.0
FORWARDED_READ_TIMEOUT_S = 5.0  # for requests that change nothing


async def ask_worker(
    api: ApiContext,
    request: web.Request,
    worker: str,
    body: Any = None,
    patience_s: float | None = None,
    path: str = "",
    method: str = "",
) -> tuple[int, bytes]:
    """Status and content of `worker`'s answer to the same request.

    `path`, `method` and `body` replace those of the request.

    Raises:
        ApiError: The worker sends no heartbeats, or does not answer within `patience_s` (by default the
        method's timeout above).
    """
    method = method or request.method
    if patience_s is None:
        patience_s = FORWARDED_READ_TIMEOUT_S if method == "GET" else FORWARDED_CHANGE_TIMEOUT_S
    beat = api.beats().get(worker)
    if beat is None:
        raise ApiError(
            503, "Worker away", f"{worker} has the answer, but sends no heartbeats; ask again in some seconds"
        )
    headers = {HOP_HEADER: "1", "X-Switchyard-Actor": actor_of(request)}
    if body is not None:
        headers["Content-Type"] = "application/json"
    data = None if body is None else orjson.dumps(body)
    try:
        return await ask_peer(
            beat, path or request.path_qs, patience_s,
            method=method, data=data, headers=headers,
        )  # fmt: skip
    except PeerUnreachable as error:
        why = f"{error}; see the activity before asking again"
        raise ApiError(502, "Worker unreachable", why) from error


async def hand_over(
    api: ApiContext,
    request: web.Request,
    worker: str,
    body: Any = None,
    patience_s: float | None = None,
) -> web.Response:
    """`worker`'s answer as the answer of this one. Raises ApiError."""
    status, content = await ask_worker(api, request, worker, body, patience_s)
    kind = "application/json" if status < 400 else "application/problem+json"
    return web.Response(body=content, status=status, content_type=kind, headers={"Cache-Control": "no-store"})


async def reset_by(
    api: ApiContext, request: web.Request, worker: str, body: JsonMapping
) -> list[JsonObject] | str:
    """The results of the partitions that `worker` resets; or why nothing was reset."""
    try:
        status, content = await ask_worker(api, request, worker, body)
        answer = orjson.loads(content)
        return list(answer["partitions"]) if status == 200 else str(answer["detail"])
    except ApiError as error:
        return error.detail
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"{worker} gave an answer that this worker cannot read"
