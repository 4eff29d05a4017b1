"""Sends events into the audit topic: reports, and the closing and dropping of windows.

All events of an audited topic go to one partition, in the order of the calls. An event that is sent again
counts once (`app.audit.counts`). A worker's own events are sealed (`app.audit.folds.seals`), those that it
forwards for a client are not.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.partitioner import murmur2
from mode import Service

from app.audit.folds.collector import CollectorTick
from app.audit.folds.seals import seal_of
from app.audit.folds.tier import CloseWindows, ForgetWindows
from app.audit.jobs.seal_key import SealKey
from app.controllog import codec
from app.controllog.topics import AUDIT_PARTITIONS, ControlTopics
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.aiokafka_types import ClientOptions
from app.kernel.seals import HEADER
from switchyard.audit.model.reports import Report


def audit_partition(topic: str) -> int:
    """The partition of the audit topic, and of its tables, for an audited topic. Kafka's default partitioner
    chooses the same for the topic's name as a key, so clients in any language find it."""
    return (int(murmur2(topic.encode())) & 0x7FFFFFFF) % AUDIT_PARTITIONS


class AuditSender(Service):
    """Sends to the audit topic. `key`: of the seals."""

    def __init__(self, topics: ControlTopics, kafka_options: ClientOptions, key: SealKey) -> None:
        super().__init__()
        self._topic = topics.audit.name
        self.key = key
        self._producer = ReplaceableProducer("audit reports", kafka_options, linger_ms=5)

    async def on_start(self) -> None:
        await self._producer.start_patiently()

    async def on_stop(self) -> None:
        await self._producer.stop()

    async def send(
        self, event: Report | CloseWindows | ForgetWindows, *, is_clients: bool = False
    ) -> asyncio.Future[Any]:
        """Sends an event; the future ends once the topic has all of it. `is_clients`: a client wrote it.

        Raises:
            ClusterUnreachable: The key is not known now.
            aiokafka.errors.KafkaError: (The future, too) the topic did not take it; sending it again is
            harmless.
        """
        parts = codec.report_events(event) if isinstance(event, Report) else [codec.encode(event)]
        key, partition = event.topic.encode(), audit_partition(event.topic)
        secret = b"" if is_clients else await self.key.known()
        sent = [
            await self._producer.send(
                self._topic, part, key=key, partition=partition,
                headers=[(HEADER, seal_of(secret, part))] if secret else [],
            )
            for part in parts
        ]  # fmt: skip
        return sent[0] if len(sent) == 1 else asyncio.gather(*sent)

    async def tick(self, at_ms: int) -> None:
        """Sends a tick to each partition. Raises KafkaError."""
        event = codec.encode(CollectorTick(at_ms))
        for partition in range(AUDIT_PARTITIONS):
            await self._producer.send_and_wait(self._topic, event, partition=partition)
