"""Kafka's record batch header (format v2), read without decoding a record.

    base offset @0 (8)  length @8 (4)  leader epoch @12 (4)  magic @16 (1)  crc32c @17 (4)
    attributes @21 (2)  last offset delta @23 (4)  first timestamp @27 (8)  max timestamp @35 (8)
    producer id @43 (8)  producer epoch @51 (2)  base sequence @53 (4)  count @57 (4)   records @61

Source: Apache Kafka's protocol guide, "Record Batch". `length` counts from the leader epoch on. A fetch
response may end within a batch; that piece is left out, because the next fetch returns the whole batch.

Kafka 0.11 replaced formats 0 and 1. Switchyard does not read their messages
(docs/decisions/012-record-formats-0-and-1.md) but finds where they end:

    offset @0 (8)  length @8 (4)  crc32 of the rest @12 (4)  magic @16 (1)  attributes, key, value

A compressed message contains other messages and has the offset of the last one.

Rules for damage (`take`, tests/kafka/records/test_damage.py)
1. Before the checksum matches, only length and magic count, to find the next batch, and the batch's end if it
   equals the log end that the broker reported. The checksum does not cover base offset and length.
2. Offsets only grow. If two neighbours contradict each other, the one that begins at the previous batch's
   end is right.
3. A damaged batch ends where the next sound batch begins, or at the reported log end (rule 1). Until that
   batch is known, the damage stays unread, so that no sound offset is skipped with it.
4. A sound message of format 0 or 1 ends one past its offset, although its checksum does not cover that
   offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD_BYTES = 12  # base offset and length
CHECKED_FROM = 21  # the checksum covers the attributes and all bytes after them
MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES
COMPRESSION = 0x07  # of the attributes
MIN_RECORD_BYTES = 7  # seven fields of one byte
MAX_BATCH_RECORDS = 1_000_000  # of a batch read as a whole; their objects may take 100 MB
MAGIC = 2
OLD_PIECE_BYTES = 512 * 1024  # messages of format 0 or 1 in one piece; fits into a dead letter
MAX_BATCH_BYTES = 1 << 30  # Kafka's sizes are signed 32 bit; a larger length is garbage

_MAGIC_AT = 16
_OLD_HEAD = struct.Struct(">qiIb")  # offset, length, checksum, magic
_OLD_MIN_LENGTH = 14  # a message of format 0 without key and value
_CRC, _CRC_AT = struct.Struct(">I"), 17
_PRODUCER, _PRODUCER_AT = struct.Struct(">qhi"), 43  # id, epoch, base sequence

assert HEADER_BYTES == 61


class CorruptBatch(ValueError):
    """Bytes that cannot be a record batch. The message has their position in the buffer."""


class BatchHeader(NamedTuple):
    """The fields of a batch header, with offsets and counts as they are in the log."""

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
        """The first offset after the batch, even if compaction removed its last records."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def most_records(self) -> int:
        """As many records as its offsets and its bytes have room for; its own count may be forged."""
        room = (self.length - MIN_LENGTH) // MIN_RECORD_BYTES
        return max(0, min(self.last_offset_delta + 1, MAX_BATCH_RECORDS if self.compression else room))

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)


class RecordBatch(NamedTuple):
    """A header, and the bytes of the whole batch, header included."""

    header: BatchHeader
    data: memoryview


def iter_batches(buffer: bytes | memoryview) -> Iterator[RecordBatch]:
    """The complete batches of `buffer`, in order; a truncated last one is left out. A message of format 0 or
    1 also counts as a batch, although nothing can decode it. Raises CorruptBatch: a length, an end or a magic
    that no batch can have."""
    at = 0
    for batch in _framed(memoryview(buffer)):
        header = batch.header
        if not 0 <= header.magic <= MAGIC:
            raise CorruptBatch(f"{why_unreadable(header.magic)} (at byte {at})")
        if header.last_offset_delta < 0:
            raise CorruptBatch(f"the batch at byte {at} ends before it begins")
        yield batch
        at += len(batch.data)


