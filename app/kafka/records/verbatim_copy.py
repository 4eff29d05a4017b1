"""Verbatim copies: the bytes of a fetched record batch become the bytes of a produced one.

    fetched batch --why_not--> ""      --stamped--> what a broker takes from an idempotent producer
                           `-> reason  --re-encoded record by record (app.kafka.append.encoder)

Rules
1. Base offset and leader epoch lie outside of the checksum; the destination's broker sets both. A producer
   has to say 0 for the first (else error 2, CORRUPT_MESSAGE) and says -1 for the second.
2. Producer id, epoch and base sequence are the copier's own. The transactional flag is cleared: only what is
   committed is copied, and the copier's producer is not transactional.
3. The delete horizon flag is cleared. With it the first timestamp is the time at which tombstones may go, and
   the records' deltas count from there: they go on to do so, so that no record's timestamp changes. The
   destination's cleaner then gives its tombstones a time of its own.
4. Nothing else is changed: records, compression, timestamps and header fields stay as they are. But for an
   uncompressed batch whose records have other offsets than its broker gave them (`app.kafka.fetch.decoder`):
   its copy has those of the broker, as Kafka itself mends a compressed batch.

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
CLEARED = TRANSACTIONAL | DELETE_HORIZON  # attributes that a copy does not have
SEQUENCES = 1 << 31  # a sequence number is 31 bits and begins again at 0

_LENGTH_AT, _LEADER_EPOCH_AT = 8, 12
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = _LENGTH = struct.Struct(">i")
_ATTRIBUTES = struct.Struct(">h")

Bytes = bytes | bytearray | memoryview
# A record as it is to be read of the copy: timestamp (ms), key, value, headers.
CopiedRecord = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class RecordsMissed(RuntimeError):
    """Records between what was fetched and what is to be appended are not accounted for: an error in here.

    Always with the source's offsets; who finds it appends nothing behind them, and begins again.
    """


class VerbatimCopy(NamedTuple):
    """A batch to append: `data` holds `record_count` records, and stands for the source's offsets
    [source_start, source_end). Between them may lie offsets that nobody sees: markers, aborted
    transactions, what compaction took.

    The base offset of `data` is the source's of its first record, where all of them follow on each other;
    else it is negative. `read_again` reads the records anew from what was fetched, to compare them with,
    each behind its offset in the source; without it, `data` are the source's own bytes.
    """

    data: Bytes
    record_count: int
    source_start: int
    source_end: int
    read_again: Callable[[], Iterable[tuple[int, CopiedRecord]]] | None = None


def why_not(header: BatchHeader, position: int, max_batch_bytes: int) -> str:
    """Why a batch, of records that are to be seen, cannot go as it is; "" when it can.

    Args:
        position: the source's offset from which on records are wanted.
        max_batch_bytes: `max.message.bytes` of the destination.
    """
    if header.magic != MAGIC:
        return f"its format is {header.magic}, not {MAGIC}"
    if header.is_control:
        return "it is a control batch"
    if header.record_count != header.last_offset_delta + 1:
        return f"it has {header.record_count} records for {header.last_offset_delta + 1} offsets"
    if header.base_offset < position:
        return f"it begins before offset {position}"
    if header.attributes & LOG_APPEND_TIME:
        # Brokers refuse the flag of a producer, or clear it: readers would then see the times of creation.
        return "its timestamps are those of the source's log"
    size = header.length + _LEADER_EPOCH_AT
    return f"it has {size} bytes, the destination takes {max_batch_bytes}" if size > max_batch_bytes else ""


def may_have_own_offsets(header: BatchHeader) -> bool:
    """Whether records of such a batch may have other offsets than their broker gave, and those are known.

    They are in a row where compaction took none (rule 4).
    """
    is_plain = header.magic == MAGIC and not header.compression and not header.is_control
    return is_plain and header.record_count == header.last_offset_delta + 1


def has_own_offsets(batch: RecordBatch) -> bool:
    """Whether they have. Takes 0.4 us a record."""
    header = batch.header
    return may_have_own_offsets(header) and not is_numbered(batch.data[HEADER_BYTES:], header.record_count)


def renumbered(batch: RecordBatch, checksum: Callable[..., int]) -> RecordBatch:
    """The batch with its broker's offsets. Raises ValueError: it is not made of records."""
    data = bytearray(batch.data[:HEADER_BYTES])
    data += numbered(batch.data[HEADER_BYTES:], batch.header.record_count)
    _LENGTH.pack_into(data, _LENGTH_AT, len(data) - _LEADER_EPOCH_AT)
    seal(data, checksum)
    return RecordBatch(BatchHeader._make(HEADER.unpack_from(data)), memoryview(data))


def stamped(
    data: Bytes, producer_id: int, epoch: int, sequence: int, checksum: Callable[..., int]
) -> bytearray:
    """A copy of the batch as a producer's own.

    Args:
        data: a whole batch that `why_not` has nothing against, or one that was built.
        sequence: of its first record; the next batch's is `next_sequence`.
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
    """The base sequence of the batch that follows one of `record_count` records."""
    return (sequence + record_count) % SEQUENCES
