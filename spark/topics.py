"""Topics and ranges of offsets, as jobs plan with them: small values, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL = -1  # in the place of a partition


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Offsets [start, end) that a partition has: from its log's start to its last stable offset."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class UnreadRange:
    """What a job could not read, and `why`: offsets [start, end) of a partition, or the whole partition where
    both are -1, or the whole topic where `partition` is `ALL`."""

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
    """A topic as it is now. `unread`: partitions of unknown bounds, which are not in `partitions`."""

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
        """The same offsets in ranges of at most `most`."""
        starts = range(self.start, self.end, most)
        return [Range(self.topic, self.partition, at, min(at + most, self.end)) for at in starts]
