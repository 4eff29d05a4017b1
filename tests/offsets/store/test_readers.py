"""Consumers stay open between readings and are closed after a failed reading or without use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.errors import KafkaError

from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.offsets.store import readers as module
from app.offsets.store.readers import RegionReaders, TopicPlace
from tests.kafka.conftest import producing

ENOUGH_S = 150.0


@asynccontextmanager
async def reading(bootstrap: str, topic: str) -> AsyncIterator[tuple[RegionReaders, TopicPlace]]:
    spec = ClusterSpec("here", (bootstrap,))
    client = ClusterClient(spec)
    await client.start()
    await ensure_topics(client, [TopicSpec(topic, 2)])
    await client.stop()
    readers = RegionReaders({"here": spec})
    try:
        yield readers, TopicPlace("here", topic, "id", 2)
    finally:
        await readers.close()


async def send(bootstrap: str, topic: str, *values: bytes, partition: int = 0) -> None:
    async with producing(bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=partition)


@asynccontextmanager
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def values(
    consumer: AIOKafkaConsumer, place: TopicPlace, since: int, count: int, partition: int = 0
) -> list[bytes]:
    """The values in a partition from an offset on."""
    consumer.seek(place.parts[partition], since)
    found: list[bytes] = []
    async with asyncio.timeout(ENOUGH_S):
        while len(found) < count:
            for records in (await consumer.getmany(*place.parts, timeout_ms=100)).values():
                found += [record.value or b"" for record in records]
    return found


async def test_a_consumer_is_kept_between_readings_and_fetches_nothing_meanwhile(
    bootstrap: str, topic_name: str
) -> None:
    async with reading(bootstrap, topic_name) as (readers, place):
        await send(bootstrap, topic_name, b"a", b"b")
        async with readers.consumer_of(place) as first:
            assert await values(first, place, 0, 2) == [b"a", b"b"]
            async with readers.consumer_of(place) as beside:
                assert beside is not first, "a consumer serves one reading at a time"
        assert first.paused() == set(place.parts)
        await send(bootstrap, topic_name, b"c")
        async with readers.consumer_of(place) as again:
            assert again in (first, beside)
            assert await values(again, place, 1, 2) == [b"b", b"c"]
        async with readers.consumer_of(place._replace(topic_id="another")) as other:
            assert other not in (first, beside), "the topic was recreated"


@pytest.mark.deep(minutes=1.0)
async def test_a_kept_consumer_of_a_killed_broker_reads_on_or_is_replaced(
    killable_yard: Yard, topic_name: str
) -> None:
    bootstrap = killable_yard.bootstrap("east-regional")
    async with reading(bootstrap, topic_name) as (readers, place):
        await send(bootstrap, topic_name, b"a")
        async with readers.consumer_of(place) as first:
            assert await values(first, place, 0, 1) == [b"a"]
        await asyncio.to_thread(killable_yard.kill, "east-regional")
        with pytest.raises((KafkaError, OSError, TimeoutError)):
            await read_once(readers, place, 2.0)
        assert is_closed(first), "its reading has failed"
        await asyncio.to_thread(killable_yard.up)
        await send(bootstrap, topic_name, b"b")
        async with readers.consumer_of(place) as kept:
            assert await values(kept, place, 0, 2) == [b"a", b"b"]
        # Between readings the kill goes unnoticed.
        await asyncio.to_thread(killable_yard.kill, "east-regional")
        await asyncio.to_thread(killable_yard.up)
        await send(bootstrap, topic_name, b"c")
        found = None
        async with asyncio.timeout(ENOUGH_S):
            while found is None:
                with contextlib.suppress(KafkaError, OSError):
                    async with readers.consumer_of(place) as again:
                        found = await values(again, place, 1, 2)
        assert found == [b"b", b"c"]


async def read_once(readers: RegionReaders, place: TopicPlace, patience_s: float) -> None:
    """Reads a table with this patience."""
    async with asyncio.timeout(patience_s), readers.consumer_of(place) as consumer:
        await consumer.end_offsets(place.parts)


async def test_added_partitions_are_read_by_another_consumer(bootstrap: str, topic_name: str) -> None:
    async with reading(bootstrap, topic_name) as (readers, place):
        await send(bootstrap, topic_name, b"a")
        async with readers.consumer_of(place) as first:
            assert await values(first, place, 0, 1) == [b"a"]
        async with admin(bootstrap) as client:
            await client.create_partitions({topic_name: NewPartitions(total_count=3)})
        await send(bootstrap, topic_name, b"new", partition=2)
        grown = place._replace(partitions=3)
        async with readers.consumer_of(grown) as other:
            assert other is not first
            assert sorted(await values(other, grown, 0, 2, partition=2)) == [b"a", b"new"]
            assert await other.end_offsets(grown.parts) == dict(zip(grown.parts, (1, 0, 1), strict=True))


async def test_a_kept_consumer_reads_on_from_the_new_log_start(bootstrap: str, topic_name: str) -> None:
    async with reading(bootstrap, topic_name) as (readers, place):
        await send(bootstrap, topic_name, b"a", b"b", b"c")
        async with readers.consumer_of(place) as first:
            assert await values(first, place, 0, 3) == [b"a", b"b", b"c"]
        async with admin(bootstrap) as client:
            await client.delete_records({TopicPartition(topic_name, 0): RecordsToDelete(before_offset=2)})
        async with readers.consumer_of(place) as again:
            assert again is first
            assert (await again.beginning_offsets(place.parts))[place.parts[0]] == 2
            assert await values(again, place, 0, 1) == [b"c"]
            assert await values(again, place, 2, 1) == [b"c"]


async def fail(readers: RegionReaders, place: TopicPlace, used: list[AIOKafkaConsumer]) -> None:
    """Reads, and fails half-way."""
    async with readers.consumer_of(place) as consumer:
        used.append(consumer)
        await consumer.end_offsets(place.parts)
        raise KafkaError


async def test_a_consumer_is_closed_after_a_failed_reading_or_without_use(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading(bootstrap, topic_name) as (readers, place):
        used: list[AIOKafkaConsumer] = []
        with pytest.raises(KafkaError):
            await fail(readers, place, used)
        (failed,) = used
        assert is_closed(failed)
        monkeypatch.setattr(module, "WARM_READER_S", 0.05)
        async with readers.consumer_of(place) as left:
            assert left is not failed
        async with asyncio.timeout(ENOUGH_S):
            while not is_closed(left):  # noqa: ASYNC110 - a task closes it
                await asyncio.sleep(0.01)
        monkeypatch.undo()
        async with readers.consumer_of(place) as busy:
            async with readers.consumer_of(place) as kept:
                pass
            await readers.close()
            assert (is_closed(kept), is_closed(busy)) == (True, False)
        assert is_closed(busy)


def is_closed(consumer: Any) -> bool:
    return bool(consumer._closed)
