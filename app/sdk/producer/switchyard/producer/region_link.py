"""A region's cluster, as the producer SDK uses it: an idempotent producer, and whether it answers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import time
from collections.abc import Awaitable, Mapping
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

from switchyard.producer.messages import PendingMessage
from switchyard.producer.topic_creation import never_create_topics

log = logging.getLogger("switchyard.producer")


class NoSuchPartition(KafkaError):
    """The topic has fewer partitions in this region."""


class NeverSent(KafkaError):
    """The link was stopped before the message was on its way."""


LINGER_MS = 2
REQUEST_S = 10.0
# metadata, then room in the producer: each ends by itself, this is behind them
HAND_OVER_TIMEOUT_S = 3 * REQUEST_S
DRAIN_TIMEOUT_S = 5.0  # until what is on its way is answered
STOP_TIMEOUT_S = 3.0
BROKER_ANSWER_TIMEOUT_S = 3.0
BROKER_STAGGER_S = 0.1  # until the next of a region's brokers is asked, too
MISSING_TOPIC_RETRY_S = 10.0  # what is not there is asked for again after so long: asking may take as long
REGION_ERRORS = (KafkaError, OSError, TimeoutError)
# A whole batch is refused for one of its messages. aiokafka has no name for Kafka's INVALID_RECORD (a message
# without a key for a compacted topic, say): UnknownError, as what the broker itself does not understand.
OF_ONE_IN_THE_BATCH = (
    CorruptRecordException,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnknownError,
)
# Of the message, whatever the region's health.
REFUSALS = (
    *OF_ONE_IN_THE_BATCH,
    InvalidTopicError,
    NoSuchPartition,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
# By these a link says that a message is not there; what a broker does not understand it may have kept.
NOT_THERE = (*(one for one in REFUSALS if one is not UnknownError), NeverSent)
# Kafka's own rule. aiokafka asks for whatever it is given: a name that cannot be encoded ends its metadata.
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CLIENT_OPTIONS = frozenset(inspect.signature(AIOKafkaClient).parameters)


@dataclass(frozen=True, slots=True)
class Region:
    """A region's regional cluster. `bootstrap`: "host:port", several with commas; `options`: aiokafka's own,
    for security and such."""

    name: str
    bootstrap: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports. Raises ValueError."""
        found = []
        for address in self.bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"region {self.name!r}: {address!r} is no host:port")
            found.append((host.strip("[]"), int(port)))
        return found


