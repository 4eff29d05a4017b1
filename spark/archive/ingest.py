"""One round of archiving: read the next ranges, write their files, commit them.

A round that is killed, or whose change another archiver made first, changes nothing. If the topic deletes
records while they are read, the round fails, and the next round records a gap. A range that cannot be read is
reported and does not stop the others: its partition's position stays before the first unread offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from app.archive.errors import ConcurrentCommit
from app.archive.layout import ArchiveChange, ArchivedPartition, ArchivedReach, ArchiveGap
from app.archive.log import Archive
from spark.archive.frames import ordered, placed
from spark.archive.landing import Landed, land
from spark.archive.ranges import ArchiveRound, next_round
from spark.raw_ranges import EARLIEST_MS
from spark.reading import Doubts, RangeSource, read_around
from spark.topics import KafkaTopic, Range, UnreadRange


class IngestSource(RangeSource, Protocol):
    """The methods of a cluster that a round needs."""

    def topics(self, pattern: str) -> dict[str, KafkaTopic]:
        """Topics with their bounds."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """A round's result. `left`: offsets for the next round. `records` includes the quarantined ones."""

    records: int
    quarantined: int
    files: int
    gaps: tuple[ArchiveGap, ...]
    left: int
    unread: tuple[UnreadRange, ...] = ()


def run_round(archive: Archive, source: IngestSource, pattern: str, limit: int, now_ms: int) -> IngestResult:
    """Archives at most `limit` offsets of the topics whose names match.

    Raises:
        ConcurrentCommit: Another archiver committed first, or a topic was deleted meanwhile; nothing changed.
    """
    topics, reached = source.topics(pattern), archive.state().reach
    planned = next_round(topics.values(), reached, limit, now_ms)
    undescribed = unread_topics(topics)
    landed, unread = Landed(()), tuple[UnreadRange, ...]()
    if planned.ranges:
        ids = {name: topic.topic_id for name, topic in topics.items()}
        landed, unread = read_around(
            source,
            planned.ranges,
            lambda records: land(ordered(placed(records, now_ms)), archive.root, ids),
            lambda landed: doubts(planned.ranges, landed),
        )
        _same(topics, source.topics(pattern))
        planned = without(planned, unread, topics, reached)
    if planned.after:
        archive.commit(change(planned, landed, now_ms))
    return IngestResult(
        landed.rows, landed.quarantined, len(landed.files), planned.gaps, planned.left, undescribed + unread
    )


def unread_topics(topics: Mapping[str, KafkaTopic]) -> tuple[UnreadRange, ...]:
    """The topics and partitions that the cluster does not describe."""
    return tuple(one for topic in topics.values() for one in topic.unread)


def doubts(ranges: Sequence[Range], landed: Landed) -> Doubts:
    """Doubts about ranges with fewer records than offsets, or with a time before `EARLIEST_MS`."""
    rows, wrong = Counter[tuple[str, int]](), set[tuple[str, int]]()
    for file in landed.files:
        for span in file.spans:
            rows[file.topic, span.partition] += span.rows
            if span.first_ms < EARLIEST_MS:
                wrong.add((file.topic, span.partition))
    return Doubts(
        [one for one in ranges if rows[one.topic, one.partition] < one.end - one.start],
        [one for one in ranges if (one.topic, one.partition) in wrong],
    )


def without(
    planned: ArchiveRound,
    unread: Sequence[UnreadRange],
    topics: Mapping[str, KafkaTopic],
    reached: Mapping[ArchivedPartition, ArchivedReach],
) -> ArchiveRound:
    """Ends the round before the unread ranges. Offsets behind them are not `left`, because an immediate next
    round would not reach them. `reached`: the reach before this round."""
    after, left = dict(planned.after), planned.left
    for one in unread:
        topic = topics[one.topic]
        at = ArchivedPartition(one.topic, topic.topic_id, one.partition)
        after[at] = replace(after[at], end=one.start)
        if after[at] == reached.get(at):
            del after[at]
        left -= topic.partitions[one.partition].end - one.end
    return replace(planned, before={at: planned.before[at] for at in after}, after=after, left=left)


def change(planned: ArchiveRound, landed: Landed, now_ms: int) -> ArchiveChange:
    """The log's change that commits the round."""
    return ArchiveChange(
        kind="land",
        at_ms=now_ms,
        added=landed.files,
        reach=planned.after,
        based_on=planned.before,
        gaps=planned.gaps,
    )


def _same(before: dict[str, KafkaTopic], after: dict[str, KafkaTopic]) -> None:
    for name, topic in before.items():
        if name not in after or after[name].topic_id != topic.topic_id:
            raise ConcurrentCommit(
                f"topic {name} was deleted or made again while it was read; the round changed nothing"
            )
