"""Where a workload begins in another cluster: a mapping by time, pure.

    source partition: [position, end) is unfinished; the least timestamp of it, less a margin, is its time
    destination partition: begins at the first record at or after that time

Rules
1. Nothing unfinished is passed over: a record before the mapped offset is older than all that is unfinished.
   That needs copies which keep their timestamps (or get later ones), and a margin above what producers'
   clocks differ by and above the time they took to switch.
2. The newest record that is not from the future counts as unfinished too: when nothing is, the time is its.
   Records from the future alone would put the time behind what was produced in the destination since.
3. A partition without a record tells no time: its counterpart begins at its start.
4. With unequal partition counts a key may be in any partition: all begin at the least time of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class SourcePartition:
    """One partition of the topic where the workload is now, in next offsets; [start, end) is its log.

    Attributes:
        least_ms: least timestamp from `position` on; None before any was seen.
        newest_ms: timestamp of the last record that is not from the future.
        finished_above: what is finished from `position` on, and is read again.
    """

    partition: int
    start: int
    position: int
    end: int
    finished_above: int = 0
    least_ms: int | None = None
    newest_ms: int | None = None

    def see(self, offset: int, timestamp_ms: int, now_ms: int) -> None:
        """One record of the log, in order of offsets."""
        if offset >= self.position and (self.least_ms is None or timestamp_ms < self.least_ms):
            self.least_ms = timestamp_ms
        if timestamp_ms <= now_ms:
            self.newest_ms = timestamp_ms

    @property
    def behind(self) -> int:
        """Offsets from the position on."""
        return self.end - self.position

    @property
    def unfinished(self) -> int:
        """Offsets that are not finished, as far as is known."""
        return max(0, self.behind - self.finished_above)

    @property
    def time_ms(self) -> int | None:
        """Its time, without the margin. None: it has none, or a record without a timestamp."""
        if self.least_ms is None or self.newest_ms is None:
            # Unfinished ones from the future alone tell nothing of what was produced elsewhere meanwhile.
            return self.newest_ms
        return min(self.least_ms, self.newest_ms)


def times(sources: Sequence[SourcePartition], partitions: int) -> list[int | None]:
    """The time from which each destination partition counts, without the margin; None: from its start."""
    own = [source.time_ms for source in sources]
    if len(sources) == partitions:
        return [_sound(time) for time in own]
    # A partition that has nothing unfinished and no record at all holds up nobody.
    needed = [time for source, time in zip(sources, own, strict=True) if time is not None or source.behind]
    return [_least(needed)] * partitions


def _least(found: Iterable[int | None]) -> int | None:
    known = list(found)
    return None if not known or None in known else _sound(min(time for time in known if time is not None))


def _sound(time_ms: int | None) -> int | None:
    return None if time_ms is None or time_ms < 0 else time_ms
