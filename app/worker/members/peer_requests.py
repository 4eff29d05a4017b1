"""Requests from one worker to another, by the URL in its heartbeat.

A URL may lead to another worker: `web.advertise` may be wrong, or the address may have a new owner. So
each request names its worker (`INTENDED_WORKER_HEADER`), and any other worker refuses it. Each answer
names its worker, too (`WORKER_HEADER`).
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from app.controllog.codec import Heartbeat

INTENDED_WORKER_HEADER = "X-Switchyard-For"
WORKER_HEADER = "X-Switchyard-Worker"
REMEDY = "correct web.advertise on its host, or move the other process from that address"
MAX_ANSWER_BYTES = 128 * 1024 * 1024  # four times the share of a hundred thousand audit windows


class PeerUnreachable(Exception):
    """A worker gave no answer; says why, with its address and the remedy."""


async def ask_peer(
    beat: Heartbeat,
    path: str,
    patience_s: float,
    *,
    method: str = "GET",
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """The status and content of the answer by the worker that sent `beat`. Raises PeerUnreachable: none
    came within `patience_s`, another process answered, or the answer was too large."""
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
                        f"{beat.worker} at {beat.url} sends more than {MAX_ANSWER_BYTES} bytes"
                    )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise PeerUnreachable(f"{beat.worker} at {beat.url} does not answer: {error!r}") from error
    # A worker of an older version, whose heartbeats have no place, does not name itself.
    if by != beat.worker and (by or beat.place):
        found = f"worker {by[:200]} answers" if by else "another process answers"
        raise PeerUnreachable(f"{beat.worker} announces {beat.url}, where {found}; {REMEDY}")
    return answer.status, bytes(content)
