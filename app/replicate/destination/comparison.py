"""Compares a copy in the destination's log with what was sent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app.kafka.fetch.decoder import records_of
from app.kafka.records.batch import HEADER_BYTES, RecordBatch
from app.kafka.records.checksum import crc32c
from app.kafka.records.record import Record
from app.kafka.records.verbatim_copy import LOG_APPEND_TIME
from app.kernel.job import JobId


class CopiedRecordPrint(NamedTuple):
    """A hash of a record's key, value and headers, and its timestamp."""

    content: int
    timestamp: int


class ExpectedCopy(NamedTuple):
    """A copy as it was sent, expected in the destination at `base_offset`.

    Attributes:
        crc, codec: The checksum of its records' bytes, and their compression by Kafka's number.
        prints: The prints of the source's records; None: the batch is compared by its bytes.
    """

    job: JobId
    base_offset: int
    record_count: int
    size_bytes: int
    crc: int
    codec: int
    source_start: int
    source_end: int
    prints: Sequence[CopiedRecordPrint] | None
    topic_id: str  # of the destination; "": not known

    @property
    def weight(self) -> int:
        """Its share of `MAX_WAITING`."""
        return 1 + len(self.prints or ())


def print_of(
    timestamp: int, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> CopiedRecordPrint:
    return CopiedRecordPrint(hash((key, value, tuple(headers))), timestamp)


def codec_at(base_offset: int, batches: Iterable[RecordBatch]) -> int:
    """The compression of the batch that begins at this offset, by Kafka's number; -1: none begins there."""
    codecs = (batch.header.compression for batch in batches if batch.header.base_offset == base_offset)
    return next(codecs, -1)


def compare(copied: ExpectedCopy, batches: Sequence[RecordBatch]) -> str:
    """How the copy differs from what was sent; "": it does not. For a log that keeps every record."""
    batch = next((found for found in batches if found.header.base_offset == copied.base_offset), None)
    if batch is None:
        return "no batch begins at its first offset"
    if batch.header.record_count != copied.record_count:
        return f"it has {batch.header.record_count} records instead of {copied.record_count}"
    if copied.prints is not None:
        return compare_records(copied.prints, copied, [batch])
    if batch.header.compression != copied.codec:
        return ""  # the destination compresses again, so the next copies are compared by records
    with batch.data[HEADER_BYTES:] as records:
        return "" if crc32c(records) == copied.crc else "its records have other bytes"


def compare_records(
    prints: Sequence[CopiedRecordPrint], copied: ExpectedCopy, batches: Iterable[RecordBatch]
) -> str:
    """How the records that the log still has differ from what was sent; "": they do not."""
    start, end = copied.base_offset, copied.base_offset + copied.record_count
    for batch in batches:
        header = batch.header
        if header.next_offset <= start or header.base_offset >= end or header.is_control:
            continue
        timed = not header.attributes & LOG_APPEND_TIME
        try:
            for record in records_of(batch):
                if start <= record.offset < end and (how := _difference(record, prints, start, timed=timed)):
                    return how
        except Exception as error:  # noqa: BLE001 - the decoder raises many kinds
            return f"it cannot be decoded: {type(error).__name__}: {error}"
    return ""


def _difference(record: Record, prints: Sequence[CopiedRecordPrint], start: int, *, timed: bool) -> str:
    found = print_of(record.timestamp, record.key, record.value, record.headers)
    wanted = prints[record.offset - start] if record.offset - start < len(prints) else None
    if wanted is None or found.content != wanted.content:
        return f"the record at {record.offset} has other contents"
    if timed and found.timestamp != wanted.timestamp:
        return f"the record at {record.offset} has timestamp {found.timestamp}, not {wanted.timestamp}"
    return ""
