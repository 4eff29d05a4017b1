"""Requests that only one worker can answer go to it, marked so that it does not hand them on again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from app.web.http.operator_requests import actor_of
from app.web.http.responses import ApiError
from app.worker.members.peer_requests import PeerUnreachable, ask_peer

if TYPE_CHECKING:
    from app.web.console.api import Api

HOP_HEADER = "X-Switchyard-Hop"
# an owner's reset, the longest, takes no longer than its drain and what follows it
FORWARDED_CHANGE_TIMEOUT_S = 12.0
FORWARDED_READ_TIMEOUT_S = 5.0  # what changes nothing


async def ask_worker(
    api: Api,
    request: web.Request,
    worker: str,
    body: Any = None,
    patience_s: float | None = None,
    path: str = "",
    method: str = "",
) -> tuple[int, bytes]:
    """Status and content of `worker`'s answer to the same request (or to one for another `path`, by another
    `method`), with `body` if there is one.

    Raises:
        ApiError: it is not heard, or does not answer within `patience_s` (by default as long as the method's
            timeout above).
    """
    method = method or request.method
    if patience_s is None:
        patience_s = FORWARDED_READ_TIMEOUT_S if method == "GET" else FORWARDED_CHANGE_TIMEOUT_S
    beat = api.beats().get(worker)
    if beat is None:
        raise ApiError(503, "Worker away", f"{worker} is asked for it but is not heard; ask again in seconds")
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
    api: Api,
    request: web.Request,
    worker: str,
    body: Any = None,
    patience_s: float | None = None,
) -> web.Response:
    """`worker`'s answer as ours. Raises ApiError."""
    status, content = await ask_worker(api, request, worker, body, patience_s)
    kind = "application/json" if status < 400 else "application/problem+json"
    return web.Response(body=content, status=status, content_type=kind, headers={"Cache-Control": "no-store"})
