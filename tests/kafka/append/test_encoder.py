"""Fetched batches become batches that a broker accepts, with every visible record unchanged."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.append import encoder
from app.kafka.append.encoder import SMALL_BYTES, copies
from app.kafka.fetch import decoder
from app.kafka.fetch.decoder import UndecodableBatch
from app.kafka.records.verbatim_copy import LOG_APPEND_TIME, TRANSACTIONAL, RecordsMissed, VerbatimCopy
from tests.kafka.fetch.test_decoder import fetched
from tests.kafka.records.batches import CODECS, make_marker
from tests.kafka.records.test_verbatim_copy import NO_LIMIT, as_logged, contents, read, rows_of, the_batch

ABORTED_PRODUCER, PRODUCER = 77, 78

batch_plans = st.fixed_dictionaries(
    {
        "before": st.integers(0, 3),  # offsets that compaction took between the batches
        "found": st.lists(contents, max_size=6),
        "gaps": st.lists(st.sampled_from([0, 0, 0, 2]), max_size=6),
        "behind": st.sampled_from([0, 0, 1]),
        "codec": st.sampled_from(sorted(CODECS.values())),
        "kind": st.sampled_from(["plain", "plain", "log append time", "committed", "aborted", "marker"]),
    }
)


def logged(
    plans: Sequence[dict[str, Any]],
) -> tuple[bytes, list[tuple[int, int]], list[tuple[Any, ...]], int]:
    """A log's bytes, its aborted transactions, the records a reader sees, and its end."""
    data, aborted, seen, offset = b"", [], [], 0
    for plan in plans:
        offset += plan["before"]
        kind, rows = plan["kind"], rows_of(plan["found"], plan["gaps"])
        if kind == "marker":
            data += make_marker(offset, ABORTED_PRODUCER)
            offset += 1
            continue
        behind = plan["behind"] if rows else plan["behind"] + 1
        options: dict[str, Any] = {"codec": plan["codec"], "taken_behind": behind}
        if kind in {"committed", "aborted"}:
            producer = ABORTED_PRODUCER if kind == "aborted" else PRODUCER
            options |= {"flags": TRANSACTIONAL, "producer": (producer, 0, 0)}
        if kind == "aborted":
            aborted.append((ABORTED_PRODUCER, offset))
        if kind == "log append time":
            options |= {"flags": LOG_APPEND_TIME, "max_timestamp_ms": 1_700_000_000_000}
        batch = as_logged(offset, rows, **options)
        data += batch
        if kind != "aborted":
            times = {"log append time": 1_700_000_000_000}
            seen += [(offset + delta, times.get(kind, row[0]), *row[1:]) for delta, *row in rows]
        offset = the_batch(batch).header.next_offset
    return data, aborted, seen, offset


@given(st.lists(batch_plans, max_size=6), st.integers(0, 30), st.sampled_from([150, 300, 2_000, NO_LIMIT]),
       st.booleans())  # fmt: skip
def test_every_visible_record_is_copied_once_in_order_and_unchanged(
    plans: list[dict[str, Any]], start: int, max_batch_bytes: int, marked: bool
) -> None:
    data, aborted, seen, end = logged(plans)
    end = max(start, end)
    edit = (lambda record: [*record.headers, ("from", str(record.offset).encode())]) if marked else None

    found = list(copies(fetched(data, start, end, aborted), max_batch_bytes, edit))

    expected = [row for row in seen if row[0] >= start]
    came: list[tuple[Any, ...]] = []
    position = start
    for copy in found:
        header = the_batch(copy.data).header
        rows = read(copy.data)
        # what LogValidator wants of a producer
        assert header.record_count == header.last_offset_delta + 1 == copy.record_count == len(rows) > 0
        assert not header.is_control
        assert not header.attributes & LOG_APPEND_TIME
        assert len(copy.data) <= max_batch_bytes or copy.record_count == 1
        # the map
        assert copy.source_start == position < copy.source_end <= end
        position = copy.source_end
        of_range = [row[0] for row in expected if copy.source_start <= row[0] < copy.source_end]
        assert len(of_range) == copy.record_count
        came += [(offset, *row[1:]) for offset, row in zip(of_range, rows, strict=True)]
    if marked:
        expected = [(*row[:4], [*row[4], ("from", str(row[0]).encode())]) for row in expected]
    assert came == expected


def test_verbatim_batch_shares_the_fetched_bytes_even_in_a_transaction() -> None:
    row: Any = (1_000, b"k", b"v" * SMALL_BYTES, [])
    data = as_logged(5, rows_of([row] * 3)) + as_logged(
        8, rows_of([row]), flags=TRANSACTIONAL, producer=(PRODUCER, 0, 0)
    )
    source = fetched(data, 5, 9)
    found = list(copies(source, NO_LIMIT))
    assert [copy.source_end for copy in found] == [8, 9]
    assert all(isinstance(copy.data, memoryview) and copy.data.obj is source.data for copy in found)


