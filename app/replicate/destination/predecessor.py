"""What a former owner of a replica wrote, read from the destination's log, and compared with the source.

A broker's memory of producers is no help here (`app.kafka.producers.history`); the log itself is. Its records
are compared with the source's (`app.replicate.model.copied_index`), not counted: compaction or retention may
have taken some of those that were copied from the source meanwhile, and counting would leave out others that
never were.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from app.kafka.append.encoder import reencoded
from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.decoder import records_of
from app.kafka.producers.history import own
from app.kafka.records.batch import HEADER_BYTES, RecordBatch, iter_batches
from app.kafka.records.producer_sequences import ProducerStamp, ProducerTail
from app.kafka.records.verbatim_copy import LOG_APPEND_TIME, CopiedRecord, RecordsMissed, VerbatimCopy
from app.kernel.ranges import Range

_NO_LIMIT = (1 << 31) - 1
_UNKNOWN_OFFSET = struct.pack(">q", -1)


class PredecessorBatches(NamedTuple):
    """What a producer id wrote from an offset on: a print of each record, in order.

    Attributes:
        epoch: the highest that it wrote under; -1: it wrote nothing.
        end: where the log ended.
        timed: the log keeps the records' own timestamps.
        is_known: this is all. The log still reaches to that offset, or its numbers show that none is missing.
        tail: behind all of it.
    """

    prints: list[int]
    epoch: int
    end: int
    timed: bool
    is_known: bool
    tail: ProducerTail


async def predecessor_of(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    producer_id: int,
    start_offset: int,
    tail: ProducerTail,
    below_epoch: int,
) -> PredecessorBatches:
    """Reads what it wrote in epochs below `below_epoch`. `tail`: of what it wrote before.

    Raises:
        ClusterUnreachable, KafkaError: see `app.kafka.producers.history.own`.
    """
    prints: list[int] = []
    epoch, timed = -1, True
    known = tail.stamp

    def take(batch: RecordBatch) -> None:
        nonlocal epoch, timed, tail
        header = batch.header
        if header.is_control or header.producer_epoch >= below_epoch:
            return
        epoch = max(epoch, header.producer_epoch)
        own_time = not header.attributes & LOG_APPEND_TIME
        timed = timed and own_time
        prints.extend(_prints(batch, timed=own_time))
        first = ProducerStamp(producer_id, header.producer_epoch, header.base_sequence)
        tail = tail.behind(header.base_offset, header.next_offset, first, header.record_count)

    found = await own(cluster, topic, partition, producer_id, start_offset, known, take)
    is_all = found.start == start_offset or (known is not None and tail.is_whole and found.last == tail.stamp)
    return PredecessorBatches(prints, epoch, found.end, timed, found.end >= 0 and is_all, tail)


def prints_of(copy: VerbatimCopy, *, timed: bool) -> list[int]:
    """The prints of a copy's records, to be compared with a `PredecessorBatches`'s."""
    return _prints(_batch(copy), timed=timed)


def rows_of(copy: VerbatimCopy) -> Iterable[CopiedRecord]:
    """The records as they are to be read of a copy: what the source has, not what was made of it.

    Raises: whatever the decoder does, here or while they are read.
    """
    return (row for _, row in _numbered_rows_of(copy))


def _numbered_rows_of(copy: VerbatimCopy) -> Iterable[tuple[int, CopiedRecord]]:
    return _numbered_rows(_batch(copy)) if copy.read_again is None else copy.read_again()


def without(
    copy: VerbatimCopy, count: int, max_batch_bytes: int, codec: int | None = None
) -> Iterator[VerbatimCopy]:
    """The copy without its first `count` records, in batches that are encoded anew (`codec`: see
    `reencoded`), each when it is asked for.

    Where it is not known which of the source's offsets its records have, only the last moves a position, to
    the end of the copy.

    Raises: UndecodableBatch.
    """
    batch = _batch(copy)
    start = batch.header.base_offset + count
    return _standing_for(copy, count, reencoded(batch, start, max_batch_bytes, codec=codec))


def is_compressed(copy: VerbatimCopy) -> bool:
    """Whether its records are."""
    return bool(_batch(copy).header.compression)


def begins_at(piece: VerbatimCopy, copy: VerbatimCopy) -> int:
    """Where of the source the first piece of what is to be appended of a copy begins, behind all that is not;
    -1: that is not known."""
    return copy.source_start if piece is copy else _batch(piece).header.base_offset


def divided(copy: VerbatimCopy, cuts: Iterable[int]) -> Iterator[VerbatimCopy]:
    """The copy in pieces that are encoded anew, each when it is asked for, and hold some thousand records at
    most. One begins at each of `cuts`, which are counted in records from 0.

    Raises: UndecodableBatch.
    """
    batch = _batch(copy)
    start = batch.header.base_offset
    return _standing_for(
        copy, 0, reencoded(batch, start, _NO_LIMIT, cuts=frozenset(start + cut for cut in cuts))
    )


def halves(copy: VerbatimCopy) -> Iterator[VerbatimCopy]:
    """`divided` in the middle."""
    return divided(copy, [(copy.record_count + 1) // 2])


def places_of(copy: VerbatimCopy) -> Range:
    """The source's offsets [start, end) of its records; as near as is known where nobody can decode them."""
    base_offset = _batch(copy).header.base_offset
    if base_offset < copy.source_start:
        try:
            offsets = [offset for offset, _ in _numbered_rows_of(copy)]
        except Exception:  # noqa: BLE001 - whatever the decoder raises
            return copy.source_start, max(copy.source_end, copy.source_start + 1)
        return offsets[0], offsets[-1] + 1
    return base_offset, base_offset + copy.record_count


