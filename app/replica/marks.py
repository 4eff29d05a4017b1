"""When a replica tells a barrier of the offset map, and which.

Rules (the design's "offset mapping")
1. Only at a new maximum of the source, and only above `quiet_below`: what an earlier owner may have sent
   twice, where nobody can tell.
2. The first is the genesis: where copying begins, and where the destination ended before that.
3. An idle barrier is told once everything is acknowledged and the source has no more: the destination's end,
   asked for while nothing was under way. It is told again when that end moves.
4. Otherwise every `every_s` seconds or `records` records, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[int, int], None]  # source's and destination's next offset


class Marks:
    """See the module. `quiet_below`: no barrier at or below this offset of the source."""

    __slots__ = (
        "_at_s",
        "_records",
        "_since",
        "_source_end",
        "_target_end",
        "_tell",
        "every_s",
        "quiet_below",
    )

    def __init__(self, every_s: float, records: int, tell: Tell) -> None:
        self.every_s = every_s
        self.quiet_below = -1
        self._records = records
        self._tell = tell
        self._source_end = self._target_end = -1
        self._since = 0
        self._at_s = float("-inf")

    def genesis(self, source_end: int, target_end: int, now_s: float) -> None:
        """Copying begins there, for the first time."""
        self._record(source_end, target_end, now_s)

    def acknowledged(self, source_end: int, target_end: int, records: int, now_s: float) -> None:
        """So many records up to `source_end` have copies, and the last of them ends at `target_end`."""
        self._since += records
        if self._since >= self._records or now_s - self._at_s >= self.every_s:
            self._record(source_end, target_end, now_s)

    def wants_idle(self, now_s: float) -> bool:
        """Whether an idle barrier is due, if the replica is idle."""
        return now_s - self._at_s >= self.every_s

    def idle(self, source_end: int, target_end: int, now_s: float) -> None:
        """Nothing is under way, nor was while the destination told its end."""
        self._at_s = now_s
        if source_end > self._source_end or target_end > self._target_end:
            self._record(source_end, target_end, now_s)

    def _record(self, source_end: int, target_end: int, now_s: float) -> None:
        if source_end <= self.quiet_below or source_end < self._source_end:
            return
        self._source_end, self._target_end = source_end, target_end
        self._since, self._at_s = 0, now_s
        self._tell(source_end, target_end)
