"""The producer of Switchyard's own topics: aiokafka's, replaced after a refused batch.

aiokafka numbers the batches of an idempotent producer (KIP-98) and does not reuse the number of a refused
batch. The broker accepts nothing after such a hole. So every later record of that partition would fail
with OUT_OF_ORDER_SEQUENCE_NUMBER until the process ends.

Rules (tests/kafka/append/test_replaceable_producer.py)
1. After a record that failed, the next one goes through a new producer with a new producer id. Without
   idempotence there are no numbers: such a producer is replaced only when its sender task has ended.
2. The former producer flushes for at most `SETTLE_TIMEOUT_S`. Then its remaining records fail and its
   connections are closed. Otherwise it would retry for ever, and write after newer records.
3. With `keeps_order`, the new producer is used only after the former one has ended.
4. One producer is made at a time, and at most one every `REPLACE_INTERVAL_S`.
5. The caller decides whether to send a failed record again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    BrokerResponseError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerClosed,
    TopicAuthorizationFailedError,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from app.kafka.client.aiokafka_internals import fail_unsent, sender_of
from app.kafka.client.aiokafka_types import Answer
from app.kafka.client.startup_retry import heals, start_patiently
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S, bounded
from app.kernel.clock import now_ms

log = structlog.get_logger(__name__)

SETTLE_TIMEOUT_S = 5.0
REPLACE_INTERVAL_S = 0.5
# Errors that aiokafka raises before a batch gets its number.
_BEFORE_A_NUMBER = (MessageSizeTooLargeError, KafkaTimeoutError, TopicAuthorizationFailedError)


class RecordSeal(Protocol):
    """A signer of records (`app.controllog.seals`)."""

    def headers(self, topic: str, key: bytes | None, value: bytes | None) -> list[tuple[str, bytes | None]]:
        """The headers to add to the record."""


class ReplaceableProducer:
    """aiokafka's producer behind rules 1 to 5.

    Args:
        name: The producer's purpose, for log messages.
        keeps_order: See rule 3.
        seal: Seals the records of `send`; None: they get no seal.
        settings: Aiokafka's settings, over the defaults.
    """

    def __init__(
        self,
        name: str,
        cluster_options: Mapping[str, object],
        *,
        keeps_order: bool = True,
        seal: RecordSeal | None = None,
        **settings: object,
    ) -> None:
        self._name = name
        self._keeps_order = keeps_order
        self._seal = seal
        self._settings = {
            "acks": "all", "enable_idempotence": True, "request_timeout_ms": 10_000,
            **settings, **cluster_options,
        }  # fmt: skip
        self._starting = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None
        self._failed: AIOKafkaProducer | None = None
        self._why = ""  # why the last producer failed
        self._replacement: asyncio.Task[None] | None = None
        self._replaced_s = float("-inf")
        self._retiring: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def start(self) -> None:
        """Connects, unless it is connected. Raises KafkaError."""
        async with self._starting:
            if self._producer is None:
                self._producer = await self._connect()

    async def start_patiently(self) -> None:
        await start_patiently(self.start, f"producer of {self._name}")

    async def stop(self) -> None:
        """Flushes and closes (rule 2). Later calls of `send` raise ProducerClosed."""
        self._stopped = True
        if self._replacement is not None:
            self._replacement.cancel()
            await asyncio.wait([self._replacement])
        if self._producer is not None:
            self._retire(self._producer, TAIL_STOP_TIMEOUT_S)
        if self._retiring:
            await asyncio.wait(self._retiring)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> Answer:
        """Takes a record; it is written after all earlier records of its partition. Raises KafkaError: the
        record was not written. The returned future may raise it too."""
        headers = [*(headers or ()), *(self._seal.headers(topic, key, value) if self._seal else ())]
        return await self._send(
            lambda producer: producer.send(
                topic, value, key=key, partition=partition, headers=headers, timestamp_ms=now_ms()
            )
        )

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Writes a record and returns its metadata. Raises KafkaError."""
        return await (await self.send(topic, value, key=key, partition=partition))

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Answer:
        """Like `send`, for a closed batch."""
        return await self._send(lambda producer: producer.send_batch(batch, topic, partition=partition))

    async def partitions_for(self, topic: str) -> set[int]:
        """The topic's partitions. Raises KafkaError."""
        found: set[int] = await (await self._current()).partitions_for(topic)
        return found

    async def _send(self, send: Callable[[AIOKafkaProducer], Awaitable[Answer]]) -> Answer:
        while True:
            producer = await self._current()
            try:
                answer = await send(producer)
            except ProducerClosed:
                if producer is self._producer:  # closed by `stop`
                    raise
                continue  # replaced meanwhile
            except KafkaError as error:
                if not (error.retriable or isinstance(error, _BEFORE_A_NUMBER)):
                    self._fail(producer, error)
                raise
            answer.add_done_callback(partial(self._answered, producer))
            return asyncio.shield(answer)  # so a cancelled caller hides no refusal

    def _answered(self, producer: AIOKafkaProducer, answer: Answer) -> None:
        if not answer.cancelled() and (error := answer.exception()) is not None:
            self._fail(producer, error)

    def _fail(self, producer: AIOKafkaProducer, error: BaseException) -> None:
        """Marks the producer for replacement (rule 1)."""
        is_answered = isinstance(error, BrokerResponseError) or heals(error)
        if producer is self._producer and (self._settings["enable_idempotence"] or not is_answered):
            self._failed, self._why = producer, str(error) or repr(error)

    async def _current(self) -> AIOKafkaProducer:
        assert self._producer is not None, f"the producer of {self._name} has not been started"
        if self._failed is self._producer and not self._stopped:
            replacement = self._replacement
            if replacement is None or replacement.done():
                replacement = self._replacement = asyncio.create_task(self._replace(self._producer))
            await asyncio.wait([replacement])  # so a cancelled caller does not end it for others
            if not replacement.cancelled():
                replacement.result()
        if self._stopped:
            raise ProducerClosed
        return self._producer

    async def _replace(self, former: AIOKafkaProducer) -> None:
        await asyncio.sleep(self._replaced_s + REPLACE_INTERVAL_S - time.monotonic())
        self._replaced_s = time.monotonic()
        retiring = self._retire(former, SETTLE_TIMEOUT_S)
        if self._keeps_order:
            await asyncio.wait([retiring])
        self._producer = await self._connect()
        log.info("a producer was replaced after a record failed", producer=self._name, why=self._why)

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**self._settings)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def _retire(self, producer: AIOKafkaProducer, timeout_s: float) -> asyncio.Task[None]:
        retiring = asyncio.create_task(_close(producer, timeout_s, self._name))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        return retiring


async def _close(producer: AIOKafkaProducer, timeout_s: float, name: str) -> None:
    stopping = asyncio.create_task(producer.stop())
    await asyncio.wait([stopping], timeout=timeout_s)
    if not stopping.done():
        log.warning("a producer could not write all its records in time", producer=name, timeout_s=timeout_s)
        stopping.cancel()
        fail_unsent(producer, KafkaTimeoutError(f"the record was not written within {timeout_s:.0f} s"))
        await bounded(producer.client.close(), TAIL_STOP_TIMEOUT_S, f"client of {name}")
        await bounded(sender_of(producer).close(), TAIL_STOP_TIMEOUT_S, f"sender of {name}")
    with contextlib.suppress(KafkaError, OSError, asyncio.CancelledError):  # the futures have the errors
        await stopping
