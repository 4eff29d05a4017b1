"""Plans the offsets of the next round: pure, from the topics' bounds and the archive's reach.

Rules
1. A partition continues exactly where the archive's reach ends. A new partition begins at its log's start.
2. Offsets that the topic deleted before they were archived are a gap, which is reported and recorded. The
   round continues behind it.
3. A round takes at most `limit` offsets, in equal shares. Partitions with fewer offsets leave the rest to the
   others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.archive.layout import ArchivedPartition, ArchivedReach, ArchiveGap
from spark.topics import KafkaTopic, Range


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """The ranges to read, the reach before and after, and the lost offsets."""

    ranges: tuple[Range, ...]
    before: dict[ArchivedPartition, ArchivedReach]
    after: dict[ArchivedPartition, ArchivedReach]
    gaps: tuple[ArchiveGap, ...]
    left: int  # offsets that wait for the next rounds


def next_round(
    topics: Iterable[KafkaTopic], reached: Mapping[ArchivedPartition, ArchivedReach], limit: int, at_ms: int
) -> ArchiveRound:
    """Plans the next round of at most `limit` offsets; `at_ms` dates the gaps."""
    before, gaps, waiting = {}, [], {}
    for topic in topics:
        for number, bounds in topic.partitions.items():
            at = ArchivedPartition(topic.name, topic.topic_id, number)
            reach = reached.get(at, ArchivedReach(bounds.start, bounds.start))
            before[at] = reach
            if bounds.start > reach.end:
                gaps.append(ArchiveGap(at, reach.end, bounds.start, at_ms))
            start = max(reach.end, bounds.start)
            waiting[at] = (start, max(start, bounds.end))
    shares = share({at: end - start for at, (start, end) in waiting.items()}, limit)
    after, ranges = {}, []
    for at, (start, _) in waiting.items():
        until = start + shares[at]
        if until > start:
            ranges.append(Range(at.topic, at.number, start, until))
        if until > before[at].end or at not in reached:
            after[at] = ArchivedReach(before[at].start, until)
    left = sum(end - start for start, end in waiting.values()) - sum(shares.values())
    return ArchiveRound(tuple(sorted(ranges)), {at: before[at] for at in after}, after, tuple(gaps), left)


def share(wanted: Mapping[ArchivedPartition, int], limit: int) -> dict[ArchivedPartition, int]:
    """The shares of `limit`: equal, but none larger than wanted."""
    shares: dict[ArchivedPartition, int] = {}
    left = limit
    by_need = sorted(wanted, key=lambda at: (wanted[at], at))
    for done, at in enumerate(by_need):
        shares[at] = min(wanted[at], left // (len(by_need) - done))
        left -= shares[at]
    return shares
