"""Which offsets the next round archives: pure, from what the topics have and what the archive reaches.

Rules
1. A partition goes on exactly where the archive's reach ends; one that is new begins at its log's start.
2. What was deleted from the topic before it was archived is a gap, told and recorded; the round goes on
   behind it.
3. A round takes at most `limit` offsets, shared evenly: what one partition does not need, the others get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.archive.layout import ArchivedPartition, ArchivedReach, ArchiveGap
from spark.topics import KafkaTopic, Range


@dataclass(frozen=True, slots=True)
class ArchiveRound:
    """What to read, the reach before and after, and what is lost."""

    ranges: tuple[Range, ...]
    before: dict[ArchivedPartition, ArchivedReach]
    after: dict[ArchivedPartition, ArchivedReach]
    gaps: tuple[ArchiveGap, ...]
    left: int  # offsets that wait for the next rounds


def next_round(
    topics: Iterable[KafkaTopic], reached: Mapping[ArchivedPartition, ArchivedReach], limit: int, at_ms: int
) -> ArchiveRound:
    """The next round; `limit` is in offsets, `at_ms` the time at which gaps are noticed."""
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
    """How much each gets of `limit`: the same for all, but nobody more than is wanted."""
    shares: dict[ArchivedPartition, int] = {}
    left = limit
    by_need = sorted(wanted, key=lambda at: (wanted[at], at))
    for done, at in enumerate(by_need):
        shares[at] = min(wanted[at], left // (len(by_need) - done))
        left -= shares[at]
    return shares
