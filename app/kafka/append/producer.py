"""An idempotent producer of copies (retry topics, dead letter queues) to one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.errors import ClusterAuthorizationFailedError, InvalidTimestampError
from aiokafka.partitioner import DefaultPartitioner

from app.kafka.append import any_size
from app.kafka.append.errors import INVALID_RECORD_REMEDY, RECORD_INVALID, RECORD_REFUSED, TOO_LARGE_ERRORS
from app.kafka.append.lone_batch import NO_CODEC, Headers, LoneBatch, content_bytes, encoded
from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.permissions import CLUSTER, allow, lacks
from app.kafka.records.batch import HEADER_BYTES

# Of brokers' default socket.request.max.bytes: they close the connection for more, without an error code.
MAX_BATCH_BYTES = 100 * 1024 * 1024 - 64 * 1024
LINGER_MS = 2
BATCH_BYTES = 16 * 1024  # a record larger than this is alone in its batch
REFUSED_S = 30.0  # for so long a size that a topic refused is not tried again: each try costs the connection


class RecordTooLarge(ValueError):
    """A record that is too large for the producer or for its topic; trying again does not help."""


class ByteRoom:
    """At most `most_bytes` are out at once, in the order of who asks; what is larger goes alone."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._used_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, nbytes: int) -> AsyncIterator[None]:
        """Has so many out within the block."""
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
    """`send` returns once the record is acknowledged by all in-sync replicas.

    A size that a topic refused is known from then on: each refusal costs the connection, as
    `app.kafka.append.replaceable_producer` says.

    A topic bounds what is compressed. So that it takes what another topic took, a large record, and one that
    was refused in the company of others, travels alone and compressed as `codec` says. So it does when the
    broker refuses a batch for one of its records (INVALID_RECORD): only that one fails.

    Such records have a producer of their own, which gets one of a partition at a time, and no more together
    than a request may have: aiokafka loses a batch that waits for another one when it is stopped, and puts
    batches of all partitions of a broker into one request. A caller that is cancelled leaves its large record
    to be written: its turn ends then.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._producer = ReplaceableProducer(
            f"copies in {spec.name}", spec.aiokafka_options(), keeps_order=False,
            linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES, value_serializer=any_size.serialized,
        )  # fmt: skip
        self._of_large = ReplaceableProducer(
            f"large copies in {spec.name}", spec.aiokafka_options(), keeps_order=False
        )
        self._room = ByteRoom(MAX_BATCH_BYTES)
        self._turns = defaultdict[tuple[str, int], asyncio.Lock](asyncio.Lock)
        self._large = set[asyncio.Task[Any]]()
        self._refused: dict[str, tuple[int, float]] = {}  # topic -> smallest size refused, when

    async def start(self) -> None:
        """Connects, unless it has before. Raises KafkaError."""
        async with self._explained():
            await self._producer.start()

    async def stop(self) -> None:
        """Flushes and closes."""
        await asyncio.gather(self._producer.stop(), self._of_large.stop())

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int | None = None,
        codec: int = NO_CODEC,
    ) -> Any:
        """Writes one record; its metadata. `codec`: Kafka's number of its source's compression.

        Raises:
            RecordTooLarge: without its value, or into another topic, it may be taken.
            KafkaError: it was not taken.
        """
        size = content_bytes(key, value, headers)
        if size <= BATCH_BYTES and not self._known_too_large(topic, size + HEADER_BYTES):
            taken = any_size.NULL if value is None else value
            # Maybe for its company, or as it is not compressed.
            with contextlib.suppress(*TOO_LARGE_ERRORS, *RECORD_REFUSED):
                async with self._explained():
                    sent = await self._producer.send(
                        topic, taken, key=key, headers=headers, partition=partition
                    )
                return await sent
        large = asyncio.create_task(self._send_large(topic, key, value, headers, partition, codec, size))
        self._large.add(large)
        large.add_done_callback(self._large.discard)
        return await asyncio.shield(large)

    async def _send_large(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, partition: int | None,
        codec: int, size: int,
    ) -> Any:  # fmt: skip
        async with self._room.taken(size):
            batch = await encoded(key, value, headers, codec)
            size = batch.nbytes
            if size > MAX_BATCH_BYTES:
                raise RecordTooLarge(f"{size} bytes are too many for any topic: brokers take no such request")
            try:
                return await self._alone(topic, key, batch, partition)
            except InvalidTimestampError:
                raise InvalidTimestampError(
                    f"{topic} refuses this worker's time: compare the clocks of its brokers with the "
                    "control cluster's, by which workers go"
                ) from None
            except RECORD_INVALID as error:
                raise type(error)(f"{topic} refuses the record: {INVALID_RECORD_REMEDY}") from None
            except TOO_LARGE_ERRORS:
                refused_bytes = min(size, self._refused.get(topic, (size, 0.0))[0])
                self._refused[topic] = refused_bytes, time.monotonic()
                raise RecordTooLarge(
                    f"{size} bytes are too many for topic {topic}:"
                    " its max.message.bytes says how many it takes"
                ) from None

    async def _alone(self, topic: str, key: bytes | None, batch: LoneBatch, partition: int | None) -> Any:
        async with self._explained():
            await self._of_large.start()
            if partition is None:
                partitions = sorted(await self._of_large.partitions_for(topic))
                partition = DefaultPartitioner()(key, partitions, partitions)
        async with self._turns[topic, partition]:
            if self._known_too_large(topic, batch.nbytes):
                raise RecordTooLarge(f"{batch.nbytes} bytes are too many for {topic}: it has refused as few")
            async with self._explained():
                sent = await self._of_large.send_batch(batch, topic, partition=partition)
            return await sent

    def _known_too_large(self, topic: str, size: int) -> bool:
        refused_bytes, at_s = self._refused.get(topic, (size + 1, 0.0))
        if time.monotonic() - at_s > REFUSED_S:
            self._refused.pop(topic, None)
            return False
        return size >= refused_bytes

    @asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """A right that is missing is named, with the command that grants it."""
        try:
            yield
        except ClusterAuthorizationFailedError as error:
            why = lacks(self.spec, "cluster", CLUSTER, "IdempotentWrite")
            remedy = allow(self.spec, "cluster", CLUSTER, "IdempotentWrite")
            raise ClusterAuthorizationFailedError(f"{why}, or Write on any topic there; {remedy}") from error
