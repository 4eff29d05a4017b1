"""Reads from the destination's log what a former owner of a replica wrote, to compare it with the source.

Brokers forget producers (`app.kafka.producers.history`), so this module reads the log itself. It compares
records with the source's (`app.replicate.model.copied_index`) and does not count them. Compaction or
retention may since have removed some of them from the source. A count would then leave out records that were
never copied.
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
    """The writes of a producer id from an offset on: a print of each record, in order.

    Attributes:
        epoch: The highest epoch that it wrote under; -1: it wrote nothing.
        end: Where the log ended.
        timed: The log keeps the records' own timestamps.
        is_known: Nothing is missing: the log reaches back to that offset, or the numbers have no gap.
        tail: The state behind all of its records.
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
    """Reads what the producer wrote in epochs below `below_epoch`. `tail`: the state behind its earlier
    records.

    Raises:
        ClusterUnreachable, KafkaError: See `app.kafka.producers.history.own`.
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
    """The prints of a copy's records, comparable with those of `PredecessorBatches`."""
    return _prints(_batch(copy), timed=timed)


def rows_of(copy: VerbatimCopy) -> Iterable[CopiedRecord]:
    """The records that a read of the copy should return: the source's records, not their encoding.

    Raises: The decoder's errors, here or during iteration."""
    return (row for _, row in _numbered_rows_of(copy))


def _numbered_rows_of(copy: VerbatimCopy) -> Iterable[tuple[int, CopiedRecord]]:
    return _numbered_rows(_batch(copy)) if copy.read_again is None else copy.read_again()


def drop_first(
    copy: VerbatimCopy, count: int, max_batch_bytes: int, codec: int | None = None
) -> Iterator[VerbatimCopy]:
    """Yields the copy without its first `count` records, in batches that are encoded again on demand
    (`codec`: see `reencoded`).

    If the source offsets of its records are not known, only the last batch moves a position, to the end of
    the copy.

    Raises: UndecodableBatch."""
    batch = _batch(copy)
    start = batch.header.base_offset + count
    return _standing_for(copy, count, reencoded(batch, start, max_batch_bytes, codec=codec))


def is_compressed(copy: VerbatimCopy) -> bool:
    return bool(_batch(copy).header.compression)


def begins_at(piece: VerbatimCopy, copy: VerbatimCopy) -> int:
    """The source offset at which the first piece to append begins; -1: not known."""
    return copy.source_start if piece is copy else _batch(piece).header.base_offset


def divided(copy: VerbatimCopy, cuts: Iterable[int]) -> Iterator[VerbatimCopy]:
    """Yields the copy in pieces that are encoded again on demand, of some thousand records at most. A piece
    begins at each of `cuts`, which count records from 0.

    Raises: UndecodableBatch."""
    batch = _batch(copy)
    start = batch.header.base_offset
    return _standing_for(
        copy, 0, reencoded(batch, start, _NO_LIMIT, cuts=frozenset(start + cut for cut in cuts))
    )


def halves(copy: VerbatimCopy) -> Iterator[VerbatimCopy]:
    return divided(copy, [(copy.record_count + 1) // 2])


def places_of(copy: VerbatimCopy) -> Range:
    """The source's offsets [start, end) of its records; the bounds of the copy if it cannot be decoded."""
    base_offset = _batch(copy).header.base_offset
    if base_offset < copy.source_start:
        try:
            offsets = [offset for offset, _ in _numbered_rows_of(copy)]
        except Exception:  # noqa: BLE001 - the decoder raises many kinds
            return copy.source_start, max(copy.source_end, copy.source_start + 1)
        return offsets[0], offsets[-1] + 1
    return base_offset, base_offset + copy.record_count


def _standing_for(copy: VerbatimCopy, count: int, pieces: Iterable[VerbatimCopy]) -> Iterator[VerbatimCopy]:
    """The pieces, which hold all records but the first `count`, with the source offsets that each covers."""
    base_offset, start, end = _batch(copy).header.base_offset, copy.source_start, copy.source_end
    if count and base_offset >= 0:
        start = base_offset + count
    for piece in pieces:
        piece_end = count + piece.record_count
        is_last = piece_end == copy.record_count
        until = end if is_last else base_offset + piece_end if base_offset >= 0 else start
        data = piece.data if base_offset >= 0 else _UNKNOWN_OFFSET + piece.data[len(_UNKNOWN_OFFSET) :]
        yield VerbatimCopy(data, piece.record_count, start, until, partial(_slice, copy, count, piece_end))
        start, count = until if base_offset >= 0 else start, piece_end
    if count != copy.record_count:
        raise RecordsMissed(
            f"[{copy.source_start}, {end}) holds {copy.record_count} records, but its pieces hold {count}"
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
    except Exception:  # noqa: BLE001 - the decoder raises many kinds
        # Brokers accept more than this decoder reads (header names that are not UTF-8, unbounded batches).
        # Such a batch was copied unchanged and as a whole, so its bytes identify it.
        records = hash(bytes(batch.data[HEADER_BYTES:]))
        return [hash((records, number)) for number in range(batch.header.record_count)]
