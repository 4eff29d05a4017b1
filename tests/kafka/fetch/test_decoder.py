"""Raw bytes become the visible records, once, in chunks of any size; damage is reported and skipped."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.fetch.decoder import RecordReader, UndecodableBatch
from app.kafka.fetch.decompression import MAX_DECOMPRESSED_BYTES
from app.kafka.fetch.deliveries import PARTITION_MAX_BYTES, ByteBudget, FetchedBatches, PartitionFetch
from app.kafka.fetch.service import FetchService
from app.kafka.records.batch import CorruptBatch, take
from app.kafka.records.record import Record
from tests.kafka.records.batches import CODECS, LAST_DELTA_AT, LENGTH_AT, make_batch, make_marker, patched

CRC_AT, RECORDS_AT = 17, 61


def fetched(
    data: bytes, start: int = 0, end: int = 10**6, aborted: list[tuple[int, int]] | None = None
) -> FetchedBatches:
    """A response made by hand."""
    part = PartitionFetch(ByteBudget(10**9), "k", "t", 0, start)
    return FetchedBatches(part, len(data), data, end, aborted or [], end)


def read_all(reader: RecordReader, limit: int = 1000) -> tuple[list[Record], list[UndecodableBatch]]:
    """All records and errors of a reader; fails if the reader never ends."""
    records: list[Record] = []
    bad: list[UndecodableBatch] = []
    for _ in range(10_000):
        if reader.exhausted:
            return records, bad
        before = reader.next_offset
        try:
            records += reader.read(limit)
        except UndecodableBatch as error:
            bad.append(error)
        assert reader.next_offset >= before
    raise AssertionError("the reader never ends")


batches = st.lists(
    st.tuples(
        st.integers(0, 2),  # offsets compaction took before it
        st.integers(1, 6),  # records
        st.integers(0, 2),  # offsets compaction took at its end
        st.sampled_from(sorted(CODECS.values())),
        st.sampled_from(["plain", "aborted", "marker"]),
    ),
    max_size=6,
)


@given(batches, st.integers(1, 8), st.integers(0, 60))
def test_visible_records_are_read_once_and_in_order_in_chunks_of_any_size(
    plan: list[Any], limit: int, start: int
) -> None:
    data, offset, expected, aborts = b"", 0, [], []
    for number, (before, count, after, codec, kind) in enumerate(plan):
        offset += before
        if kind == "marker":
            data += make_marker(offset, 999)
            offset += 1
            continue
        rows = [(None, str(offset + index).encode()) for index in range(count)]
        aborted = kind == "aborted"
        batch = make_batch(
            offset, rows, codec=codec, transactional=aborted, producer_id=number if aborted else -1
        )
        aborts += [(number, offset)] if aborted else []
        if after:
            batch = with_crc(patched(batch, LAST_DELTA_AT, ">i", count - 1 + after))
        data += batch
        expected += [] if aborted else [offset + index for index in range(count)]
        offset += count + after
    reader = RecordReader(fetched(data, start, max(start, offset), aborts))

    records, bad = read_all(reader, limit)

    assert bad == []
    assert [record.offset for record in records] == [offset for offset in expected if offset >= start]
    assert [int(record.value or b"") for record in records] == [record.offset for record in records]
    assert reader.next_offset == max(start, offset)


def with_crc(batch: bytes) -> bytes:
    """The batch with the checksum that belongs to it."""
    return patched(batch, CRC_AT, ">I", calc_crc32c(batch[21:]))


def flipped(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 0xFF]) + batch[at + 1 :]


ROWS = [(b"k", bytes(range(256)))] * 4
GOOD = make_batch(4, ROWS)
DAMAGED = {
    "gzip that is none": with_crc(flipped(make_batch(0, ROWS, codec=1), RECORDS_AT + 3)),
    "snappy that is none": with_crc(flipped(make_batch(0, ROWS, codec=2), RECORDS_AT)),
    "lz4 that is none": with_crc(flipped(make_batch(0, ROWS, codec=3), RECORDS_AT)),
    "zstd that is none": with_crc(flipped(make_batch(0, ROWS, codec=4), RECORDS_AT)),
    "records that are none": with_crc(make_batch(0, ROWS)[:RECORDS_AT] + b"\xff" * 1058),
    "an unknown codec": with_crc(patched(make_batch(0, ROWS), 21, ">h", 6)),
}
DAMAGED["records that are none"] = patched(
    DAMAGED["records that are none"], LENGTH_AT, ">i", len(DAMAGED["records that are none"]) - 12
)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("limit", [1, 1000])
def test_undecodable_batch_is_reported_with_its_bytes_and_reading_continues(damage: str, limit: int) -> None:
    raw = DAMAGED[damage]
    reader = RecordReader(fetched(raw + GOOD, 0, 8))

    records, bad = read_all(reader, limit)

    (error,) = bad
    assert error.end == 4
    assert error.raw == raw
    reported = set(range(error.start, error.end))
    assert reported | {record.offset for record in records} == set(range(8))
    assert [record.offset for record in records if record.offset >= 4] == [4, 5, 6, 7]
    assert reader.next_offset == 8


def test_damaged_batch_is_reported_only_from_the_position_on() -> None:
    reader = RecordReader(fetched(DAMAGED["records that are none"] + GOOD, 2, 8))

    _, (error,) = read_all(reader)

    assert (error.start, error.end) == (2, 4)


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1])
def test_impossible_length_makes_the_rest_of_the_response_undecodable(length: int) -> None:
    data = make_batch(0, ROWS) + patched(GOOD, LENGTH_AT, ">i", length)
    reader = RecordReader(fetched(data, 0, 8))

    records, (error,) = read_all(reader)

    assert [record.offset for record in records] == [0, 1, 2, 3]
    assert (error.start, error.end, error.raw) == (4, 8, data)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, 4))
def test_no_damaged_byte_crashes_reading_or_shows_false_records(at: int, value: int, codec: int) -> None:
    good = make_batch(0, ROWS, codec=codec)
    damaged = patched(good, min(at, len(good) - 1), ">B", value)
    data = damaged + GOOD
    try:
        pieces = take(data, 0, 8, calc_crc32c)
    except CorruptBatch:
        return  # reported by the fetch; nothing is read

    for piece in pieces:
        response = fetched(data[piece.start_byte : piece.end_byte], 0, piece.next_offset)
        response.damage = piece.damage
        records, _ = read_all(RecordReader(response))

        # Base offset, leader epoch and a cut-off tail are beyond the checksum.
        assert {record.value for record in records} <= {ROWS[0][1]}


async def test_sound_batches_are_delivered_before_bytes_that_are_not_a_batch() -> None:
    delivered: list[FetchedBatches] = []

    async def keep(item: Any) -> None:
        delivered.append(item)

    service = FetchService(ClusterClient(ClusterSpec("none", ("h:1",))), keep, ByteBudget(10**9))
    part = PartitionFetch(service.budget, "k", "t", 0, 0)
    garbage = patched(GOOD, LENGTH_AT, ">i", -1)

    await service._deliver_data(part, make_batch(0, ROWS) + garbage, [])
    (fetched_now,) = delivered
    records, bad = read_all(RecordReader(fetched_now))
    assert ([record.offset for record in records], bad, part.next_offset) == ([0, 1, 2, 3], [], 4)

    await service._deliver_data(part, garbage, [])
    assert (len(delivered), part.next_offset, part.failures) == (1, 4, 1)


@pytest.mark.parametrize("delta", [0, 2, 20, 3 + (1 << 28)])
async def test_batch_with_a_damaged_header_costs_its_own_offsets_and_its_neighbours_are_read(
    delta: int,
) -> None:
    readers: list[RecordReader] = []

    async def keep(item: Any) -> None:
        readers.append(RecordReader(item))

    budget = ByteBudget(10**9)
    service = FetchService(ClusterClient(ClusterSpec("none", ("h:1",))), keep, budget)
    part = PartitionFetch(service.budget, "k", "t", 0, 0, high_watermark=12)
    damaged, behind = patched(GOOD, LAST_DELTA_AT, ">i", delta), make_batch(8, ROWS)

    await service._deliver_data(part, make_batch(0, ROWS) + damaged + behind, [])
    assert part.next_offset == 8
    await service._deliver_data(part, damaged + behind, [])  # like brokers that trust the header
    records, bad = [], []
    for reader in readers:
        found = read_all(reader)
        records += found[0]
        bad += found[1]
        reader.fetched.release()

    assert [record.offset for record in records] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert [(error.start, error.end, error.raw) for error in bad] == [(4, 8, damaged)]
    assert (part.next_offset, part.failures, budget.used_bytes) == (12, 0, 0)


async def test_damaged_batch_with_an_unknown_end_is_an_incident_until_a_batch_follows() -> None:
    delivered: list[FetchedBatches] = []

    async def keep(item: Any) -> None:
        delivered.append(item)

    service = FetchService(ClusterClient(ClusterSpec("none", ("h:1",))), keep, ByteBudget(10**9))
    part = PartitionFetch(service.budget, "k", "t", 0, 4, high_watermark=8)
    damaged = patched(GOOD, LAST_DELTA_AT, ">i", 20)

    await service._deliver_data(part, damaged, [])
    assert (delivered, part.next_offset, part.failures) == ([], 4, 1)
    assert part.max_bytes > PARTITION_MAX_BYTES  # the next batch may have been beyond the limit

    await service._deliver_data(part, damaged + make_batch(8, ROWS), [])
    (delivery,) = delivered
    _, (error,) = read_all(RecordReader(delivery))
    assert (error.start, error.end, part.next_offset, part.failures) == (4, 8, 8, 0)


def test_an_empty_response_is_exhausted_at_its_end() -> None:
    reader = RecordReader(fetched(b"", 5, 9))

    assert reader.read(10) == []
    assert (reader.exhausted, reader.next_offset) == (True, 9)


def test_a_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    first = make_batch(0, ROWS)
    reader = RecordReader(fetched(first + GOOD[:-1], 0, 4))

    records, bad = read_all(reader)

    assert ([record.offset for record in records], bad, reader.next_offset) == ([0, 1, 2, 3], [], 4)


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_batch_that_decompresses_beyond_the_limit_is_undecodable_and_the_next_is_read(
    codec: int,
) -> None:
    bomb = make_batch(0, [(None, bytes(MAX_DECOMPRESSED_BYTES))], codec=codec)
    large = make_batch(1, [(None, bytes(MAX_DECOMPRESSED_BYTES // 4))], codec=codec)

    records, bad = read_all(RecordReader(fetched(bomb + large, end=2)))

    assert [(error.start, error.end) for error in bad] == [(0, 1)]
    assert [(record.offset, len(record.value or b"")) for record in records] == [
        (1, MAX_DECOMPRESSED_BYTES // 4)
    ]