def _standing_for(copy: VerbatimCopy, count: int, pieces: Iterable[VerbatimCopy]) -> Iterator[VerbatimCopy]:
    """The pieces, in which are all records but the first `count`, with what of the source each stands for."""
    base_offset, start, end = _batch(copy).header.base_offset, copy.source_start, copy.source_end
    if count and base_offset >= 0:
        start = base_offset + count
    for piece in pieces:
        upto = count + piece.record_count
        is_last = upto == copy.record_count
        until = end if is_last else base_offset + upto if base_offset >= 0 else start
        data = piece.data if base_offset >= 0 else _UNKNOWN_OFFSET + piece.data[len(_UNKNOWN_OFFSET) :]
        yield VerbatimCopy(data, piece.record_count, start, until, partial(_slice, copy, count, upto))
        start, count = until if base_offset >= 0 else start, upto
    if count != copy.record_count:
        raise RecordsMissed(
            f"[{copy.source_start}, {end}) holds {copy.record_count} records, its pieces stand for {count}"
        )


def _slice(copy: VerbatimCopy, first: int, end: int) -> Iterator[tuple[int, CopiedRecord]]:
    return islice(_numbered_rows_of(copy), first, end)


def _batch(copy: VerbatimCopy) -> RecordBatch:
    return next(iter_batches(memoryview(copy.data)))


def _numbered_rows(batch: RecordBatch) -> Iterator[tuple[int, CopiedRecord]]:
    for record in records_of(batch):
        yield record.offset, (record.timestamp, record.key, record.value, tuple(record.headers))


def _prints(batch: RecordBatch, *, timed: bool) -> list[int]:
    try:
        return [hash(row if timed else (0, *row[1:])) for _, row in _numbered_rows(batch)]
    except Exception:  # noqa: BLE001 - whatever the decoder raises
        # Brokers take more than our decoder reads (header names that are no UTF-8, batches without bound).
        # Such a batch was copied as it is, and all of it at once: its bytes tell it.
        records = hash(bytes(batch.data[HEADER_BYTES:]))
        return [hash((records, number)) for number in range(batch.header.record_count)]
