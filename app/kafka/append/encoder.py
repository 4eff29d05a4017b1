"""What was fetched to the batches to append: verbatim where a broker takes them so, else re-encoded.

    one, fit to go  -> as it is           small ones in a row -> one of all their records
    one, not fit    -> its records in others

Appending costs by the batch (a request has one for each partition), decoding and encoding by the record: as
much for one batch as for 200 records. So small batches that follow each other travel as one; not those that
are compressed, as nobody knows how much comes out of them.

Every record of a response has a copy or was left out on purpose (aborted, below the position, edited away):
batch headers say how many there were, and what comes out is counted against that.

Re-encoding keeps every record's timestamp (-1: none), key, value and headers (null is not empty; headers may
repeat, and keep their order) and, unless another is wanted, the batch's compression; a batch that compression
does not make smaller becomes an uncompressed one.
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
Edit = Callable[[Record], Headers | None]  # a record to the headers of its copy; None: it gets none

JOINED_BYTES = 128 * 1024  # no longer than producers' own
SMALL_BYTES = 32 * 1024  # batches below are joined
ENCODED_RECORDS = 16_384  # of a batch at once: the loop goes on within some 50 ms
ENCODED_BYTES = 8 * 1024 * 1024
_NO_LIMIT = (1 << 31) - 1
_BASE_OFFSET = struct.Struct(">q")
_TIMES, _TIMES_AT = struct.Struct(">qq"), 27  # the first timestamp, the greatest
NO_TIMESTAMP = -1

Records = list[tuple[Record, Headers]]


def copies(
    fetched: FetchedBatches, max_batch_bytes: int, edit: Edit | None = None,
    mended: Mapping[int, RecordBatch | None] = MappingProxyType({}),
) -> Iterator[VerbatimCopy]:  # fmt: skip
    """The batches to append for what read_committed shows of `fetched`, in order.

    Their source ranges follow on each other and begin at `fetched.start_offset`; what is behind the last of
    them, up to `fetched.next_offset`, shows no record. `data` of a verbatim copy lies in `fetched`: keep that
    until the copy is acknowledged.

    Args:
        max_batch_bytes: `max.message.bytes` of the destination; only a record that is too large by itself
            comes in a larger batch.
        edit: gives records other headers; every batch is then re-encoded.
        mended: of it (`app.kafka.append.own_offsets`).

    Raises:
        UndecodableBatch: offsets that can neither go as they are nor be encoded anew. What is behind them:
            call again with a `FetchedBatches` that begins there, or skip it.
        RecordsMissed: not all that came is in what was given, or was left out on purpose.
    """
    position = fetched.start_offset
    if fetched.damage:
        raise UndecodableBatch(position, fetched.next_offset, bytes(fetched.data), fetched.damage)
    shown = ReadCommittedFilter(fetched.aborted)
    run: list[RecordBatch] = []  # from `position` to `end`, to travel as one
    end, left_bytes = position, 0
    owed = 0  # records of the batches that go as they are, or joined, less those that were given
    for batch in iter_batches(fetched.data):
        header = batch.header
        if not shown.shows(batch) or header.next_offset <= end or not header.record_count:
            continue
        is_odd = False
        if mended and header.base_offset in mended:
            instead = mended[header.base_offset]
            if instead is None:  # decoding it says what is wrong
                is_odd = True
            else:
                header, batch = instead.header, instead  # noqa: PLW2901
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
            f"[{fetched.start_offset}, {fetched.next_offset}) was not copied as a whole: {owed} records "
            "of it were not handed on"
        )


def _is_small(batch: RecordBatch) -> bool:
    return not batch.header.compression and len(batch.data) < SMALL_BYTES


def _joined(
    batches: list[RecordBatch], start: int, max_batch_bytes: int
) -> Generator[VerbatimCopy, None, int]:
    """All their records in one batch; a single one as it is, and all of them when that cannot be made.
    Returns how many records were given."""
    joined: list[VerbatimCopy] = []
    if len(batches) > 1:
        # Whatever decoder and encoder raise: readers are to see what was written.
        with contextlib.suppress(Exception):
            records = [(record, record.headers) for batch in batches for record in records_of(batch)]
            header, again = batches[-1].header, partial(_read_again, batches, None)
            joined = _copies_of(
                records, start, header.next_offset, header.compression, max_batch_bytes, again
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
    """The records of a batch from offset `position` on, in batches of at most `ENCODED_RECORDS` that cost no
    more than `ENCODED_BYTES` as objects, and of `max_batch_bytes` at most: each is made when it is asked for.

    A record that is too large by itself has a batch of its own. None when compaction or `edit` took them all.

    Args:
        codec: Kafka's number of the compression, 0 for none; None: as the batch has it.
        cuts: offsets of records at which a further batch begins.

    Raises:
        UndecodableBatch: what follows the last copy cannot be decoded, or cannot be encoded.
    """
    header, again, opened = batch.header, partial(_read_again, [batch], edit), OpenBatch(batch)
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
                for part, upto in _cut(records, end, cuts):
                    for copy in _copies_of(part, position, upto, codec, max_batch_bytes, again):
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
    """The records in parts, each with the offset behind it."""
    begins = [at for at, (record, _) in enumerate(records) if at and record.offset in cuts] if cuts else []
    for first, behind in pairwise([0, *begins, len(records)]):
        yield records[first:behind], records[behind][0].offset if behind < len(records) else end


def _read_again(
    batches: Sequence[RecordBatch], edit: Edit | None, first: int, last: int
) -> Iterator[tuple[int, CopiedRecord]]:
    """The records at the offsets `first` to `last`, with it. Raises whatever the decoder does."""
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
    """All records of the source's offsets [start, end)."""
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
    """One batch of them, or two halves when that is too large."""
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
    # To the builder a first timestamp of -1 is none yet: it is given all of them one later.
    later = 1 if first.timestamp == NO_TIMESTAMP else 0
    for index, (record, headers) in enumerate(records):
        append(index, record.timestamp + later, record.key, record.value, list(headers))
    data = builder.build()
    follow = records[-1][0].offset - first.offset + 1 == len(records)
    _BASE_OFFSET.pack_into(data, 0, first.offset if follow else -1)
    if later:
        times = _TIMES.unpack_from(data, _TIMES_AT)
        _TIMES.pack_into(data, _TIMES_AT, *(time - later for time in times))
        seal(data, crc32c)
    return bytes(data)