def why_unreadable(magic: int) -> str:
    """The fault of a format other than `MAGIC` and its remedy; "" for `MAGIC`."""
    if magic == MAGIC:
        return ""
    if not 0 <= magic < MAGIC:
        return f"magic {magic}; only format {MAGIC} is read"
    return (
        f"record format {magic}, from before Kafka 0.11, is not read; copy the topic with MirrorMaker 2, or "
        f"with a consumer and a producer, which writes format {MAGIC}, and use the copy"
    )


def _framed(view: memoryview) -> Iterator[RecordBatch]:
    at, size = 0, len(view)
    while size - at > _MAGIC_AT:
        if view[at + _MAGIC_AT] < MAGIC:
            offset, length, crc, magic = _OLD_HEAD.unpack_from(view, at)
            header = BatchHeader(offset, length, -1, magic, crc, 0, 0, -1, -1, -1, -1, -1, 1)
            least = _OLD_MIN_LENGTH
        elif size - at >= HEADER_BYTES:
            header, least = BatchHeader._make(HEADER.unpack_from(view, at)), MIN_LENGTH
        else:
            return
        if not least <= header.length <= MAX_BATCH_BYTES:
            raise CorruptBatch(f"length {header.length} at byte {at} cannot be a record batch's")
        end = at + LOG_OVERHEAD_BYTES + header.length
        if end > size:
            return
        yield RecordBatch(header, view[at:end])
        at = end


def seal(batch: bytearray, checksum: Callable[..., int]) -> None:
    """Writes the CRC-32C of a whole batch's present content into it."""
    with memoryview(batch) as view, view[CHECKED_FROM:] as checked:
        crc = checksum(checked)
    _CRC.pack_into(batch, _CRC_AT, crc)


def set_producer(
    batch: bytearray, producer_id: int, epoch: int, sequence: int, checksum: Callable[..., int]
) -> None:
    """Writes a producer's identity into a whole batch. `sequence` belongs to the first record."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, epoch, sequence)
    seal(batch, checksum)


class ResponsePiece(NamedTuple):
    """Bytes of a response that hold the offsets below `next_offset`. `damage` says why they cannot be
    read, "" if they can. `leader_epoch` is the highest one of the batches, -1 if they have none."""

    start_byte: int
    end_byte: int
    next_offset: int
    damage: str
    leader_epoch: int = -1


def take(
    buffer: bytes | memoryview, position: int, log_end: int, checksum: Callable[..., int]
) -> list[ResponsePiece]:
    """Divides the response to a fetch at `position` into pieces, up to the first damage.

    The pieces are sound batches, messages of format 0 or 1, and the damaged batch if its end is known. The
    next fetch returns the rest. An empty list means that the response has nothing from `position` on.

    Args:
        log_end: The log's end, as the broker reported it.
        checksum: CRC-32C of bytes.

    Raises:
        CorruptBatch: The response begins with a damaged batch whose end offset is not known.
    """
    batches: list[RecordBatch] = []
    broken = ""
    try:
        batches.extend(_framed(memoryview(buffer)))
    except CorruptBatch as error:
        broken = str(error)
    faults = [_fault(batch, checksum) for batch in batches]
    lowest = _lowest_behind(batches, faults)
    pieces: list[ResponsePiece] = []
    start_byte = at = 0
    next_offset, epoch = position, -1
    for index, batch in enumerate(batches):
        moved, header = next_offset > position, batch.header
        fault = faults[index] or _contradiction(header, next_offset, moved, lowest[index])
        if not fault and header.magic == MAGIC:
            next_offset = max(next_offset, header.next_offset)
            epoch = max(epoch, header.leader_epoch)
            at += len(batch.data)
            continue
        if moved and at > start_byte:
            pieces.append(ResponsePiece(start_byte, at, next_offset, "", epoch))
            start_byte = at
        if fault:
            size, end = _end_of_damage(batches[index:], faults[index:], next_offset, moved, lowest[index])
            if end < 0 and at + size == len(buffer) and header.next_offset == log_end > next_offset:
                end = log_end  # the broker reported this end
            if end > next_offset:
                return [*pieces, ResponsePiece(at, at + size, end, fault)]
            if pieces:
                return pieces
            if end < 0:
                raise CorruptBatch(f"{fault}; where it ends is not known (base offset {header.base_offset})")
        elif header.next_offset > next_offset:
            _add_old(pieces, at, at + len(batch.data), header)
            next_offset = header.next_offset
        start_byte = at = at + len(batch.data)  # an empty batch, or one below `position`
    if next_offset > position and at > start_byte:
        pieces.append(ResponsePiece(start_byte, at, next_offset, "", epoch))
    if broken and not pieces:
        raise CorruptBatch(broken)
    return pieces


def _add_old(pieces: list[ResponsePiece], start_byte: int, end_byte: int, header: BatchHeader) -> None:
    """Adds a sound message of format 0 or 1, to the last piece if that holds such messages and has room."""
    damage = why_unreadable(header.magic)
    if pieces and pieces[-1].damage == damage and end_byte - pieces[-1].start_byte <= OLD_PIECE_BYTES:
        start_byte = pieces.pop().start_byte
    pieces.append(ResponsePiece(start_byte, end_byte, header.next_offset, damage))


def _fault(batch: RecordBatch, checksum: Callable[..., int]) -> str:
    """Why a batch is damaged; "" for a sound batch, and for a sound message of format 0 or 1."""
    header = batch.header
    if not 0 <= header.magic <= MAGIC:
        return why_unreadable(header.magic)
    if not is_sound(batch, checksum):
        return "its checksum does not match"
    return "it ends before it begins" if header.last_offset_delta < 0 else ""


def is_sound(batch: RecordBatch, checksum: Callable[..., int]) -> bool:
    """Whether a batch's checksum matches. `checksum` is CRC-32C; formats 0 and 1 use CRC-32."""
    header, data = batch
    if header.magic < MAGIC:
        return crc32(data[_MAGIC_AT:]) == header.crc
    return checksum(data[CHECKED_FROM:]) == header.crc & 0xFFFFFFFF


