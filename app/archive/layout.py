"""What the log says of files and positions: small values, and how they stand in JSON.

Offsets are half-open ranges `[start, end)`; times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RECORDS, QUARANTINE = "records", "quarantine"
VISIBLE = "id-"  # before the topic's id in a file's name
HIDDEN = ("_", ".")  # what begins so is hidden from Spark


@dataclass(frozen=True, slots=True)
class FileSpan:
    """What a file holds of one partition: offsets and timestamps from the least to the greatest, and how
    many."""

    partition: int
    start: int
    end: int
    rows: int
    first_ms: int
    last_ms: int

    def overlaps(self, start: int, end: int) -> bool:
        """Whether an offset in [start, end) may be in it."""
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
        """Whether Spark passes over it, as over those of earlier versions for some topics' ids."""
        return is_hidden(self.path)

    @property
    def rows(self) -> int:
        """How many records are in it."""
        return sum(span.rows for span in self.spans)

    @property
    def first_ms(self) -> int:
        """The least timestamp."""
        return min(span.first_ms for span in self.spans)

    @property
    def last_ms(self) -> int:
        """The greatest timestamp."""
        return max(span.last_ms for span in self.spans)

    def as_json(self) -> dict[str, Any]:
        """As it stands in the log."""
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
    def from_json(cls, found: Mapping[str, Any]) -> ArchiveFile:
        """From the log."""
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
    """How far a partition is archived: every record in [start, end), but for what stands in `ArchiveGap`s."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ArchiveGap:
    """Offsets [start, end) that were gone from the topic before they were archived."""

    partition: ArchivedPartition
    start: int
    end: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveChange:
    """One entry of the log. `reach` says the new reach of partitions, `based_on` what they must have had
    before."""

    kind: str  # land | compact
    at_ms: int
    added: tuple[ArchiveFile, ...] = ()
    removed: tuple[str, ...] = ()
    reach: Mapping[ArchivedPartition, ArchivedReach] | None = None
    based_on: Mapping[ArchivedPartition, ArchivedReach] | None = None
    gaps: tuple[ArchiveGap, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As it stands in the log; what it was based on was checked, and does not."""
        return {
            "kind": self.kind,
            "at_ms": self.at_ms,
            "added": [file.as_json() for file in self.added],
            "removed": list(self.removed),
            "reach": reach_as_json(self.reach or {}),
            "gaps": gaps_as_json(self.gaps),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ArchiveChange:
        """From the log."""
        return cls(
            kind=found["kind"],
            at_ms=found["at_ms"],
            added=tuple(ArchiveFile.from_json(file) for file in found["added"]),
            removed=tuple(found["removed"]),
            reach=reach_from_json(found["reach"]),
            gaps=gaps_from_json(found["gaps"]),
        )


def is_hidden(path: str) -> bool:
    """Whether Spark passes over a file of this name."""
    return path.rpartition("/")[2].startswith(HIDDEN)


def reach_as_json(reach: Mapping[ArchivedPartition, ArchivedReach]) -> list[list[Any]]:
    """Rows of topic, topic id, partition, start, end."""
    return [[p.topic, p.topic_id, p.number, to.start, to.end] for p, to in sorted(reach.items())]


def reach_from_json(rows: list[list[Any]]) -> dict[ArchivedPartition, ArchivedReach]:
    """The other way."""
    return {ArchivedPartition(*row[:3]): ArchivedReach(*row[3:]) for row in rows}


def gaps_as_json(gaps: tuple[ArchiveGap, ...]) -> list[list[Any]]:
    """Rows of topic, topic id, partition, start, end, when it was noticed."""
    return [
        [g.partition.topic, g.partition.topic_id, g.partition.number, g.start, g.end, g.at_ms] for g in gaps
    ]


def gaps_from_json(rows: list[list[Any]]) -> tuple[ArchiveGap, ...]:
    """The other way."""
    return tuple(ArchiveGap(ArchivedPartition(*row[:3]), *row[3:]) for row in rows)
