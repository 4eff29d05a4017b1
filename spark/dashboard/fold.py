"""A round: reads the next offsets of a region's changelogs, incidents and heartbeats into the region's store.

Of a table only the dates with new entries are read and rewritten. Loads are appended, and a date's files
merged from `MOST_FILES` on. One change of the store's log commits all, or nothing counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from app.archive.errors import ConcurrentCommit
from app.archive.layout import ArchiveChange, ArchiveFile, ArchiveGap
from app.archive.log import Archive, ArchiveState
from app.controllog.topics import ControlTopics
from spark.archive.ingest import IngestSource, unread_topics, without
from spark.archive.ranges import ArchiveRound, next_round
from spark.dashboard import frames
from spark.dashboard.decode import INCIDENTS, TABLES
from spark.dashboard.store import LOADS, QUARANTINE, STATE, files_of, stored, write
from spark.reading import Doubts, read_around
from spark.topics import KafkaTopic, UnreadRange

MOST_FILES = 32  # load files of a date, before they are merged


@dataclass(frozen=True, slots=True)
class Folded:
    """A round's result. `rows`: written rows, also rewritten ones. `left`: offsets for the next round."""

    offsets: int
    rows: int
    quarantined: int
    gaps: tuple[ArchiveGap, ...]
    left: int
    unread: tuple[UnreadRange, ...] = ()


def table_topics(region: str) -> dict[str, str]:
    """The topics of a region's changelogs, each with its table, and the topic of incidents."""
    topics = ControlTopics(region)
    tables = {f"{topics.app_id}-{table}-changelog": table for table in TABLES}
    return {**tables, topics.incidents.name: INCIDENTS}


def pattern(region: str) -> str:
    """A regular expression for the names of these topics and the heartbeats."""
    names = [*table_topics(region), ControlTopics(region).heartbeats.name]
    return "|".join(map(re.escape, names))


def fold_round(archive: Archive, source: IngestSource, region: str, limit: int, now_ms: int) -> Folded:
    """Runs one round of at most `limit` offsets.

    Raises:
        ConcurrentCommit: Another job committed first, or a topic was deleted meanwhile; nothing changed.
    """
    topics = source.topics(pattern(region))
    state = archive.state()
    planned = next_round(topics.values(), state.reach, limit, now_ms)
    undescribed = unread_topics(topics)
    if not planned.after:
        return Folded(0, 0, 0, (), planned.left, undescribed)
    offsets = sum(one.end - one.start for one in planned.ranges)
    added: tuple[ArchiveFile, ...] = ()
    removed: list[ArchiveFile] = []
    unread: tuple[UnreadRange, ...] = ()
    if planned.ranges:
        (added, removed), unread = read_around(
            source,
            planned.ranges,
            lambda records: _written(archive, state, records, region, planned, topics),
            lambda _: Doubts(planned.ranges),  # compaction leaves holes in almost all
        )
        _same(topics, source.topics(pattern(region)))
        offsets -= sum(one.end - one.start for one in unread)
        planned = without(planned, unread, topics, state.reach)
    if planned.after:
        archive.commit(
            ArchiveChange(
                kind="fold",
                at_ms=now_ms,
                added=added,
                removed=tuple(file.path for file in removed),
                reach=planned.after,
                based_on=planned.before,
                gaps=planned.gaps,
            )
        )
    bad = sum(file.rows for file in added if file.table == QUARANTINE)
    rows = sum(file.rows for file in added) - bad
    return Folded(offsets, rows, bad, planned.gaps, planned.left, undescribed + unread)


def _written(
    archive: Archive,
    state: ArchiveState,
    records: DataFrame,
    region: str,
    planned: ArchiveRound,
    topics: dict[str, KafkaTopic],
) -> tuple[tuple[ArchiveFile, ...], list[ArchiveFile]]:
    """New files, and those that they replace."""
    offsets = sum(one.end - one.start for one in planned.ranges)
    heartbeats = ControlTopics(region).heartbeats.name
    tables = {
        name: (table, _generation(state, name, topics[name].topic_id))
        for name, table in table_topics(region).items()
        if name in topics
    }
    changes = records.where(f.col("topic").isin(*tables))
    beats = records.where(f.col("topic") == heartbeats)
    entries = frames.decoded(changes, tables).union(frames.bad_heartbeats(beats)).persist()
    try:
        good = entries.where(f.col("reason").isNull())
        touched = {(row["table"], row["date"]) for row in good.select("table", "date").distinct().collect()}
        removed = [file for file in files_of(state, STATE) if (file.topic, file.date) in touched]
        both = frames.newest(stored(records.sparkSession, archive, removed, STATE).union(good))
        before = sum(file.rows for file in removed)
        added = write(both, archive, STATE, before + offsets, "table")
        added += write(entries.where(f.col("reason").isNotNull()), archive, QUARANTINE, 0, "table")
        if any(one.topic == heartbeats for one in planned.ranges):
            loads, many = _loads(archive, state, frames.joined(frames.loads(beats)))
            added += write(loads, archive, LOADS, 0, "")
            removed += many
        return added, removed
    finally:
        entries.unpersist()


def _loads(archive: Archive, state: ArchiveState, new: DataFrame) -> tuple[DataFrame, list[ArchiveFile]]:
    """The loads to write, and the files that they replace: a date's files are merged from `MOST_FILES` on."""
    by_date: dict[str, list[ArchiveFile]] = {}
    for file in files_of(state, LOADS):
        by_date.setdefault(file.date, []).append(file)
    many = [file for files in by_date.values() if len(files) >= MOST_FILES for file in files]
    if not many:
        return new, []
    return frames.joined(stored(new.sparkSession, archive, many, LOADS).union(new)), many


def _generation(state: ArchiveState, topic: str, topic_id: str) -> int:
    """The number of earlier topics of this name."""
    known = state.lineages(topic)
    return known.index(topic_id) if topic_id in known else len(known)


def _same(before: dict[str, KafkaTopic], after: dict[str, KafkaTopic]) -> None:
    for name, topic in before.items():
        if name not in after or after[name].topic_id != topic.topic_id:
            raise ConcurrentCommit(
                f"topic {name} was deleted or made again while it was read; the round changed nothing"
            )
