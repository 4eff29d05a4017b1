"""A dead letter queue of real Kafka to work on, and a merge as a process of its own that can be killed.

python -m tests.dlq.queues BOOTSTRAP TOPIC OPERATION RATE      merges; a line of JSON a transaction
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from app.config.definitions import Workload
from app.core import retry_headers as names
from app.dlq.letter import MERGES
from app.dlq.merge import Merger
from app.dlq.progress import Merge, Terms
from app.dlq.read import queue_ends
from app.kafka.clusters import ClusterClient, ClusterSpec

GROUP = "billing"


def of_topic(topic: str) -> Workload:
    return Workload.model_validate(
        {
            "apiVersion": "switchyard/v1",
            "kind": "Workload",
            "metadata": {"group": GROUP, "topic": topic, "cluster": "east"},
            "spec": {"target": {"address": "127.0.0.1:1"}},
        }
    )


def headers(number: int = 0, **told: Any) -> list[tuple[str, bytes | None]]:
    """What Switchyard says of a dead letter, and one header of its producer."""
    values = {"reason": "not today", "code": "INTERNAL", "attempt": 3, "moved_ms": 1_700_000_000_000} | told
    found: list[tuple[str, bytes | None]] = [
        ("own", b"\x00kept"),
        (names.ORIGIN_TOPIC, b"orders"),
        (names.ORIGIN_PARTITION, b"0"),
        (names.ORIGIN_OFFSET, str(number).encode()),
        (names.ATTEMPT, str(values["attempt"]).encode()),
        (names.REASON, str(values["reason"]).encode()),
        (names.CODE, str(values["code"]).encode()),
        (names.MOVED_AT, str(values["moved_ms"]).encode()),
    ]
    if "merges" in told:
        found.append((MERGES, str(told["merges"]).encode()))
    return found


async def create(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
    finally:
        await admin.close()


async def fill(bootstrap: str, workload: Workload, numbers: Iterable[int], **told: Any) -> None:
    """Dead letters with the numbers as values and keys, spread over the queue's partitions in turn."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5) as producer:
        count = len(await producer.partitions_for(workload.dlq_topic()))
        for number in numbers:
            text = str(number).encode()
            await producer.send(
                workload.dlq_topic(), text, text, number % count, headers=headers(number, **told)
            )


async def merged(bootstrap: str, workload: Workload) -> list[Any]:
    """Every committed record of the merge topic, as the data plane reads it."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    await consumer.start()
    try:
        await consumer._client.force_metadata_update()
        found = consumer.partitions_for_topic(workload.merge_topic()) or set()
        parts = [TopicPartition(workload.merge_topic(), p) for p in found]
        if not parts:
            return []
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        records: list[Any] = []
        while any([await consumer.position(part) < ends[part] for part in parts]):
            for batch in (await consumer.getmany(*parts, timeout_ms=200)).values():
                records += batch
        return records
    finally:
        await consumer.stop()


class Clusters:
    """The clusters of a runtime fed by hand: "east" is real; its client lives in the server's loop."""

    def __init__(self, bootstrap: str) -> None:
        self.specs = {"east": ClusterSpec("east", (bootstrap,))}
        self._started: SimpleNamespace | None = None

    async def get(self, name: str) -> Any:
        if self._started is None:
            client = ClusterClient(self.specs[name])
            await client.start()
            self._started = SimpleNamespace(client=client)
        return self._started


def numbers_of(records: list[Any]) -> list[int]:
    return sorted(int(record.value) for record in records)


async def merge_as_told(bootstrap: str, topic: str, operation: str, rate: float) -> None:
    client = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await client.start()
    workload = of_topic(topic)

    def say(state: Merge) -> None:
        sys.stdout.write(json.dumps(state.to_json()) + "\n")
        sys.stdout.flush()

    try:
        ends = await queue_ends(client, workload.dlq_topic())
        await Merger(client, workload, operation, rate=rate, report=say).run(Terms(), ends)
    finally:
        await client.stop()


if __name__ == "__main__":
    asyncio.run(merge_as_told(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
