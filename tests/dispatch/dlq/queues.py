"""A dead letter queue of real Kafka to work on, and a merge or purge as a process of its own, to be killed.

python -m tests.dispatch.dlq.queues BOOTSTRAP TOPIC OPERATION RATE      merges; a line of JSON a transaction
                                                               RATE "purge": purges, asks before each step
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

from app.dispatch.definition import Workload
from app.dispatch.dlq.merge import Merger
from app.dispatch.dlq.operation_progress import OperationProgress, OperationTerms
from app.dispatch.dlq.purge import purge_chosen
from app.dispatch.dlq.query import LetterQuery
from app.dispatch.dlq.reader import queue_ends
from app.dispatch.dlq.rules import Span
from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import MERGES
from app.kafka.client import aiokafka_patches
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter

GROUP = "billing"
RATE = 100_000.0
ENOUGH_S = 150.0


def of_topic(topic: str) -> Workload:
    return Workload.model_validate(
        {
            "apiVersion": "switchyard/v1",
            "kind": "Workload",
            "metadata": {"group": GROUP, "topic": topic, "cluster": "east"},
            "spec": {"target": {"address": "127.0.0.1:1"}},
        }
    )


def headers(number: int = 0, **fields: Any) -> list[tuple[str, bytes | None]]:
    """The headers of a dead letter: Switchyard's, and one of its producer."""
    values = {"reason": "not today", "code": "INTERNAL", "attempt": 3, "moved_ms": 1_700_000_000_000} | fields
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
    if "merges" in fields:
        found.append((MERGES, str(fields["merges"]).encode()))
    return found


async def create(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
        async with asyncio.timeout(ENOUGH_S):
            while topic not in await admin.list_topics():  # noqa: ASYNC110 - a broker hears late of it
                await asyncio.sleep(0.02)
    finally:
        await admin.close()


class DeadLetterQueue:
    """The dead letter queue of a workload of `topic`; what needs no `client` works from any loop."""

    def __init__(self, bootstrap: str, topic: str, client: ClusterClient | None = None) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.workload = of_topic(topic)
        self._client = client

    @property
    def client(self) -> ClusterClient:
        assert self._client is not None
        return self._client

    async def create(self, partitions: int = 1, **config: str) -> None:
        await create(self.bootstrap, self.workload.dlq_topic(), partitions, **config)

    async def put(self, *values: bytes | None, topic: str | None = None, **record: Any) -> None:
        """Appends records that differ only in their values."""
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, max_request_size=8 << 20) as producer:
            for value in values:
                await producer.send_and_wait(topic or self.workload.dlq_topic(), value, **record)

    async def fill(self, numbers: Iterable[int], **fields: Any) -> None:
        """Dead letters with the numbers as values and keys, spread over the partitions in turn."""
        topic = self.workload.dlq_topic()
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=5) as producer:
            count = len(await producer.partitions_for(topic))
            for number in numbers:
                text = str(number).encode()
                await producer.send(topic, text, text, number % count, headers=headers(number, **fields))

    async def ends(self) -> dict[int, Span]:
        return await queue_ends(self.client, self.workload.dlq_topic())

    def merger(self, operation: str, rate: float = RATE, report: Any = None) -> Merger:
        return Merger(self.client, self.workload, operation, rate=rate, report=report)

    async def merge(self, operation: str, terms: OperationTerms | None = None) -> OperationProgress:
        """Merges everything in the queue."""
        return await self.merger(operation).run(terms or OperationTerms(), await self.ends())

    async def merged(self) -> list[Any]:
        """Every committed record of the merge topic, as the data plane reads it."""
        topic = self.workload.merge_topic()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, isolation_level="read_committed", enable_auto_commit=False
        )
        await consumer.start()
        try:
            await consumer._client.force_metadata_update()
            parts = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or set()]
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

    async def numbers(self) -> list[int]:
        """The numbers of the merged messages, in order."""
        return sorted(int(record.value) for record in await self.merged())


class Clusters:
    """The clusters of a runtime fed by hand: "east" is real; its client lives in the server's loop."""

    def __init__(self, bootstrap: str) -> None:
        self.specs = {"east": ClusterSpec("east", (bootstrap,))}
        self._started: SimpleNamespace | None = None

    async def get(self, name: str) -> Any:
        if self._started is None:
            client = ClusterClient(self.specs[name])
            await client.start()
            self._started = SimpleNamespace(client=client, committer=OffsetCommitter(client))
        return self._started


async def run_operation(bootstrap: str, topic: str, operation: str, rate: str) -> None:
    client = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await client.start()
    queue = DeadLetterQueue(bootstrap, topic, client)

    def say(state: OperationProgress) -> None:
        sys.stdout.write(json.dumps(state.to_json()) + "\n")
        sys.stdout.flush()
        if rate == "purge":
            sys.stdin.readline()

    try:
        if rate == "purge":
            terms = OperationTerms(LetterQuery(code=("INTERNAL",)), purge=True)
            await purge_chosen(client, queue.workload, operation, terms, await queue.ends(), say)
        else:
            await queue.merger(operation, float(rate), say).run(OperationTerms(), await queue.ends())
    finally:
        await client.stop()


if __name__ == "__main__":
    aiokafka_patches.install()
    asyncio.run(run_operation(*sys.argv[1:5]))
