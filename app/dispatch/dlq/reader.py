"""Reads a DLQ: its bounds, and its committed letters in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from app.dispatch.dlq.letter import DeadLetter, read_letter
from app.dispatch.dlq.rules import Span
from app.kafka.client.cluster import EARLIEST, LATEST, READ_COMMITTED, ClusterClient, ClusterUnreachable
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.records.record import PlacedRecord, size_of

CHUNK_LETTERS = 500
CHUNK_BYTES = 8 * 1024 * 1024  # of decompressed letters: a few kB of the log may be 20 MB of text
FETCH_BYTES = 1024 * 1024  # of a response; a larger letter comes alone
WAIT_MS = 500
READ_STALL_TIMEOUT_S = 30.0  # without a record, although the log has not ended


class NoQueue(LookupError):
    """The dead letter queue does not exist (yet)."""


async def queue_ends(client: ClusterClient, topic: str) -> dict[int, Span]:
    """The committed offsets [first, end) of every partition at this moment.

    Raises:
        NoQueue; ClusterUnreachable: A leader does not answer.
    """
    count = await client.partitions(topic)
    if not count:
        raise NoQueue(
            f"topic {topic} does not exist: the workload has no dead letters yet, or its DLQ is off"
        )
    wanted = [(topic, partition) for partition in range(count)]
    begins = await client.offsets(wanted, EARLIEST)
    ends = await client.offsets(wanted, LATEST, READ_COMMITTED)
    for at in wanted:
        if at not in begins or at not in ends:
            raise ClusterUnreachable(f"no leader answers for {topic}-{at[1]}; repeat the request in a moment")
    return {p: (begins[topic, p], max(begins[topic, p], ends[topic, p])) for _, p in wanted}


class QueueReader:
    """Reads the letters of one topic; made by `reading`."""

    def __init__(self, consumer: AIOKafkaConsumer, client: ClusterClient, topic: str) -> None:
        self._consumer = consumer
        self._client = client
        self._topic = topic

    async def chunks(
        self, partition: int, span: Span, max_letters: int = CHUNK_LETTERS
    ) -> AsyncIterator[tuple[list[DeadLetter], int]]:
        """(letters, next offset), until the next offset is the span's end. A chunk ends with the letter that
        makes it larger than `CHUNK_BYTES`. Offsets without a letter (retention, transaction markers) do not
        count.

        Raises:
            TimeoutError: The broker returned nothing for `READ_STALL_TIMEOUT_S`.
            KafkaError
        """
        at, end = span
        part = TopicPartition(self._topic, partition)
        self._consumer.assign([part])
        self._consumer.seek(part, at)
        while at < end:
            letters, following = await self._next_chunk(part, at, end, max_letters)
            assert following > at
            at = following
            yield letters, at

    async def _next_chunk(
        self, part: TopicPartition, at: int, end: int, max_letters: int
    ) -> tuple[list[DeadLetter], int]:
        async with asyncio.timeout(READ_STALL_TIMEOUT_S):
            while True:
                try:
                    records = await self._records(part, max_letters)
                except OffsetOutOfRangeError:
                    first = (await queue_ends(self._client, self._topic))[part.partition][0]
                    following = min(max(first, at), end)
                    self._consumer.seek(part, following)
                    if following > at:
                        return [], following
                    continue
                if records:
                    letters = [read_letter(record) for record in records if record.offset < end]
                    return letters, min(end, records[-1].offset + 1)
                position = await self._consumer.position(part)
                if position > at:
                    return [], min(end, position)

    async def _records(self, part: TopicPartition, max_letters: int) -> list[PlacedRecord]:
        """Takes records one by one, because aiokafka decompresses a record when it returns it."""
        records: list[PlacedRecord] = []
        free_bytes, wait_ms = CHUNK_BYTES, WAIT_MS
        while len(records) < max_letters and free_bytes > 0:
            found = (await self._consumer.getmany(part, timeout_ms=wait_ms, max_records=1)).get(part)
            if not found:
                break
            records += found
            wait_ms, free_bytes = 0, free_bytes - size_of(found[0])
        return records


@asynccontextmanager
async def reading(client: ClusterClient, topic: str) -> AsyncIterator[QueueReader]:
    """A reader of committed letters, without commits. The topic must exist (see `queue_ends`)."""
    consumer = AIOKafkaConsumer(
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=FETCH_BYTES,
        **client.spec.aiokafka_options(),
    )
    await consumer.start()
    await asyncio.sleep(0)  # a consumer that is stopped before its tasks have begun cancels the caller
    try:
        yield QueueReader(consumer, client, topic)
    finally:
        await stop_consumer(consumer)


async def read_one(client: ClusterClient, topic: str, partition: int, offset: int) -> DeadLetter | None:
    """The letter at `offset`; None: there is none.

    Raises:
        NoQueue; KafkaError
    """
    first, end = (await queue_ends(client, topic)).get(partition, (0, 0))
    if not first <= offset < end:
        return None
    async with reading(client, topic) as reader:
        async for letters, _ in reader.chunks(partition, (offset, offset + 1), 1):
            if letters:
                return letters[0]
    return None


async def scan(
    client: ClusterClient, topic: str, spans: Mapping[int, Span], within_s: float | None = None
) -> AsyncIterator[tuple[list[DeadLetter], int]]:
    """(letters, number of offsets) of the chunks of `spans`, by partition, for about `within_s`."""
    loop = asyncio.get_running_loop()
    until_s = None if within_s is None else loop.time() + within_s
    async with reading(client, topic) as reader:
        for partition, (start, end) in sorted(spans.items()):
            at = start
            async for letters, following in reader.chunks(partition, (start, end)):
                yield letters, following - at
                at = following
                if until_s is not None and loop.time() > until_s:
                    return


__all__ = ["CHUNK_LETTERS", "NoQueue", "QueueReader", "queue_ends", "read_one", "reading", "scan"]
