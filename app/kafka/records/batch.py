"""Kafka's record batch header (format v2), read without decoding a record.

    base offset @0 (8)  length @8 (4)  leader epoch @12 (4)  magic @16 (1)  crc32c @17 (4)
    attributes @21 (2)  last offset delta @23 (4)  first timestamp @27 (8)  max timestamp @35 (8)
    producer id @43 (8)  producer epoch @51 (2)  base sequence @53 (4)  count @57 (4)   records @61

Source: Apache Kafka's protocol guide, "Record Batch". `length` counts from the leader epoch on. A fetch
response may end in the middle of a batch; that piece is left out, it comes again with the next fetch.
Messages of the formats 0 and 1 (logs from before Kafka 0.11) are framed as batches, too (legacy_batch).

Damage (`take`)
1. Nothing of a header is believed before the checksum matches; base offset and length lie outside of it.
2. Offsets only grow. Where two neighbours contradict each other, the one is right that begins where the
   offsets before it end.
3. A damaged batch ends where its next sound neighbour begins. Until that is known it stays where it is:
   its neighbours' offsets are never passed over with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from app.kafka.records import legacy_format

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LOG_OVERHEAD_BYTES = 12  # base offset and length
CHECKED_FROM = 21  # what the checksum covers: from the attributes on
MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES
MAGIC = 2
FORMATS = range(MAGIC + 1)
LEGACY_BYTES = 64 * 1024
MAX_BATCH_BYTES = 1 << 30  # Kafka's own sizes are signed 32 bit; beyond this it is garbage

_CRC, _CRC_AT = struct.Struct(">I"), 17
_PRODUCER, _PRODUCER_AT = struct.Struct(">qhi"), 43  # id, epoch, base sequence

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


class RecordBatch(NamedTuple):
    """A header and the whole batch's bytes, header included."""

    header: BatchHeader
    data: memoryview


def iter_batches(buffer: bytes | memoryview) -> Iterator[RecordBatch]:
    """The complete batches of `buffer`, in order; a truncated last one is left out. Legacy messages that
    follow each other uncompressed are one batch, up to `LEGACY_BYTES`.

    Raises:
        CorruptBatch: a length or magic that no batch can have.
    """
    view = memoryview(buffer)
    run: RecordBatch | None = None  # of legacy messages
    start = at = 0
    for batch in _framed(view):
        header = batch.header
        if header.magic not in FORMATS:
            raise CorruptBatch(f"magic {header.magic} at byte {at}; only formats up to {MAGIC} are read")
        if header.last_offset_delta < 0:
            raise CorruptBatch(f"the batch at byte {at} ends before it begins")
        end = at + len(batch.data)
        if run is not None and _goes_on(run.header, header) and end - start <= LEGACY_BYTES:
            length, delta = end - start - LOG_OVERHEAD_BYTES, header.base_offset - run.header.base_offset
            count = run.header.record_count + 1
            joined = run.header._replace(length=length, last_offset_delta=delta, record_count=count)
            run = RecordBatch(joined, view[start:end])
        else:
            if run is not None:
                yield run
            run, start = None, at
            if header.magic < MAGIC and not header.compression:
                run = batch
            else:
                yield batch
        at = end
    if run is not None:
        yield run


def _goes_on(run: BatchHeader, header: BatchHeader) -> bool:
    return header.magic == run.magic and not header.compression and header.base_offset >= run.next_offset


def _framed(view: memoryview) -> Iterator[RecordBatch]:
    """The complete batches by nothing but their lengths."""
    at, size = 0, len(view)
    while size - at > legacy_format.MAGIC_AT:
        if view[at + legacy_format.MAGIC_AT] < MAGIC:
            if size - at < legacy_format.LEAST_BYTES:
                return
            header, least = _legacy(view, at), legacy_format.MIN_LENGTH
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


def _legacy(view: memoryview, at: int) -> BatchHeader:
    """A message as a batch. One that wraps others has the offset of the last of them: where the first lies,
    and how many they are, is not known before it is decompressed."""
    offset, length, crc, magic, attributes = legacy_format.HEAD.unpack_from(view, at)
    return BatchHeader(
        offset, length, -1, magic, crc, attributes & legacy_format.ATTRIBUTES, 0, -1, -1, -1, -1, -1, 1
    )


def seal(batch: bytearray, checksum: Callable[..., int]) -> None:
    """Gives a whole batch the checksum (CRC-32C) of what it holds now."""
    with memoryview(batch) as view, view[CHECKED_FROM:] as checked:
        crc = checksum(checked)
    _CRC.pack_into(batch, _CRC_AT, crc)


