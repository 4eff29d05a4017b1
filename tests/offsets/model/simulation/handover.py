"""The note that a simulated lane's owner leaves to its successor, and the log's records behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app.kafka.records.producer_sequences import SEQUENCES, ProducerStamp, ProducerTail
from app.replicate.model.copied_index import CopiedIndex


class Left(NamedTuple):
    """As in `app.replicate.destination.handover`: all of the source below `base` has copies. Records
    written beyond them lie from offset `floor` on, behind `passed` copies of records below the base."""

    base: int
    floor: int
    stamp: ProducerStamp | None = None
    passed: int = 0


class Written(NamedTuple):
    """The kept records of a producer's batch in the log, at offsets [start, end)."""

    start: int
    end: int
    stamp: ProducerStamp
    records: Sequence[int]


class Closing(NamedTuple):
    """The offset sync behind a former owner's lane."""

    source_end: int
    target_end: int
    stamp: ProducerStamp


def closing(
    left: Left, written: Iterable[Written], source: Iterable[tuple[int, int]], first_sequence: int
) -> Closing | None:
    """The conclusion of `app.replicate.destination.succession`; None: none is possible.

    Args:
        written: The producer's batches, from the floor on.
        source: The source's offsets and records, from the base on.
        first_sequence: The number with which epochs begin.
    """
    stamp = None if left.stamp is None else left.stamp.behind(SEQUENCES - first_sequence)
    tail, prints = ProducerTail(left.floor, stamp), list[int]()
    for batch in written:
        first = batch.stamp.behind(SEQUENCES - first_sequence)
        tail = tail.behind(batch.start, batch.end, first, len(batch.records))
        prints += batch.records
    already, source_end = CopiedIndex(prints[left.passed :]), left.base
    for offset, record in source:
        if already.is_over or not already.drop([record]):
            break
        source_end = offset + 1
    if tail.stamp is None or not tail.is_whole or already.left or already.skipped:
        return None
    return Closing(source_end, tail.end, tail.stamp.behind(first_sequence))