def _lowest_behind(batches: Sequence[RecordBatch], faults: Sequence[str]) -> list[int]:
    """For each batch, the lowest base offset of the sound batches after it; -1 if there are none."""
    found, lowest = [-1] * len(batches), -1
    for index in range(len(batches) - 1, -1, -1):
        found[index] = lowest
        if not faults[index]:
            base_offset = batches[index].header.base_offset
            lowest = base_offset if lowest < 0 else min(lowest, base_offset)
    return found


def _contradiction(header: BatchHeader, next_offset: int, moved: bool, lowest_behind: int) -> str:
    """Why a batch with a matching checksum cannot follow batches that end at `next_offset` (rule 2)."""
    if moved and header.base_offset < next_offset:
        return f"its base offset {header.base_offset} is below {next_offset}, where the batch before it ends"
    if header.base_offset > next_offset and next_offset <= lowest_behind < header.next_offset:
        return f"its offsets go beyond {lowest_behind}, where a later batch begins"
    return ""


def _end_of_damage(
    batches: Sequence[RecordBatch], faults: Sequence[str], next_offset: int, moved: bool, lowest_behind: int
) -> tuple[int, int]:
    """Bytes and end offset of the damage that begins with the first batch; -1: unknown end (rule 3)."""
    size = len(batches[0].data)
    for batch, fault in zip(batches[1:], faults[1:], strict=True):
        base_offset = batch.header.base_offset
        if not fault and (base_offset >= next_offset or not moved):
            return size, max(next_offset, lowest_behind if lowest_behind >= next_offset else base_offset)
        size += len(batch.data)
    return size, -1


class ReadCommittedFilter:
    """Hides aborted transactions and control batches of one fetch response (read_committed, KIP-98).
    `aborted` lists (producer id, first offset) of the aborted transactions that overlap the response. From
    that offset on, the producer's transactional batches are hidden up to its abort marker."""

    __slots__ = ("_aborted", "_aborting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._aborted = sorted(aborted, key=lambda entry: -entry[1])  # the next one is last
        self._aborting: set[int] = set()

    def shows(self, batch: RecordBatch) -> bool:
        """Whether the batch's records are visible. Call it once for each batch, in order."""
        header = batch.header
        while self._aborted and self._aborted[-1][1] <= header.base_offset:
            self._aborting.add(self._aborted.pop()[0])
        if header.is_control:
            # A commit or abort marker: later batches of this producer belong to another transaction.
            self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)