class RegionLink:
    """A producer at work.

    Attributes:
        broken: why it is of no use any more, "" while it is.
        has_hole: it is broken for a message that a broker refused: a broker takes nothing behind that under
            this producer id. The region is well.
        flying: messages that are not answered; `waits_s`: since when for any answer, monotonic.
        missing: topics that the region does not have, and when that was found.
    """

    def __init__(self, region: Region, producer: AIOKafkaProducer) -> None:
        self.region = region
        self.broken = ""
        self.has_hole = False
        self.flying = 0
        self.waits_s = time.monotonic()
        self.missing: dict[str, float] = {}
        self._counted: dict[str, float] = {}  # topics whose partitions were asked for again, and when
        self._producer = producer
        self._handing: set[asyncio.Timeout] = set()

    @classmethod
    async def open(cls, region: Region, address: str) -> RegionLink:
        """Through the broker at `address`. Raises one of `REGION_ERRORS`."""
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            **{
                "linger_ms": LINGER_MS,
                **region.options,
                "acks": "all",
                "enable_idempotence": True,
                "request_timeout_ms": int(REQUEST_S * 1000),
            },
        )
        never_create_topics(producer.client)
        try:
            async with asyncio.timeout(REQUEST_S):
                await producer.start()
        except BaseException:
            await _bounded(producer.client.close())
            await _bounded(producer.stop())
            raise
        return cls(region, producer)

    async def send(self, message: PendingMessage) -> asyncio.Future[Any]:
        """Hands it over; the future ends when the cluster has answered, or with `NeverSent`.

        Raises:
            One of `REFUSALS`, and whatever else is wrong with the message; else one of `REGION_ERRORS`.
        """
        topic = message.topic
        if not _TOPIC.fullmatch(topic):
            raise InvalidTopicError(f"{topic!r} is no topic's name")
        self._check_works()
        if time.monotonic() - self.missing.get(topic, float("-inf")) < MISSING_TOPIC_RETRY_S:
            raise self._no_topic()
        try:
            async with asyncio.timeout(HAND_OVER_TIMEOUT_S) as limit:
                self._handing.add(limit)
                try:
                    answer = await self._hand(message)
                finally:
                    self._handing.discard(limit)
        except UnknownTopicOrPartitionError:
            if not await answers(self.region, BROKER_ANSWER_TIMEOUT_S):
                raise KafkaConnectionError(f"{topic} is not known, nobody answers") from None
            self.missing[topic] = time.monotonic()
            raise self._no_topic() from None
        self._check_works()  # what is handed over behind `stop` is never sent
        if not self.flying:
            self.waits_s = time.monotonic()
        self.flying += 1
        message.asked.add(self)
        answer.add_done_callback(self._answered)
        return answer

    def _no_topic(self) -> UnknownTopicOrPartitionError:
        return UnknownTopicOrPartitionError(
            f"it does not exist in Kafka at {self.region.bootstrap}: create it, or mend the topic's name"
        )

    def _check_works(self) -> None:
        if self.broken:
            raise KafkaConnectionError(f"region {self.region.name} is left: {self.broken}")

    async def _hand(self, message: PendingMessage) -> asyncio.Future[Any]:
        if message.partition is not None:
            await self._check_partition(message.topic, message.partition)
        if message.goes_alone:
            return await self._hand_alone(message)
        answer: asyncio.Future[Any] = await self._producer.send(
            message.topic, message.value, key=message.key, partition=message.partition,
            timestamp_ms=message.timestamp_ms, headers=list(message.headers),
        )  # fmt: skip
        return answer

    async def _hand_alone(self, message: PendingMessage) -> asyncio.Future[Any]:
        producer, topic, key, value = self._producer, message.topic, message.key, message.value
        await producer.partitions_for(topic)
        partition = producer._partition(topic, message.partition, key, value, key, value)
        batch = producer.create_batch()
        batch.append(timestamp=message.timestamp_ms, key=key, value=value, headers=list(message.headers))
        batch.close()
        answer: asyncio.Future[Any] = await producer.send_batch(batch, topic, partition=partition)
        return answer

    async def _check_partition(self, topic: str, partition: int) -> None:
        partitions = await self._producer.partitions_for(topic)
        now_s = time.monotonic()
        if (
            partition not in partitions
            and now_s - self._counted.get(topic, float("-inf")) >= MISSING_TOPIC_RETRY_S
        ):
            if not await self._producer.client.force_metadata_update():  # it may be new
                raise KafkaConnectionError(f"nobody tells how many partitions {topic} has")
            self._counted[topic] = now_s
            partitions = await self._producer.partitions_for(topic)
        if partition not in partitions:
            raise NoSuchPartition(f"there is no partition {partition}, the topic has {len(partitions)} here")

    def _answered(self, _: object) -> None:
        self.flying -= 1
        self.waits_s = time.monotonic()

    def stalled(self, limit_s: float) -> str:
        """Why it is of no use, "" unless nothing was answered for so long."""
        waits_s = time.monotonic() - self.waits_s
        return f"nothing was acknowledged for {waits_s:.1f} s" if self.flying and waits_s > limit_s else ""

    def stop(self, why: str) -> None:
        """Sends nothing more, at once: else what was handed over later might be stored before what has to be
        sent again. What is on its way may still be answered; what is not yet is given back."""
        self.broken = why
        handing, self._handing = self._handing, set()
        for limit in handing:
            if not limit.expired():
                limit.reschedule(0.0)
        self._producer._sender.sender_task.cancel()  # it waits for what is on its way, and ends
        for batches in list(self._producer._message_accumulator._batches.values()):
            for batch in list(batches):
                if not batch.retry_count:
                    batch.failure(NeverSent())
                    batch._drain_waiter.exception()  # nobody has to ask

    async def settled(self) -> None:
        """After `stop`: until all that was on its way is answered, one way or the other; not for long."""
        await asyncio.wait([self._producer._sender.sender_task], timeout=DRAIN_TIMEOUT_S)

    async def end(self) -> None:
        """At once, whatever is on its way: it is not answered any more. aiokafka's own `stop` waits until all
        is delivered, which here may be never."""
        if not self.broken:
            self.stop("it was ended")
        await _bounded(self._producer.client.close())
        sender_task = self._producer._sender.sender_task
        sender_task.cancel()  # it may wait for metadata, which a closed client never gets
        await asyncio.wait([sender_task], timeout=STOP_TIMEOUT_S)
        self._producer._closed = True


async def _bounded(work: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await work
    except Exception as error:  # noqa: BLE001 - it is left behind, however it ends
        log.debug("a producer did not end well: %r", error)


async def answers(region: Region, timeout_s: float) -> str:
    """The address of the broker that tells the region's metadata first, "" where none does in time. One that
    hangs does not speak for the others: they are asked one shortly after the other."""
    asked = [
        asyncio.create_task(_answers(region, *address, timeout_s, number * BROKER_STAGGER_S))
        for number, address in enumerate(region.addresses)
    ]
    try:
        for first in asyncio.as_completed(asked):
            if found := await first:
                return found
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return ""


async def _answers(region: Region, host: str, port: int, timeout_s: float, after_s: float) -> str:
    await asyncio.sleep(after_s)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = {name: value for name, value in region.options.items() if name in _CLIENT_OPTIONS}
    client = AIOKafkaClient(bootstrap_servers=address, **options)
    try:
        async with asyncio.timeout(timeout_s):
            # Spares aiokafka, which logs every connection that fails as an error.
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            await client.bootstrap()
    except REGION_ERRORS:
        return ""
    finally:
        await _bounded(client.close())
    return address
