"""Verbatim copies: the bytes of a fetched record batch become the bytes of a produced one.

    fetched batch --why_not--> ""      --stamped--> a batch that brokers take from an idempotent producer
                           `-> reason  --re-encoded record by record (app.kafka.append.encoder)

Rules (tests/kafka/records/test_verbatim_copy.py)
1. The checksum does not cover base offset and leader epoch, and the destination's broker sets both. A
   producer must send base offset 0 (otherwise error 2, CORRUPT_MESSAGE) and sends leader epoch -1.
2. Producer id, epoch and base sequence are the copier's own. The transactional flag is cleared, because
   only committed records are copied and the copier's producer is not transactional.
3. The delete horizon flag is cleared, so the destination's cleaner sets its own time for tombstones. With
   the flag, the first timestamp is that time, and the records' deltas count from it. The first timestamp
   stays, so no record's timestamp changes.
4. Records, compression, timestamps and other header fields stay as they are, with one exception. In an
   uncompressed batch, the producer may have written other offsets than the broker assigned
   (`app.kafka.fetch.decoder`). Its copy has the broker's offsets, as in a compressed batch.

Sources: Apache Kafka's LogValidator (validateBatch, validateTimestamp), DefaultRecordBatch (baseTimestamp,
deleteHorizonMs, incrementSequence) and ProducerAppendInfo (checkSequence).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from app.kafka.records.batch import (
    CHECKED_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    RecordBatch,
    seal,
    set_producer,
)
from app.kafka.records.scan import is_numbered, numbered

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
DELETE_HORIZON = 0x40
CLEARED = TRANSACTIONAL | DELETE_HORIZON  # attributes that a copy must not have
SEQUENCES = 1 << 31  # sequence numbers have 31 bits and wrap to 0

_LENGTH_AT, _LEADER_EPOCH_AT = 8, 12
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = _LENGTH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")

Bytes = bytes | bytearray | memoryview
# A record as readers of the copy see it: timestamp (ms), key, value, headers.
CopiedRecord = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class RecordsMissed(RuntimeError):
    """Records between the fetched and the appended offsets are missing, which is a bug in Switchyard. The
    message has the source's offsets. The caller appends nothing after them, and begins again."""


class VerbatimCopy(NamedTuple):
    """A batch to append, with the source offsets [source_start, source_end) that it covers.

    Some of these offsets may have no visible record: transaction markers, aborted transactions, compacted
    records.

    Attributes:
        data: A batch of `record_count` records. Its base offset is the first record's source offset if the
            records' source offsets are contiguous, and negative otherwise.
        read_again: Reads the fetched records again, each with its source offset, to compare them with the
            copy. None: `data` are the source's own bytes.
    """

    data: Bytes
    record_count: int
    source_start: int
    source_end: int
    read_again: Callable[[], Iterable[tuple[int, CopiedRecord]]] | None = None


def why_not(header: BatchHeader, position: int, max_batch_bytes: int) -> str:
    """Why a batch with visible records cannot be copied verbatim to a topic with this `max.message.bytes`;
    "" if it can. `position` is the first source offset that the copy needs."""
    if header.magic != MAGIC:
        return f"its format is {header.magic}, not {MAGIC}"
    if header.is_control:
        return "it is a control batch"
    if header.record_count != header.last_offset_delta + 1:
        return f"it has {header.record_count} records for {header.last_offset_delta + 1} offsets"
    if header.base_offset < position:
        return f"it begins before offset {position}"
    if header.attributes & LOG_APPEND_TIME:
        # Brokers refuse or clear a producer's flag, so readers would see the creation times instead.
        return "its timestamps are the source broker's append times"
    size = header.length + _LEADER_EPOCH_AT
    return (
        f"it has {size} bytes; the destination takes at most {max_batch_bytes}"
        if size > max_batch_bytes
        else ""
    )


def may_have_own_offsets(header: BatchHeader) -> bool:
    """Whether the producer may have written other offsets than the broker's, and these are known (rule 4).
    The broker's offsets are known if compaction removed no record, because they are contiguous then."""
    is_plain = header.magic == MAGIC and not header.compression and not header.is_control
    return is_plain and header.record_count == header.last_offset_delta + 1


def has_own_offsets(batch: RecordBatch) -> bool:
    """Whether the producer wrote other offsets than the broker assigned. Takes 0.4 us a record."""
    header = batch.header
    return may_have_own_offsets(header) and not is_numbered(batch.data[HEADER_BYTES:], header.record_count)


def renumbered(batch: RecordBatch, checksum: Callable[..., int]) -> RecordBatch:
    """The batch with the broker's offsets. Raises ValueError: the bytes are not records."""
    data = bytearray(batch.data[:HEADER_BYTES])
    data += numbered(batch.data[HEADER_BYTES:], batch.header.record_count)
    _LENGTH.pack_into(data, _LENGTH_AT, len(data) - _LEADER_EPOCH_AT)
    seal(data, checksum)
    return RecordBatch(BatchHeader._make(HEADER.unpack_from(data)), memoryview(data))


def stamped(
    data: Bytes, producer_id: int, epoch: int, sequence: int, checksum: Callable[..., int]
) -> bytearray:
    """The batch as a producer's own, in a copy.

    Args:
        data: A whole batch, either encoded here or one for which `why_not` returned "".
        sequence: The sequence number of the first record. `next_sequence` gives the next batch's.
        checksum: CRC-32C of bytes.
    """
    batch = bytearray(data)
    _BASE_OFFSET.pack_into(batch, 0, 0)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_AT, -1)
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CHECKED_FROM)
    _ATTRIBUTES.pack_into(batch, CHECKED_FROM, attributes & ~CLEARED)
    set_producer(batch, producer_id, epoch, sequence, checksum)
    return batch


def next_sequence(sequence: int, record_count: int) -> int:
    """The base sequence of the batch after one of `record_count` records."""
    return (sequence + record_count) % SEQUENCES
