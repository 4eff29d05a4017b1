"""Each missing record is copied once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from app.audit.counts.counter import CountingSpec
from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import ObservedRecord
from app.audit.drilldown.partition_repair import already_copied
from app.audit.drilldown.prints import EventTimeWindow, PrintReader
from app.audit.drilldown.repair import (
    BYTES_PER_TRANSACTION,
    NEAR_OFFSETS,
    RECORDS_PER_TRANSACTION,
    _chunks,
    runs_of,
    unchanged_records,
)
from app.kafka.fetch.decoder import records_of
from app.kafka.records.batch import iter_batches
from app.kafka.records.record import Record
from tests.audit.counts.logs import Log

PLACE = ClusterPartition("east", "orders", 0)


def test_a_batch_that_spans_several_runs_gives_each_record_once() -> None:
    log = Log()
    log.append([1_000] * (3 * NEAR_OFFSETS))
    (batch,) = iter_batches(log.batches[0][1])
    reader = PrintReader(PLACE, CountingSpec(records_of), EventTimeWindow(0, 2_000))
    records = {record.offset: record for record in records_of(batch)}
    missing = [0, 1, NEAR_OFFSETS + 1, NEAR_OFFSETS + 500, 3 * NEAR_OFFSETS - 1]
    seen = {
        offset: ObservedRecord(PLACE, offset, reader.contents_of(records[offset]), 0, 0, 1_000)
        for offset in missing
    }

    runs = runs_of(seen)
    assert [sorted(run) for run in runs] == [
        [0, 1, NEAR_OFFSETS + 1, NEAR_OFFSETS + 500],
        [3 * NEAR_OFFSETS - 1],
    ]
    copied = [record.offset for run in runs for record in unchanged_records(batch, run, reader)]
    assert copied == missing


def test_a_different_record_at_the_same_offset_is_not_copied() -> None:
    log = Log()
    log.append([1_000, 1_001])
    (batch,) = iter_batches(log.batches[0][1])
    reader = PrintReader(PLACE, CountingSpec(records_of), EventTimeWindow(0, 2_000))
    seen = {0: ObservedRecord(PLACE, 0, 7, 0, 0, 1_000)}
    assert unchanged_records(batch, seen, reader) == []


async def _found(*batches: tuple[list[int], int, int]) -> AsyncIterator[tuple[list[Record], int]]:
    """Each batch's offsets, bytes per record, and compression."""
    for offsets, nbytes, codec in batches:
        yield [Found(offset, b"v" * nbytes) for offset in offsets], codec


@dataclass(frozen=True)
class Found:
    """A record."""

    offset: int
    value: bytes | None
    timestamp: int = 1_000
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


async def _offsets(found: AsyncIterator[tuple[list[Record], int]], edit: Any = None) -> list[tuple[Any, int]]:
    return [([record.offset for record, _ in rows], codec) async for rows, codec in _chunks(found, edit)]


async def test_records_of_many_batches_go_in_one_transaction() -> None:
    """Each missing record is in another batch."""
    batches = [([7 * number], 10, 0) for number in range(RECORDS_PER_TRANSACTION + 3)]
    chunks = await _offsets(_found(*batches))
    assert [len(offsets) for offsets, _ in chunks] == [RECORDS_PER_TRANSACTION, 3]
    assert [offset for offsets, _ in chunks for offset in offsets] == [
        7 * n for n in range(RECORDS_PER_TRANSACTION + 3)
    ]


async def test_a_transaction_is_of_one_compression_and_of_some_bytes() -> None:
    large = BYTES_PER_TRANSACTION // 2
    found = _found(([1, 2], 10, 0), ([3], 10, 4), ([], 0, 0), ([4], 10, 4), ([5, 6, 7], large, 4))
    assert await _offsets(found) == [([1, 2], 0), ([3, 4, 5, 6], 4), ([7], 4)]
    assert await _offsets(_found()) == []

    def edit(record: Any) -> Any:
        return None if record.offset == 1 else record.headers

    assert await _offsets(_found(([1, 2], 10, 0), ([1], 10, 4)), edit) == [([2], 0)]


def test_a_copy_stands_for_one_record_of_several_partitions() -> None:
    other = ClusterPartition("west", "orders", 0)
    missing = [ObservedRecord(place, 4, 7, 0, 0, 1) for place in (other, PLACE)]
    (copy,) = [ObservedRecord(ClusterPartition("east", "copy", 0), 99, 7, 0, 0, 1)]
    assert already_copied(missing, [copy]) == {(PLACE, 4)}
    assert already_copied(missing, [copy, copy, copy]) == {(PLACE, 4), (other, 4)}