def set_producer(
    batch: bytearray, producer_id: int, epoch: int, sequence: int, checksum: Callable[..., int]
) -> None:
    """Makes a whole batch this producer's; `sequence` is of its first record."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, epoch, sequence)
    seal(batch, checksum)


class ResponsePiece(NamedTuple):
    """Bytes of a response that stand for the offsets up to `next_offset`; `damage`: why they cannot be read,
    "" when they can. `leader_epoch`: the highest of its batches, -1: they tell none."""

    start_byte: int
    end_byte: int
    next_offset: int
    damage: str
    leader_epoch: int = -1


def take(
    buffer: bytes | memoryview, position: int, log_end: int, checksum: Callable[..., int]
) -> list[ResponsePiece]:
    """What a response to a fetch at `position` holds up to the first damage: sound batches, then the damaged
    one if its end is known. What follows comes with the next fetch; empty: not one whole batch.

    Args:
        log_end: the end that the broker tells of the log.
        checksum: CRC-32C of bytes.

    Raises:
        CorruptBatch: it begins with a batch that is damaged, and nobody knows at which offset that ends.
    """
    batches: list[RecordBatch] = []
    broken = ""
    try:
        batches.extend(_framed(memoryview(buffer)))
    except CorruptBatch as error:
        broken = str(error)
    faults = [_fault(batch, checksum) for batch in batches]
    lowest = _lowest_behind(batches, faults)
    start_byte = at = 0
    next_offset, epoch = position, -1
    for index, batch in enumerate(batches):
        moved = next_offset > position
        fault = faults[index] or _contradiction(batch.header, next_offset, moved, lowest[index])
        if not fault:
            next_offset = max(next_offset, batch.header.next_offset)
            epoch = max(epoch, batch.header.leader_epoch)
            at += len(batch.data)
            continue
        sound = [ResponsePiece(start_byte, at, next_offset, "", epoch)] if moved else []
        size, end = _end_of_damage(batches[index:], faults[index:], next_offset, moved, lowest[index])
        if end < 0 and at + size == len(buffer) and batch.header.next_offset == log_end > next_offset:
            end = log_end  # the broker's word for it
        if end > next_offset:
            return [*sound, ResponsePiece(at, at + size, end, fault)]
        if sound:
            return sound
        if end < 0:
            raise CorruptBatch(
                f"{fault}; where it ends is not known (base offset {batch.header.base_offset})"
            )
        start_byte = at = at + len(batch.data)  # all of it lies before what was asked for
    if next_offset > position:
        return [ResponsePiece(start_byte, at, next_offset, "", epoch)]
    if broken:
        raise CorruptBatch(broken)
    return []


def _fault(batch: RecordBatch, checksum: Callable[..., int]) -> str:
    header = batch.header
    if header.magic not in FORMATS:
        return f"magic {header.magic}; only formats up to {MAGIC} are read"
    if header.magic < MAGIC:
        return "" if legacy_format.is_sound(batch.data) else "its checksum does not match"
    if checksum(batch.data[CHECKED_FROM:]) != header.crc & 0xFFFFFFFF:
        return "its checksum does not match"
    return "it ends before it begins" if header.last_offset_delta < 0 else ""


def _lowest_behind(batches: Sequence[RecordBatch], faults: Sequence[str]) -> list[int]:
    """For each batch the lowest base offset of the sound ones behind it; -1: there are none."""
    found, lowest = [-1] * len(batches), -1
    for index in range(len(batches) - 1, -1, -1):
        found[index] = lowest
        if not faults[index]:
            base_offset = batches[index].header.base_offset
            lowest = base_offset if lowest < 0 else min(lowest, base_offset)
    return found


def _contradiction(header: BatchHeader, next_offset: int, moved: bool, lowest_behind: int) -> str:
    """Why a batch of matching checksum cannot be here (rule 2); those before it end at `next_offset`."""
    if moved and header.base_offset < next_offset:
        return f"its base offset {header.base_offset} lies before {next_offset}, where the one before it ends"
    if header.base_offset > next_offset and next_offset <= lowest_behind < header.next_offset:
        return f"its offsets reach beyond {lowest_behind}, where a batch behind it begins"
    return ""


def _end_of_damage(
    batches: Sequence[RecordBatch], faults: Sequence[str], next_offset: int, moved: bool, lowest_behind: int
) -> tuple[int, int]:
    """Bytes and end offset of the damage that the first of these begins; -1: nobody knows (rule 3)."""
    size = len(batches[0].data)
    for batch, fault in zip(batches[1:], faults[1:], strict=True):
        base_offset = batch.header.base_offset
        if not fault and (base_offset >= next_offset or not moved):
            return size, max(next_offset, lowest_behind if lowest_behind >= next_offset else base_offset)
        size += len(batch.data)
    return size, -1


class ReadCommittedFilter:
    """The read_committed filter over the batches of one fetch response.

    Source: KIP-98. `aborted` lists (producer id, first offset) of aborted transactions that overlap the
    response; a transactional batch of such a producer is skipped from that offset on until its abort
    marker. Control batches are never shown.
    """

    __slots__ = ("_aborted", "_aborting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._aborted = sorted(aborted, key=lambda entry: -entry[1])  # the next one last
        self._aborting: set[int] = set()

    def shows(self, batch: RecordBatch) -> bool:
        """Whether the batch's records are to be seen; call once a batch, in order."""
        header = batch.header
        while self._aborted and self._aborted[-1][1] <= header.base_offset:
            self._aborting.add(self._aborted.pop()[0])
        if header.is_control:
            # Commit or abort marker: either way, what follows is another transaction.
            self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)
