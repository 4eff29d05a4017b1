"""Sequence numbers: how many records a producer has written to a partition, kept in every batch's header.

    stamp (id, epoch, n)   of a lane at some point: what it wrote before has numbers below n, what follows has
                           n and more; where its source stood then is known, if a barrier carries the stamp

Rules
1. They count a producer's records in one partition, per epoch, from 0 on; behind 2^31 - 1 comes 0 again.
2. Which of two is the later one is told by where they lie: numbers of records that lie less than `NEAR`
   offsets apart are less than half the circle apart.

Source: Apache Kafka's DefaultRecordBatch (incrementSequence), KIP-98, KIP-360 (epochs begin at 0).
"""

from __future__ import annotations

from typing import NamedTuple

SEQUENCES = 1 << 31
NEAR = SEQUENCES >> 2  # in offsets: a window and what is compared with it are two of these at most

Producer = tuple[int, int]  # id and epoch


class ProducerStamp(NamedTuple):
    """See the module. `sequence`: of the next record."""

    producer_id: int
    epoch: int
    sequence: int

    @property
    def producer(self) -> Producer:
        return self.producer_id, self.epoch

    def behind(self, count: int) -> ProducerStamp:
        """`count` records later."""
        return self._replace(sequence=(self.sequence + count) % SEQUENCES)


class ProducerTail(NamedTuple):
    """What a producer id wrote to a partition, read in the log's order.

    Attributes:
        end: all that was read of it lies below this offset.
        stamp: behind all of it; None: its numbers are not known yet.
        is_whole: none of its numbers is missing, from where the reading began: each epoch's follow on each
            other, from 0 on where the epoch begins, and no epoch follows on a later one.
    """

    end: int
    stamp: ProducerStamp | None = None
    is_whole: bool = True

    def behind(self, start: int, end: int, first: ProducerStamp, count: int) -> ProducerTail:
        """And behind a batch of offsets [start, end): `count` records that are numbered from `first` on."""
        last = self.stamp
        if last is None or first.epoch > last.epoch:
            last = first._replace(sequence=0)
        is_next = first == last and count == end - start and start >= self.end
        return ProducerTail(end, first.behind(count), self.is_whole and is_next)


def later(sequence: int, other: int) -> int:
    """How many records `sequence` is behind `other`; below 0: before it (rule 2)."""
    return (sequence - other + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2
