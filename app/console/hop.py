"""Requests that only one worker can answer go to it, marked so that it does not hand them on again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

from app.console.acts import actor_of
from app.console.answers import ApiError
from app.console.dlq_tools import HOP

if TYPE_CHECKING:
    from app.console.api import Api

HOP_S = 12.0  # an owner's reset, the longest, takes no longer than its drain and what follows it


async def ask_worker(api: Api, request: web.Request, worker: str, body: Any) -> tuple[int, bytes]:
    """Status and content of `worker`'s answer to the same request with `body`. Raises ApiError."""
    beat = api.runtime.members.live(time.monotonic()).get(worker)
    if beat is None:
        raise ApiError(503, "Worker away", f"{worker} is asked for it but is not heard; ask again in seconds")
    headers = {HOP: "1", "X-Switchyard-Actor": actor_of(request), "Content-Type": "application/json"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HOP_S)) as session,
            session.post(beat.url + request.path_qs, data=orjson.dumps(body), headers=headers) as answer,
        ):
            return answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        why = f"{worker} at {beat.url} does not answer: {error}; see the activity before asking again"
        raise ApiError(502, "Worker unreachable", why) from error


async def hand_over(api: Api, request: web.Request, worker: str, body: Any) -> web.Response:
    """`worker`'s answer as ours. Raises ApiError."""
    status, content = await ask_worker(api, request, worker, body)
    kind = "application/json" if status < 400 else "application/problem+json"
    return web.Response(body=content, status=status, content_type=kind, headers={"Cache-Control": "no-store"})
