"""Records from any producer cost bounded memory, whatever they decompress to."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.dispatch.pump.intake import READY_LEAST_BYTES, MessageIntake
from app.kafka.append.encoder import ENCODED_RECORDS, copies
from app.kafka.fetch.decoder import OpenBatch, RecordReader, UndecodableBatch, records_of
from app.kafka.fetch.decompression import unpacked
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, PartitionFetch
from app.kafka.records.batch import iter_batches, take
from app.kafka.records.checksum import crc32c
from app.kafka.records.record import size_of
from app.kafka.records.scan import HEADER_COST_BYTES, MAX_HEADERS
from app.kernel.tracker import Tracker
from tests.kafka.fetch.test_decoder import fetched, read_all
from tests.kafka.records.batches import CODECS, ENCODERS, batch_of_packed, make_batch, packed_record

MIB = 1024 * 1024
MANY = 4_000_000
COMPRESSED = sorted(set(CODECS.values()) - {0})


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """Asserts that the block never allocates more than this at once."""
    tracemalloc.start(1)
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= nbytes


def test_four_million_empty_headers_are_never_objects_and_their_neighbours_are_read() -> None:
    """The fault: 279 bytes of them cost 294 MB."""
    poison = packed_record(1, headers=MANY)
    data = batch_of_packed(0, [packed_record(0), poison, packed_record(2)], CODECS["zstd"])
    assert len(data) < 1_000
    del poison

    with at_most(64 * MIB):
        records, (error,) = read_all(RecordReader(fetched(data, 0, 3)))

    assert [record.offset for record in records] == [0, 2]
    assert (error.start, error.end, error.raw) == (1, 2, data)
    assert f"{MANY} headers" in str(error)


def test_record_beyond_a_limit_is_kept_in_the_smaller_of_its_own_and_the_original_batch() -> None:
    rows = [packed_record(0, b"v" * 100_000), packed_record(1, headers=2 * MAX_HEADERS), packed_record(2)]

    records, (error,) = read_all(RecordReader(fetched(batch_of_packed(10, rows), 10, 13)))

    assert [record.offset for record in records] == [10, 12]
    (alone,) = iter_batches(error.raw)
    assert alone.header.record_count == 1
    assert take(error.raw, 11, 13, crc32c)[0].damage == ""
    assert len(error.raw) < 50_000
    with pytest.raises(ValueError, match="the record at 11"):
        list(records_of(alone))


def test_record_with_exactly_the_most_headers_is_read() -> None:
    data = batch_of_packed(0, [packed_record(0, headers=MAX_HEADERS)], CODECS["lz4"])

    (record,), bad = read_all(RecordReader(fetched(data, 0, 1)))

    assert bad == []
    assert len(record.headers) == MAX_HEADERS
    assert size_of(record) > 100 * MAX_HEADERS, "they count"


def test_short_records_of_headers_only_are_decoded_in_portions_with_their_cost() -> None:
    """One chunk of this many records would take 150 MB."""
    data = batch_of_packed(0, [packed_record(number, headers=900) for number in range(1_000)])
    (batch,) = iter_batches(data)
    opened, costs, read = OpenBatch(batch), list[int](), 0
    with at_most(16 * MIB):
        while opened.left:
            read += len(opened.take(1_000))
            costs.append(opened.cost_bytes)
    assert read == 1_000
    assert sum(costs) > 1_000 * 900 * HEADER_COST_BYTES


@pytest.mark.parametrize("codec", COMPRESSED)
def test_oversized_batch_is_refused_before_it_takes_memory(codec: int) -> None:
    packed = bytes(ENCODERS[codec](bytes(8 * MIB)))

    with at_most(3 * MIB), pytest.raises(ValueError, match=str(MIB)):
        unpacked(codec, packed, MIB)

    assert unpacked(codec, packed) == bytes(8 * MIB)


XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
LIES = {
    "raw, declared as 4 GB": b"\xff\xff\xff\xff\x0f",
    "a block, declared as 4 GB": XERIAL + struct.pack(">i", 5) + b"\xff\xff\xff\xff\x0f",
    "a block that goes backwards": XERIAL + struct.pack(">i", -4) + bytes(9),
    "a block that is cut off": XERIAL + struct.pack(">i", 5) + b"\x00",
    "a block without a length": XERIAL + b"\x00\x00",
}


@pytest.mark.parametrize("lie", LIES)
def test_declared_size_of_snappy_is_not_trusted(lie: str) -> None:
    with at_most(MIB), pytest.raises(ValueError, match="snappy"):
        unpacked(CODECS["snappy"], LIES[lie])


def response(budget: ByteBudget, data: bytes, end: int) -> FetchedBatches:
    """A response for a new partition."""
    part = PartitionFetch(budget, "k", "t", 0, 0)
    part.unreleased_bytes += len(data)
    budget.used_bytes += len(data)
    return FetchedBatches(part, len(data), data, end, [], end)


def unheard(error: UndecodableBatch, _: Any) -> None:
    raise error


def test_decompressed_bytes_of_many_partitions_stay_within_the_budget_and_all_are_read() -> None:
    """The fault: a hundred partitions at a ratio of 30 to 1 took 3 GB, with a budget of 256 MB."""
    count, partitions = 2_000, 50
    data = make_batch(0, [(b"k" * 100, b"v" * 1_000)] * count, codec=CODECS["zstd"])
    budget = ByteBudget(16 * MIB)
    intakes = [MessageIntake(Tracker(0, 10_000), unheard) for _ in range(partitions)]

    with at_most(60 * MIB):  # 110 MiB when all of them were kept
        for intake in intakes:
            intake.accept(response(budget, data, count))
            intake.refill()

    assert sum(len(intake.ready) for intake in intakes) > 0

    assert (
        budget.kept_bytes + budget.ready_bytes
        <= budget.capacity_bytes // 2 + partitions * 2 * READY_LEAST_BYTES
    )
    assert 0 < budget.kept_bytes <= budget.decoded_capacity_bytes
    seen = {id(intake): 0 for intake in intakes}
    while any(seen[id(intake)] < count for intake in intakes):
        for intake in intakes:
            for record in intake.ready:
                assert record.offset == seen[id(intake)]
                seen[id(intake)] += 1
            intake.ready.clear()
            intake.refill()
    for intake in intakes:
        intake.close()
    assert (budget.used_bytes, budget.kept_bytes, budget.ready_bytes, budget.held_bytes) == (0, 0, 0, 0)


def test_closed_partition_releases_its_ready_and_decompressed_bytes() -> None:
    data = make_batch(0, [(b"k", b"v" * 1_000)] * 2_000, codec=CODECS["gzip"])
    budget = ByteBudget(64 * MIB)
    intake = MessageIntake(Tracker(0, 10_000), unheard)
    intake.accept(response(budget, data, 2_000))
    intake.refill()
    assert budget.ready_bytes > 0
    assert budget.kept_bytes > 0

    intake.close()

    assert (budget.used_bytes, budget.kept_bytes, budget.ready_bytes) == (0, 0, 0)


def test_many_records_are_reencoded_in_portions() -> None:
    count = 200_000
    data = batch_of_packed(0, [packed_record(delta) for delta in range(count)], CODECS["zstd"])

    with at_most(32 * MIB):  # 100 MiB when all of them were objects at once
        found = copies(fetched(data, 0, count), 1 << 30, lambda record: record.headers)
        first, second = next(found), next(found)

    ends = [first.source_end, second.source_end, *(copy.source_end for copy in found)]
    assert ends == [*range(ENCODED_RECORDS, count, ENCODED_RECORDS), count]
