"""The comparison that judges copies finds every kind of difference and its place."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaProducer

from app.dev.demo.traffic import create_topic
from tests.system import compare_topics as tool
from tests.system.compare_topics import Comparison, Row, compare_topics

PARTITIONS = 2
COUNT = 3_000
BEGAN_MS = 1_700_000_000_000


def rows(partition: int) -> list[Row]:
    """Rows with everything that a record can have; null is not empty."""
    return [
        (
            BEGAN_MS + 10 * number,
            None if number % 7 == 0 else b"k%d" % (number % 50),
            None if number % 11 == 0 else b"value %d of %d" % (number, partition) * (number % 4),
            (("h", b"%d" % number), ("h", None), ("", b"")) if number % 3 == 0 else (),
        )
        for number in range(COUNT)
    ]


async def write(
    bootstrap: str, topic: str, partitions: Sequence[Sequence[Row]], *, batch_bytes: int = 4096,
    codec: str | None = None,
) -> None:  # fmt: skip
    """Creates the topic and writes these rows."""
    await create_topic(bootstrap, topic, len(partitions))
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_batch_size=batch_bytes, compression_type=codec
    ) as producer:
        for partition, written in enumerate(partitions):
            sent, batch = [], producer.create_batch()
            for timestamp, key, value, headers in written:
                record = {"timestamp": timestamp, "key": key, "value": value, "headers": list(headers)}
                if batch.append(**record) is None:
                    sent.append(await producer.send_batch(batch, topic, partition=partition))
                    batch = producer.create_batch()
                    batch.append(**record)
            sent.append(await producer.send_batch(batch, topic, partition=partition))
            await asyncio.gather(*sent)


@pytest.fixture(scope="module")
def source(bootstrap: str) -> str:
    topic = f"source-{uuid.uuid4().hex[:8]}"
    asyncio.run(write(bootstrap, topic, [rows(partition) for partition in range(PARTITIONS)]))
    return topic


async def compared(
    bootstrap: str, source: str, change: Callable[[list[Row]], None], **options: object
) -> Comparison:
    """Compares the source with a copy whose partition 1 was changed."""
    copied = [rows(partition) for partition in range(PARTITIONS)]
    change(copied[1])
    topic = f"copy-{uuid.uuid4().hex[:8]}"
    await write(bootstrap, topic, copied, **options)  # type: ignore[arg-type]
    return await compare_topics(bootstrap, source, bootstrap, topic)


@pytest.mark.parametrize(
    ("batch_bytes", "codec"), [(4096, None), (4096, "zstd"), (700, None), (60_000, "gzip")]
)
async def test_copies_with_equal_records_are_equal_whatever_the_batching(
    bootstrap: str, source: str, batch_bytes: int, codec: str | None
) -> None:
    found = await compared(bootstrap, source, lambda rows: None, batch_bytes=batch_bytes, codec=codec)
    assert (found.same, found.differences) == (PARTITIONS * COUNT, [])


async def test_batches_of_the_same_bytes_are_not_decoded(
    bootstrap: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "records_of", None)
    found = await compared(bootstrap, source, lambda rows: None)
    assert found.same == PARTITIONS * COUNT


def changed(at: int, field: int, value: object) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        row = list(rows[at])
        row[field] = value
        rows[at] = tuple(row)  # type: ignore[assignment]

    return change


@pytest.mark.parametrize(
    ("at", "field", "value", "name"),
    [
        (1_234, 0, BEGAN_MS - 1, "timestamp"),
        (0, 1, b"", "key"),
        (COUNT - 1, 2, b"other", "value"),
        (1_100, 2, b"", "value"),  # null before
        (300, 3, (("h", b"300"), ("h", b""), ("", b"")), "headers"),
        (1_500, 3, (("", b""), ("h", b"1500"), ("h", None)), "headers"),
    ],
)
async def test_a_changed_record_is_found_with_its_offsets_and_field(
    bootstrap: str, source: str, at: int, field: int, value: object, name: str
) -> None:
    found = await compared(bootstrap, source, changed(at, field, value))
    (difference,) = found.differences
    assert (difference.partition, difference.kind) == (1, "changed")
    assert (difference.source_offset, difference.copy_offset) == (at, at)
    assert difference.message == f"{name} differ"
    assert found.same == PARTITIONS * COUNT - 1


@pytest.mark.parametrize(("first", "count"), [(0, 1), (1_000, 1), (1_000, 700), (COUNT - 5, 5)])
async def test_missing_records_are_found_and_the_rest_is_compared(
    bootstrap: str, source: str, first: int, count: int
) -> None:
    found = await compared(bootstrap, source, lambda rows: rows.__delitem__(slice(first, first + count)))
    (difference,) = found.differences
    assert (difference.kind, difference.partition, difference.records) == ("missing", 1, count)
    assert (difference.source_offset, difference.copy_offset) == (first, first)
    assert found.same == PARTITIONS * COUNT - count


@pytest.mark.parametrize(("first", "count"), [(1_000, 1), (1_000, 700), (COUNT - 5, 5)])
async def test_repeated_records_are_found_and_the_rest_is_compared(
    bootstrap: str, source: str, first: int, count: int
) -> None:
    def repeat(rows: list[Row]) -> None:
        rows[first + count : first + count] = rows[first : first + count]

    found = await compared(bootstrap, source, repeat)
    (difference,) = found.differences
    assert (difference.kind, difference.records, found.count("twice")) == ("twice", count, count)
    assert (difference.source_offset, difference.copy_offset) == (
        min(first + count, COUNT), first + count,
    )  # fmt: skip
    assert f"source offset {first}" in difference.message
    assert found.same == PARTITIONS * COUNT


async def test_swapped_records_are_found(bootstrap: str, source: str) -> None:
    def swap(rows: list[Row]) -> None:
        rows[2_000], rows[2_001] = rows[2_001], rows[2_000]

    found = await compared(bootstrap, source, swap)
    (difference,) = found.differences
    assert (difference.kind, difference.source_offset, difference.copy_offset) == (
        "out of order",
        2_000,
        2_000,
    )
    assert "source offset 2001 here" in difference.message


async def test_a_record_that_was_never_in_the_source_is_found(bootstrap: str, source: str) -> None:
    found = await compared(bootstrap, source, lambda rows: rows.insert(50, (1, b"x", b"y", ())))
    (difference,) = found.differences
    assert (difference.kind, difference.copy_offset, difference.records) == ("foreign", 50, 1)


async def test_records_of_aborted_transactions_do_not_count_as_missing(bootstrap: str) -> None:
    source, copy = f"source-{uuid.uuid4().hex[:8]}", f"copy-{uuid.uuid4().hex[:8]}"
    kept = rows(0)[1:4]
    await create_topic(bootstrap, source, 1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=source) as producer:
        for commit, (timestamp, key, value, headers) in zip((True, False, True), kept, strict=True):
            await producer.begin_transaction()
            await producer.send_and_wait(
                source, value, key=key, partition=0, timestamp_ms=timestamp, headers=list(headers)
            )
            await (producer.commit_transaction() if commit else producer.abort_transaction())
    await write(bootstrap, copy, [[kept[0], kept[2]]])
    found = await compare_topics(bootstrap, source, bootstrap, copy)
    assert (found.same, found.differences) == (2, [])
    assert (await compare_topics(bootstrap, source, bootstrap, "no-such-topic")).count("missing") == 2
