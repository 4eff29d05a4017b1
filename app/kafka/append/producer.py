"""An idempotent producer of copies (retry topics, dead letter queues) to one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from aiokafka.partitioner import DefaultPartitioner

from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.permissions import CLUSTER, allow, lacks

MAX_REQUEST_BYTES = 16 * 1024 * 1024
LINGER_MS = 2
BATCH_BYTES = 16 * 1024  # a record larger than this is alone in its batch
REFUSED_S = 30.0  # for so long a size that a topic refused is not tried again: each try costs the connection
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_NULL = bytearray()  # this very object stands for no value: aiokafka refuses records without key and value


class RecordTooLarge(ValueError):
    """A record that is too large for the producer or for its topic; trying again does not help."""


def _value(value: bytes | bytearray) -> bytes | bytearray | None:
    return None if value is _NULL else value


class Producer:
    """`send` returns once the record is acknowledged by all in-sync replicas.

    A record that the broker refuses (too large for its topic, say) leaves a hole in aiokafka's sequence
    numbers, and the broker takes nothing behind a hole: the connection is then made anew, under a new
    producer id, so that one record's fate is no other's. A size that a topic refused is known from then on,
    so that many such records cost one connection.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._producer: AIOKafkaProducer | None = None
        self._replacing = asyncio.Lock()
        self._refused: dict[str, tuple[int, float]] = {}  # topic -> smallest size refused, when
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connects, unless it has before. Raises KafkaError."""
        async with self._replacing:
            if self._producer is None:
                self._producer = await self._connect()

    async def stop(self) -> None:
        """Flushes and closes."""
        if self._producer is not None:
            await self._producer.stop()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int | None = None,
    ) -> Any:
        """Writes one record; its metadata.

        Raises:
            RecordTooLarge: without its value, or into another topic, it may be taken.
            KafkaError: it was not taken.
        """
        size = _size(key, value, headers)
        if self._known_too_large(topic, size):
            raise RecordTooLarge(f"{size} bytes are too many for topic {topic}: it has refused as few")
        taken = _NULL if value is None else value
        try:
            return await self._send(self._with_others, topic, key, taken, headers, partition)
        except TOO_LARGE:
            if size <= BATCH_BYTES:  # maybe it was refused for its company
                with contextlib.suppress(*TOO_LARGE):
                    return await self._send(self._alone, topic, key, taken, headers, partition)
            refused_bytes = min(size, self._refused.get(topic, (size, 0.0))[0])
            self._refused[topic] = refused_bytes, time.monotonic()
            raise RecordTooLarge(
                f"{size} bytes are too many for topic {topic}: its max.message.bytes says how many it takes"
            ) from None

    async def _send(self, send: Callable[..., Awaitable[Any]], *record: Any) -> Any:
        producer = self._producer
        assert producer is not None, "the producer has not been started"
        try:
            try:
                waiting = await send(producer, *record)
            except MessageSizeTooLargeError as error:  # aiokafka's own: no sequence number was used
                raise RecordTooLarge(f"too large for any topic: {error}") from error
            return await waiting
        except KafkaError as error:
            if not error.retriable:
                await self._replace(producer)
            raise

    async def _with_others(self, producer: AIOKafkaProducer, topic: str, key: Any, value: Any, headers: Any,
                           partition: int | None) -> Any:  # fmt: skip
        return await producer.send(topic, value, key=key, headers=headers, partition=partition)

    async def _alone(self, producer: AIOKafkaProducer, topic: str, key: Any, value: Any, headers: Any,
                     partition: int | None) -> Any:  # fmt: skip
        if partition is None:
            partitions = sorted(await producer.partitions_for(topic))
            partition = DefaultPartitioner()(key, partitions, partitions)
        batch = producer.create_batch()
        batch.append(timestamp=None, key=key, value=value, headers=headers)
        batch.close()
        return await producer.send_batch(batch, topic, partition=partition)

    def _known_too_large(self, topic: str, size: int) -> bool:
        refused_bytes, at_s = self._refused.get(topic, (size + 1, 0.0))
        if time.monotonic() - at_s > REFUSED_S:
            self._refused.pop(topic, None)
            return False
        return size >= refused_bytes

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            acks="all",
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_batch_size=BATCH_BYTES,
            max_request_size=MAX_REQUEST_BYTES,
            request_timeout_ms=10_000,
            value_serializer=_value,
            **self.spec.aiokafka_options(),
        )
        try:
            await producer.start()
        except ClusterAuthorizationFailedError as error:
            await producer.stop()
            why = lacks(self.spec, "cluster", CLUSTER, "IdempotentWrite")
            remedy = allow(self.spec, "cluster", CLUSTER, "IdempotentWrite")
            raise ClusterAuthorizationFailedError(f"{why}, or Write on any topic there; {remedy}") from error
        except BaseException:
            await producer.stop()
            raise
        return producer

    async def _replace(self, broken: AIOKafkaProducer) -> None:
        """Sends through a new one from now on; what the broken one still holds ends with it."""
        async with self._replacing:
            if self._producer is not broken:
                return
            with contextlib.suppress(KafkaError, OSError):  # the next refusal tries again
                self._producer = await self._connect()
                retiring = asyncio.get_running_loop().create_task(self._retire(broken))
                self._retiring.add(retiring)
                retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, broken: AIOKafkaProducer) -> None:
        with contextlib.suppress(KafkaError):  # told to those who wait for its records
            await broken.stop()


def _size(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> int:
    """Bytes of a record's content, which Kafka's own bookkeeping comes on top of."""
    return sum(len(part or b"") for part in (key, value, *(part for header in headers for part in header)))
