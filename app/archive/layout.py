"""Types of the archive's log: files, positions and changes, with their JSON.

Offsets are half-open ranges `[start, end)`; times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.kernel.json_types import JsonMapping, JsonObject

RECORDS, QUARANTINE = "records", "quarantine"
VISIBLE = "id-"  # before the topic's id in a file's name
HIDDEN = ("_", ".")  # Spark ignores files with this prefix


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A file's records of one partition: the range of offsets, the range of timestamps, and their number."""

    partition: int
    start: int
    end: int
    rows: int
    first_ms: int
    last_ms: int

    def overlaps(self, start: int, end: int) -> bool:
        """Whether it may have an offset in [start, end)."""
        return self.start < end and start < self.end


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of the archive; `path` is below the root, `table` is `records` or `quarantine`."""

    path: str
    table: str
    topic: str
    topic_id: str
    date: str
    hour: str
    size_bytes: int
    spans: tuple[FileSpan, ...]

    @property
    def hidden(self) -> bool:
        """Whether Spark ignores it; earlier versions made such names from some topics' ids."""
        return is_hidden(self.path)

    @property
    def rows(self) -> int:
        """The number of records."""
        return sum(span.rows for span in self.spans)

    @property
    def first_ms(self) -> int:
        """The least timestamp."""
        return min(span.first_ms for span in self.spans)

    @property
    def last_ms(self) -> int:
        """The greatest timestamp."""
        return max(span.last_ms for span in self.spans)

    def as_json(self) -> JsonObject:
        """Its JSON in the log."""
        spans = [[s.partition, s.start, s.end, s.rows, s.first_ms, s.last_ms] for s in self.spans]
        return {
            "path": self.path,
            "table": self.table,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "date": self.date,
            "hour": self.hour,
            "size_bytes": self.size_bytes,
            "spans": spans,
        }

    @classmethod
    def from_json(cls, found: JsonMapping) -> ArchiveFile:
        """The file with this JSON."""
        known = {name: found[name] for name in cls.__slots__ if name != "spans"}
        return cls(**known, spans=tuple(FileSpan(*span) for span in found["spans"]))


@dataclass(frozen=True, slots=True, order=True)
class ArchivedPartition:
    """A partition of one lineage of a topic."""

    topic: str
    topic_id: str
    number: int


@dataclass(frozen=True, slots=True)
class ArchivedReach:
    """The archived part of a partition: every record in [start, end), except those in `ArchiveGap`s."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ArchiveGap:
    """Offsets [start, end) that the topic had lost before they were archived."""

    partition: ArchivedPartition
    start: int
    end: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveChange:
    """An entry of the log. `reach` is the new reach of partitions, `based_on` the reach that they must
    have had before."""

    kind: str  # land | compact
    at_ms: int
    added: tuple[ArchiveFile, ...] = ()
    removed: tuple[str, ...] = ()
    reach: Mapping[ArchivedPartition, ArchivedReach] | None = None
    based_on: Mapping[ArchivedPartition, ArchivedReach] | None = None
    gaps: tuple[ArchiveGap, ...] = ()

    def as_json(self) -> JsonObject:
        """Its JSON in the log, without `based_on`, which the commit checks."""
        return {
            "kind": self.kind,
            "at_ms": self.at_ms,
            "added": [file.as_json() for file in self.added],
            "removed": list(self.removed),
            "reach": reach_as_json(self.reach or {}),
            "gaps": gaps_as_json(self.gaps),
        }

    @classmethod
    def from_json(cls, found: JsonMapping) -> ArchiveChange:
        """The change with this JSON."""
        return cls(
            kind=found["kind"],
            at_ms=found["at_ms"],
            added=tuple(ArchiveFile.from_json(file) for file in found["added"]),
            removed=tuple(found["removed"]),
            reach=reach_from_json(found["reach"]),
            gaps=gaps_from_json(found["gaps"]),
        )


def is_hidden(path: str) -> bool:
    """Whether Spark ignores a file of this name."""
    return path.rpartition("/")[2].startswith(HIDDEN)


def reach_as_json(reach: Mapping[ArchivedPartition, ArchivedReach]) -> list[list[object]]:
    """Rows of topic, topic id, partition, start, end."""
    return [[p.topic, p.topic_id, p.number, to.start, to.end] for p, to in sorted(reach.items())]


def reach_from_json(rows: list[list[Any]]) -> dict[ArchivedPartition, ArchivedReach]:
    """The inverse of `reach_as_json`."""
    return {ArchivedPartition(*row[:3]): ArchivedReach(*row[3:]) for row in rows}


def gaps_as_json(gaps: tuple[ArchiveGap, ...]) -> list[list[object]]:
    """Rows of topic, topic id, partition, start, end, time of detection."""
    return [
        [g.partition.topic, g.partition.topic_id, g.partition.number, g.start, g.end, g.at_ms] for g in gaps
    ]


def gaps_from_json(rows: list[list[Any]]) -> tuple[ArchiveGap, ...]:
    """The inverse of `gaps_as_json`."""
    return tuple(ArchiveGap(ArchivedPartition(*row[:3]), *row[3:]) for row in rows)
