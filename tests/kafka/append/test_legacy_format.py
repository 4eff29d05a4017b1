"""Messages of the formats 0 and 1 are copied as records of the present one, all that they hold unchanged."""

from __future__ import annotations

import gzip
import struct
from typing import Any
from zlib import crc32

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.append.encoder import copies
from app.kafka.fetch.decoder import RecordReader, UndecodableBatch
from app.kafka.fetch.decompression import MAX_DECOMPRESSED_BYTES, unpacked
from app.kafka.records.batch import iter_batches, take
from app.kafka.records.verbatim_copy import VerbatimCopy
from tests.kafka.fetch.test_decoder import fetched
from tests.kafka.records.batches import CODECS, make_batch
from tests.kafka.records.test_verbatim_copy import NO_LIMIT, read

TIME_MS = 1_500_000_000_000
Row = tuple[int, int, bytes | None, bytes | None, list[Any]]  # offset, timestamp, key, value, no headers

maybe_bytes = st.none() | st.binary(max_size=30)
contents = st.tuples(st.integers(-1, TIME_MS), maybe_bytes, maybe_bytes)
sets = st.lists(
    st.fixed_dictionaries(
        {
            "magic": st.sampled_from([0, 1]),
            "codec": st.sampled_from(["none", "gzip", "snappy", "lz4"]),
            "log append time": st.booleans(),
            "before": st.integers(0, 2),  # offsets that compaction took
            "found": st.lists(contents, min_size=1, max_size=5),
        }
    ),
    max_size=6,
)  # fmt: skip


def sealed(message: bytearray) -> bytes:
    """With the checksum that it should have."""
    struct.pack_into(">I", message, 12, crc32(message[16:]))
    return bytes(message)


def legacy(start: int, plan: dict[str, Any]) -> tuple[bytes, list[Row]]:
    """A message set as a broker keeps it, and what a reader sees of it."""
    magic, codec = plan["magic"], CODECS[plan["codec"]]
    if magic == 0 and plan["codec"] == "lz4":
        codec = 0  # there never was a sound one
    wraps, found = codec > 0, plan["found"]
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for index, (timestamp, key, value) in enumerate(found):
        relative = index if magic and wraps else start + index
        builder.append(relative, timestamp=timestamp, key=key, value=value)
    data = bytearray(builder.build())
    times = [timestamp if magic else -1 for timestamp, _, _ in found]
    if wraps:
        struct.pack_into(">q", data, 0, start + len(found) - 1)
        if magic and plan["log append time"]:
            data[17] |= 0x08
            struct.pack_into(">q", data, 18, TIME_MS)
            times = [TIME_MS] * len(found)
        data = bytearray(sealed(data))
    rows = [(start + n, times[n], key, value, []) for n, (_, key, value) in enumerate(found)]
    return bytes(data), rows


def log_of(plans: list[dict[str, Any]]) -> tuple[bytes, list[Row]]:
    """All of them one after the other, and a batch of the present format behind."""
    rows: list[Row] = []
    data, offset = b"", 0
    for plan in plans:
        offset += plan["before"]
        part, seen = legacy(offset, plan)
        data, rows, offset = data + part, rows + seen, offset + len(seen)
    batch = make_batch(offset, [(b"k", b"new")], timestamp_ms=7)
    return data + batch, [*rows, (offset, 7, b"k", b"new", [])]


@given(sets, st.integers(0, 12), st.sampled_from([150, NO_LIMIT]))
def test_every_legacy_record_is_copied_in_order_with_its_key_value_and_timestamp(
    plans: list[dict[str, Any]], start: int, max_batch_bytes: int
) -> None:
    data, rows = log_of(plans)
    end = rows[-1][0] + 1
    start = min(start, end - 1)
    came: list[Row] = []
    for copy in copies(fetched(data, start, end), max_batch_bytes):
        (batch,) = iter_batches(bytes(copy.data))
        assert batch.header.magic == 2
        found = read(copy.data)
        expected = [row for row in rows if max(start, copy.source_start) <= row[0] < copy.source_end]
        assert [row[1:] for row in found] == [row[1:] for row in expected]
        came += expected
    assert came == [row for row in rows if row[0] >= start]


@given(sets)
def test_a_reader_sees_the_same(plans: list[dict[str, Any]]) -> None:
    data, rows = log_of(plans)
    reader, found = RecordReader(fetched(data, 0, rows[-1][0] + 1)), list[Any]()
    while not reader.exhausted:
        found += reader.read(3)
    assert [(one.offset, one.timestamp, one.key, one.value) for one in found] == [row[:4] for row in rows]


@given(sets)
def test_what_is_fetched_of_them_is_taken_by_their_checksums(plans: list[dict[str, Any]]) -> None:
    data, rows = log_of(plans)
    end = rows[-1][0] + 1
    (piece,) = take(data, 0, end, calc_crc32c)
    assert (piece.start_byte, piece.end_byte, piece.next_offset, piece.damage) == (0, len(data), end, "")
    assert take(data[:-1], 0, end, calc_crc32c)[0].next_offset < end if len(rows) > 1 else True


def test_a_damaged_message_is_told_with_its_offset() -> None:
    one, _ = legacy(4, {"magic": 1, "codec": "none", "log append time": False, "found": [(1, b"k", b"v")]})
    damaged = one[:-1] + b"w"
    sound, damage = take(make_batch(3) + damaged + make_batch(5), 3, 6, calc_crc32c)
    assert (sound.next_offset, damage.next_offset) == (4, 5)
    assert "checksum" in damage.damage


def test_a_wrapper_that_cannot_be_read_is_named_and_one_without_bound_is_not_unpacked() -> None:
    plan = {"magic": 1, "codec": "gzip", "log append time": False, "found": [(1, b"k", b"v" * 100)] * 3}
    data = bytearray(legacy(4, plan)[0])
    data[-10:] = bytes(10)
    came: list[VerbatimCopy] = []
    with pytest.raises(UndecodableBatch) as caught:
        came.extend(copies(fetched(make_batch(3) + sealed(data), 3, 7), NO_LIMIT))
    assert (caught.value.start, caught.value.end) == (4, 7)
    bomb = gzip.compress(bytes(MAX_DECOMPRESSED_BYTES + 1))
    with pytest.raises(ValueError, match="more than"):
        unpacked(CODECS["gzip"], bomb)
