"""The least that a copier can do: it moves batches between two sockets without checks, changes, state or
promises.

Its rate is the limit that brokers, kernel and machine set.

    python -m tests.bench.copying.bare SOURCE DESTINATION TOPIC COPY PARTITIONS
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import deque

import uvloop
from aiokafka.protocol.fetch import FetchRequest

from app.kafka.append.protocol import AppendRequest
from app.kafka.client import aiokafka_patches
from app.kafka.client.cluster import ClusterClient, ClusterSpec

IN_FLIGHT = 5
PARTITION_BYTES, RESPONSE_BYTES = 1024 * 1024, 4 * 1024 * 1024
QUEUED_BYTES = 8 * 1024 * 1024
WAIT_MS = 100
_HEAD = struct.Struct(">qi")  # base offset, length of what follows
_DELTA = struct.Struct(">i")
_DELTA_AT = 23


class Bare:
    """Fetches and produces side by side."""

    def __init__(
        self, source: ClusterClient, target: ClusterClient, topic: str, copy: str, count: int
    ) -> None:
        self._source, self._target, self._topic, self._copy = source, target, topic, copy
        self._positions = dict.fromkeys(range(count), 0)
        self._queues: dict[int, deque[bytes]] = {partition: deque() for partition in range(count)}
        self._bytes = self._flying = 0
        self._more, self._room = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """For ever."""
        await asyncio.gather(self._fetch(), self._produce())

    async def _fetch(self) -> None:
        node = await self._source.any_node()
        while True:
            wanted = [(number, offset, PARTITION_BYTES) for number, offset in self._positions.items()]
            request = FetchRequest(WAIT_MS, 1, RESPONSE_BYTES, 0, [(self._topic, wanted)])
            answer = await self._source.send(node, request, "fetch")
            for _, partitions in answer.topics:
                for number, *_, data in partitions:
                    self._split(number, data)
            while self._bytes > QUEUED_BYTES:
                self._room.clear()
                await self._room.wait()

    def _split(self, number: int, data: bytes) -> None:
        at = 0
        while at + _HEAD.size <= len(data):
            offset, length = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length
            if end > len(data):
                break
            self._queues[number].append(data[at:end])
            self._bytes += end - at
            self._positions[number] = offset + _DELTA.unpack_from(data, at + _DELTA_AT)[0] + 1
            at = end
        self._more.set()

    async def _produce(self) -> None:
        node = await self._target.any_node()
        tasks: set[asyncio.Task[None]] = set()
        while True:
            while self._flying >= IN_FLIGHT or not self._bytes:
                self._more.clear()
                await self._more.wait()
            batches = []
            for number, queue in self._queues.items():
                if queue:
                    data = bytearray(queue.popleft())
                    self._bytes -= len(data)
                    data[:8] = bytes(8)
                    batches.append((number, data))
            self._room.set()
            self._flying += 1
            task = asyncio.create_task(self._send(node, batches))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _send(self, node: int, batches: list[tuple[int, bytearray]]) -> None:
        answer = await self._target.send(node, AppendRequest({self._copy: batches}, 5_000), "append")
        refused = [part for _, partitions in answer.topics for part in partitions if part[1]]
        if refused:
            sys.exit(f"refused: {refused}")
        self._flying -= 1
        self._more.set()


async def main(source: str, target: str, topic: str, copy: str, count: int) -> None:
    """Copies until it is killed."""
    clients = [
        ClusterClient(ClusterSpec(name, (at,))) for name, at in (("source", source), ("copies", target))
    ]
    for client in clients:
        await client.start()
    await Bare(*clients, topic, copy, count).run()


if __name__ == "__main__":
    aiokafka_patches.install()
    uvloop.run(main(*sys.argv[1:5], int(sys.argv[5])))
