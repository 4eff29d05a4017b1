"""Sends offset syncs to the agent that writes the checkpoint table (`agents.checkpoints`).

All offset syncs of a line go to one partition of the checkpoint topic, in the order of the calls. A lost
one costs precision only, so callers need not wait, and none is sent again.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog
from mode import Service

from app.controllog import codec
from app.controllog.topics import CHECKPOINT_PARTITIONS, ControlTopics
from app.kafka.append.replaceable_producer import RecordSeal, ReplaceableProducer
from app.kafka.client.aiokafka_types import Answer, ClientOptions
from app.kernel.clock import now_ms
from app.offsets.model.offset_map import BarrierItem, EndedItem, NeedItem

log = structlog.get_logger(__name__)

Item = TypeVar("Item", BarrierItem, NeedItem, EndedItem)


def checkpoint_partition(key: str) -> int:
    """A line's partition in the checkpoint topic, and so in its table."""
    return zlib.crc32(key.encode()) % CHECKPOINT_PARTITIONS


class BarrierSender(Service):
    """The worker's producer for the checkpoint topic. The caller checks its lease before each call."""

    def __init__(
        self,
        topics: ControlTopics,
        kafka_options: ClientOptions,
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

    async def send(self, items: Iterable[BarrierItem]) -> list[Answer]:
        """Sends offset syncs in as few events as possible; each future ends when the broker has an event.

        Raises:
            aiokafka.errors.KafkaError: (also from a future) The broker refused an event. Sending it again
            is harmless.
        """
        return await self._send(items, codec.barriers_events)

    async def ask(self, items: Iterable[NeedItem]) -> list[Answer]:
        """Sends pinned offsets of lines; otherwise as `send`."""
        return await self._send(items, codec.needed_events)

    async def end(self, items: Iterable[EndedItem]) -> list[Answer]:
        """Sends ends of lines without an owner; otherwise as `send`."""
        return await self._send(items, codec.ended_events)

    async def _send(
        self, items: Iterable[Item], events: Callable[[str, int, list[Item]], list[bytes]]
    ) -> list[Answer]:
        by_partition: dict[int, list[Item]] = defaultdict(list)
        for item in items:
            by_partition[checkpoint_partition(item.key)].append(item)
        return [
            await self._producer.send(self._topic, event, key=self._worker.encode(), partition=partition)
            for partition, batch in by_partition.items()
            for event in events(self._worker, now_ms(), batch)
        ]
