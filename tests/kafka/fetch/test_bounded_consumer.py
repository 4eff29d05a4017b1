"""aiokafka's consumers read the sound records within limits, whatever else the topic holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
from structlog.testing import capture_logs

from app.kafka.append.appender import Appender
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch import bounded_consumer
from app.kafka.fetch.bounded_consumer import TAKEN_COST_BYTES, TAKEN_RECORDS, was_passed_over
from app.kafka.fetch.decoder import OpenBatch
from tests.kafka import bounded
from tests.kafka.conftest import ENOUGH_S
from tests.kafka.fetch.test_decoder_bounds import MIB, at_most
from tests.kafka.records.batches import CODECS, batch_of_packed, make_batch, old_messages, packed_record


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded.install(monkeypatch)


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
def test_batch_that_decompresses_too_large_is_skipped_and_logged_without_memory(codec: int) -> None:
    """The fault: 8 kB became 798 MB."""
    data = batch_of_packed(0, [packed_record(0, bytes(200 * MIB))], codec) + make_batch(1)

    with at_most(64 * MIB), capture_logs() as logs:
        found = list(partition(data))

    assert [one.offset for one in found] == [1]
    (line,) = [one for one in logs if one["log_level"] == "error"]
    assert (line["start"], line["end"], line["records"]) == (0, 1, 1)


def test_record_with_too_many_headers_is_skipped_and_its_neighbours_are_read() -> None:
    rows = [packed_record(0), packed_record(1, headers=4_000_000), packed_record(2)]
    with at_most(64 * MIB), capture_logs() as logs:
        found = list(partition(batch_of_packed(0, rows, CODECS["zstd"])))

    assert [one.offset for one in found] == [0, 2]
    assert [one["records"] for one in logs] == [1]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_skipped_and_logged_and_later_records_are_read(magic: int) -> None:
    data = old_messages(0, [b"v"], magic=magic) + old_messages(1, [b"v"] * 3, magic=magic, codec=1)
    with capture_logs() as logs:
        found = list(part := partition(data + make_batch(4)))
    assert [one.offset for one in found] == [4]
    assert part.next_fetch_offset == 5
    assert [one["end"] for one in logs] == [1, 4]
    assert all(f"record format {magic}, from before Kafka 0.11" in one["why"] for one in logs)


def test_skipped_span_is_known_before_later_records_are_returned() -> None:
    """The fault: the control log took the span for compaction, and read the whole log again for each one."""
    bad = {1, 700}
    rows = [packed_record(at, headers=20_000 if at in bad else 0) for at in range(1_500)]
    taken, _ = result(batch_of_packed(0, rows, CODECS["zstd"]))
    expected = 0
    while taken.has_more():
        for one in taken.getall():
            assert one.offset == expected or was_passed_over(*PART, expected, one.offset)
            expected = one.offset + 1
    assert expected == 1_500


@contextmanager
def decodings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many records each call of the decoder made."""
    made, take = list[int](), OpenBatch.take

    def counted(self: OpenBatch, *most: int) -> list[Any]:
        found = take(self, *most)
        made.append(len(found))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(OpenBatch, "take", counted)
        yield made


def result(data: bytes, start: int = 0) -> tuple[Any, Any]:
    """A response for a consumer at `start`, and the consumer's next position."""
    state = SimpleNamespace(paused=False, position=start)
    state.consumed_to = lambda position: setattr(state, "position", position)
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    return fetcher.FetchResult(
        PART, assignment=assignment, partition_records=partition(data, start), backoff=0
    ), state


@pytest.mark.parametrize("start", [0, 7_777])
def test_flood_is_taken_in_portions_and_no_record_is_decoded_twice(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 20_000
    data = batch_of_packed(0, [packed_record(at) for at in range(count)], CODECS["zstd"])
    found: list[int] = []
    with decodings(monkeypatch) as made:
        taken, state = result(data, start)
        while taken.has_more():
            before = len(made)
            some = [one.offset for one in taken.getall()]
            assert len(some) <= TAKEN_RECORDS
            assert sum(made[before:]) <= 2 * TAKEN_RECORDS
            found += some
            assert state.position == (found[-1] + 1 if found else start)
    assert found == list(range(start, count))
    assert sum(made) == count


def test_large_records_are_taken_one_at_a_time() -> None:
    value = bytes(2 * TAKEN_COST_BYTES)
    data = batch_of_packed(0, [packed_record(at, value) for at in range(20)], CODECS["zstd"])
    taken, _ = result(data)
    sizes = []
    while taken.has_more():
        sizes.append(len(taken.getall()))
    assert sum(sizes) == 20
    assert max(sizes) == 1


def test_open_batches_together_stay_within_the_limit_and_are_read_to_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [packed_record(at, bytes(MIB)) for at in range(16)]
    data = batch_of_packed(0, rows, CODECS["zstd"])
    monkeypatch.setattr(bounded_consumer, "KEPT_BYTES", 20 * MIB)
    results, found = [result(data)[0] for _ in range(20)], list[int]()
    with at_most(150 * MIB):
        while any(one.has_more() for one in results):
            for one in results:
                found += [record.offset for record in one.getall()]
    assert sorted(found) == sorted(list(range(16)) * 20)


async def test_readers_that_always_find_records_leave_time_for_other_tasks(
    client: ClusterClient, topic_name: str
) -> None:
    """Whenever one of them takes records, all other tasks of the loop get a turn."""
    await ensure_topics(client, [TopicSpec(topic_name, 2)])
    count, turns = 20_000, 0
    data = batch_of_packed(0, [packed_record(at) for at in range(count)], CODECS["zstd"])
    appender = Appender(client)
    await appender.start()
    for number in range(2):
        await (await (await appender.lane(topic_name, number)).append(data, count))
    await appender.stop()
    consumer = AIOKafkaConsumer(auto_offset_reset="earliest", **client.spec.aiokafka_options())
    await consumer.start()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    parts = [TopicPartition(topic_name, number) for number in range(2)]
    consumer.assign(parts)
    await consumer.seek_to_beginning(*parts)
    running, found, order = asyncio.ensure_future(others()), 0, list[int]()
    try:
        async with asyncio.timeout(ENOUGH_S):
            while found < 2 * count:
                before = turns
                for part, records in (await consumer.getmany(timeout_ms=500)).items():
                    assert len(records) <= TAKEN_RECORDS
                    found += len(records)
                    order.append(part.partition)
                assert turns > before
    finally:
        running.cancel()
        await consumer.stop()
    changes = sum(one != other for one, other in pairwise(order))
    assert changes > 10, "none waits until another is read to its end"


def test_bytes_that_are_not_a_batch_raise_in_the_reader() -> None:
    part = partition(make_batch(0) + bytes(100))
    assert next(part).offset == 0
    with pytest.raises(Exception, match="cannot be a record batch's"):
        next(part)


async def test_consumer_reads_the_records_around_a_bad_batch(client: ClusterClient, topic_name: str) -> None:
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
