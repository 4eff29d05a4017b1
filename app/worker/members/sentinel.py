"""Notices at once that a worker's process has ended: its port, which answered, refuses.

The leader keeps a connection to every worker's web port, so does the next in line, and everybody to the
leader's. When one ends, a new one is tried: a refusal says that nothing listens there any more.

Rules
1. A refusal counts only after the very same worker has told its id at that address (`GET /health/live`), or
   when another one tells its own there now. An address that means something else here (another host's
   loopback) never becomes believable, and changes nothing.
2. Silence, resets and timeouts say nothing: a process that is frozen or cut off is dead after `dead_after_s`.
3. It is a hint. A worker that goes on sending heartbeats lives (`Members.refuse`), for example when only its
   web server has ended, or when a firewall refuses in its name. Should its jobs have moved meanwhile, it lets
   them go as soon as it reads that, and at the end of its lease if it cannot read; its epoch is fenced
   either way. So all that a wrong refusal can cost is deliveries that come twice, bounded by the lease.
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

PEER_POLL_INTERVAL_S = 0.25  # how often it looks whom to watch
IDENTITY_TIMEOUT_S = 5.0
PORT_CLOSE_DELAY_S = 0.02  # a process that ends closes its connections a moment before its port, or after it
CONNECT_RETRY_INTERVAL_S = 2.0
MAX_BODY_BYTES = 4 * 1024


class Sentinel(Service):
    """See the module. `on_death` is called once `members` has been told."""

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
        """Ends when the worker's process has."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return  # not an address: nothing is known of it here
        if parts.scheme != "http":
            return  # something else ends TLS there, and its port says nothing of the process
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
                        await reader.read(1)  # nothing more comes until the end
                except (OSError, TimeoutError, ValueError, EOFError):
                    pause_s = PORT_CLOSE_DELAY_S if known else CONNECT_RETRY_INTERVAL_S
                finally:
                    writer.close()
            await asyncio.sleep(pause_s)

    def _dead(self, worker: str, why: str) -> None:
        log.warning("a worker's process has ended", worker=worker, why=why)
        self._members.refuse(worker, time.monotonic())
        self._on_death()


async def _identify_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> str:
    """The id of the worker at the other end; "" when it tells none. The connection stays open.

    Raises:
        OSError, EOFError, ValueError: it gave no answer, or none that can be read.
    """
    writer.write(f"GET /health/live HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await writer.drain()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("too long a head") from error
    length = next(
        (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
    )
    if not 0 <= length <= MAX_BODY_BYTES:
        raise ValueError("too long a body")
    body = orjson.loads(await reader.readexactly(length))
    found = body.get("worker") if isinstance(body, dict) else None
    return found if isinstance(found, str) else ""
