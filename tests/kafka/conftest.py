"""A client, a fetch service that keeps its deliveries, and producers, all on real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topic_configs import alter
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch.decoder import RecordReader
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
from app.kafka.fetch.service import FetchService
from app.kafka.records.record import Record

ENOUGH_S = 150.0  # ends a test that would hang; nothing is measured with it
BUDGET_BYTES = 64 * 1024 * 1024


class Pump:
    """A fetch service and its deliveries, which it releases unless `holding` names their key."""

    def __init__(self, client: ClusterClient, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget = ByteBudget(budget_bytes)
        self.service = FetchService(client, self._deliver, self.budget)
        self.reports: list[Any] = []  # gaps and incidents
        self.records: dict[Any, list[Record]] = {}
        self.position: dict[Any, int] = {}
        self.holding: set[Any] = set()
        self.held: list[FetchedBatches] = []
        self.most_used_bytes = 0
        self._news = asyncio.Condition()

    async def _deliver(self, item: Any) -> None:
        self.most_used_bytes = max(self.most_used_bytes, self.budget.used_bytes)
        if isinstance(item, FetchedBatches):
            reader = RecordReader(item)
            while not reader.exhausted:
                self.records.setdefault(item.key, []).extend(reader.read(1000))
            self.position[item.key] = item.next_offset
            if item.key in self.holding:
                self.held.append(item)
            else:
                item.release()
        else:
            self.reports.append(item)
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits for deliveries until `condition` holds."""
        async with asyncio.timeout(ENOUGH_S), self._news:
            await self._news.wait_for(condition)

    def count(self, key: Any) -> int:
        return len(self.records.get(key, ()))

    def offsets(self, key: Any) -> list[int]:
        return [record.offset for record in self.records.get(key, ())]

    def values(self, key: Any) -> list[bytes | None]:
        return [record.value for record in self.records.get(key, ())]


Start = Callable[..., Awaitable[Pump]]


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[ClusterClient]:
    """A started client of the broker that all tests share."""
    async with connected(bootstrap) as made:
        yield made


@asynccontextmanager
async def connected(bootstrap: str, name: str = "east-regional") -> AsyncIterator[ClusterClient]:
    """A started client."""
    made = ClusterClient(ClusterSpec(name, (bootstrap,)))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def pumping(client: ClusterClient, budget_bytes: int = BUDGET_BYTES) -> AsyncIterator[Pump]:
    """A started pump."""
    pump = Pump(client, budget_bytes)
    await pump.service.start()
    try:
        yield pump
    finally:
        async with asyncio.timeout(ENOUGH_S):
            await pump.service.stop()
        assert not pump.service._polls


async def fetched_until(
    ended: asyncio.Event, client: ClusterClient, deliver: Callable[[Any], Awaitable[None]], topic: str
) -> None:
    """Partition 0 of the topic is fetched from its start, until `deliver` sets `ended`."""
    service = FetchService(client, deliver, ByteBudget(1 << 24))
    await service.start()
    service.add("k", topic, 0, 0)
    async with asyncio.timeout(ENOUGH_S):
        await ended.wait()
    await service.stop()


@pytest.fixture
async def start(client: ClusterClient) -> AsyncIterator[Start]:
    """Starts pumps; they are stopped after the test."""
    async with AsyncExitStack() as stack:

        async def begin(budget_bytes: int = BUDGET_BYTES) -> Pump:
            return await stack.enter_async_context(pumping(client, budget_bytes))

        yield begin


@asynccontextmanager
async def producing(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """A started producer."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **{"acks": "all", **options})
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def create(client: ClusterClient, name: str, partitions: int = 1, **config: str) -> str:
    """A new topic of one replica."""
    named = {key.replace("_", "."): value for key, value in config.items()}
    assert await ensure_topics(client, [TopicSpec(name, partitions, 1, named)]) == [name]
    return name


async def bound(client: ClusterClient, most_bytes: int | None, *topics: str) -> None:
    """Sets the topics' largest batch size; None: the default."""
    value = None if most_bytes is None else str(most_bytes)
    failed = await alter(client, {topic: {"max.message.bytes": value} for topic in topics})
    assert not failed


async def delete_before(client: ClusterClient, topic: str, offset: int, partition: int = 0) -> None:
    """Deletes the records below an offset, as retention does; -1: all."""
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(offset)})
    finally:
        await admin.close()


async def write(
    bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **options: Any
) -> None:
    """Writes values in order, in as few batches as the producer makes of them."""
    async with producing(bootstrap, **options) as producer:
        sent = [await producer.send(topic, value, partition=partition) for value in values]
        await asyncio.gather(*sent)
