"""Reads timestamps and copies waiting messages between clusters, for a cluster move."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import zip_longest

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, RecordMetadata

from app.dispatch.dlq.letter import DeadLetter
from app.dispatch.dlq.reader import reading
from app.dispatch.dlq.rules import Span
from app.dispatch.move.time_mapping import SourcePartition
from app.kafka.append import any_size
from app.kafka.append.errors import REFUSALS, first_refused, words_of
from app.kafka.client.cluster import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
    ClusterUnreachable,
)
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.fetch.offsets_at_time import offsets_at
from app.kernel.clock import now_ms
from app.worker.jobs.operator_acts import OperationRefused

TopicAndPartition = tuple[str, int]  # topic, partition
TimedRecord = ConsumerRecord[bytes, bytes]
LOG_APPEND_TIME = 1  # a record's type of timestamp: the broker's time

TAIL_OFFSETS = 100  # the end of a log, in which its newest record is searched
SCAN_RECORDS = 2_000  # before the event loop, which also delivers messages, gets a turn
SCAN_WAIT_MS = 500
READ_STALL_TIMEOUT_S = 30.0
TRIES, RETRY_S = 20, 0.25
MAX_COPY_BYTES = 32 * 1024 * 1024  # as large as a dead letter can be
SENT_AT_ONCE = 50
PARTITIONS_AT_ONCE = 16
PRODUCER_STOP_TIMEOUT_S = 10.0


async def offsets(
    client: ClusterClient,
    wanted: Iterable[TopicAndPartition],
    timestamp: int,
    isolation: int = READ_COMMITTED,
) -> dict[TopicAndPartition, int]:
    """`offsets_at` for all of `wanted`, with retries.

    Raises:
        ClusterUnreachable: A leader does not answer.
    """
    missing, found = set(wanted), dict[TopicAndPartition, int]()
    for _ in range(TRIES):
        if missing:
            with contextlib.suppress(ClusterUnreachable, KafkaError):  # retried below
                found |= await offsets_at(client, missing, timestamp, isolation)
            missing -= set(found)
        if not missing:
            return found
        await asyncio.sleep(RETRY_S)
    raise ClusterUnreachable(f"cluster {client.name}: no leader answers for {sorted(missing)[:3]}")


async def at_times(client: ClusterClient, topic: str, wanted: Sequence[int | None]) -> list[int | None]:
    """The first offset at or after each partition's time in ms; None: no time, or no such record."""
    by_time: dict[int, list[TopicAndPartition]] = {}
    for partition, time_ms in enumerate(wanted):
        if time_ms is not None:
            by_time.setdefault(max(0, time_ms), []).append((topic, partition))
    gate = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def ask(time_ms: int, at: list[TopicAndPartition]) -> dict[TopicAndPartition, int]:
        async with gate:
            return await offsets(client, at, time_ms)

    found: dict[TopicAndPartition, int] = {}
    for answer in await asyncio.gather(*(ask(*item) for item in by_time.items())):
        found |= answer
    firsts = [found.get((topic, partition), -1) for partition in range(len(wanted))]
    return [offset if offset >= 0 else None for offset in firsts]


async def read_times(
    client: ClusterClient,
    topic: str,
    sources: Sequence[SourcePartition],
    report_progress: Callable[[int, int], None],
    within_s: float | None = None,
) -> bool:
    """Shows `sources` the timestamps of their unfinished records and of their newest one; False: `within_s`
    passed first. Uncommitted records count too, because they may be committed after the mapping is made.

    Raises:
        KafkaError; TimeoutError: The broker returned nothing for `READ_STALL_TIMEOUT_S`.
    """
    today_ms = now_ms()
    spans = {
        s.partition: (max(s.start, min(s.position, s.end - TAIL_OFFSETS)), s.end)
        for s in sources
        if s.start < s.end
    }
    by_partition = {source.partition: source for source in sources}

    def see(partition: int, records: Sequence[TimedRecord]) -> None:
        for record in records:
            by_partition[partition].see(record.offset, record.timestamp, today_ms)

    reached = await read_records(client, topic, spans, see, report_progress, within_s, committed_only=False)
    return all(reached[p] >= end for p, (_, end) in spans.items())


async def read_records(
    client: ClusterClient,
    topic: str,
    spans: Mapping[int, Span],
    see: Callable[[int, Sequence[TimedRecord]], None],
    report_progress: Callable[[int, int], None],
    within_s: float | None = None,
    *,
    committed_only: bool = True,
) -> dict[int, int]:
    """Gives the records of `spans` to `see`, with their partition. Returns how far each was read, which is
    its end unless `within_s` passed first.

    Raises:
        KafkaError; TimeoutError: The broker returned nothing for `READ_STALL_TIMEOUT_S`.
    """
    reached = {p: min(start, end) for p, (start, end) in spans.items()}
    unread = {TopicPartition(topic, p): end for p, (start, end) in spans.items() if start < end}
    if not unread:
        return reached
    loop = asyncio.get_running_loop()
    began_s = moved_s = loop.time()
    consumer = AIOKafkaConsumer(
        enable_auto_commit=False, auto_offset_reset="earliest", fetch_max_bytes=4 * 1024 * 1024,
        isolation_level="read_committed" if committed_only else "read_uncommitted",
        **client.spec.aiokafka_options(),
    )  # fmt: skip
    async with _running(consumer):
        consumer.assign(list(unread))
        for at in unread:
            consumer.seek(at, reached[at.partition])
        total = sum(end - reached[at.partition] for at, end in unread.items())
        looked_at = 0
        while unread:
            found = await consumer.getmany(*unread, timeout_ms=SCAN_WAIT_MS, max_records=SCAN_RECORDS)
            for at, records in found.items():
                see(at.partition, [record for record in records if record.offset < unread[at]])
            for at, end in list(unread.items()):
                position = min(end, await consumer.position(at))
                if position > reached[at.partition]:
                    looked_at += position - reached[at.partition]
                    reached[at.partition], moved_s = position, loop.time()
                if position >= end:
                    consumer.pause(at)
                    del unread[at]
            report_progress(looked_at, total)
            if unread and within_s is not None and loop.time() - began_s > within_s:
                return reached
            if loop.time() - moved_s > READ_STALL_TIMEOUT_S:
                raise TimeoutError(f"cluster {client.name} returns no more records of {sorted(unread)[:3]}")
            await asyncio.sleep(0)
    return reached


