"""A load balancer of connections, as a virtual IP address is one, for tests and as a process.

    python -m tests.dispatch.push.load_balancer 127.0.0.6:7000 FILE

FILE has the receivers as "host:port", one a line. It is read again for each connection.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class LoadBalancer:
    """Leads each connection to that of `receivers` to which it has led fewest; each is "host:port"."""

    def __init__(self, receivers: Callable[[], list[str]]) -> None:
        self.port = 0
        self._receivers = receivers
        self._led: Counter[str] = Counter()
        self._pipes: dict[asyncio.Task[None], str] = {}
        self._passes = asyncio.Event()
        self._passes.set()

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Leads one connection; one that the receiver refuses is closed."""
        receiver = min(self._receivers(), key=lambda one: self._led[one])
        self._led[receiver] += 1
        host, _, port = receiver.rpartition(":")
        try:
            answers, requests = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        for source, target in ((reader, requests), (answers, writer)):
            task = asyncio.ensure_future(self._pipe(source, target))
            self._pipes[task] = receiver
            task.add_done_callback(self._pipes.pop)

    async def _pipe(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65_536):
                    await self._passes.wait()
                    target.write(data)
                    await target.drain()
        finally:
            target.close()

    def freeze(self) -> None:
        """Lets nothing pass any more, without either end noticing, as a network that is gone does."""
        self._passes.clear()

    def cut(self, receiver: str) -> None:
        """Ends all connections to this receiver, as its death does."""
        for task, led_to in self._pipes.items():
            if led_to == receiver:
                task.cancel()

    def close(self) -> None:
        for task in self._pipes:
            task.cancel()


@asynccontextmanager
async def balancing(receivers: Callable[[], list[str]]) -> AsyncIterator[LoadBalancer]:
    """A load balancer at `port`; it asks `receivers` once for each connection."""
    balancer = LoadBalancer(receivers)
    async with await asyncio.start_server(balancer.lead, "127.0.0.1") as server:
        balancer.port = server.sockets[0].getsockname()[1]
        yield balancer
        balancer.close()


async def _serve(address: str, file: str) -> None:
    host, _, port = address.rpartition(":")
    balancer = LoadBalancer(lambda: Path(file).read_text().split())
    async with await asyncio.start_server(balancer.lead, host, int(port)) as server:
        sys.stdout.write(f"listens on {address}\n")
        sys.stdout.flush()
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
