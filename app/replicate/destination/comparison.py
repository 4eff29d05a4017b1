"""What was sent, and whether what lies in the destination's log is that: pure."""

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
    """A record: what it holds, and its time."""

    content: int
    timestamp: int


class ExpectedCopy(NamedTuple):
    """What is said to be in the destination at `base_offset`. `crc` is of the bytes of its records; `prints`
    are of the source's records, None where the bytes are theirs."""

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
        """In `MAX_WAITING`."""
        return 1 + len(self.prints or ())


def print_of(
    timestamp: int, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> CopiedRecordPrint:
    """A record's, wherever it lies."""
    return CopiedRecordPrint(hash((key, value, tuple(headers))), timestamp)


def codec_at(base_offset: int, batches: Iterable[RecordBatch]) -> int:
    """The compression of the batch that begins there, by Kafka's number; -1: none does."""
    found = (one.header.compression for one in batches if one.header.base_offset == base_offset)
    return next(found, -1)


def compare(copied: ExpectedCopy, batches: Sequence[RecordBatch]) -> str:
    """How the copy differs from what was sent, "" when it does not, in a log that keeps every record."""
    batch = next((one for one in batches if one.header.base_offset == copied.base_offset), None)
    if batch is None:
        return "no batch begins there"
    if batch.header.record_count != copied.record_count:
        return f"{batch.header.record_count} records are there instead of {copied.record_count}"
    if copied.prints is not None:
        return compare_records(copied.prints, copied, [batch])
    if batch.header.compression != copied.codec:
        return ""  # compared by records from now on
    with batch.data[HEADER_BYTES:] as records:
        return "" if crc32c(records) == copied.crc else "its records are others"


def compare_records(
    prints: Sequence[CopiedRecordPrint], copied: ExpectedCopy, batches: Iterable[RecordBatch]
) -> str:
    """The same, of those records that are still there."""
    start, end = copied.base_offset, copied.base_offset + copied.record_count
    for batch in batches:
        header = batch.header
        if header.next_offset <= start or header.base_offset >= end or header.is_control:
            continue
        timed = not header.attributes & LOG_APPEND_TIME
        try:
            for record in records_of(batch):
                if start <= record.offset < end and (how := _differs(record, prints, start, timed=timed)):
                    return how
        except Exception as error:  # noqa: BLE001 - whatever the decoder raises
            return f"it cannot be decoded: {type(error).__name__}: {error}"
    return ""


def _differs(record: Record, prints: Sequence[CopiedRecordPrint], start: int, *, timed: bool) -> str:
    found = print_of(record.timestamp, record.key, record.value, record.headers)
    wanted = prints[record.offset - start] if record.offset - start < len(prints) else None
    if wanted is None or found.content != wanted.content:
        return f"the record at {record.offset} is another"
    if timed and found.timestamp != wanted.timestamp:
        return f"the record at {record.offset} has timestamp {found.timestamp}, not {wanted.timestamp}"
    return ""
