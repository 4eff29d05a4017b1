"""A record of any size through a producer that compresses nothing: a large one goes alone, and compressed.

A topic bounds what is compressed, and aiokafka's producer what is not.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from app.kafka.append.lone_batch import ZSTD, Headers, encoded
from app.kernel.clock import now_ms

LARGE_BYTES = 256 * 1024  # of key and value: worth a batch of its own
NULL = bytearray()  # this very object stands for no value: aiokafka refuses records without key and value


def serialized(value: Any) -> bytes | None:
    """The `value_serializer` of such a producer."""
    return None if value is NULL else value


async def send(
    producer: AIOKafkaProducer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    *,
    most_bytes: int,
    timestamp_ms: int | None = None,
    is_transactional: bool = False,
) -> asyncio.Future[Any]:
    """Takes a record; the future ends once all in-sync replicas have it. No timestamp means this moment.

    Raises:
        MessageSizeTooLargeError: it is larger than `most_bytes`, also compressed.
        KafkaError: it was not taken.
    """
    if len(key or b"") + len(value or b"") <= LARGE_BYTES:
        given = NULL if value is None else value
        timestamp_ms = now_ms() if timestamp_ms is None else timestamp_ms
        sent: asyncio.Future[Any] = await producer.send(
            topic, given, key=key, partition=partition, headers=list(headers), timestamp_ms=timestamp_ms
        )
        return sent
    batch = await encoded(
        key, value, headers, ZSTD, is_transactional=is_transactional, timestamp_ms=timestamp_ms
    )
    if batch.nbytes > most_bytes:
        raise MessageSizeTooLargeError(f"{batch.nbytes} bytes are more than {most_bytes}")
    alone: asyncio.Future[Any] = await producer.send_batch(batch, topic, partition=partition)
    return alone
