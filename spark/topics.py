"""Topics and ranges of offsets, as jobs plan with them; without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL = -1  # as the partition: all partitions


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets [start, end) of a partition: from the log start offset to the last stable offset."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class UnreadRange:
    """Offsets [start, end) that could not be read; -1 for a whole partition, or topic (`ALL`)."""

    topic: str
    partition: int
    start: int
    end: int
    why: str

    def __str__(self) -> str:
        name = self.topic if self.partition == ALL else f"{self.topic} [{self.partition}]"
        offsets = "" if self.start < 0 else f", offsets {self.start:,} to {self.end - 1:,}"
        return f"{name}{offsets}: cannot be read: {self.why}"


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic at this moment. `unread`: partitions without known bounds, which `partitions` lacks."""

    name: str
    topic_id: str
    partitions: Mapping[int, LogBounds]
    unread: tuple[UnreadRange, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Offsets [start, end) of a partition."""

    topic: str
    partition: int
    start: int
    end: int

    def pieces(self, most: int) -> list[Range]:
        """Splits the range into ranges of at most `most` offsets."""
        starts = range(self.start, self.end, most)
        return [Range(self.topic, self.partition, at, min(at + most, self.end)) for at in starts]
