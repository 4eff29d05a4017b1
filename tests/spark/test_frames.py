"""Where a record is written, how much it needs, and that different contents have different hashes."""

from __future__ import annotations

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from app.archive.reader import ArchiveQuery
from spark.archive.frames import (
    FAR_FUTURE,
    FUTURE_MS,
    NO_TIMESTAMP,
    content,
    matching_records,
    placed,
    sizes,
    totals,
)
from spark.archive.packed import packed
from spark.quarantine import part
from tests.spark.conftest import HOUR_MS, NOON_MS, frame, row


def test_a_record_belongs_to_the_hour_of_its_timestamp_in_utc(session: SparkSession) -> None:
    rows = [row(0), row(1, at_ms=NOON_MS - 1), row(2, at_ms=NOON_MS + 12 * HOUR_MS), row(3, at_ms=0)]
    found = placed(frame(session, *rows), NOON_MS).orderBy("offset").collect()
    assert [(one["table"], one["date"], one["hour"]) for one in found] == [
        ("records", "2025-11-22", "12"),
        ("records", "2025-11-22", "11"),
        ("records", "2025-11-23", "00"),
        ("records", "1970-01-01", "00"),
    ]


def test_a_record_without_a_usable_timestamp_is_quarantined_with_its_reason(session: SparkSession) -> None:
    rows = [
        row(0),
        row(1, at_ms=-1),
        row(2, at_ms=NOON_MS + FUTURE_MS + 1),
        row(3, at_ms=NOON_MS + FUTURE_MS),
    ]
    found = placed(frame(session, *rows), NOON_MS).orderBy("offset").collect()
    assert [(one["table"], one["date"], one["hour"], one["reason"]) for one in found] == [
        ("records", "2025-11-22", "12", None),
        ("quarantine", "none", "none", NO_TIMESTAMP),
        ("quarantine", "none", "none", FAR_FUTURE),
        ("records", "2025-11-23", "12", None),
    ]
    assert [one["value"] for one in found] == [b"0-0", b"0-1", b"0-2", b"0-3"]


def test_parting_keeps_every_record_once_with_the_first_reason(session: SparkSession) -> None:
    reasons = {
        "even": f.col("offset") % 2 == 0,
        "third": f.col("offset") % 3 == 0,
        "keyed": f.col("key") == b"x",
    }
    good, bad = part(frame(session, *map(row, range(7))), reasons)
    assert sorted(one["offset"] for one in good.collect()) == [1, 5]
    assert {one["offset"]: one["reason"] for one in bad.collect()} == {
        0: "even",
        2: "even",
        3: "third",
        4: "even",
        6: "even",
    }


DIFFERENT = [
    row(0),
    row(0, key=b""),
    row(0, key=b"0"),
    row(0, b"other"),
    row(0, b""),  # no value
    row(0, headers=[("a", None)]),
    row(0, headers=[("a", b"")]),
    row(0, headers=[("a", b"1"), ("b", b"2")]),
    row(0, headers=[("b", b"2"), ("a", b"1")]),
    row(0, headers=[("ab", b"12")]),
    row(0, at_ms=NOON_MS + 1),
    row(0, b"0", key=b"-0"),
]


def test_different_contents_have_different_hashes(session: SparkSession) -> None:
    one, two = content()
    found = frame(session, *DIFFERENT).select(one, two).collect()
    assert (
        len(set(found))
        == len({each[0] for each in found})
        == len({each[1] for each in found})
        == len(DIFFERENT)
    )


def test_the_same_content_has_the_same_hash_in_any_topic_and_partition(session: SparkSession) -> None:
    one, two = content()
    rows = [row(0, b"v", at_ms=5), row(9, b"v", partition=3, at_ms=5, topic="copy", headers=[])]
    assert frame(session, *rows).select(one, two).distinct().count() == 1


@pytest.mark.parametrize("changed", [row(1, b"other"), row(2), row(0)])
def test_totals_are_those_of_the_records_in_any_order(
    session: SparkSession, changed: tuple[object, ...]
) -> None:
    rows = [row(0), row(1)]
    whole = frame(session, *rows).agg(*totals()).collect()
    assert whole == frame(session, *reversed(rows)).agg(*totals()).collect()
    assert whole != frame(session, rows[0], changed).agg(*totals()).collect()  # type: ignore[arg-type]


def test_the_needs_of_a_restore_are_those_of_the_queried_records(session: SparkSession) -> None:
    rows = [
        row(0, b"x" * 1000, key=b"k" * 10, headers=[("é", b"12"), ("b", None)]),
        row(1, b"", at_ms=-1),  # a tombstone without key and time: quarantined
        row(2, b"y" * 5000, partition=1),
        row(3, b"z" * 9000),
    ]
    files = placed(frame(session, *rows), NOON_MS)
    query = ArchiveQuery("orders", to_ms=NOON_MS + 3_000, end=4)
    first, second = sizes(matching_records(files, query)).orderBy("partition").collect()
    assert second.asDict() == {
        "partition": 1,
        "record_bytes": 5000 + 161,
        "partition_bytes": 5000 + 161,
        "keyless": 1,
        "first_ms": NOON_MS + 2_000,
        "last_ms": NOON_MS + 2_000,
    }
    largest = 161 + 1000 + 10 + (2 + 2 + 10) + (1 + 10)
    assert (first.record_bytes, first.partition_bytes, first.keyless) == (largest, largest + 161, 1)
    assert (first.first_ms, first.last_ms) == (-1, NOON_MS)
    (only,) = sizes(
        matching_records(files, ArchiveQuery("orders", partitions=frozenset({0}), start=3))
    ).collect()
    assert (only.record_bytes, only.keyless) == (9000 + 162, 1)


@pytest.mark.deep(minutes=0.2)
@pytest.mark.parametrize("size", [1, 60_000, 1_000_000])
def test_the_size_of_a_record_is_an_upper_bound_where_lz4_makes_it_larger(
    session: SparkSession, size: int
) -> None:
    one = row(0, random.Random(1).randbytes(size), key=b"k", headers=[("é", b"1"), ("b", None)])
    (needs,) = sizes(matching_records(placed(frame(session, one), NOON_MS), ArchiveQuery("orders"))).collect()
    lz4, transactional = 3, 1
    builder = DefaultRecordBatchBuilder(2, lz4, transactional, -1, -1, -1, 1)
    assert builder.append(0, NOON_MS, one[5], one[6], one[7]) is not None
    assert needs.record_bytes - 200 < len(builder.build()) <= needs.record_bytes


@pytest.mark.deep(minutes=0.1)
def test_packed_sizes_are_those_of_compressed_records(session: SparkSession) -> None:
    rows = [row(offset, b"x" * 9_000, partition=offset % 2) for offset in range(6)]
    bounds = sizes(placed(frame(session, *rows), NOON_MS)).collect()
    first, second = packed(placed(frame(session, *rows), NOON_MS), 20_000).orderBy("partition").collect()
    assert (first["partition"], second["partition"]) == (0, 1)
    assert all(100 < one["record_bytes"] <= one["partition_bytes"] < 1_000 for one in (first, second))
    assert all(one["record_bytes"] > 9_000 for one in bounds)
