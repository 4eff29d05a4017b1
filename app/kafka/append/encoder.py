"""Turns fetched batches into batches to append: verbatim if a broker takes them so, otherwise re-encoded.

    can go verbatim          -> as it is
    several small, in a row  -> merged into one batch
    cannot go verbatim       -> its records in new batches

A request has one batch per partition, so appending costs per batch. Decoding and encoding cost per record:
one batch costs as much as 200 records. So small contiguous batches are merged, except compressed ones,
whose decompressed size is unknown.

Every record of a response has a copy or was left out on purpose (aborted, below the position, dropped by
`edit`). The record counts in batch headers are checked against the output.

Re-encoding keeps every record's timestamp (-1: none), key, value and headers. Null differs from empty, and
headers may repeat and keep their order. It also keeps the batch's compression, unless another is wanted; a
batch that compression does not make smaller stays uncompressed.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from app.kafka.fetch.decoder import BeyondBounds, OpenBatch, UndecodableBatch, records_of
from app.kafka.fetch.deliveries import FetchedBatches
from app.kafka.records.batch import MAGIC, ReadCommittedFilter, RecordBatch, iter_batches, seal
from app.kafka.records.checksum import crc32c
from app.kafka.records.record import Record
from app.kafka.records.verbatim_copy import CopiedRecord, RecordsMissed, VerbatimCopy, why_not

Headers = Sequence[tuple[str, bytes | None]]
Edit = Callable[[Record], Headers | None]  # a record to its copy's headers; None: no copy

JOINED_BYTES = 128 * 1024  # as large as producers' own batches
SMALL_BYTES = 32 * 1024  # smaller batches are merged
ENCODED_RECORDS = 16_384  # encoded at once; blocks the event loop for some 50 ms
ENCODED_BYTES = 8 * 1024 * 1024
_NO_LIMIT = (1 << 31) - 1
_BASE_OFFSET = struct.Struct(">q")
_TIMES, _TIMES_AT = struct.Struct(">qq"), 27  # first and highest timestamp
NO_TIMESTAMP = -1

Records = list[tuple[Record, Headers]]


def copies(
    fetched: FetchedBatches, max_batch_bytes: int, edit: Edit | None = None,
    renumbered: Mapping[int, RecordBatch | None] = MappingProxyType({}),
) -> Iterator[VerbatimCopy]:  # fmt: skip
    """The batches to append for the records of `fetched` that read_committed shows, in order.

    Their source ranges are contiguous and begin at `fetched.start_offset`. Offsets after the last one, up
    to `fetched.next_offset`, have no visible record. The `data` of a verbatim copy is a part of `fetched`:
    keep that until the copy is acknowledged.

    Args:
        max_batch_bytes: The destination's `max.message.bytes`. Only a single record may exceed it.
        edit: Changes records' headers; every batch is then re-encoded.
        renumbered: The replacements of some batches (`app.kafka.append.own_offsets`).

    Raises:
        UndecodableBatch: Offsets that can be neither copied nor re-encoded. To continue, call again with a
        `FetchedBatches` that begins after them.
        RecordsMissed: A record is neither in the output nor left out on purpose.
    """
    position = fetched.start_offset
    if fetched.damage:
        raise UndecodableBatch(position, fetched.next_offset, bytes(fetched.data), fetched.damage)
    shown = ReadCommittedFilter(fetched.aborted)
    run: list[RecordBatch] = []  # batches from `position` to `end`, to be merged
    end, left_bytes = position, 0
    owed = 0  # records of verbatim and merged batches that are not in the output yet
    for batch in iter_batches(fetched.data):
        header = batch.header
        if not shown.shows(batch) or header.next_offset <= end or not header.record_count:
            continue
        is_odd = False
        if renumbered and header.base_offset in renumbered:
            replacement = renumbered[header.base_offset]
            if replacement is None:  # decoding it gives the reason
                is_odd = True
            else:
                header, batch = replacement.header, replacement  # noqa: PLW2901
        fits = edit is None and not is_odd and not why_not(header, end, max_batch_bytes)
        joins = fits and _is_small(batch)
        if run and not (joins and len(batch.data) <= left_bytes):
            owed -= yield from _joined(run, position, max_batch_bytes)
            run, position = [], end
        if fits:
            owed += header.record_count
            if not run:
                left_bytes = min(JOINED_BYTES, max_batch_bytes) if joins else 0
            run.append(batch)
            left_bytes -= len(batch.data)
            end = header.next_offset
            continue
        for copy in reencoded(batch, position, max_batch_bytes, edit):
            yield copy
            position = end = copy.source_end
    owed -= yield from _joined(run, position, max_batch_bytes)
    if owed:
        raise RecordsMissed(
            f"{owed} records of [{fetched.start_offset}, {fetched.next_offset}) are missing from its copies"
        )


def _is_small(batch: RecordBatch) -> bool:
    return not batch.header.compression and len(batch.data) < SMALL_BYTES


def _joined(
    batches: list[RecordBatch], start: int, max_batch_bytes: int
) -> Generator[VerbatimCopy, None, int]:
    """Merges batches into one if possible; otherwise they stay as they are. Returns the record count."""
    joined: list[VerbatimCopy] = []
    if len(batches) > 1:
        # After any error of decoder or encoder the batches go as they are: readers see the original bytes.
        with contextlib.suppress(Exception):
            records = [(record, record.headers) for batch in batches for record in records_of(batch)]
            header, read_again = batches[-1].header, partial(_read_again, batches, None)
            joined = _copies_of(
                records, start, header.next_offset, header.compression, max_batch_bytes, read_again
            )
    if joined:
        yield from joined
        return sum(copy.record_count for copy in joined)
    given = 0
    for batch in batches:
        count = batch.header.record_count
        yield VerbatimCopy(batch.data, count, start, batch.header.next_offset)
        start, given = batch.header.next_offset, given + count
    return given


def reencoded(
    batch: RecordBatch,
    position: int,
    max_batch_bytes: int,
    edit: Edit | None = None,
    codec: int | None = None,
    cuts: Collection[int] = (),
) -> Iterator[VerbatimCopy]:
    """Re-encodes a batch's records from offset `position` on, lazily; no copies if all records are gone.

    A copy has at most `ENCODED_RECORDS` records that cost at most `ENCODED_BYTES` as objects. It has at
    most `max_batch_bytes`, unless it is a single record.

    Args:
        codec: Kafka's compression number, 0 for none; None: the batch's.
        cuts: Offsets of records at which a new batch begins.

    Raises:
        UndecodableBatch: The records after the last copy cannot be decoded or encoded.
    """
    header, read_again, opened = batch.header, partial(_read_again, [batch], edit), OpenBatch(batch)
    codec = header.compression if codec is None else codec
    try:
        while True:
            try:
                records: Records = [
                    (record, headers)
                    for record in opened.take(ENCODED_RECORDS, ENCODED_BYTES)
                    if record.offset >= position
                    and (headers := edit(record) if edit else record.headers) is not None
                ]
            except BeyondBounds as error:
                if error.offset >= position:
                    raise UndecodableBatch(error.offset, error.offset + 1, error.raw, str(error)) from error
                records = []
            if records:
                end = records[-1][0].offset + 1 if opened.left else header.next_offset
                for part, part_end in _cut(records, end, cuts):
                    for copy in _copies_of(part, position, part_end, codec, max_batch_bytes, read_again):
                        yield copy
                        position = copy.source_end
            if not opened.left:
                return
    except UndecodableBatch:
        raise
    except Exception as error:
        start, reason = max(position, header.base_offset), f"{type(error).__name__}: {error}"
        raise UndecodableBatch(start, header.next_offset, bytes(batch.data), reason) from error


def _cut(records: Records, end: int, cuts: Collection[int]) -> Iterator[tuple[Records, int]]:
    """The records in parts, each with the offset after it."""
    begins = [at for at, (record, _) in enumerate(records) if at and record.offset in cuts] if cuts else []
    for first, behind in pairwise([0, *begins, len(records)]):
        yield records[first:behind], records[behind][0].offset if behind < len(records) else end


def _read_again(
    batches: Sequence[RecordBatch], edit: Edit | None, first: int, last: int
) -> Iterator[tuple[int, CopiedRecord]]:
    """The records with offsets from `first` to `last`, inclusive. Raises any error of the decoder."""
    for batch in batches:
        if batch.header.next_offset <= first:
            continue
        for record in records_of(batch):
            if record.offset > last:
                return
            if first <= record.offset:
                headers = edit(record) if edit else record.headers
                if headers is not None:
                    yield record.offset, (record.timestamp, record.key, record.value, tuple(headers))


def _copies_of(
    records: Records, start: int, end: int, codec: int, max_batch_bytes: int,
    read_again: Callable[[int, int], Iterator[tuple[int, CopiedRecord]]],
) -> list[VerbatimCopy]:  # fmt: skip
    built = list(_built(records, codec, max_batch_bytes))
    ends = [part[0][0].offset for part, _ in built[1:]] + [end]
    starts = [start, *ends]
    return [
        VerbatimCopy(
            data, len(part), starts[at], ends[at],
            partial(read_again, part[0][0].offset, part[-1][0].offset),
        )
        for at, (part, data) in enumerate(built)
    ]  # fmt: skip


def _built(records: Records, codec: int, max_batch_bytes: int) -> Iterator[tuple[Records, bytes]]:
    """One batch of the records; two or more if it is too large."""
    data = _encoded(records, codec)
    if len(data) <= max_batch_bytes or len(records) == 1:
        yield records, data
        return
    half = len(records) // 2
    yield from _built(records[:half], codec, max_batch_bytes)
    yield from _built(records[half:], codec, max_batch_bytes)


def _encoded(records: Records, codec: int) -> bytes:
    builder = DefaultRecordBatchBuilder(MAGIC, codec, 0, -1, -1, -1, _NO_LIMIT)
    append = builder.append
    first = records[0][0]
    # The builder takes a first timestamp of -1 for a missing one, so all timestamps are shifted by 1.
    shift_ms = 1 if first.timestamp == NO_TIMESTAMP else 0
    for index, (record, headers) in enumerate(records):
        append(index, record.timestamp + shift_ms, record.key, record.value, list(headers))
    data = builder.build()
    is_contiguous = records[-1][0].offset - first.offset + 1 == len(records)
    _BASE_OFFSET.pack_into(data, 0, first.offset if is_contiguous else -1)
    if shift_ms:
        times = _TIMES.unpack_from(data, _TIMES_AT)
        _TIMES.pack_into(data, _TIMES_AT, *(time - shift_ms for time in times))
        seal(data, crc32c)
    return bytes(data)
