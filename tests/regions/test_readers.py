"""Readers are kept open between readings, and closed when a reading failed or nobody reads any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from app.kafka.clusters import ClusterClient, ClusterSpec
from app.kafka.topics import TopicSpec, ensure_topics
from app.regions import readers as module
from app.regions.readers import Place, Readers
from tests.kafka.conftest import producing

ENOUGH_S = 150.0


@asynccontextmanager
async def reading(bootstrap: str, topic: str) -> AsyncIterator[tuple[Readers, Place]]:
    spec = ClusterSpec("here", (bootstrap,))
    client = ClusterClient(spec)
    await client.start()
    await ensure_topics(client, [TopicSpec(topic, 2)])
    await client.stop()
    readers = Readers({"here": spec})
    try:
        yield readers, Place("here", topic, "id", 2)
    finally:
        await readers.close()


async def send(bootstrap: str, topic: str, *values: bytes) -> None:
    async with producing(bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)


async def values(consumer: AIOKafkaConsumer, place: Place, since: int, count: int) -> list[bytes]:
    """What stands in partition 0 from there on."""
    consumer.seek(place.parts[0], since)
    found: list[bytes] = []
    async with asyncio.timeout(ENOUGH_S):
        while len(found) < count:
            for records in (await consumer.getmany(*place.parts, timeout_ms=100)).values():
                found += [record.value or b"" for record in records]
    return found


async def test_one_is_kept_between_readings_and_fetches_nothing_there(
    bootstrap: str, topic_name: str
) -> None:
    async with reading(bootstrap, topic_name) as (readers, place):
        await send(bootstrap, topic_name, b"a", b"b")
        async with readers.of(place) as first:
            assert await values(first, place, 0, 2) == [b"a", b"b"]
            async with readers.of(place) as beside:
                assert beside is not first, "one reads at a time"
        assert first.paused() == set(place.parts)
        await send(bootstrap, topic_name, b"c")
        async with readers.of(place) as again:
            assert again in (first, beside)
            assert await values(again, place, 1, 2) == [b"b", b"c"]
        async with readers.of(place._replace(topic_id="another")) as other:
            assert other not in (first, beside), "the topic was made anew"


async def fail(readers: Readers, place: Place, used: list[AIOKafkaConsumer]) -> None:
    """A reading that fails half-way."""
    async with readers.of(place) as consumer:
        used.append(consumer)
        await consumer.end_offsets(place.parts)
        raise KafkaError


async def test_one_whose_reading_failed_or_that_nobody_uses_is_closed(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with reading(bootstrap, topic_name) as (readers, place):
        used: list[AIOKafkaConsumer] = []
        with pytest.raises(KafkaError):
            await fail(readers, place, used)
        (failed,) = used
        assert is_closed(failed)
        monkeypatch.setattr(module, "KEEP_S", 0.05)
        async with readers.of(place) as left:
            assert left is not failed
        async with asyncio.timeout(ENOUGH_S):
            while not is_closed(left):  # noqa: ASYNC110 - a task closes it
                await asyncio.sleep(0.01)
        monkeypatch.undo()
        async with readers.of(place) as busy:
            async with readers.of(place) as kept:
                pass
            await readers.close()
            assert (is_closed(kept), is_closed(busy)) == (True, False)
        assert is_closed(busy)


def is_closed(consumer: Any) -> bool:
    return bool(consumer._closed)
