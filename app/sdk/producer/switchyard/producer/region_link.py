"""The link to a region's cluster: an idempotent producer, and whether the cluster answers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import RecordMetadata, TopicPartition

from switchyard.producer.batches import Batch, NeverSent, NoSuchPartition, Outbox, no_such_partition
from switchyard.producer.messages import Delivered, PendingMessage
from switchyard.producer.topic_creation import careful_producer, end_producer

LINGER_MS = 2
REQUEST_S = 10.0
# above the timeouts of metadata and of the producer's buffer, which come first
HAND_OVER_TIMEOUT_S = 3 * REQUEST_S
DRAIN_TIMEOUT_S = 5.0  # for the answers to sent batches
STOP_TIMEOUT_S = 3.0
BROKER_ANSWER_TIMEOUT_S = 3.0
BROKER_STAGGER_S = 0.1  # between the queries to a region's brokers
MISSING_TOPIC_RETRY_S = 10.0  # between two queries for a missing topic, each of which may take as long
MAX_REQUEST_BYTES = 1 << 20  # aiokafka's default
REGION_ERRORS = (KafkaError, OSError, asyncio.TimeoutError)  # the last is Python 3.10's
# One message makes the broker refuse its whole batch. aiokafka has no class for Kafka's INVALID_RECORD (such
# as a message without a key for a compacted topic): it is UnknownError, as is any error without a class.
OF_ONE_IN_THE_BATCH = (
    CorruptRecordException,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnknownError,
)
# The message is at fault, whatever the region's health.
REFUSALS = (
    *OF_ONE_IN_THE_BATCH,
    InvalidTopicError,
    NoSuchPartition,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
# After these the region does not have the message. After an UnknownError it may have it.
NOT_THERE = (*(one for one in REFUSALS if one is not UnknownError), NeverSent)
# Kafka's own rule. aiokafka does not check: a name that cannot be encoded breaks its metadata requests.
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
Answered = Callable[["RegionLink", PendingMessage, "Delivered | BaseException"], None]
_CLIENT_OPTIONS = frozenset(inspect.signature(AIOKafkaClient).parameters)


@dataclass(frozen=True, slots=True)
class Region:
    """A region's regional cluster.

    `bootstrap` is "host:port", or several with commas. `options` are aiokafka's own, for security and the
    like.
    """

    name: str
    bootstrap: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The hosts and ports. Raises ValueError when an address has no host or port."""
        found = []
        for address in self.bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"region {self.name!r}: {address!r} is no host:port")
            found.append((host.strip("[]"), int(port)))
        return found


