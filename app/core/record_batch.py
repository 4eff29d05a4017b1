"""Kafka's record batch header (format v2), read without decoding a record.

    base offset @0 (8)  length @8 (4)  leader epoch @12 (4)  magic @16 (1)  crc32c @17 (4)
    attributes @21 (2)  last offset delta @23 (4)  first timestamp @27 (8)  max timestamp @35 (8)
    producer id @43 (8)  producer epoch @51 (2)  base sequence @53 (4)  count @57 (4)   records @61

Source: Apache Kafka's protocol guide, "Record Batch". `length` counts from the leader epoch on. A fetch
response may end in the middle of a batch; that piece is left out, it comes again with the next fetch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD_BYTES = 12  # base offset and length
MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES
MAGIC = 2
MAX_BATCH_BYTES = 1 << 30  # Kafka's own sizes are signed 32 bit; beyond this it is garbage

assert HEADER_BYTES == 61


class CorruptBatch(ValueError):
    """Bytes that cannot be a record batch, with the position in the buffer."""


class BatchHeader(NamedTuple):
    """The fields of a batch's header; offsets and counts as in the log."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def next_offset(self) -> int:
        """The first offset after the batch, also when compaction took its last records."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 0x07

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)


class Batch(NamedTuple):
    """A header and the whole batch's bytes, header included."""

    header: BatchHeader
    data: memoryview


def iter_batches(buffer: bytes | memoryview) -> Iterator[Batch]:
    """The complete batches of `buffer`, in order; a truncated last one is left out.

    Raises:
        CorruptBatch: a length or magic that no batch can have.
    """
    view = memoryview(buffer)
    at, size = 0, len(view)
    while size - at >= HEADER_BYTES:
        header = BatchHeader._make(HEADER.unpack_from(view, at))
        if header.magic != MAGIC:
            raise CorruptBatch(f"magic {header.magic} at byte {at}; only record batches of format 2 are read")
        if not MIN_LENGTH <= header.length <= MAX_BATCH_BYTES or header.last_offset_delta < 0:
            raise CorruptBatch(f"length {header.length} at byte {at} cannot be a record batch's")
        end = at + LOG_OVERHEAD_BYTES + header.length
        if end > size:
            return
        yield Batch(header, view[at:end])
        at = end


class Committed:
    """The read_committed filter over the batches of one fetch response.

    Source: KIP-98. `aborted` lists (producer id, first offset) of aborted transactions that overlap the
    response; a transactional batch of such a producer is skipped from that offset on until its abort
    marker. Control batches are never shown.
    """

    __slots__ = ("_aborted", "_aborting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._aborted = sorted(aborted, key=lambda entry: -entry[1])  # the next one last
        self._aborting: set[int] = set()

    def shows(self, batch: Batch) -> bool:
        """Whether the batch's records are to be seen; call once a batch, in order."""
        header = batch.header
        while self._aborted and self._aborted[-1][1] <= header.base_offset:
            self._aborting.add(self._aborted.pop()[0])
        if header.is_control:
            # Commit or abort marker: either way, what follows is another transaction.
            self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


def end_of(batches: Sequence[Batch], position: int) -> int:
    """The next offset to fetch after `batches` when `position` was asked for."""
    return max(position, batches[-1].header.next_offset) if batches else position
