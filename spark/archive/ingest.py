"""A round of archiving: read the next ranges, land them, let them count.

A round that is killed anywhere, or outdone by another archiver, changes nothing. Ranges that the topic
deletes while they are read fail the round; the next one finds the gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame

from app.archive.errors import ConcurrentCommit
from app.archive.layout import ArchiveChange, ArchiveGap
from app.archive.log import Archive
from spark.archive.frames import ordered, placed
from spark.archive.landing import Landed, land
from spark.archive.ranges import ArchiveRound, next_round
from spark.kafka import KafkaTopic, Range


class IngestSource(Protocol):
    """What a round needs of a cluster."""

    def topics(self, pattern: str) -> dict[str, KafkaTopic]:
        """Topics with their bounds."""

    def read(self, ranges: tuple[Range, ...]) -> DataFrame:
        """Their records."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What a round did: records archived, those of them quarantined, files, gaps, offsets that still wait."""

    records: int
    quarantined: int
    files: int
    gaps: tuple[ArchiveGap, ...]
    left: int


def run_round(archive: Archive, source: IngestSource, pattern: str, limit: int, now_ms: int) -> IngestResult:
    """One round over the topics whose names match; at most `limit` offsets.

    Raises:
        ConcurrentCommit: another archiver was there first, or a topic was made anew meanwhile. Nothing
        counts.
    """
    topics = source.topics(pattern)
    planned = next_round(topics.values(), archive.state().reach, limit, now_ms)
    if not planned.after:
        return IngestResult(0, 0, 0, (), planned.left)
    landed = Landed(())
    if planned.ranges:
        frame = ordered(placed(source.read(planned.ranges), now_ms))
        landed = land(frame, archive.root, {name: topic.topic_id for name, topic in topics.items()})
        _same(topics, source.topics(pattern))
    archive.commit(change(planned, landed, now_ms))
    return IngestResult(landed.rows, landed.quarantined, len(landed.files), planned.gaps, planned.left)


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
