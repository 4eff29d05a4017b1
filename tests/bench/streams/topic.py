"""A topic filled beforehand: 200 bytes a message, 10,000 keys, as fast as a producer can."""

from __future__ import annotations

import random
from collections.abc import Iterator

from aiokafka import AIOKafkaProducer

from app.dev.demo.traffic import create_topic

VALUE_BYTES = 200
KEYS = 10_000
BATCH_BYTES = 128 * 1024


async def fill(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Creates the topic and writes `count` messages, as many into each partition; keys keep to theirs."""
    await create_topic(bootstrap, topic, partitions)
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks=1, max_batch_size=BATCH_BYTES, linger_ms=0
    ) as producer:
        for partition in range(partitions):
            waiting = []
            batch = producer.create_batch()
            for key, value in _messages(partition, count // partitions, KEYS // partitions):
                if batch.append(key=key, value=value, timestamp=None) is None:
                    waiting.append(await producer.send_batch(batch, topic, partition=partition))
                    batch = producer.create_batch()
                    batch.append(key=key, value=value, timestamp=None)
            if batch.record_count():
                waiting.append(await producer.send_batch(batch, topic, partition=partition))
            for sent in waiting:
                await sent


def _messages(partition: int, count: int, keys: int) -> Iterator[tuple[bytes, bytes]]:
    value = random.Random(partition).randbytes(VALUE_BYTES)
    names = [b"%d-%05d" % (partition, number) for number in range(keys)]
    for name in random.Random(partition).choices(names, k=count):
        yield name, value