@asynccontextmanager
async def _running(consumer: AIOKafkaConsumer) -> AsyncIterator[None]:
    await consumer.start()
    await asyncio.sleep(0)  # a consumer that is stopped before its tasks have begun cancels the caller
    try:
        yield
    finally:
        with contextlib.suppress(KafkaError):
            await stop_consumer(consumer)


async def copy_topic(
    source: ClusterClient,
    target: ClusterClient,
    topic: str,
    spans: Mapping[int, Span],
    wanted: Callable[[DeadLetter], bool],
    report_progress: Callable[[int], None],
) -> int:
    """Copies the committed `wanted` records of `spans` to the topic of the same name, until all in-sync
    replicas have acknowledged them. Key, value, headers and timestamp stay the same. Returns their number.

    Raises:
        OperationRefused: The topic refuses a record, which the message names; none may be left behind.
        KafkaError, TimeoutError: Some were not acknowledged. Copying again is safe, but makes duplicates.
    """
    if not any(start < end for start, end in spans.values()):
        return 0
    count = len(await _partitions(target, topic))
    copied = 0
    async with _Writer(target, topic).running() as writer, reading(source, topic) as reader:
        for partition, (start, end) in sorted(spans.items()):
            if start >= end:
                continue
            async for letters, _ in reader.chunks(partition, (start, end)):
                chosen = list(filter(wanted, letters))
                await writer.write(partition % count, chosen)
                copied += len(chosen)
                report_progress(copied)
    return copied


class _Writer:
    """Writes letters to the topic of the same name.

    After a refused batch, aiokafka keeps its sequence number, so the batches behind it fail too. A new
    producer therefore sends the failed letters again, one by one, until one is refused by itself. If none is,
    a batch of several letters exceeded the topic's limit.
    """

    def __init__(self, target: ClusterClient, topic: str) -> None:
        self._target = target
        self._topic = topic
        self._producers = AsyncExitStack()
        self._producer: AIOKafkaProducer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[_Writer]:
        async with self._producers:
            await self._begin()
            yield self

    async def write(self, partition: int, letters: Sequence[DeadLetter]) -> None:
        """Returns once all in-sync replicas have acknowledged all letters.

        Raises:
            OperationRefused: The topic refuses one of them. KafkaError.
        """
        sent: list[asyncio.Future[RecordMetadata]] = []
        try:
            for letter in letters:
                sent.append(await self._send(partition, letter))
                if len(sent) % SENT_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except KafkaError as error:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            sent.append(failed)
        await asyncio.gather(*sent, return_exceptions=True)
        if first_refused(sent) is None:
            await asyncio.gather(*sent)
            return
        await self._begin()
        for letter, answer in zip_longest(letters, sent):
            if answer is None or answer.exception() is not None:
                await self._write_alone(partition, letter)

    async def _write_alone(self, partition: int, letter: DeadLetter) -> None:
        try:
            await (await self._send(partition, letter))
        except REFUSALS as error:
            raise OperationRefused(
                f"{self._topic} in {self._target.name} refuses the copy of {self._topic}-{letter.partition}, "
                f"offset {letter.offset}: {words_of(error)}; or first merge or purge a dead letter, or let a "
                "retry be delivered. Then move the workload again; nothing was moved"
            ) from error

    async def _send(self, partition: int, letter: DeadLetter) -> asyncio.Future[RecordMetadata]:
        time_ms = letter.timestamp_ms if letter.timestamp_ms >= 0 else None
        return await any_size.send(
            self._producer, self._topic, partition, letter.key, letter.value, letter.headers,
            most_bytes=MAX_COPY_BYTES, timestamp_ms=time_ms,
        )  # fmt: skip

    async def _begin(self) -> None:
        await self._producers.aclose()
        self._producer = AIOKafkaProducer(
            acks="all", enable_idempotence=True, request_timeout_ms=10_000, max_request_size=MAX_COPY_BYTES,
            max_batch_size=256 * 1024, value_serializer=any_size.serialized,
            **self._target.spec.aiokafka_options(),
        )  # fmt: skip
        self._producers.push_async_callback(_stop, self._producer)
        await self._producer.start()


async def _stop(producer: AIOKafkaProducer) -> None:
    """Every letter has its result already, so errors do not matter."""
    with contextlib.suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(PRODUCER_STOP_TIMEOUT_S):
            await producer.stop()


async def _partitions(client: ClusterClient, topic: str) -> range:
    count = await client.partitions(topic)
    if not count:
        raise LookupError(f"topic {topic} no longer exists in {client.name}")
    return range(count)


async def ends(
    client: ClusterClient, at: Iterable[TopicAndPartition], *, committed_only: bool = True
) -> dict[TopicAndPartition, int]:
    """The end offsets of partitions, of committed records or of all. Raises ClusterUnreachable."""
    return await offsets(client, at, LATEST, READ_COMMITTED if committed_only else READ_UNCOMMITTED)
