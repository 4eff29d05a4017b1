"""Topics filled with records of a shape in batches of a size, and their deletion."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from app.dev.demo.traffic import create_topic

PARTITIONS = 4
VALUES = 4_000  # different ones: what compresses, but not because it repeats
WORDS = ("paid", "order", "shipped", "address", "customer", "amount", "pending", "street", "refund", "item")


@dataclass(frozen=True, slots=True)
class Shape:
    """The content of a topic.

    Attributes:
        value_bytes: Of each record.
        codec: Either none or zstd.
        batch_bytes: The size of a batch before compression; 0 for one record each.
        count: Records, the same number in every partition.
    """

    value_bytes: int
    codec: str
    batch_bytes: int
    count: int

    @property
    def title(self) -> str:
        """For people."""
        batches = f"batches of {self.batch_bytes // 1024} KB" if self.batch_bytes else "one record a batch"
        return f"{self.value_bytes} bytes, {self.codec}, {batches}"

    @property
    def topic(self) -> str:
        """The name of a topic with this shape."""
        return f"filled-{self.value_bytes}-{self.codec}-{self.batch_bytes}"


async def fill(bootstrap: str, shape: Shape) -> None:
    """Creates the topic and writes its records."""
    await create_topic(bootstrap, shape.topic, PARTITIONS)
    values = list(_values(shape.value_bytes))
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks=1, linger_ms=0, max_batch_size=shape.batch_bytes or 16384,
        compression_type=None if shape.codec == "none" else shape.codec,
    ) as producer:  # fmt: skip
        await asyncio.gather(*(_fill(producer, shape, partition, values) for partition in range(PARTITIONS)))


async def _fill(producer: AIOKafkaProducer, shape: Shape, partition: int, values: list[bytes]) -> None:
    sent = []
    batch = producer.create_batch()
    for number in range(shape.count // PARTITIONS):
        key, value = b"%d-%d" % (partition, number), values[number % VALUES]
        full = batch.append(key=key, value=value, timestamp=None) is None
        if full or not shape.batch_bytes:
            sent.append(await producer.send_batch(batch, shape.topic, partition=partition))
            batch = producer.create_batch()
        if full:
            batch.append(key=key, value=value, timestamp=None)
    if batch.record_count():
        sent.append(await producer.send_batch(batch, shape.topic, partition=partition))
    await asyncio.gather(*sent)


async def drop(bootstrap: str, *topics: str) -> None:
    """Deletes topics."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics(list(topics))
    finally:
        await admin.close()


def _values(size: int) -> Iterator[bytes]:
    """JSON of orders, each of exactly this size."""
    chance = random.Random(1)
    for _ in range(VALUES):
        order = {"id": chance.randbytes(8).hex(), "customer": chance.randrange(10**6),
                 "amount": round(chance.random() * 1000, 2), "text": ""}  # fmt: skip
        text = " ".join(chance.choices(WORDS, k=size // 4))
        order["text"] = text[: size - len(orjson.dumps(order))]
        yield orjson.dumps(order)
