"""Reads the last events of a partition of the audit topic before an offset.

A worker that takes over the partition's tables folds them in again, because their last changes may not be in
the changelogs. It does not wait for events that are gone: the topic may have been truncated or recreated.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.client.topic_tail import TAIL_STOP_TIMEOUT_S, bounded
from app.kafka.fetch.offsets_at_time import offsets_at
from app.kernel.clock import now_ms
from app.kernel.seals import HEADER

MARGIN_MS = 60_000  # changes that were sent to a changelog this long ago have arrived
MARGIN_EVENTS = 1_000  # at least, because the topic may be idle, or a clock wrong
POLL_MS = 500
STUCK_S = 30.0  # the longest wait for an event that should be there


class Recorded(NamedTuple):
    """An event in the topic. `recorded_ms`: the brokers' time. `seal`: b"" without one."""

    offset: int
    value: bytes | None
    recorded_ms: int
    seal: bytes = b""


Events = list[Recorded]


class Margin:
    """Reads these events. Raises KafkaError, ClusterUnreachable, OSError (TimeoutError, too): Not now."""

    def __init__(self, topic: str, kafka_options: ClientOptions, client: ClusterClient) -> None:
        self._topic = topic
        self._options = kafka_options
        self._client = client

    async def before(self, partition: int, offset: int) -> AsyncGenerator[Events, None]:
        """The last minute's events below `offset`, at least 1,000; in pieces, as there may be millions."""
        at = TopicPartition(self._topic, partition)
        consumer = AIOKafkaConsumer(enable_auto_commit=False, auto_offset_reset="earliest", **self._options)
        await consumer.start()
        try:
            consumer.assign([at])
            start = (await consumer.beginning_offsets([at]))[at]
            place = self._topic, partition
            lately = (await offsets_at(self._client, [place], now_ms() - MARGIN_MS)).get(place, -1)
            first = offset - MARGIN_EVENTS if lately < 0 else min(lately, offset - MARGIN_EVENTS)
            end = min(offset, (await consumer.end_offsets([at]))[at])
            async for events in self._read(consumer, at, max(start, first), end):
                yield events
        finally:
            await bounded(stop_consumer(consumer), TAIL_STOP_TIMEOUT_S, "reader of the audit topic")

    async def _read(
        self, consumer: AIOKafkaConsumer, at: TopicPartition, start: int, end: int
    ) -> AsyncIterator[Events]:
        """Reads [start, end)."""
        consumer.seek(at, start)
        stuck_s = time.monotonic() + STUCK_S
        while start < end:
            records = (await consumer.getmany(at, timeout_ms=POLL_MS)).get(at, [])
            yield [
                Recorded(got.offset, got.value, got.timestamp, dict(got.headers).get(HEADER, b""))
                for got in records
                if got.offset < end
            ]
            reached = await consumer.position(at)
            if reached < start:  # the topic was recreated meanwhile
                return
            if reached > start:
                start, stuck_s = reached, time.monotonic() + STUCK_S
            elif time.monotonic() > stuck_s:
                raise TimeoutError(f"{self._topic}/{at.partition}: no event of [{start}, {end}) arrives")
