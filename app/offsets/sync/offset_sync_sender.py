"""Sends barriers of the offset map to the agent that writes them down (`agents.checkpoints`).

A line's barriers all go to one partition of the checkpoint topic, in the order of the calls. One that gets
lost costs precision, nothing else: nobody waits for them, and none is sent again.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import structlog
from mode import Service

from app.controllog import codec
from app.controllog.topics import CHECKPOINT_PARTITIONS, ControlTopics
from app.kafka.append.replaceable_producer import RecordSeal, ReplaceableProducer
from app.kernel.clock import now_ms
from app.offsets.model.offset_map import BarrierItem, EndedItem, NeedItem

log = structlog.get_logger(__name__)

Item = TypeVar("Item", BarrierItem, NeedItem, EndedItem)


def checkpoint_partition(key: str) -> int:
    """The partition of the checkpoint topic, and so of its table, in which a line lives."""
    return zlib.crc32(key.encode()) % CHECKPOINT_PARTITIONS


class BarrierSender(Service):
    """See the module. Whether this worker may still speak for a job (its lease) is the caller's to check."""

    def __init__(
        self,
        topics: ControlTopics,
        kafka_options: dict[str, Any],
        worker: str,
        seal: RecordSeal | None = None,
    ) -> None:
        super().__init__()
        self._topic = topics.checkpoints.name
        self._worker = worker
        self._producer = ReplaceableProducer("barriers", kafka_options, seal=seal)

    async def on_start(self) -> None:
        await self._producer.start_patiently()

    async def on_stop(self) -> None:
        await self._producer.stop()

    async def send(self, items: Iterable[BarrierItem]) -> list[asyncio.Future[Any]]:
        """Sends barriers, as few events as they fit into; the futures end once they stand in the topic.

        Raises:
            aiokafka.errors.KafkaError: (a future, too) one was not taken; sending them again is harmless.
        """
        return await self._send(items, codec.barriers_events)

    async def ask(self, items: Iterable[NeedItem]) -> list[asyncio.Future[Any]]:
        """The same of what is asked for of lines."""
        return await self._send(items, codec.needed_events)

    async def end(self, items: Iterable[EndedItem]) -> list[asyncio.Future[Any]]:
        """The same of what is known of lines without an owner."""
        return await self._send(items, codec.ended_events)

    async def _send(
        self, items: Iterable[Item], events: Callable[[str, int, list[Item]], list[bytes]]
    ) -> list[asyncio.Future[Any]]:
        by_partition: dict[int, list[Item]] = defaultdict(list)
        for item in items:
            by_partition[checkpoint_partition(item.key)].append(item)
        return [
            await self._producer.send(self._topic, event, key=self._worker.encode(), partition=partition)
            for partition, batch in by_partition.items()
            for event in events(self._worker, now_ms(), batch)
        ]