def test_small_contiguous_batches_are_merged_with_the_gaps_between_them() -> None:
    row: Any = (1_000, b"k", b"v" * 100, [("h", b"1")])
    ones = [as_logged(2 * n, rows_of([row])) for n in range(50)]  # compaction took every other offset
    large = as_logged(100, rows_of([(1_000, None, b"v" * SMALL_BYTES, [])]))
    data = b"".join([*ones, large])
    joined, whole = copies(fetched(data, 0, 101), NO_LIMIT)
    assert (joined.record_count, joined.source_start, joined.source_end) == (50, 0, 99)
    assert [row[1:] for row in read(joined.data)] == [row] * 50
    assert (whole.record_count, whole.source_start, whole.source_end) == (1, 99, 101)
    assert len(list(copies(fetched(data, 0, 101), 1_000))) > 5, "never more than the destination takes"


def test_compressed_batches_are_not_merged() -> None:
    row: Any = (1_000, b"k", b"v", [])
    packed = [as_logged(at, rows_of([row]), codec=CODECS["gzip"]) for at in (2, 3)]
    data = b"".join([as_logged(0, rows_of([row])), as_logged(1, rows_of([row])), *packed])
    found = list(copies(fetched(data, 0, 4), NO_LIMIT))
    assert [(copy.source_start, copy.source_end) for copy in found] == [(0, 2), (2, 3), (3, 4)]
    assert [bytes(copy.data) for copy in found[1:]] == packed


@pytest.mark.parametrize("codec", sorted(CODECS.values()))
def test_record_without_a_timestamp_has_none_in_its_copy(codec: int) -> None:
    """The first of a batch got that of the next, as the builder takes -1 for none given yet."""
    rows = rows_of([(time, b"k", b"v", []) for time in (7, -1, 9, -1)])
    data = as_logged(0, rows, codec=codec)
    (copy,) = copies(fetched(data, 1, 4), NO_LIMIT)
    assert [row[1] for row in read(copy.data)] == [-1, 9, -1]
    assert the_batch(copy.data).header.max_timestamp_ms == 9
    (timeless,) = copies(
        fetched(as_logged(0, rows[3:], codec=codec), 3, 4), NO_LIMIT, lambda record: record.headers
    )
    assert [row[1] for row in read(timeless.data)] == [-1]


def test_reencoded_records_can_be_read_again_from_the_source() -> None:
    rows: list[Any] = [(1_000 + n, b"k%d" % n, b"v" * 50, [("h", b"1")]) for n in range(9)]
    data = b"".join(as_logged(at, rows_of(rows[at : at + 3])) for at in (0, 3, 6))
    for source, limit in ((data, NO_LIMIT), (data, 200), (as_logged(0, rows_of(rows)), 300)):
        read_again: list[Any] = []
        for copy in copies(fetched(source, 0, 9), limit):
            assert copy.read_again is not None
            read_again += copy.read_again()
        assert read_again == [(at, (*row[:3], tuple(row[3]))) for at, row in enumerate(rows)]


def test_small_batches_stay_as_they_are_when_one_cannot_be_decoded() -> None:
    row: Any = (1_000, b"k", b"v", [])
    good, broken, other = (bytearray(as_logged(at, rows_of([row]))) for at in range(3))
    broken[61] = 0x7E  # the record's length
    found = list(copies(fetched(bytes(good + broken + other), 0, 3), NO_LIMIT))
    assert [bytes(copy.data) for copy in found] == [good, broken, other]
    assert [(copy.source_start, copy.source_end) for copy in found] == [(0, 1), (1, 2), (2, 3)]


def test_divided_batch_keeps_its_compression_and_has_as_few_pieces_as_needed() -> None:
    rows = rows_of([(1_000 + n, b"k", bytes([n]) * 5_000, []) for n in range(16)])
    data = as_logged(0, rows, codec=CODECS["zstd"])
    assert len(data) < 2_000
    (whole,) = copies(fetched(data, 0, 16), 2_000, lambda record: record.headers)
    assert the_batch(whole.data).header.compression == CODECS["zstd"]
    halves = list(copies(fetched(data, 0, 16), len(whole.data) - 1))
    assert [(copy.record_count, copy.source_start, copy.source_end) for copy in halves] == [
        (8, 0, 8),
        (8, 8, 16),
    ]
    assert {the_batch(copy.data).header.compression for copy in halves} == {CODECS["zstd"]}


def test_undecodable_offsets_are_named_after_the_copies_before_them() -> None:
    row: Any = (1_000, b"k", b"v", [])
    broken = bytearray(as_logged(3, rows_of([row] * 4, [0, 0, 1]), codec=CODECS["gzip"]))
    broken[70:75] = b"\xff" * 5
    came: list[VerbatimCopy] = []
    with pytest.raises(UndecodableBatch) as caught:
        came.extend(copies(fetched(as_logged(0, rows_of([row] * 3)) + bytes(broken), 0, 8), NO_LIMIT))
    assert (caught.value.start, caught.value.end) == (3, 8)
    damaged = fetched(bytes(broken), 3, 8)
    damaged.damage = "its checksum does not match"
    with pytest.raises(UndecodableBatch) as caught:
        next(copies(damaged, NO_LIMIT))
    assert (caught.value.start, caught.value.end) == (3, 8)


