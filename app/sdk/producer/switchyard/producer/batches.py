"""The messages that wait for the partitions of one region, and the one batch of each partition that aiokafka
has.

Rules
1. Messages of a partition are written in the order of `add`: aiokafka gets a batch once the previous one is
   answered. So no waiting message has been sent.
2. After `stop` nothing is sent: aiokafka's produce requests are refused, its retries too. A message whose
   batch no request has held fails with `NeverSent`. A batch that a request has held may still be answered.
3. After a batch fails nothing is sent, because a broker accepts no later batch under this producer id. The
   owner then calls `stop`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import RecordMetadata, TopicPartition

from switchyard.producer.messages import PendingMessage
from switchyard.producer.topic_creation import ProducerEnded

EVERY_VERSION = {ProduceRequest.API_KEY: (0, 1_000)}


class NoSuchPartition(KafkaError):
    """The topic has fewer partitions in this region."""


class NeverSent(KafkaError):
    """The link was stopped before a request held the message."""


class Batch:
    """Messages of one partition that are written together.

    Attributes:
        due_s: When aiokafka gets it although it could still grow, in the loop's time.
        times_ms: The timestamps of the messages, as the batch has them.
        is_full: It accepts no more messages.
        is_sent: A request has held it.
    """

    __slots__ = ("at", "builder", "due_s", "is_full", "is_sent", "messages", "times_ms")

    def __init__(self, at: TopicPartition, builder: Any, due_s: float) -> None:
        self.at = at
        self.builder = builder
        self.due_s = due_s
        self.messages: list[PendingMessage] = []
        self.times_ms: list[int] = []
        self.is_full = False
        self.is_sent = False

    def takes(self, message: PendingMessage) -> bool:
        """Adds the message; returns whether there was room. Raises the error of an invalid message."""
        if self.is_full or (message.goes_alone and self.messages):
            return False
        found = self.builder.append(
            timestamp=message.timestamp_ms, key=message.key, value=message.value, headers=message.headers
        )
        self.is_full = found is None or message.goes_alone
        if found is None:
            return False
        self.messages.append(message)
        self.times_ms.append(found.timestamp)
        return True


class Outbox:
    """The messages that wait for one producer.

    `partitions_of` asks the region for a topic's partitions. `answered` gets each batch with its position or
    error.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        linger_s: float,
        partitions_of: Callable[[str], Awaitable[set[int]]],
        answered: Callable[[Batch, RecordMetadata | BaseException], None],
    ) -> None:
        self._producer = producer
        self._linger_s = linger_s
        self._partitions_of = partitions_of
        self._answered = answered
        self._waiting: dict[TopicPartition, deque[Batch]] = {}
        self._handed: dict[TopicPartition, Batch] = {}
        self._timers: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], Batch] = {}
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._send = producer.client.send
        producer.client.send = self._request  # type: ignore[method-assign, assignment]

    def add(self, at: TopicPartition, message: PendingMessage) -> None:
        """Adds a message at the end of its partition. Raises the error of an invalid message."""
        batches = self._waiting.get(at)
        if batches is None or not batches[-1].takes(message):
            batch = Batch(at, self._producer.create_batch(), self._loop.time() + self._linger_s)
            is_taken = batch.takes(message)
            assert is_taken, "the first of a batch may have any size"
            batches = self._waiting.setdefault(at, deque())
            batches.append(batch)
        if at not in self._handed and not self._is_stopped:
            self._hand_next(at, batches)

    def _hand_next(self, at: TopicPartition, batches: deque[Batch]) -> None:
        """Gives aiokafka the first batch, unless it may still grow."""
        batch = batches[0]
        if len(batches) == 1 and not batch.is_full and self._loop.time() < batch.due_s:
            if at not in self._timers:
                self._timers[at] = self._loop.call_at(batch.due_s, self._due, at)
            return
        if timer := self._timers.pop(at, None):
            timer.cancel()
        batches.popleft()
        if not batches:
            del self._waiting[at]
        self._handed[at] = batch
        task = self._loop.create_task(self._deliver(batch))
        self._tasks[task] = batch
        task.add_done_callback(self._tasks.pop)

    def _due(self, at: TopicPartition) -> None:
        del self._timers[at]
        self._hand_next(at, self._waiting[at])

    async def _deliver(self, batch: Batch) -> None:
        at = batch.at
        found: RecordMetadata | BaseException
        try:
            partitions = await self._partitions_of(at.topic)
            if at.partition not in partitions:
                raise no_such_partition(at.partition, partitions)
            found = await (await self._producer.send_batch(batch.builder, at.topic, partition=at.partition))
        except Exception as error:  # noqa: BLE001 - the messages' futures report it
            found = error
        if self._handed.get(at) is not batch:  # `stop` has failed it
            return
        del self._handed[at]
        self._is_stopped |= isinstance(found, BaseException)
        self._answered(batch, found)
        if not self._is_stopped and (batches := self._waiting.get(at)):
            self._hand_next(at, batches)

    async def _request(self, node: Any, request: Any, **options: Any) -> Any:
        """Stands in for the client's `send`. Any other error than Kafka's would end aiokafka's sender."""
        if isinstance(request, ProduceRequest):
            if self._is_stopped:
                raise ProducerEnded("the producer was stopped")
            for topic, partitions, *_ in request.prepare(EVERY_VERSION).get_item("topics"):
                for partition, *__ in partitions:
                    if batch := self._handed.get(TopicPartition(topic, partition)):
                        batch.is_sent = True
        try:
            return await self._send(node, request, **options)  # type: ignore[no-untyped-call]
        except KafkaError:
            raise
        except Exception as error:
            raise KafkaConnectionError(repr(error)) from error

    def stop(self) -> None:
        """Stops sending at once (rule 2)."""
        self._is_stopped = True
        for timer in self._timers.values():
            timer.cancel()
        unsent = [batch for batch in self._handed.values() if not batch.is_sent]
        for batch in unsent:
            del self._handed[batch.at]
        for batches in self._waiting.values():
            unsent += batches
        self._timers, self._waiting = {}, {}
        for batch in unsent:
            self._answered(batch, NeverSent())

    async def settled(self, timeout_s: float) -> None:
        """After `stop`: waits until every sent batch has succeeded or failed, at most `timeout_s`."""
        if sent := [task for task, batch in self._tasks.items() if batch.is_sent]:
            await asyncio.wait(sent, timeout=timeout_s)


def no_such_partition(partition: int, partitions: set[int]) -> NoSuchPartition:
    """The error, with a message for people."""
    return NoSuchPartition(f"there is no partition {partition}; the topic has {len(partitions)} here")
