"""A refused batch costs no other record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, ProducerClosed

from app.kafka.append.replaceable_producer import ReplaceableProducer
from app.kafka.client.cluster import ClusterClient
from tests.kafka.conftest import Start, create
from tests.kafka.second_broker import delete

SMALL_BYTES = 20_000  # above what aiokafka puts into a batch


@asynccontextmanager
async def started(client: ClusterClient, **settings: Any) -> AsyncIterator[ReplaceableProducer]:
    producer = ReplaceableProducer("a test", client.spec.aiokafka_options(), **settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def be_refused(producer: ReplaceableProducer, topic: str) -> None:
    """Sends a record that is too large for the topic."""
    with pytest.raises(MessageSizeTooLargeError):
        await producer.send_and_wait(topic, bytes(2 * SMALL_BYTES), partition=0)


async def values(start: Start, topic: str, count: int) -> list[bytes | None]:
    pump = await start()
    pump.service.add("k", topic, 0, 0)
    await pump.until(lambda: pump.count("k") >= count)
    return pump.values("k")


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_records_sent_after_a_refusal_are_written(
    client: ClusterClient, start: Start, topic_name: str, is_idempotent: bool
) -> None:
    await create(client, topic_name, max_message_bytes=str(SMALL_BYTES))
    async with started(client, enable_idempotence=is_idempotent) as producer:
        for number in range(3):
            await producer.send_and_wait(topic_name, b"%d" % number, partition=0)
            await be_refused(producer, topic_name)
        await producer.send_and_wait(topic_name, b"3", partition=0)
    assert await values(start, topic_name, 4) == [b"0", b"1", b"2", b"3"]


async def test_records_around_a_refusal_keep_their_order_and_none_is_lost(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    """The sender repeats all records that were not acknowledged, as Switchyard's senders do."""
    await create(client, topic_name, max_message_bytes=str(SMALL_BYTES))
    written = list[int]()
    async with started(client) as producer:
        for first in range(0, 400, 20):
            left = list(range(first, first + 20))
            while left:
                sent = [await producer.send(topic_name, b"%d" % number, partition=0) for number in left]
                if first % 60 == 0 and len(left) == 20:
                    sent.append(await producer.send(topic_name, bytes(2 * SMALL_BYTES), partition=0))
                    sent += [await producer.send(topic_name, b"%d" % number, partition=0) for number in left]
                answers = await asyncio.gather(*sent, return_exceptions=True)
                assert all(isinstance(one, KafkaError) or one.offset >= 0 for one in answers)
                left = [n for n, one in zip(left, answers, strict=False) if isinstance(one, KafkaError)]
            written += range(first, first + 20)
    found = [int(value or b"") for value in await values(start, topic_name, 400)]
    assert list(dict.fromkeys(found)) == written


async def test_caller_cancelled_during_a_replacement_delays_no_other(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    await create(client, topic_name, max_message_bytes=str(SMALL_BYTES))
    async with started(client) as producer:
        await be_refused(producer, topic_name)
        leaving = asyncio.create_task(producer.send_and_wait(topic_name, b"never", partition=0))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await asyncio.gather(*(producer.send_and_wait(topic_name, b"%d" % n, partition=0) for n in range(9)))
    assert sorted(await values(start, topic_name, 9)) == [b"%d" % n for n in range(9)]


async def test_refusal_without_a_waiting_caller_costs_no_other_record(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    await create(client, topic_name, max_message_bytes=str(SMALL_BYTES))
    async with started(client) as producer:
        answer = await producer.send(topic_name, bytes(2 * SMALL_BYTES), partition=0)
        answer.cancel()
        await asyncio.sleep(1.0)
        await producer.send_and_wait(topic_name, b"next", partition=0)
    assert await values(start, topic_name, 1) == [b"next"]


async def test_stuck_records_delay_a_new_producer_for_seconds_only_and_fail(
    client: ClusterClient, start: Start, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kafka.append.replaceable_producer.SETTLE_TIMEOUT_S", 0.5)
    stuck = await create(client, f"{topic_name}-stuck")
    await create(client, topic_name, max_message_bytes=str(SMALL_BYTES))
    async with started(client) as producer:
        await producer.send_and_wait(stuck, b"now", partition=0)
        await delete(client, stuck)
        waiting = await producer.send(stuck, b"never", partition=0)
        await be_refused(producer, topic_name)
        await producer.send_and_wait(topic_name, b"next", partition=0)
        with pytest.raises(KafkaTimeoutError):
            await waiting
    assert await values(start, topic_name, 1) == [b"next"]


async def test_stopped_producer_takes_nothing_and_does_not_connect(
    client: ClusterClient, topic_name: str
) -> None:
    await create(client, topic_name, max_message_bytes=str(SMALL_BYTES))
    async with started(client) as producer:
        await be_refused(producer, topic_name)
        waiting = asyncio.create_task(producer.send_and_wait(topic_name, b"late", partition=0))
        await asyncio.sleep(0)
        await producer.stop()
        for late in (waiting, producer.send_and_wait(topic_name, b"later", partition=0)):
            with pytest.raises(ProducerClosed):
                await late