EDGES = [-(1 << 63), -2, -1, 0, 1, (1 << 63) - 2, (1 << 63) - 1]
edges = st.sampled_from(EDGES)
strange = st.fixed_dictionaries(
    {
        "found": st.lists(contents, min_size=1, max_size=4),
        "gaps": st.lists(st.sampled_from([0, 0, 2]), max_size=4),
        "codec": st.sampled_from(sorted(CODECS.values())),
        "times": st.none() | st.tuples(edges, edges),  # the first timestamp, the greatest
        "counts": st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),  # last delta, records
        "bytes": st.lists(st.tuples(st.integers(61, 200), st.integers(0, 255)), max_size=3),
    }
)


def written_by_a_stranger(base_offset: int, plan: dict[str, Any]) -> bytes:
    """A batch that brokers take, whatever is in it: its checksum is right, and its offsets are its own."""
    batch = bytearray(as_logged(base_offset, rows_of(plan["found"], plan["gaps"]), codec=plan["codec"]))
    if plan["times"] is not None:
        struct.pack_into(">qq", batch, 27, *plan["times"])
    if plan["counts"] is not None:
        last_delta, count = plan["counts"]
        struct.pack_into(">i", batch, 23, last_delta)
        struct.pack_into(">i", batch, 57, count)
    for at, value in plan["bytes"]:
        batch[61 + (at - 61) % (len(batch) - 61)] = value
    struct.pack_into(">I", batch, 17, calc_crc32c(batch[21:]))
    return bytes(batch)


@given(st.lists(strange, min_size=1, max_size=4), st.sampled_from([150, NO_LIMIT]), st.booleans())
def test_any_batch_is_copied_or_named_and_later_batches_are_copied(
    plans: list[dict[str, Any]], max_batch_bytes: int, marked: bool
) -> None:
    data, end = b"", 0
    for plan in plans:
        batch = written_by_a_stranger(end, plan)
        data, end = data + batch, the_batch(batch).header.next_offset
    edit = (lambda record: [*record.headers, ("é", None)]) if marked else None
    position = 0
    while position < end:
        found: tuple[int, int] = (position, end)
        try:
            for _ in copies(fetched(data, position, end), max_batch_bytes, edit):
                pass
        except UndecodableBatch as error:
            found = error.start, error.end
        assert position <= found[0] < found[1] <= end, "that is what an operator skips"
        position = found[1]


def without_a_time_and_with_the_last(base_offset: int) -> bytes:
    """Records of the timestamps -1 and 2^63 - 1: of deltas that wrap around, as Java's do."""
    batch = bytearray(as_logged(base_offset, rows_of([(time, b"k", b"v", []) for time in (0, -(1 << 63))])))
    struct.pack_into(">q", batch, 27, -1)
    struct.pack_into(">I", batch, 17, calc_crc32c(batch[21:]))
    assert [row[1] for row in read(batch)] == [-1, (1 << 63) - 1]
    return bytes(batch)


def test_batch_that_cannot_be_reencoded_stays_as_it_is_or_is_named() -> None:
    """To encode a first timestamp of -1 takes all of them one later, and there is none after the last."""
    batches = [without_a_time_and_with_the_last(at) for at in (0, 2)]
    assert [bytes(copy.data) for copy in copies(fetched(b"".join(batches), 0, 4), NO_LIMIT)] == batches
    with pytest.raises(UndecodableBatch, match="OverflowError") as caught:
        list(copies(fetched(b"".join(batches), 0, 4), NO_LIMIT, lambda record: record.headers))
    assert (caught.value.start, caught.value.end) == (0, 2)


def three_small() -> bytes:
    """Batches of two records each, small enough to travel as one."""
    return b"".join(as_logged(at, rows_of([(1, b"k", b"%d" % n, []) for n in range(2)])) for at in (0, 2, 4))


def test_missing_batch_is_detected_with_its_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = encoder._joined
    monkeypatch.setattr(encoder, "_joined", lambda run, *more: joined(run[:-1], *more))
    with pytest.raises(RecordsMissed, match=r"2 records of \[0, 6\) are missing"):
        list(copies(fetched(three_small(), 0, 6), NO_LIMIT))


def test_batch_with_fewer_readable_records_than_counted_is_not_reencoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = three_small()
    whole = decoder.DefaultRecordBatch

    def all_but_one(data: bytes) -> list[Any]:
        return list(whole(data))[:-1]

    monkeypatch.setattr(decoder, "DefaultRecordBatch", all_but_one)
    found = list(copies(fetched(data, 0, 6), NO_LIMIT))
    assert [(copy.record_count, copy.source_start, copy.source_end) for copy in found] == [
        (2, 0, 2), (2, 2, 4), (2, 4, 6)
    ], "they go as they are"  # fmt: skip
    with pytest.raises(UndecodableBatch, match="1 records were read instead of 2"):
        list(copies(fetched(data, 0, 6), NO_LIMIT, lambda record: record.headers))
