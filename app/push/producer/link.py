"""A region's cluster, as the producer SDK uses it: an idempotent producer, and whether it answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.partitioner import DefaultPartitioner

from app.push.producer.messages import Message

log = structlog.get_logger(__name__)

LINGER_MS = 2
END_S = 3.0
ANSWER_S = 3.0
MISSING_S = 10.0  # a topic that is not there is asked for again after so long: asking takes as long
TROUBLE = (KafkaError, OSError, TimeoutError)
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# Of the message, whatever the region's health.
REFUSALS = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)


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


class Link:
    """A producer at work.

    Attributes:
        broken: why it is of no use any more, "" while it is.
        has_hole: a broker refused a message: it takes nothing behind it under this producer id.
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
        self._producer = producer
        self._ended = False
        self._handing: set[asyncio.Timeout] = set()

    @classmethod
    async def open(cls, region: Region, request_timeout_s: float, timeout_s: float) -> Link:
        """Raises one of `TROUBLE`."""
        producer = AIOKafkaProducer(
            bootstrap_servers=region.bootstrap,
            **{
                "linger_ms": LINGER_MS,
                **region.options,
                "acks": "all",
                "enable_idempotence": True,
                "request_timeout_ms": int(request_timeout_s * 1000),
            },
        )
        try:
            async with asyncio.timeout(timeout_s):
                await producer.start()
        except BaseException:
            await _bounded(producer.client.close())
            await _bounded(producer.stop())
            raise
        return cls(region, producer)

    async def send(self, message: Message) -> asyncio.Future[Any]:
        """Hands it over; the future ends when the cluster has answered. Raises KafkaError."""
        if self._ended:
            raise KafkaConnectionError(f"region {self.region.name} was left")
        if time.monotonic() - self.missing.get(message.topic, float("-inf")) < MISSING_S:
            raise UnknownTopicOrPartitionError
        try:
            async with asyncio.timeout(None) as limit:
                self._handing.add(limit)
                try:
                    answer = await (self._send_alone(message) if message.goes_alone else self._send(message))
                finally:
                    self._handing.discard(limit)
        except UnknownTopicOrPartitionError:
            if not await answers(self.region, ANSWER_S):
                raise KafkaConnectionError(f"{message.topic} is not known, nobody answers") from None
            self.missing[message.topic] = time.monotonic()
            raise
        if not self.flying:
            self.waits_s = time.monotonic()
        self.flying += 1
        message.was_sent = True
        answer.add_done_callback(self._answered)
        return answer

    async def _send(self, message: Message) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = await self._producer.send(
            message.topic, message.value, key=message.key, partition=message.partition,
            timestamp_ms=message.timestamp_ms, headers=list(message.headers),
        )  # fmt: skip
        return answer

    async def _send_alone(self, message: Message) -> asyncio.Future[Any]:
        producer, partition = self._producer, message.partition
        if partition is None:
            partitions = sorted(await producer.partitions_for(message.topic))
            partition = DefaultPartitioner()(message.key, partitions, partitions)
        batch = producer.create_batch()
        batch.append(
            timestamp=message.timestamp_ms, key=message.key, value=message.value,
            headers=list(message.headers),
        )  # fmt: skip
        batch.close()
        answer: asyncio.Future[Any] = await producer.send_batch(batch, message.topic, partition=partition)
        return answer

    def _answered(self, _: object) -> None:
        self.flying -= 1
        self.waits_s = time.monotonic()

    async def end(self) -> None:
        """At once, whatever is on its way: nothing more of it is sent, nor answered. aiokafka's own `stop`
        waits until all is delivered, which here may be never."""
        producer, self._ended = self._producer, True
        for limit in self._handing:  # they wait for what a closed client never tells
            limit.reschedule(0.0)
        await _bounded(producer.client.close())
        sender = producer._sender
        if sender is not None and sender.sender_task is not None:
            sender.sender_task.cancel()
            await asyncio.wait([sender.sender_task], timeout=END_S)
        producer._closed = True


async def _bounded(work: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(END_S):
            await work
    except Exception as error:  # noqa: BLE001 - it is left behind, however it ends
        log.debug("a producer did not end well", error=repr(error))


async def answers(region: Region, timeout_s: float) -> bool:
    """Whether a broker of the region tells its metadata now."""
    client = AIOKafkaClient(bootstrap_servers=region.bootstrap, **region.options)
    try:
        async with asyncio.timeout(timeout_s):
            if not await _listens(region):
                return False
            await client.bootstrap()
    except TROUBLE:
        return False
    finally:
        await _bounded(client.close())
    return True


async def _listens(region: Region) -> bool:
    """Spares aiokafka, which logs every connection that fails as an error."""
    for host, port in region.addresses:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return True
    return False
