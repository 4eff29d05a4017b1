"""Each function that uses a private attribute of aiokafka works with the installed version, on a real broker.

If a new aiokafka renames an attribute, the test of the function fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaTimeoutError

from app.kafka.client import aiokafka_internals as internals
from app.kafka.client.cluster import ClusterClient
from tests.kafka.conftest import ENOUGH_S, create, write

LINGER_MS = 600_000  # no record is sent by itself


@pytest.fixture
async def topic(client: ClusterClient, topic_name: str) -> str:
    """A topic of two partitions; the first has two records."""
    await create(client, topic_name, 2)
    await write(client.spec.bootstrap[0], topic_name, [b"0", b"1"])
    return topic_name


@pytest.fixture
async def consumer(bootstrap: str) -> AsyncIterator[AIOKafkaConsumer]:
    """A started consumer without a group or partitions."""
    made = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def producer(bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    """A started producer that sends nothing by itself."""
    made = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS)
    await made.start()
    try:
        yield made
    finally:
        internals.fail_unsent(made, KafkaTimeoutError("the test has ended"))
        await internals.sender_of(made).close()
        await made.client.close()
        made._closed = True  # else its finaliser warns


async def test_client_of_a_consumer_and_of_an_admin_client(
    bootstrap: str, consumer: AIOKafkaConsumer
) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        for owner in (consumer, admin):
            assert (await internals.client_of(owner).fetch_all_metadata()).brokers()
    finally:
        await admin.close()


async def test_fetcher_of_and_is_closed(bootstrap: str) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    assert internals.fetcher_of(consumer) is None
    await consumer.start()
    fetcher = internals.fetcher_of(consumer)
    assert isinstance(fetcher, Fetcher)
    assert not internals.is_closed(consumer)
    assert not internals.is_closed(fetcher)
    await consumer.topics()  # a stop at once after the start raises CancelledError: aiokafka #647
    await consumer.stop()
    assert internals.is_closed(consumer)
    assert internals.is_closed(fetcher)


async def test_position_now(consumer: AIOKafkaConsumer, topic: str) -> None:
    at, unassigned = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert internals.position_now(consumer, at) is None, "nothing was assigned yet"
    consumer.assign([at])
    assert internals.position_now(consumer, at) is None, "it has to ask first"
    assert await consumer.position(at) == 0
    await consumer.getone()
    assert internals.position_now(consumer, at) == 1
    assert internals.position_now(consumer, unassigned) is None


async def test_is_being_assigned(consumer: AIOKafkaConsumer, topic: str) -> None:
    fetcher = internals.fetcher_of(consumer)
    assert fetcher is not None
    assert internals.is_being_assigned(fetcher)
    consumer.assign([TopicPartition(topic, 0)])
    assert not internals.is_being_assigned(fetcher)


async def test_counts_as_fetching(consumer: AIOKafkaConsumer) -> None:
    fetcher = internals.fetcher_of(consumer)
    assert fetcher is not None
    subscriptions: Any = consumer._subscription
    assert subscriptions.fetcher_idle_time > 0
    with internals.counts_as_fetching(fetcher):
        assert subscriptions.fetcher_idle_time == 0
    assert subscriptions.fetcher_idle_time > 0


async def test_next_fetch(client: ClusterClient, consumer: AIOKafkaConsumer, topic: str) -> None:
    fetcher = internals.fetcher_of(consumer)
    assert fetcher is not None
    consumer.assign([at := TopicPartition(topic, 0)])
    await consumer.seek_to_end(at)
    came = internals.next_fetch(fetcher)
    await write(client.spec.bootstrap[0], topic, [b"2"])
    async with asyncio.timeout(ENOUGH_S):
        await came
    assert [record.value for record in (await consumer.getmany(at))[at]] == [b"2"]


async def test_keep_unsent(producer: AIOKafkaProducer, topic: str) -> None:
    accumulator: Any = producer._message_accumulator

    async def is_dropped_after_an_hour(partition: int) -> bool:
        await producer.send(topic, b"2", partition=partition)
        batch = accumulator._batches[TopicPartition(topic, partition)][0]
        batch._ctime -= 3600.0
        return bool(batch.expired())

    assert await is_dropped_after_an_hour(0), "by default a record ends with the request timeout"
    internals.keep_unsent(producer)
    assert not await is_dropped_after_an_hour(1)


async def test_fail_unsent(producer: AIOKafkaProducer, topic: str) -> None:
    sent = await producer.send(topic, b"2", partition=0)
    internals.fail_unsent(producer, KafkaTimeoutError("in time"))
    with pytest.raises(KafkaTimeoutError, match="in time"):
        await sent


async def test_sender_of(producer: AIOKafkaProducer) -> None:
    sender = internals.sender_of(producer)
    assert sender.sender_task is not None
    assert not sender.sender_task.done()
    await sender.close()
    assert sender.sender_task.done()
