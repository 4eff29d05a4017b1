"""What a former owner of a replica wrote, read from the destination's log, and compared with the source.

A broker's memory of producers is no help here (`app.kafka.append_seek`); the log itself is. Its records are
compared with the source's (`app.core.already`), not counted: compaction or retention may have taken some of
those that were copied from the source meanwhile, and counting would leave out others that never were.
"""

from __future__ import annotations

from typing import NamedTuple

from app.core.record_batch import HEADER_BYTES, Batch, iter_batches
from app.core.verbatim import LOG_APPEND_TIME, Copy
from app.kafka.append_encode import records_of, reencoded
from app.kafka.append_seek import walk
from app.kafka.clusters import ClusterClient


class Former(NamedTuple):
    """What a producer id wrote from an offset on: a print of each record, in order.

    Attributes:
        epoch: the highest that it wrote under; -1: it wrote nothing.
        end: where the log ended.
        timed: the log keeps the records' own timestamps.
        is_known: the log still reaches to that offset, so that this is all.
    """

    prints: list[int]
    epoch: int
    end: int
    timed: bool
    is_known: bool


async def former_of(
    cluster: ClusterClient, topic: str, partition: int, producer_id: int, start_offset: int
) -> Former:
    """Reads it.

    Raises:
        ClusterUnreachable, KafkaError: see `app.kafka.append_seek.written`.
    """
    prints: list[int] = []
    epoch, timed = -1, True

    def take(batch: Batch) -> None:
        nonlocal epoch, timed
        header = batch.header
        if header.producer_id != producer_id or header.is_control:
            return
        epoch = max(epoch, header.producer_epoch)
        own_time = not header.attributes & LOG_APPEND_TIME
        timed = timed and own_time
        prints.extend(_prints(batch, timed=own_time))

    end = await walk(cluster, topic, partition, start_offset, take)
    return Former(prints, epoch, end, timed, end >= 0)


def prints_of(copy: Copy, *, timed: bool) -> list[int]:
    """The prints of a copy's records, to be compared with a `Former`'s."""
    return _prints(_batch(copy), timed=timed)


def without(copy: Copy, count: int, max_batch_bytes: int) -> list[Copy]:
    """The copy without its first `count` records, in batches that are encoded anew. Which of its source's
    offsets their records have is not known: only the last moves a position, to the end of the copy.

    Raises: UndecodableBatch.
    """
    batch, start, end = _batch(copy), copy.source_start, copy.source_end
    pieces = reencoded(batch, batch.header.base_offset + count, max_batch_bytes)
    last = len(pieces) - 1
    return [
        piece._replace(source_start=start, source_end=end if at == last else start)
        for at, piece in enumerate(pieces)
    ]


def _batch(copy: Copy) -> Batch:
    return next(iter_batches(memoryview(copy.data)))


def _prints(batch: Batch, *, timed: bool) -> list[int]:
    try:
        return [
            hash((record.timestamp if timed else 0, record.key, record.value, tuple(record.headers)))
            for record in records_of(batch)
        ]
    except Exception:  # noqa: BLE001 - whatever the decoder raises
        # Brokers take more than our decoder reads (header names that are no UTF-8, batches without bound).
        # Such a batch was copied as it is, and all of it at once: its bytes tell it.
        records = hash(bytes(batch.data[HEADER_BYTES:]))
        return [hash((records, number)) for number in range(batch.header.record_count)]
