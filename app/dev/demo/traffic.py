"""A known set of messages, with failures among them, and the expected outcome of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from app.kafka.client.aiokafka_internals import client_of
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.client.topics import TopicSpec, ensure_topics

POISON_EVERY, RETRYABLE_EVERY, SLOW_EVERY = 100, 50, 400  # 1 %, 2 %, 0.25 %


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message of the set."""

    id: str
    behaviour: str

    def value(self) -> bytes:
        """Its body, in the sample receiver's format."""
        return orjson.dumps({"id": self.id, "behaviour": self.behaviour, "ms": 300, "fails": 1})


def messages(count: int, prefix: str = "m") -> Iterator[SentMessage]:
    """`count` messages: 1 % poison, 2 % retryable, some slow, the rest fine."""
    for number in range(count):
        behaviour = "ok"
        if number % POISON_EVERY == 7:
            behaviour = "poison"
        elif number % RETRYABLE_EVERY == 13:
            behaviour = "retryable"
        elif number % SLOW_EVERY == 29:
            behaviour = "slow"
        yield SentMessage(f"{prefix}-{number:07}", behaviour)


async def create_topic(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    """Creates a topic and waits for its leaders; more arguments are settings, such as
    `message_timestamp_type="..."`."""
    client = ClusterClient(ClusterSpec("demo", (bootstrap,)))
    await client.start()
    try:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        await ensure_topics(client, [TopicSpec(topic, partitions, config=settings)])
    finally:
        await client.stop()


async def produce(
    bootstrap: str, topic: str, sent: Iterable[SentMessage], *, per_second: float | None = None
) -> int:
    """Produces the messages with acks=all; returns how many."""
    count = 0
    loop = asyncio.get_running_loop()
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        max_batch_size=128 * 1024,
    ) as producer:
        started_s, waiting = loop.time(), []
        for message in sent:
            waiting.append(
                await producer.send(
                    topic, message.value(), key=message.id.encode(), headers=[("source", b"demo")]
                )
            )
            count += 1
            if per_second and count % 5 == 0:  # an even flow, not bursts
                await asyncio.sleep(max(0.0, started_s + count / per_second - loop.time()))
        await asyncio.gather(*waiting)
    return count


async def read_all(bootstrap: str, topic: str) -> list[Any]:
    """Every record of a topic now; [] when it does not exist."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        found = (await client_of(consumer).fetch_all_metadata()).partitions_for_topic(topic)
        partitions = [TopicPartition(topic, p) for p in found or ()]
        if not partitions:
            return []
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[Any] = []
        left = {p for p in partitions if ends[p] > 0}
        while left:
            for batch in (await consumer.getmany(*left, timeout_ms=500)).values():
                records += batch
            left = {p for p in left if await consumer.position(p) < ends[p]}
        return records
    finally:
        await stop_consumer(consumer)
