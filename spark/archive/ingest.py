"""A round of archiving: read the next ranges, land them, let them count.

A round that is killed anywhere, or outdone by another archiver, changes nothing. Ranges that the topic
deletes while they are read fail the round; the next one finds the gap. A range that cannot be read is told
and holds up no other: its partition's position stays before the first offset that was not read.
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
    """What a round needs of a cluster."""

    def topics(self, pattern: str) -> dict[str, KafkaTopic]:
        """Topics with their bounds."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What a round did: records archived, those of them quarantined, files, gaps, offsets that still wait for
    the next round, and what could not be read."""

    records: int
    quarantined: int
    files: int
    gaps: tuple[ArchiveGap, ...]
    left: int
    unread: tuple[UnreadRange, ...] = ()


def run_round(archive: Archive, source: IngestSource, pattern: str, limit: int, now_ms: int) -> IngestResult:
    """One round over the topics whose names match; at most `limit` offsets.

    Raises:
        ConcurrentCommit: another archiver was there first, or a topic was made anew meanwhile. Nothing
        counts.
    """
    topics, reached = source.topics(pattern), archive.state().reach
    planned = next_round(topics.values(), reached, limit, now_ms)
    untold = unread_topics(topics)
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
        landed.rows, landed.quarantined, len(landed.files), planned.gaps, planned.left, untold + unread
    )


def unread_topics(topics: Mapping[str, KafkaTopic]) -> tuple[UnreadRange, ...]:
    """Those and their partitions of which the cluster does not tell."""
    return tuple(one for topic in topics.values() for one in topic.unread)


def doubts(ranges: Sequence[Range], landed: Landed) -> Doubts:
    """Ranges of which fewer records than offsets were landed, or records of a time that the connector may
    have told wrong."""
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
    """The round that reaches up to what could not be read. What waits behind that is not `left`: no round
    that follows at once would come to it. `reached`: before this round."""
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
    """The log's change that makes the round count."""
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
                f"topic {name} was deleted or made anew while it was read; nothing of the round counts"
            )
