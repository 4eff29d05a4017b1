"""Finds where in its source a copy comes from, by the sequence numbers that its lane gave to its batches.

    copy's batch: producer, first number s  --stamped barriers-->  source offset of its first record

A barrier (S, T) with a producer's stamp n says: records numbered below n have source offsets below S, the
others S or more. A lane copies each offset of a source at most once, and may skip some. So the record with
number s has a source offset (`app.offsets.model.source_frontier`)
- of at least S + (s - n), by a barrier with n <= s
- of at most S - (n - s), by a barrier with s < n.
There is no result if barriers contradict each other, or if two sources claim the producer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from app.kafka.records.leader_epochs import ENDLESS
from app.kafka.records.producer_sequences import NEAR, Producer, ProducerStamp, later
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, OffsetMapLine


class ClusterPartition(NamedTuple):
    """A partition of a topic in a cluster, by the cluster's name in this worker's configuration."""

    cluster: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} of {self.cluster}"


class CopyOrigin(NamedTuple):
    """The source, and the lowest and highest offset that the record may have there."""

    source: ClusterPartition
    lowest: int
    highest: int

    def behind(self, count: int) -> CopyOrigin:
        """The origin of the record that comes `count` records later in the copy's batch."""
        highest = self.highest if self.highest == ENDLESS else self.highest + count
        return CopyOrigin(self.source, self.lowest + count, highest)

    def may_be(self, source: ClusterPartition, offset: int) -> bool:
        return source == self.source and self.lowest <= offset <= self.highest

    @property
    def is_exact(self) -> bool:
        return self.lowest == self.highest


class _Lane(NamedTuple):
    """A producer's barriers in order, and the sources that claim the producer."""

    barriers: list[tuple[Barrier, ProducerStamp]]
    sources: set[ClusterPartition]


class CopyOrigins:
    """The origins of the copies in one partition. `lines`: every line into the copy's topic, with its source;
    lines into other partitions or logs are ignored."""

    def __init__(
        self, lines: Iterable[tuple[ClusterPartition, OffsetMapLine]], partition: int, log: LogId
    ) -> None:
        self._lanes: dict[Producer, _Lane] = {}
        for source, line in lines:
            if line.target_partition != partition or line.target.is_another(log):
                continue
            for barrier in line.barriers:
                if barrier.stamp is not None:
                    lane = self._lanes.setdefault(barrier.stamp.producer, _Lane([], set()))
                    lane.barriers.append((barrier, barrier.stamp))
                    lane.sources.add(source)

    def source_of(self, producer_id: int, epoch: int) -> ClusterPartition | None:
        """The source whose copies a producer writes; None: unknown."""
        lane = self._lanes.get((producer_id, epoch))
        return next(iter(lane.sources)) if lane is not None and len(lane.sources) == 1 else None

    def of(self, start: int, end: int, producer_id: int, epoch: int, sequence: int) -> CopyOrigin | None:
        """The origin of the first record of a batch with offsets [start, end), numbered `sequence`."""
        source = self.source_of(producer_id, epoch)
        if source is None:
            return None
        barriers = self._lanes[producer_id, epoch].barriers
        lowest, highest = 0, ENDLESS
        below = bisect_right(barriers, start, key=_target_end) - 1
        if below >= 0:
            barrier, stamp = barriers[below]
            distance = later(sequence, stamp.sequence)
            if 0 <= distance <= start - barrier.target_end < NEAR:
                lowest = barrier.source_end + distance
        above = bisect_left(barriers, end, key=_target_end)
        if above < len(barriers):
            barrier, stamp = barriers[above]
            distance = later(stamp.sequence, sequence)
            if end - start <= distance <= barrier.target_end - start < NEAR:
                highest = barrier.source_end - distance
        return CopyOrigin(source, lowest, highest) if lowest <= highest else None


def _target_end(placed: tuple[Barrier, ProducerStamp]) -> int:
    return placed[0].target_end
