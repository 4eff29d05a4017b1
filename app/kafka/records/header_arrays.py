"""The headers of a fetched chunk's batches as arrays: one walk over their lengths, then columns.

The layout is `app.kafka.records.batch`'s, which reads one header at a time and says what is wrong with one.

A header tells the first record's timestamp, and others may be lower. Once the records were looked at, a
header that is kept says the lowest in its place (`exact`): it has a format of its own, which no log has.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.kafka.records.batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MIN_LENGTH,
    BatchHeader,
    RecordBatch,
)

Numbers = npt.NDArray[np.int64]

LAYOUT = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">i4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("first_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert LAYOUT.itemsize == HEADER_BYTES
assert LAYOUT.names == BatchHeader._fields

_length_at = struct.Struct(">i").unpack_from
_frame_at = struct.Struct(">i4xb").unpack_from  # length, magic
_LENGTH_AT = 8
_MAGIC_AT = 16
_EXACT_MAGIC = 3  # of kept headers only: whatever is fetched with it is refused
_FIRST = struct.Struct(">q")
_FIRST_AT = 27


class BatchHeaderArrays(NamedTuple):
    """Of the whole batches of `data`, in order; arrays of one length. `starts`: their first bytes.
    `is_exact`: the first timestamp is the lowest of the records."""

    data: memoryview
    starts: Numbers
    base_offset: Numbers
    length: Numbers
    attributes: Numbers
    last_offset_delta: Numbers
    first_timestamp_ms: Numbers
    max_timestamp_ms: Numbers
    record_count: Numbers
    is_exact: npt.NDArray[np.bool_]

    @property
    def next_offset(self) -> Numbers:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def nbytes(self) -> Numbers:
        return self.length + LOG_OVERHEAD_BYTES

    def of(self, rows: slice | npt.NDArray[np.bool_]) -> BatchHeaderArrays:
        """Those of some rows."""
        columns = (self.starts, self.base_offset, self.length, self.attributes, self.last_offset_delta,
                   self.first_timestamp_ms, self.max_timestamp_ms, self.record_count)  # fmt: skip
        numbers = (column[rows] for column in columns)
        return BatchHeaderArrays._make((self.data, *numbers, self.is_exact[rows]))

    def batch(self, row: int) -> RecordBatch:
        """A batch with its header and its bytes."""
        start = int(self.starts[row])
        data = self.data[start : start + int(self.length[row]) + LOG_OVERHEAD_BYTES]
        return RecordBatch(BatchHeader._make(HEADER.unpack_from(data)), data)


def headers_of(data: bytes | memoryview) -> BatchHeaderArrays | None:
    """The headers of all whole batches; a truncated last one is left out. None: something in it is not of
    format 2, or no batch at all, and has to be looked at one by one (`record_batch.iter_batches`)."""
    starts: list[int] = []
    append, at, last = starts.append, 0, len(data) - HEADER_BYTES
    while at <= last:
        (length,) = _length_at(data, at + _LENGTH_AT)
        if length < MIN_LENGTH:
            return None
        append(at)
        at += LOG_OVERHEAD_BYTES + length
    if at > len(data):
        at = starts.pop()
    heads = b"".join([data[start : start + HEADER_BYTES] for start in starts])
    return _columns(memoryview(data), np.array(starts, dtype=np.int64), heads)


def exact(head: bytes, lowest_ms: int) -> bytes:
    """A batch's header with the lowest timestamp of its records, which is kept instead of its own."""
    made = bytearray(head)
    made[_MAGIC_AT] = _EXACT_MAGIC
    _FIRST.pack_into(made, _FIRST_AT, lowest_ms)
    return bytes(made)


def heads_of(data: bytes) -> list[bytes] | None:
    """The headers of whole batches, `HEADER_BYTES` each, cheaply. None: not all are of format 2."""
    heads: list[bytes] = []
    append, at, last = heads.append, 0, len(data) - HEADER_BYTES
    while at <= last:
        length, magic = _frame_at(data, at + _LENGTH_AT)
        if magic != MAGIC or length < MIN_LENGTH:
            return None
        append(data[at : at + HEADER_BYTES])
        at += LOG_OVERHEAD_BYTES + length
    return heads if at == len(data) else None


def headers_of_heads(
    heads: Sequence[bytes], base_offsets: Sequence[int] | None = None, cleared: int = 0
) -> BatchHeaderArrays | None:
    """Of batches of which only the headers (`HEADER_BYTES` each, `exact` ones too) are known: as they are in
    a log where they have these base offsets (None: those that they say), and lack the `cleared` attributes.
    None as in `headers_of`."""
    data = b"".join(heads)
    starts = np.arange(len(heads), dtype=np.int64) * HEADER_BYTES
    found = _columns(memoryview(data), starts, data, may_be_exact=True)
    if found is None or base_offsets is None:
        return found
    base_offset = np.array(base_offsets, dtype=np.int64)
    return found._replace(base_offset=base_offset, attributes=found.attributes & ~cleared)


def _columns(
    data: memoryview, starts: Numbers, heads: bytes, *, may_be_exact: bool = False
) -> BatchHeaderArrays | None:
    table = np.frombuffer(heads, dtype=LAYOUT)
    is_exact = (table["magic"] == _EXACT_MAGIC) & may_be_exact
    if ((table["magic"] != MAGIC) & ~is_exact).any() or (table["last_offset_delta"] < 0).any():
        return None
    columns = (table[name].astype(np.int64) for name in BatchHeaderArrays._fields[2:-1])
    return BatchHeaderArrays._make((data, starts, *columns, is_exact))
