"""aiokafka's consumers read what is sound, within bounds, whatever else the topic holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
from structlog.testing import capture_logs

from app.kafka.append.appender import Appender
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch import bounded_consumer
from app.kafka.fetch.bounded_consumer import RESPONSE_COST_BYTES
from tests.kafka.conftest import ENOUGH_S
from tests.kafka.fetch.test_decoder_bounds import MIB, at_most
from tests.kafka.records.batches import CODECS, batch_of_packed, make_batch, packed_record


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "MemoryRecords", fetcher.MemoryRecords)  # put back
    monkeypatch.setattr(fetcher, "PartitionRecords", fetcher.PartitionRecords)
    bounded_consumer.install()


PART = TopicPartition("t", 0)


def partition(data: bytes, start: int = 0) -> Any:
    return fetcher.PartitionRecords(
        PART, fetcher.MemoryRecords(data), [], start, None, None, True, fetcher.READ_COMMITTED
    )


@pytest.mark.parametrize("codec", sorted(CODECS.values()))
def test_every_record_is_read_with_its_key_value_headers_and_time(codec: int) -> None:
    rows = [(b"k", b"v"), (None, None), (b"", b"")]
    data = make_batch(5, rows, codec=codec, headers=[("h", b"1")]) + make_batch(8, rows[:1], codec=codec)

    found = list(part := partition(data, 6))

    assert [
        (one.offset, one.key, one.value, one.headers, one.timestamp, one.timestamp_type) for one in found
    ] == [
        (6, None, None, (("h", b"1"),), 1_001, 0),
        (7, b"", b"", (("h", b"1"),), 1_002, 0),
        (8, b"k", b"v", (), 1_000, 0),
    ]
    assert part.next_fetch_offset == 9


@pytest.mark.parametrize("codec", sorted(set(CODECS.values()) - {0}))
def test_a_batch_that_becomes_too_large_is_passed_over_logged_and_costs_nothing(codec: int) -> None:
    """8 kB became 798 MB."""
    data = batch_of_packed(0, [packed_record(0, bytes(200 * MIB))], codec) + make_batch(1)

    with at_most(64 * MIB), capture_logs() as logs:
        found = list(partition(data))

    assert [one.offset for one in found] == [1]
    (told,) = [one for one in logs if one["log_level"] == "error"]
    assert (told["start"], told["end"], told["records"]) == (0, 1, 1)


def test_a_record_of_too_many_headers_is_passed_over_and_its_neighbours_come() -> None:
    rows = [packed_record(0), packed_record(1, headers=4_000_000), packed_record(2)]
    with at_most(64 * MIB), capture_logs() as logs:
        found = list(partition(batch_of_packed(0, rows, CODECS["zstd"])))

    assert [one.offset for one in found] == [0, 2]
    assert [one["records"] for one in logs] == [1]


@pytest.mark.deep(minutes=0.6)
def test_no_more_of_a_response_is_handed_on_at_once_than_may_be_and_the_rest_comes_again() -> None:
    count = 400_000
    data = batch_of_packed(0, [packed_record(at) for at in range(count)], CODECS["zstd"])
    position, passes = 0, 0
    while position < count:
        with at_most(3 * RESPONSE_COST_BYTES):
            part = partition(data, position)
            found = [one.offset for one in part]
        assert found == list(range(position, part.next_fetch_offset))
        position, passes = part.next_fetch_offset, passes + 1
    assert position == count
    assert passes > 1


def test_bytes_that_are_no_batch_are_told_to_the_reader() -> None:
    part = partition(make_batch(0) + bytes(100))
    assert next(part).offset == 0
    with pytest.raises(Exception, match="cannot be a record batch's"):
        next(part)


async def test_a_consumer_of_a_broker_reads_what_lies_around_a_batch_that_is_no_good(
    client: ClusterClient, topic_name: str
) -> None:
    await ensure_topics(client, [TopicSpec(topic_name, 1)])
    poison = [packed_record(0), packed_record(1, headers=2_000_000), packed_record(2)]
    appender = Appender(client)
    await appender.start()
    lane = await appender.lane(topic_name, 0)
    for data, count in (
        (make_batch(0), 1),
        (batch_of_packed(0, poison, CODECS["zstd"]), 3),
        (batch_of_packed(0, [packed_record(0, bytes(130 * MIB))], CODECS["zstd"]), 1),
        (make_batch(0, [(None, b"last")]), 1),
    ):
        await (await lane.append(data, count))
    await appender.stop()

    consumer = AIOKafkaConsumer(auto_offset_reset="earliest", **client.spec.aiokafka_options())
    await consumer.start()
    try:
        part = TopicPartition(topic_name, 0)
        consumer.assign([part])
        await consumer.seek_to_beginning(part)
        found: list[Any] = []
        async with asyncio.timeout(ENOUGH_S):
            while not found or found[-1].value != b"last":
                found += (await consumer.getmany(part, timeout_ms=200)).get(part, [])
    finally:
        await consumer.stop()

    assert [one.offset for one in found] == [0, 1, 3, 5]
