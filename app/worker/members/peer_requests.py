"""How workers ask each other: by the URL in the heartbeat, with the id of the worker that is meant.

A URL may lead to another worker: a wrong `web.advertise`, an address that has been given away. So each
request names its worker (`INTENDED_WORKER_HEADER`), which another one refuses; each answer names the worker
that gave it (`WORKER_HEADER`).
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from app.controllog.codec import Heartbeat

INTENDED_WORKER_HEADER = "X-Switchyard-For"
WORKER_HEADER = "X-Switchyard-Worker"
REMEDY = "correct web.advertise on its host, or what else stands at that address"
MAX_ANSWER_BYTES = 128 * 1024 * 1024  # a share of a hundred thousand audit windows is a quarter of it


class PeerUnreachable(Exception):
    """A worker gave no answer; why, with its address and the remedy."""


async def ask_peer(
    beat: Heartbeat,
    path: str,
    patience_s: float,
    *,
    method: str = "GET",
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and content of the answer of the worker that sent `beat`.

    Raises:
        PeerUnreachable: it does not answer within `patience_s`, or somebody else does, or with too much.
    """
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience_s)) as session,
            session.request(
                method,
                beat.url + path,
                data=data,
                headers={**(headers or {}), INTENDED_WORKER_HEADER: beat.worker},
                allow_redirects=False,
            ) as answer,
        ):
            by, content = answer.headers.get(WORKER_HEADER, ""), bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise PeerUnreachable(
                        f"{beat.worker} at {beat.url} answers more than {MAX_ANSWER_BYTES} bytes"
                    )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise PeerUnreachable(f"{beat.worker} at {beat.url} does not answer: {error!r}") from error
    # A worker of an older version, which heartbeats without `place` show, does not name itself.
    if by != beat.worker and (by or beat.place):
        found = f"the worker {by[:200]} answers" if by else "something that is not this worker answers"
        raise PeerUnreachable(f"{beat.worker} announces {beat.url}, where {found}; {REMEDY}")
    return answer.status, bytes(content)
