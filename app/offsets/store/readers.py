"""Consumers of regions' topics, kept open between readings, because connecting to a busy cluster may take
longer than reading.

Rules
1. A consumer serves one reading at a time, and fetches nothing in between.
2. A consumer is closed after a failed reading, and when it was not used for `WARM_READER_S`.
3. A recreated topic has consumers of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from app.kafka.client.cluster import ClusterSpec
from app.kafka.client.consumer_shutdown import stop_consumer

log = structlog.get_logger(__name__)

WARM_READER_S = 30.0  # longer than the intervals of periodic readings
READER_POLL_MS = 500
FETCH_BYTES, PARTITION_BYTES = 4 * 1024 * 1024, 1024 * 1024
READER_STOP_TIMEOUT_S = 3.0


class TopicPlace(NamedTuple):
    """A topic to read with all its partitions."""

    cluster: str
    topic: str
    topic_id: str
    partitions: int

    @property
    def parts(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, partition) for partition in range(self.partitions)]


class RegionReaders:
    """The open consumers by topic."""

    def __init__(self, specs: Mapping[str, ClusterSpec]) -> None:
        self._specs = specs
        self._kept: dict[TopicPlace, tuple[AIOKafkaConsumer, asyncio.TimerHandle]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def consumer_of(self, place: TopicPlace) -> AsyncIterator[AIOKafkaConsumer]:
        """A consumer with all partitions assigned, at any position. Raises KafkaError, OSError."""
        kept = self._kept.pop(place, None)
        if kept is None:
            consumer = self._new_consumer(place)
        else:
            consumer, timer = kept
            timer.cancel()
        try:
            if kept is None:
                await consumer.start()
                consumer.assign(place.parts)
            consumer.resume(*place.parts)
            yield consumer
            consumer.pause(*place.parts)
        except BaseException:
            await _stop(consumer)
            raise
        if self._closed or place in self._kept:
            await _stop(consumer)
        else:
            timer = asyncio.get_running_loop().call_later(WARM_READER_S, self._expire, place)
            self._kept[place] = consumer, timer

    async def close(self) -> None:
        """Closes the idle consumers; those in use close after their reading."""
        self._closed = True
        for place in list(self._kept):
            self._expire(place)
        await asyncio.gather(*self._stopping)

    def _new_consumer(self, place: TopicPlace) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_wait_ms=READER_POLL_MS,
            fetch_max_bytes=FETCH_BYTES, max_partition_fetch_bytes=PARTITION_BYTES,
            **self._specs[place.cluster].aiokafka_options(),
        )  # fmt: skip

    def _expire(self, place: TopicPlace) -> None:
        consumer, timer = self._kept.pop(place)
        timer.cancel()
        task = asyncio.get_running_loop().create_task(_stop(consumer))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


async def _stop(consumer: AIOKafkaConsumer) -> None:
    try:
        async with asyncio.timeout(READER_STOP_TIMEOUT_S):
            await stop_consumer(consumer)
    except (TimeoutError, KafkaError, OSError) as error:
        log.warning("a consumer of a region's table did not stop in time; it is abandoned", error=repr(error))
