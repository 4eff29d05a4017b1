"""An idempotent producer of message copies (retry topics, dead letter queues) for one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka.errors import ClusterAuthorizationFailedError, InvalidTimestampError
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import RecordMetadata

from app.kafka.append import any_size
from app.kafka.append.errors import INVALID_RECORD_REMEDY, RECORD_INVALID, RECORD_REFUSED, TOO_LARGE_ERRORS
from app.kafka.append.lone_batch import NO_CODEC, Headers, LoneBatch, content_bytes, encoded
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.permissions import CLUSTER, allow, lacks
from app.kafka.records.batch import HEADER_BYTES

# Below a broker's default socket.request.max.bytes: for more it closes the connection without an error code.
MAX_BATCH_BYTES = 100 * 1024 * 1024 - 64 * 1024
LINGER_MS = 2
BATCH_BYTES = 16 * 1024  # a record larger than this is alone in its batch
REFUSED_S = 30.0  # how long a refused size is not tried again


class RecordTooLarge(ValueError):
    """The record is too large for the producer or for its topic; a retry does not help."""


class ByteRoom:
    """Admits callers in order while their bytes stay within `most_bytes`; a larger one is admitted alone."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._used_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, nbytes: int) -> AsyncIterator[None]:
        async with self._turn:
            while self._used_bytes and self._used_bytes + nbytes > self._most_bytes:
                self._freed.clear()
                await self._freed.wait()
            self._used_bytes += nbytes
        try:
            yield
        finally:
            self._used_bytes -= nbytes
            self._freed.set()


class Producer:
    """`send` returns once all in-sync replicas have the record.

    A topic limits the compressed size. So a large record goes alone, compressed as `codec` says, to fit
    where the original fitted. A record refused within a batch is sent again that way, so that only the
    record at fault fails (INVALID_RECORD).

    The size that a topic refused is remembered, because each refusal costs the connection
    (`app.kafka.append.replaceable_producer`).

    Large records have a producer of their own. It gets one record per partition at a time, and together at
    most one request's size. The reason: aiokafka, when it stops, loses a batch that waits behind another,
    and it puts batches of all partitions of a broker into one request. If the caller is cancelled, its
    large record is still written, and only then does its turn end.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._producer = ReplaceableProducer(
            f"copies in {spec.name}", spec.aiokafka_options(), keeps_order=False,
            linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES, value_serializer=any_size.serialized,
        )  # fmt: skip
        self._large_producer = ReplaceableProducer(
            f"large copies in {spec.name}", spec.aiokafka_options(), keeps_order=False
        )
        self._room = ByteRoom(MAX_BATCH_BYTES)
        self._turns = defaultdict[tuple[str, int], asyncio.Lock](asyncio.Lock)
        self._large = set[asyncio.Task[RecordMetadata]]()
        self._refused: dict[str, tuple[int, float]] = {}  # topic -> smallest refused size, and when

    async def start(self) -> None:
        """Connects, unless it is connected. Raises KafkaError."""
        async with self._explained():
            await self._producer.start()

    async def stop(self) -> None:
        await asyncio.gather(self._producer.stop(), self._large_producer.stop())

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int | None = None,
        codec: int = NO_CODEC,
    ) -> RecordMetadata:
        """Writes one record and returns its metadata. `codec` is the Kafka number of the source's
        compression. Raises RecordTooLarge: it may be accepted without its value, or by another topic. Raises
        KafkaError: it was not accepted."""
        size = content_bytes(key, value, headers)
        if size <= BATCH_BYTES and not self._known_too_large(topic, size + HEADER_BYTES):
            content = any_size.NULL if value is None else value
            # The reason may be another record of the batch, or the missing compression: send it alone.
            with contextlib.suppress(*TOO_LARGE_ERRORS, *RECORD_REFUSED):
                async with self._explained():
                    sent = await self._producer.send(
                        topic, content, key=key, headers=headers, partition=partition
                    )
                return await sent
        large = asyncio.create_task(self._send_large(topic, key, value, headers, partition, codec, size))
        self._large.add(large)
        large.add_done_callback(self._large.discard)
        return await asyncio.shield(large)

    async def _send_large(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None,
        codec: int, size: int,
    ) -> RecordMetadata:  # fmt: skip
        async with self._room.taken(size):
            batch = await encoded(key, value, headers, codec)
            size = batch.nbytes
            if size > MAX_BATCH_BYTES:
                raise RecordTooLarge(
                    f"{size} bytes are too many for any topic: no broker takes such a request"
                )
            try:
                return await self._send_batch(topic, key, batch, partition)
            except InvalidTimestampError:
                raise InvalidTimestampError(
                    f"{topic} refuses this worker's timestamp: compare the clocks of its brokers with the "
                    "control cluster's clocks, which workers follow"
                ) from None
            except RECORD_INVALID as error:
                raise type(error)(f"{topic} refuses the record: {INVALID_RECORD_REMEDY}") from None
            except TOO_LARGE_ERRORS:
                refused_bytes = min(size, self._refused.get(topic, (size, 0.0))[0])
                self._refused[topic] = refused_bytes, time.monotonic()
                raise RecordTooLarge(
                    f"{size} bytes are too many for topic {topic}: its max.message.bytes is the limit"
                ) from None

    async def _send_batch(
        self, topic: str, key: bytes | None, batch: LoneBatch, partition: int | None
    ) -> RecordMetadata:
        async with self._explained():
            await self._large_producer.start()
            if partition is None:
                partitions = sorted(await self._large_producer.partitions_for(topic))
                partition = DefaultPartitioner()(key, partitions, partitions)
        async with self._turns[topic, partition]:
            if self._known_too_large(topic, batch.nbytes):
                raise RecordTooLarge(
                    f"{batch.nbytes} bytes are too many for {topic}: it has refused this many or fewer"
                )
            async with self._explained():
                sent = await self._large_producer.send_batch(batch, topic, partition=partition)
            return await sent

    def _known_too_large(self, topic: str, size: int) -> bool:
        refused_bytes, at_s = self._refused.get(topic, (size + 1, 0.0))
        if time.monotonic() - at_s > REFUSED_S:
            self._refused.pop(topic, None)
            return False
        return size >= refused_bytes

    @asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """Adds the missing permission, and the command that grants it, to an authorization error."""
        try:
            yield
        except ClusterAuthorizationFailedError as error:
            why = lacks(self.spec, "cluster", CLUSTER, "IdempotentWrite")
            remedy = allow(self.spec, "cluster", CLUSTER, "IdempotentWrite")
            raise ClusterAuthorizationFailedError(f"{why}, or Write on any topic there; {remedy}") from error
