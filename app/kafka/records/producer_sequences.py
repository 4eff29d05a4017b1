"""Sequence numbers: the count of a producer's records in a partition, in every batch header.

A stamp (id, epoch, n) is a producer's state: its earlier records have numbers below n, later ones n and
more. A barrier that carries a stamp gives the position of the lane's source at that moment.

Rules
1. Numbers count a producer's records in one partition, from 0 in each epoch, and wrap after 2^31 - 1.
2. Offsets decide which of two numbers is later: records less than `NEAR` offsets apart have numbers less
   than half the circle apart.

Source: Apache Kafka's DefaultRecordBatch (incrementSequence), KIP-98, KIP-360 (epochs begin at 0).
"""

from __future__ import annotations

from typing import NamedTuple

SEQUENCES = 1 << 31
NEAR = SEQUENCES >> 2  # offsets; a window and its counterpart span at most two of these

Producer = tuple[int, int]  # id and epoch


class ProducerStamp(NamedTuple):
    """A producer's state in a partition. `sequence` belongs to its next record."""

    producer_id: int
    epoch: int
    sequence: int

    @property
    def producer(self) -> Producer:
        return self.producer_id, self.epoch

    def behind(self, count: int) -> ProducerStamp:
        return self._replace(sequence=(self.sequence + count) % SEQUENCES)


class ProducerTail(NamedTuple):
    """The records of a producer id in a partition, read in log order.

    Attributes:
        end: The end offset of the last batch that was read.
        stamp: The producer's state after that batch; None: not known yet.
        is_whole: No record was missed since reading began. Numbers have no gap within an epoch, each epoch
            begins at 0, and epochs never decrease.
    """

    end: int
    stamp: ProducerStamp | None = None
    is_whole: bool = True

    def behind(self, start: int, end: int, first: ProducerStamp, count: int) -> ProducerTail:
        """The tail after one more batch: offsets [start, end), `count` records, numbered from `first`."""
        last = self.stamp
        if last is None or first.epoch > last.epoch:
            last = first._replace(sequence=0)
        is_next = first == last and count == end - start and start >= self.end
        return ProducerTail(end, first.behind(count), self.is_whole and is_next)


def later(sequence: int, other: int) -> int:
    """How many records `sequence` is after `other`; negative: before it (rule 2)."""
    return (sequence - other + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2
