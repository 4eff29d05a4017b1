"""Follows a control topic (a single partition) as it grows.

This is not a Faust stream, because a Faust group stops for seconds at every rebalance, and for ten seconds
when a worker is killed. Every worker reads the records that keep the data plane alive (leader,
assignments, heartbeats) by itself, in the partition's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from mode import Service

from app.kafka.client.aiokafka_internals import fetcher_of
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.records.record import PlacedRecord

log = structlog.get_logger(__name__)

TAIL_POLL_MS = 500
TAIL_RETRY_INTERVAL_S = 0.5
TAIL_STOP_TIMEOUT_S = 3.0

OnRecords = Callable[[Sequence[PlacedRecord]], None]


class TopicTail(Service):
    """Follows partition 0 of `topic` and gives its records to `on_records`, in order.

    Args:
        on_records: Takes raw records of unknown origin; must not raise for bad data.
        from_start: Read the whole topic; `caught_up` is set at the end seen at the start. Otherwise only
            new records.
        is_first: Other readers wait while this one is behind (`app.kafka.fetch.reader_turns`).
        on_position: Takes the next offset after each poll.
    """

    def __init__(
        self,
        topic: str,
        kafka_options: ClientOptions,
        on_records: OnRecords,
        *,
        from_start: bool,
        is_first: bool = False,
        on_position: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.next_offset = 0
        self.end = 0
        self.caught_up = asyncio.Event()
        self._options = kafka_options
        self._on_records = on_records
        self._from_start = from_start
        self._is_first = is_first
        self._on_position = on_position
        self._progress = asyncio.Condition()
        self._positioned = False

    @Service.task
    async def _follow(self) -> None:
        while not self.should_stop:
            try:
                await self._read()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning(
                    "control topic cannot be read",
                    topic=self.topic,
                    error=repr(error),
                    retry_s=TAIL_RETRY_INTERVAL_S,
                )
                await self.sleep(TAIL_RETRY_INTERVAL_S)

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=TAIL_POLL_MS,
            **self._options,
        )
        await consumer.start()
        if (turns := getattr(fetcher_of(consumer), "turns", None)) is not None:  # not in aiokafka's own
            turns.is_first = self._is_first
        try:
            partition = TopicPartition(self.topic, 0)
            consumer.assign([partition])
            self.end = end = (await consumer.end_offsets([partition]))[partition]
            if not self._positioned:
                beginning = (await consumer.beginning_offsets([partition]))[partition]
                self.next_offset = beginning if self._from_start else end
                self._positioned = True
            consumer.seek(partition, self.next_offset)
            while not self.should_stop and self._positioned:
                if self.next_offset >= end and not self.caught_up.is_set():
                    self.caught_up.set()
                records = (await consumer.getmany(partition, timeout_ms=TAIL_POLL_MS)).get(partition, [])
                if records and self._positioned:  # else `rewind` was called meanwhile
                    self._on_records(records)
                if self._positioned:
                    # After the last record there may be skipped or compacted offsets.
                    position = await consumer.position(partition)
                    self.next_offset = position if records else max(self.next_offset, position)
                    self._on_position(self.next_offset)
                async with self._progress:
                    self._progress.notify_all()
        finally:
            await bounded(stop_consumer(consumer), TAIL_STOP_TIMEOUT_S, f"reader of {self.topic}")

    def rewind(self) -> None:
        """Reads from the start again (with `from_start`); `on_records` gets nothing else before that."""
        self._positioned = False

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """Waits until the tail has read past `offset`, whose record may be compacted or refused. Raises
        TimeoutError."""
        async with asyncio.timeout(timeout_s), self._progress:
            await self._progress.wait_for(lambda: self.next_offset > offset)


async def bounded(step: Awaitable[object], timeout_s: float, what: str) -> None:
    """Awaits a shutdown step for at most `timeout_s`; logs a step that hangs or fails."""
    try:
        async with asyncio.timeout(timeout_s):
            await step
    except TimeoutError:
        log.warning("a shutdown step did not end in time and was abandoned", step=what, timeout_s=timeout_s)
    except Exception as error:  # noqa: BLE001 - the next steps must still run
        log.warning("a shutdown step failed", step=what, error=repr(error))
