"""Notices at once that a worker's process has ended: its port answered before, and now refuses.

The leader keeps a connection to each worker's web port, and so does the next in line. Every worker keeps
one to the leader's. When it ends, the sentinel connects again: a refusal shows that no process listens
there any more.

Rules
1. A refusal, or another worker's id, counts only after the same worker gave its id at that address
   (`GET /health/live`). An address that means another process here (another host's loopback) never gives
   that id, so it changes nothing.
2. Silence, resets and timeouts do not count. A frozen or unreachable process is dead after `dead_after_s`.
3. The result is a hint: a worker whose heartbeats continue lives (`Members.refuse`). Perhaps only its web
   server ended, or a firewall refuses for it. If its jobs moved meanwhile, it releases them when it reads
   that, or else when its lease ends. Its epoch is fenced anyway, so a wrong result costs only duplicate
   deliveries until the lease ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import orjson
import structlog
from mode import Service

from app.config.web_address import bracketed
from app.worker.members.membership import Members

log = structlog.get_logger(__name__)

PEER_POLL_INTERVAL_S = 0.25  # between two choices of whom to watch
IDENTITY_TIMEOUT_S = 5.0
PORT_CLOSE_DELAY_S = 0.02  # an ending process closes its connections shortly before its port, or after it
CONNECT_RETRY_INTERVAL_S = 2.0
MAX_BODY_BYTES = 4 * 1024


class Sentinel(Service):
    """`on_death` is called after `members` knows of the death."""

    def __init__(
        self, worker: str, members: Members, leader: Callable[[], str], on_death: Callable[[], None]
    ) -> None:
        super().__init__()
        self.worker = worker
        self._members = members
        self._leader = leader
        self._on_death = on_death
        self._watches: dict[str, asyncio.Task[None]] = {}

    async def on_stop(self) -> None:
        for watch in self._watches.values():
            watch.cancel()

    @Service.task
    async def _watch_peers(self) -> None:
        while not self.should_stop:
            wanted = self._wanted()
            for worker in self._watches.keys() - wanted:
                self._watches.pop(worker).cancel()
            for worker in wanted - self._watches.keys():
                url = self._members.heard[worker][1].url
                self._watches[worker] = asyncio.get_running_loop().create_task(self._watch(worker, url))
            await self.sleep(PEER_POLL_INTERVAL_S)

    def _wanted(self) -> set[str]:
        leader = self._leader()
        live = set(self._members.live(time.monotonic()))
        next_in_line = min(live - {leader}, default="")
        if self.worker not in {leader, next_in_line}:
            live &= {leader}
        return live - {self.worker}

    async def _watch(self, worker: str, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return  # not an address
        if parts.scheme != "http":
            return  # a proxy ends TLS there, so its port does not show whether the process runs
        known = False
        while True:
            pause_s = CONNECT_RETRY_INTERVAL_S
            try:
                async with asyncio.timeout(IDENTITY_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(host, port)
            except ConnectionRefusedError:
                if known:
                    self._dead(worker, "its port refuses")
                    return
            except (OSError, TimeoutError):
                pass
            else:
                try:
                    async with asyncio.timeout(IDENTITY_TIMEOUT_S):
                        found = await _identify_peer(reader, writer, f"{bracketed(host)}:{port}")
                    if known and found and found != worker:
                        self._dead(worker, "another worker has its port")
                        return
                    if found == worker:
                        known, pause_s = True, PORT_CLOSE_DELAY_S
                        await reader.read(1)  # returns when the connection ends
                except (OSError, TimeoutError, ValueError, EOFError):
                    pause_s = PORT_CLOSE_DELAY_S if known else CONNECT_RETRY_INTERVAL_S
                finally:
                    writer.close()
            await asyncio.sleep(pause_s)

    def _dead(self, worker: str, why: str) -> None:
        log.warning(
            "a worker's process seems to have ended; its jobs move unless it is heard again",
            worker=worker,
            why=why,
        )
        self._members.refuse(worker, time.monotonic())
        self._on_death()


async def _identify_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> str:
    """The id of the worker at the other end, or ""; the connection stays open. Raises OSError, EOFError,
    ValueError."""
    writer.write(f"GET /health/live HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await writer.drain()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("too long a head") from error
    lines = head.lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    if not 0 <= length <= MAX_BODY_BYTES:
        raise ValueError("too long a body")
    body = orjson.loads(await reader.readexactly(length))
    found = body.get("worker") if isinstance(body, dict) else None
    return found if isinstance(found, str) else ""