class RegionLink:
    """A running producer for one region.

    Attributes:
        broken: Why it cannot be used any more; "": it works.
        has_hole: It broke because a broker refused a message. The broker accepts no later message under this
            producer id, but the region is healthy.
        flying: Messages without an answer.
        waits_s: Since when no answer has arrived, monotonic.
        missing: Topics that the region does not have, and when that was found.
    """

    def __init__(self, region: Region, producer: AIOKafkaProducer, answered: Answered) -> None:
        options = region.options
        self.region = region
        self.broken = ""
        self.has_hole = False
        self.flying = 0
        self.waits_s = time.monotonic()
        self.missing: dict[str, float] = {}
        self._counted: dict[str, float] = {}  # topic -> when its partitions were last queried again
        self._producer = producer
        self._answered = answered
        self._partitioner = options.get("partitioner", DefaultPartitioner())
        self._key_serializer = options.get("key_serializer") or bytes_as_they_are
        self._max_request_bytes = options.get("max_request_size", MAX_REQUEST_BYTES)
        linger_s = options.get("linger_ms", LINGER_MS) / 1000
        self._outbox = Outbox(producer, linger_s, self._partitions_of, self._batch_answered)
        self._breaks: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, region: Region, address: str, answered: Answered) -> RegionLink:
        """Connects through the broker at `address`. `answered` gets the outcome of each message.

        Raises:
            One of `REGION_ERRORS`.
        """
        producer = careful_producer(
            bootstrap_servers=address,
            **{
                **region.options,
                "linger_ms": 0,  # the outbox waits
                "acks": "all",
                "enable_idempotence": True,
                "request_timeout_ms": int(REQUEST_S * 1000),
            },
        )
        try:
            await asyncio.wait_for(producer.start(), REQUEST_S)
        except BaseException:
            await end_producer(producer, STOP_TIMEOUT_S)
            raise
        return cls(region, producer, answered)

    async def send(self, message: PendingMessage) -> None:
        """Accepts a message. `answered` is called with the cluster's answer, or with `NeverSent`.

        Raises:
            One of `REFUSALS` or the error of an invalid message; one of `REGION_ERRORS` if the link is at
            fault.
        """
        topic = message.topic
        if not _TOPIC.fullmatch(topic):
            raise InvalidTopicError(f"{topic!r} is not a valid topic name")
        self._check_works()
        if time.monotonic() - self.missing.get(topic, float("-inf")) < MISSING_TOPIC_RETRY_S:
            raise self._no_topic()
        cluster, partition = self._producer.client.cluster, message.partition
        partitions: set[int] | None = cluster.partitions_for_topic(topic)
        if partitions is None or (partition is not None and partition not in partitions):
            partitions = await self._unless_it_breaks(self._partitions_for(message))
        key = self._key_serializer(message.key)
        nbytes = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, message.value, message.headers)
        if nbytes > self._max_request_bytes:
            raise MessageSizeTooLargeError(
                f"the message has {nbytes} bytes, more than max_request_size={self._max_request_bytes}"
            )
        if partition is None:
            available = cluster.available_partitions_for_topic(topic)
            partition = self._partitioner(key, list(partitions), list(available or ()))
        self._outbox.add(TopicPartition(topic, partition), message)
        if not self.flying:
            self.waits_s = time.monotonic()
        self.flying += 1
        message.given_to.add(self)

    def _no_topic(self) -> UnknownTopicOrPartitionError:
        return UnknownTopicOrPartitionError(
            f"it does not exist in Kafka at {self.region.bootstrap}: create it, or correct the topic's name"
        )

    def _check_works(self) -> None:
        if self.broken:
            raise KafkaConnectionError(f"the producer has left region {self.region.name}: {self.broken}")

    async def _unless_it_breaks(self, query: Coroutine[Any, Any, set[int]]) -> set[int]:
        task = asyncio.get_running_loop().create_task(query)
        waits: set[asyncio.Future[Any]] = {task, self._breaks}
        try:
            await asyncio.wait(waits, timeout=HAND_OVER_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                partitions = task.result()
            self._check_works()  # after `stop` nothing that is added is ever sent
            if not task.done():
                raise KafkaConnectionError("no broker reports the topic's partitions")
            return partitions
        finally:
            task.cancel()

    async def _partitions_of(self, topic: str) -> set[int]:
        try:
            return await self._producer.partitions_for(topic)  # type: ignore[no-any-return]
        except UnknownTopicOrPartitionError:
            if not await answers(self.region, BROKER_ANSWER_TIMEOUT_S):
                raise KafkaConnectionError(f"{topic} is not known, and no broker answers") from None
            self.missing[topic] = time.monotonic()
            raise self._no_topic() from None

    async def _partitions_for(self, message: PendingMessage) -> set[int]:
        """The partitions of the message's topic, including its own."""
        topic, partition = message.topic, message.partition
        partitions = await self._partitions_of(topic)
        now_s = time.monotonic()
        if (
            partition is not None
            and partition not in partitions
            and now_s - self._counted.get(topic, float("-inf")) >= MISSING_TOPIC_RETRY_S
        ):
            if not await self._producer.client.force_metadata_update():  # the partition may be new
                raise KafkaConnectionError(f"no broker reports the partitions of {topic}")
            self._counted[topic] = now_s
            partitions = await self._partitions_of(topic)
        if partition is not None and partition not in partitions:
            raise no_such_partition(partition, partitions)
        return partitions

    def _batch_answered(self, batch: Batch, found: RecordMetadata | BaseException) -> None:
        self.flying -= len(batch.messages)
        self.waits_s = time.monotonic()
        if isinstance(found, BaseException):
            for message in batch.messages:
                self._answered(self, message, found)
            return
        region, (topic, partition) = self.region.name, batch.at
        for index, message in enumerate(batch.messages):
            # A broker that stored the batch earlier may no longer know where.
            offset = -1 if found.offset < 0 else found.offset + index
            log_ms = found.timestamp  # LogAppendTime, of the batch
            at_ms = batch.times_ms[index] if log_ms is None or log_ms < 0 else log_ms
            self._answered(self, message, Delivered(region, topic, partition, offset, at_ms))

    def stalled(self, limit_s: float) -> str:
        """Why the link counts as broken: no answer for more than `limit_s`; "": it works."""
        waits_s = time.monotonic() - self.waits_s
        return f"nothing was acknowledged for {waits_s:.1f} s" if self.flying and waits_s > limit_s else ""

    def stop(self, why: str) -> None:
        """Stops sending at once: a later batch must not be stored before messages that are sent again.

        Sent batches may still be answered. The others fail with `NeverSent`.
        """
        self.broken = why
        if not self._breaks.done():
            self._breaks.set_result(None)
        self._outbox.stop()

    async def settled(self) -> None:
        """After `stop`: waits until every sent batch has succeeded or failed, at most `DRAIN_TIMEOUT_S`."""
        await self._outbox.settled(DRAIN_TIMEOUT_S)

    async def end(self) -> None:
        """Ends the producer at once. Batches without an answer fail; the region may have the sent ones."""
        if not self.broken:
            self.stop("the producer was ended")
        await end_producer(self._producer, STOP_TIMEOUT_S)


def bytes_as_they_are(key: bytes | None) -> bytes | None:
    """The key serializer if the options have none."""
    return key


async def answers(region: Region, timeout_s: float) -> str:
    """The address of the region's first broker that answers with metadata; "": none does in time.

    Queries start `BROKER_STAGGER_S` apart, because one broker that hangs says nothing about the others.
    """
    queries = [
        asyncio.create_task(_answers(region, *address, timeout_s, number * BROKER_STAGGER_S))
        for number, address in enumerate(region.addresses)
    ]
    try:
        for first in asyncio.as_completed(queries):
            if found := await first:
                return found
    finally:
        for task in queries:
            task.cancel()
        await asyncio.gather(*queries, return_exceptions=True)
    return ""


async def _answers(region: Region, host: str, port: int, timeout_s: float, after_s: float) -> str:
    await asyncio.sleep(after_s)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = {name: value for name, value in region.options.items() if name in _CLIENT_OPTIONS}
    client = AIOKafkaClient(bootstrap_servers=address, **options)

    async def connects() -> None:
        # First without aiokafka, which logs every failed connection as an error.
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        await client.bootstrap()

    try:
        await asyncio.wait_for(connects(), timeout_s)
    except REGION_ERRORS:
        return ""
    finally:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), STOP_TIMEOUT_S)
    return address
