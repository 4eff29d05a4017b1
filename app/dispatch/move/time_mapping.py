"""Maps by time where a workload begins in another cluster. Pure.

    source partition: [position, end) is unfinished; the least timestamp of it, less a margin, is its time
    destination partition: begins at the first record at or after that time

Rules
1. No unfinished message is skipped: records below the mapped offset are older than all unfinished ones. This
   requires that copies keep their timestamps or get later ones. The margin must exceed the difference of the
   producers' clocks, and the time in which they switched clusters.
2. The newest record that is not from the future counts as unfinished too, and gives the time when nothing is
   unfinished. Records from the future alone would skip everything produced in the destination since.
3. A partition without a record has no time: its counterpart begins at its start.
4. With different partition counts a key may be in any partition, so all begin at the least of all times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class SourcePartition:
    """One partition of the topic in the present cluster, in next offsets; [start, end) is its log.

    Attributes:
        least_ms: The least timestamp from `position` on; None: no record was seen.
        newest_ms: The timestamp of the last record that is not from the future.
        latest_ms: The greatest timestamp that is not from the future.
        finished_above: The finished messages from `position` on, which are delivered again.
    """

    partition: int
    start: int
    position: int
    end: int
    finished_above: int = 0
    least_ms: int | None = None
    newest_ms: int | None = None
    latest_ms: int | None = None

    def see(self, offset: int, timestamp_ms: int, now_ms: int) -> None:
        """Takes one record of the log, in order of offsets."""
        if offset >= self.position and (self.least_ms is None or timestamp_ms < self.least_ms):
            self.least_ms = timestamp_ms
        if timestamp_ms <= now_ms:
            self.newest_ms = timestamp_ms
            self.latest_ms = max(timestamp_ms, self.latest_ms or timestamp_ms)

    @property
    def behind(self) -> int:
        return self.end - self.position

    @property
    def unfinished(self) -> int:
        """Offsets that are not known to be finished."""
        return max(0, self.behind - self.finished_above)

    @property
    def time_ms(self) -> int | None:
        """The partition's time without the margin; None: it has no record, or one without a timestamp."""
        if self.least_ms is None or self.newest_ms is None:
            # Records from the future say nothing about records produced in the destination (rule 2).
            return self.newest_ms
        return min(self.least_ms, self.newest_ms)


def times(sources: Sequence[SourcePartition], partitions: int) -> list[int | None]:
    """The time from which each destination partition is read, without the margin; None: from its start."""
    return _per_partition(sources, [source.time_ms for source in sources], partitions)


def latest_times(sources: Sequence[SourcePartition], partitions: int) -> list[int | None]:
    """The time before which producers did not write to each destination partition; None: not known."""
    return _per_partition(sources, [source.latest_ms for source in sources], partitions)


def _per_partition(
    sources: Sequence[SourcePartition], times_ms: Sequence[int | None], partitions: int
) -> list[int | None]:
    if len(sources) == partitions:
        return [_sound(time) for time in times_ms]
    # An empty partition with nothing unfinished does not count.
    needed = [
        time for source, time in zip(sources, times_ms, strict=True) if time is not None or source.behind
    ]
    return [_least(needed)] * partitions


def _least(found: Iterable[int | None]) -> int | None:
    known = list(found)
    return None if not known or None in known else _sound(min(time for time in known if time is not None))


def _sound(time_ms: int | None) -> int | None:
    return None if time_ms is None or time_ms < 0 else time_ms
