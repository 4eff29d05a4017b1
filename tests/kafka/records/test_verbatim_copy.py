"""A stamped batch equals the source record by record, and brokers accept it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.batch import BatchHeader, RecordBatch, iter_batches
from app.kafka.records.verbatim_copy import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    next_sequence,
    stamped,
    why_not,
)
from tests.kafka.records.batches import CODECS, CONTROL

LARGEST_SEQUENCE = (1 << 31) - 1
NO_LIMIT = 1 << 30

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]  # delta, ms, key, value, …

maybe_bytes = st.none() | st.binary(max_size=40) | st.binary(max_size=6).map(lambda part: part * 200)
one_header = st.tuples(st.sampled_from(["", "a", "b", "é"]), st.none() | st.binary(max_size=5))
headers = st.lists(one_header, max_size=3)
contents = st.tuples(st.integers(0, 4_000_000_000_000), maybe_bytes, maybe_bytes, headers)


def rows_of(found: Sequence[Any], gaps: Sequence[int] = ()) -> list[Row]:
    """Records with offset deltas; `gaps`: how many offsets compaction took before each."""
    rows: list[Row] = []
    delta = 0
    for index, content in enumerate(found):
        delta += gaps[index] if index < len(gaps) else 0
        rows.append((delta, *content))
        delta += 1
    return rows


def as_logged(
    base_offset: int, rows: Sequence[Row], *, codec: int = 0, flags: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1), taken_behind: int = 0, leader_epoch: int = 7,
    max_timestamp_ms: int | None = None,
) -> bytes:  # fmt: skip
    """A batch as it lies in a log, its checksum right. `taken_behind`: offsets compaction took at its end."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, *producer, NO_LIMIT)
    for delta, timestamp_ms, key, value, found in rows:
        builder.append(delta, timestamp_ms, key, value, found)
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)
    batch[22] |= flags
    last_delta = (rows[-1][0] if rows else -1) + taken_behind
    struct.pack_into(">i", batch, 23, last_delta)
    if max_timestamp_ms is not None:
        struct.pack_into(">q", batch, 35, max_timestamp_ms)
    struct.pack_into(">I", batch, 17, calc_crc32c(batch[21:]))
    return bytes(batch)


def the_batch(data: bytes | bytearray | memoryview) -> RecordBatch:
    """The only batch of some bytes."""
    (found,) = iter_batches(bytes(data))
    return found


def read(data: bytes | bytearray | memoryview) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value, headers) of a batch's records; its checksum must be right."""
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]


@given(
    st.lists(contents, min_size=1, max_size=8),
    st.sampled_from(sorted(CODECS.values())),
    st.sampled_from([0, TRANSACTIONAL, DELETE_HORIZON, TRANSACTIONAL | DELETE_HORIZON]),
    st.integers(0, 1 << 50),
    st.tuples(st.integers(0, 1 << 62), st.integers(0, 32767), st.integers(0, LARGEST_SEQUENCE)),
)
def test_stamped_batch_keeps_every_record_and_nothing_of_its_former_producer(
    found: list[Any], codec: int, flags: int, base_offset: int, producer: tuple[int, int, int]
) -> None:
    source = as_logged(base_offset, rows_of(found), codec=codec, flags=flags, producer=(999, 3, 12345))
    header = the_batch(source).header
    assert why_not(header, base_offset, len(source)) == ""

    copy = stamped(memoryview(source), *producer, calc_crc32c)

    expected = header._replace(
        base_offset=0, leader_epoch=-1, crc=the_batch(copy).header.crc, attributes=header.compression,
        producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2],
    )  # fmt: skip
    assert the_batch(copy).header == expected
    assert read(copy) == [(offset - base_offset, *rest) for offset, *rest in read(source)]
    assert [row[1:] for row in read(copy)] == found
    assert copy[61:] == source[61:]


def test_cleared_delete_horizon_changes_no_timestamp() -> None:
    rows: list[Row] = [
        (0, 5_000, b"k", None, []),
        (1, 6_000, b"l", b"v", []),
    ]  # the first delta is not 0 then
    horizon_first = [(0, 9_000, b"", b"", []), *[(delta + 1, *rest) for delta, *rest in rows]]
    built = bytearray(as_logged(0, horizon_first))  # type: ignore[arg-type]
    first_size = 2 + 6  # its length, attributes, two deltas, empty key and value, no headers
    tail = built[61 + 1 + built[61] // 2 :]
    assert len(tail) < len(built) - 61 <= len(tail) + first_size + 2
    # As compaction leaves it: without the first record, and with the horizon in place of its timestamp.
    source = bytearray(as_logged(40, rows, flags=DELETE_HORIZON))[:61] + tail
    struct.pack_into(">i", source, 8, len(source) - 12)
    struct.pack_into(">q", source, 27, 9_000)
    struct.pack_into(">I", source, 17, calc_crc32c(source[21:]))

    copy = stamped(source, 1, 0, 0, calc_crc32c)

    assert not the_batch(copy).header.attributes
    assert [row[1] for row in read(copy)] == [row[1] for row in read(source)] == [5_000, 6_000]


@given(st.integers(0, LARGEST_SEQUENCE), st.integers(1, 1 << 20))
def test_sequence_numbers_wrap_to_0_as_the_broker_counts(sequence: int, count: int) -> None:
    last = sequence + count - 1  # as in DefaultRecordBatch.incrementSequence
    if last > LARGEST_SEQUENCE:
        last = (count - 1) - (LARGEST_SEQUENCE - sequence) - 1
    assert next_sequence(sequence, count) == (0 if last == LARGEST_SEQUENCE else last + 1)


def _header(**changed: int) -> BatchHeader:
    return the_batch(as_logged(100, rows_of([(1_000, b"k", b"v", [])] * 3))).header._replace(**changed)


def test_batch_that_cannot_go_verbatim_has_a_reason() -> None:
    size = _header().length + 12
    assert why_not(_header(), 100, size) == ""
    for reason, header in {
        "format": _header(magic=1),
        "control": _header(attributes=CONTROL),
        "2 records for 3 offsets": _header(record_count=2),
        "0 records": _header(record_count=0),
        "append times": _header(attributes=LOG_APPEND_TIME),
    }.items():
        assert reason in why_not(header, 100, size)
    assert "before offset 101" in why_not(_header(), 101, size)
    assert str(size - 1) in why_not(_header(), 100, size - 1)
