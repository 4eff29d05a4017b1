"""Sends records of any size through a producer without compression: a large record goes alone, compressed.

A topic limits the compressed size, but aiokafka's producer limits the uncompressed size.
"""

from __future__ import annotations

from typing import cast

from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from app.kafka.append.lone_batch import ZSTD, Headers, encoded
from app.kafka.client.aiokafka_types import Answer
from app.kernel.clock import now_ms

LARGE_BYTES = 256 * 1024  # key and value above this get a batch of their own
# This object means a null value: aiokafka refuses records without key and value.
NULL = cast("bytes", bytearray())


def serialized(value: bytes | None) -> bytes | None:
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
) -> Answer:
    """Sends a record; the future is done once all in-sync replicas have it. Without a timestamp, it is now.
    Raises MessageSizeTooLargeError: it is larger than `most_bytes` even when compressed. Raises KafkaError:
    it was not accepted."""
    if len(key or b"") + len(value or b"") <= LARGE_BYTES:
        content = NULL if value is None else value
        timestamp_ms = now_ms() if timestamp_ms is None else timestamp_ms
        sent: Answer = await producer.send(
            topic, content, key=key, partition=partition, headers=list(headers), timestamp_ms=timestamp_ms
        )
        return sent
    batch = await encoded(
        key, value, headers, ZSTD, is_transactional=is_transactional, timestamp_ms=timestamp_ms
    )
    if batch.nbytes > most_bytes:
        raise MessageSizeTooLargeError(f"{batch.nbytes} bytes when compressed are more than {most_bytes}")
    alone: Answer = await producer.send_batch(batch, topic, partition=partition)
    return alone
