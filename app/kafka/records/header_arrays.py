"""The headers of a fetched chunk's batches as numpy columns, for audits that count without decoding.

`app.kafka.records.batch` has the layout; it reads one header at a time and explains faults.

A header has the first record's timestamp, but a later record may have a lower one. Once the records have
been read, `exact` replaces the first timestamp of a stored header with the lowest one. Such a header has a
magic number of its own, which no log has.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.kafka.records.batch import (
    COMPRESSION,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_RECORDS,
    MIN_LENGTH,
    MIN_RECORD_BYTES,
    BatchHeader,
    RecordBatch,
)

Numbers = npt.NDArray[np.int64]

_TYPES = [">i8", ">i4", ">i4", "i1", ">i4", ">i2", ">i4", ">i8", ">i8", ">i8", ">i2", ">i4", ">i4"]
LAYOUT = np.dtype(list(zip(BatchHeader._fields, _TYPES, strict=True)))
assert LAYOUT.itemsize == HEADER_BYTES

_length_at = struct.Struct(">i").unpack_from
_frame_at = struct.Struct(">i4xb").unpack_from  # length, magic
_LENGTH_AT = 8
_MAGIC_AT = 16
_EXACT_MAGIC = 3  # only in stored headers; a fetched batch with it is refused
_FIRST = struct.Struct(">q")
_FIRST_AT = 27


class BatchHeaderArrays(NamedTuple):
    """The headers of the whole batches of `data`, in order, as arrays of one length. `starts` are the
    batches' first bytes. `is_exact`: the first timestamp is the lowest of the records."""

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
    def most_records(self) -> Numbers:
        """As `BatchHeader.most_records`."""
        room = (self.length - MIN_LENGTH) // MIN_RECORD_BYTES
        return np.minimum(
            self.last_offset_delta + 1, np.where(self.attributes & COMPRESSION, MAX_BATCH_RECORDS, room)
        )

    @property
    def nbytes(self) -> Numbers:
        return self.length + LOG_OVERHEAD_BYTES

    def of(self, rows: slice | npt.NDArray[np.bool_]) -> BatchHeaderArrays:
        columns = (self.starts, self.base_offset, self.length, self.attributes, self.last_offset_delta,
                   self.first_timestamp_ms, self.max_timestamp_ms, self.record_count)  # fmt: skip
        numbers = (column[rows] for column in columns)
        return BatchHeaderArrays._make((self.data, *numbers, self.is_exact[rows]))

    def batch(self, row: int) -> RecordBatch:
        start = int(self.starts[row])
        data = self.data[start : start + int(self.length[row]) + LOG_OVERHEAD_BYTES]
        return RecordBatch(BatchHeader._make(HEADER.unpack_from(data)), data)


def headers_of(data: bytes | memoryview) -> BatchHeaderArrays | None:
    """The headers of all whole batches; a truncated last one is left out. None if some bytes are not of
    format 2 or no batch at all: `batch.iter_batches` then reads them one by one."""
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
    """A copy of a batch header that has the lowest timestamp of the records as its first one."""
    made = bytearray(head)
    made[_MAGIC_AT] = _EXACT_MAGIC
    _FIRST.pack_into(made, _FIRST_AT, lowest_ms)
    return bytes(made)


def heads_of(data: bytes) -> list[bytes] | None:
    """The header bytes of each batch. None unless `data` is nothing but whole batches of format 2."""
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
    """The arrays of batches of which only the headers are known (`HEADER_BYTES` each, also from `exact`).

    Args:
        base_offsets: Where the batches are in the log; None: at the offsets in the headers.
        cleared: Attributes that the batches in the log lack.

    Returns:
        None in the same cases as `headers_of`.
    """
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
