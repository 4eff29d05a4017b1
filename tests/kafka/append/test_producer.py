"""Copies equal their records byte by byte, and a refused copy harms no other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from app.kafka.append import producer as producers
from app.kafka.append.producer import REFUSED_S, Producer, RecordTooLarge
from app.kafka.client.aiokafka_patches import InvalidRecordError
from app.kafka.client.cluster import ClusterClient
from tests.kafka.conftest import ENOUGH_S, Start, create


@pytest.fixture
async def producer(client: ClusterClient) -> AsyncIterator[Producer]:
    made = Producer(client.spec)
    await made.start()
    yield made
    await made.stop()


async def test_copy_without_key_and_value_is_unchanged(
    client: ClusterClient, start: Start, topic_name: str
) -> None:
    await create(client, topic_name)
    producer = Producer(client.spec)
    await producer.start()
    sent: list[tuple[Any, ...]] = [
        (b"k", b"v", [("h", b"\xff\x00"), ("h", None)]), (None, b"v", []), (b"k", None, []), (None, None, []),
        (b"", b"", [("", b"")]), (None, bytes(range(256)) * 3000, [("h", b"x")]),
    ]  # fmt: skip
    for key, value, headers in sent:
        await producer.send(topic_name, key, value, headers)
    await producer.stop()

    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") == len(sent))
    found = [(r.key, r.value, [(n, v) for n, v in r.headers]) for r in pump.records["k"]]
    assert found == sent


async def test_many_large_copies_are_all_written_beside_a_refused_one(
    client: ClusterClient, start: Start, topic_name: str, producer: Producer
) -> None:
    await create(client, topic_name, max_message_bytes="100000")
    sizes = [500_000 if number == 3 else 20_000 + 100 * number for number in range(300)]
    async with asyncio.timeout(ENOUGH_S):
        answers = await asyncio.gather(
            *(producer.send(topic_name, None, os.urandom(size), []) for size in sizes), return_exceptions=True
        )
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [3]
    assert isinstance(answers[3], RecordTooLarge)


async def test_copies_beyond_the_size_of_a_request_are_written_or_refused(
    client: ClusterClient, topic_name: str, producer: Producer
) -> None:
    await create(client, topic_name, 6, max_message_bytes=str(16 * 1024 * 1024))
    huge = os.urandom(40 * 1024 * 1024)
    async with asyncio.timeout(ENOUGH_S):
        sent = [producer.send(topic_name, None, huge, [], partition) for partition in range(6)]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(answer, RecordTooLarge) for answer in answers)
        await producer.send(topic_name, None, b"small", [], 0)
        await producer.send(topic_name, None, bytes(60_000), [], 0)


async def test_refused_copy_fails_no_other(client: ClusterClient, start: Start, topic_name: str) -> None:
    await create(client, topic_name)
    producer, refused = Producer(client.spec), 0
    await producer.start()

    async def write(number: int) -> None:
        """As pumps do: until it is taken; those of 3 MB never are."""
        nonlocal refused
        for _ in range(20):
            try:
                value = bytes(3 * 1024 * 1024) if number % 4 == 3 else str(number).encode()
                await producer.send(topic_name, None, value, [])
            except RecordTooLarge:
                refused += 1
                return
            except KafkaError:
                await asyncio.sleep(0.05)
            else:
                return
        raise AssertionError("never taken")

    for number in range(8):
        await write(number)
    await asyncio.gather(*(write(number) for number in range(8, 24)))
    await producer.stop()

    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") >= 18)
    assert sorted(int(value or b"") for value in pump.values("k")) == [n for n in range(24) if n % 4 != 3]
    assert refused == 6


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
async def test_record_accepted_compressed_by_one_topic_is_accepted_by_another(
    client: ClusterClient, producer: Producer, start: Start, topic_name: str, codec: int
) -> None:
    await create(client, topic_name, max_message_bytes="150000")
    large, small = b"0123456789" * 200_000, b"abc" * 5_000
    for _ in range(2):
        with pytest.raises(RecordTooLarge):
            await producer.send(topic_name, b"k", large, [])
        await producer.send(topic_name, b"k", large, [("h", b"v"), ("h", None)], None, codec)
    await create(client, f"{topic_name}-small", max_message_bytes="1500")
    await producer.send(f"{topic_name}-small", None, small, [], 0, codec)

    pump = await start()
    pump.service.add("large", topic_name, 0, 0)
    pump.service.add("small", f"{topic_name}-small", 0, 0)
    await pump.until(lambda: pump.count("large") >= 2 and pump.count("small") >= 1)
    found = [(r.key, r.value, list(r.headers)) for r in pump.records["large"]]
    assert found == [(b"k", large, [("h", b"v"), ("h", None)])] * 2
    assert pump.values("small") == [small]


async def test_record_refused_by_the_producer_costs_no_connection_and_disturbs_no_other(
    client: ClusterClient, producer: Producer, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_BATCH_BYTES", 1_000_000)
    await create(client, topic_name)
    connection = producer._producer
    others = [asyncio.create_task(producer.send(topic_name, None, b"v", [])) for _ in range(20)]
    for _ in range(3):
        with pytest.raises(RecordTooLarge, match="too many for any topic"):
            await producer.send(topic_name, None, bytes(1_000_000), [])
        others.append(asyncio.create_task(producer.send(topic_name, None, b"v", [])))

    await asyncio.gather(*others)
    assert producer._producer is connection


async def test_refused_size_is_not_tried_again_but_smaller_ones_are(
    client: ClusterClient, producer: Producer, topic_name: str
) -> None:
    small = await create(client, f"{topic_name}-small", max_message_bytes="100000")
    large = await create(client, f"{topic_name}-large", max_message_bytes="1000000")
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        await producer.send(small, None, bytes(150_000), [("h", b"v")])
    connection = producer._producer
    for _ in range(3):
        with pytest.raises(RecordTooLarge, match="has refused"):
            await producer.send(small, None, bytes(200_000), [])
        await producer.send(small, None, bytes(90_000), [("h", b"v")])
        await producer.send(large, None, bytes(200_000), [])

    assert producer._producer is connection


async def test_topic_with_a_raised_limit_is_tried_again(
    client: ClusterClient, producer: Producer, topic_name: str
) -> None:
    await create(client, topic_name, max_message_bytes="200000")
    producer._refused[topic_name] = (100_000, time.monotonic())
    with pytest.raises(RecordTooLarge):
        await producer.send(topic_name, None, bytes(150_000), [])

    producer._refused[topic_name] = (100_000, time.monotonic() - REFUSED_S - 1.0)
    await producer.send(topic_name, None, bytes(150_000), [])


async def test_small_records_are_not_refused_because_of_their_batch(
    client: ClusterClient, producer: Producer, start: Start, topic_name: str
) -> None:
    await create(client, topic_name, max_message_bytes="1000")
    keys: list[bytes | None] = [b"k", None]
    await asyncio.gather(
        *(
            producer.send(topic_name, keys[n % 2], str(n).encode().ljust(400), [("h", b"v")])
            for n in range(10)
        )
    )
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") >= 10)

    assert sorted(int(value or b"") for value in pump.values("k")) == list(range(10))


async def test_record_that_the_broker_refuses_fails_alone(
    client: ClusterClient, start: Start, topic_name: str, producer: Producer
) -> None:
    """A compacted topic takes no record without a key, and the broker refuses the whole batch for it."""
    await create(client, topic_name, cleanup_policy="compact")
    keys = [None if number % 10 == 3 else b"%d" % number for number in range(100)]
    async with asyncio.timeout(ENOUGH_S):
        answers = await asyncio.gather(
            *(producer.send(topic_name, key, b"v", [], 0) for key in keys), return_exceptions=True
        )
    refused = [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)]
    assert refused == list(range(3, 100, 10))
    assert {type(answers[n]) for n in refused} == {InvalidRecordError}
    assert f"{topic_name} refuses the record: records without a key" in str(answers[3])
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") >= 90)
    assert sorted(record.key for record in pump.records["k"]) == sorted(key for key in keys if key)
