"""When a replica tells a barrier of the offset map, and which.

Rules (the design's "offset mapping")
1. Only at a new maximum of the source, and not below `quiet_below`: what an earlier owner may have sent
   twice, where nobody can tell. All from there on was sent once, so that a barrier at it is true.
2. The first is the genesis: where copying begins, and where the destination ended before that.
3. An idle barrier is told once everything is acknowledged and the source has no more: the destination's end,
   asked for while nothing was under way. It is told again when that end moves, also before anything was
   appended, once all that a former owner wrote is accounted for.
4. Otherwise every `every_s` seconds or `records` records, whichever comes first, or when somebody waits for
   it.
5. Each has the lane's stamp at that point, if there was one. Where the first batch of a lane begins a barrier
   is told, too, so that what follows is known from its first record on (`app.offsets.model.source_frontier`).
6. Before that, where the lane of a former owner ended, as soon as that is certain: with its stamp.
"""

from __future__ import annotations

from collections.abc import Callable

from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import VerbatimCopy

# source's and destination's next offset, the lane's stamp
EmitOffsetSync = Callable[[int, int, ProducerStamp | None], None]


class OffsetSyncEmitter:
    """See the module.

    Attributes:
        quiet_below: no barrier below this offset of the source.
        stamp: behind what was acknowledged last.
        first: the lane's first batch, if it is known where of the source it begins.
    """

    __slots__ = (
        "_at_s",
        "_behind",
        "_emit",
        "_opened",
        "_records",
        "_since",
        "_source_end",
        "_target_end",
        "_told",
        "every_s",
        "first",
        "quiet_below",
        "stamp",
    )

    def __init__(self, every_s: float, records: int, emit: EmitOffsetSync) -> None:
        self.every_s = every_s
        self.quiet_below = -1
        self.stamp: ProducerStamp | None = None
        self.first: VerbatimCopy | None = None
        self._behind: tuple[int, int, ProducerStamp | None] | None = None  # what was acknowledged last
        self._opened: ProducerStamp | None = None
        self._told: tuple[int, int, ProducerStamp | None] | None = None
        self._records = records
        self._emit = emit
        self._source_end = self._target_end = -1
        self._since = 0
        self._at_s = float("-inf")

    def opened(self, stamp: ProducerStamp) -> None:
        """Nothing was appended yet under this producer."""
        self._opened = self.stamp = stamp

    def genesis(self, source_end: int, target_end: int, now_s: float) -> None:
        """Copying begins there, for the first time."""
        self._record(source_end, target_end, now_s)

    def closed(self, source_end: int, target_end: int, stamp: ProducerStamp, now_s: float) -> None:
        """A former owner's lane, before anything was acknowledged by ours: what is due stays due."""
        behind, at_s = self.stamp, self._at_s
        self.stamp = stamp
        self._record(source_end, target_end, now_s)
        self.stamp, self._at_s = behind, at_s

    def lost(self) -> None:
        """The destination has lost its end: what was told of it is of another line."""
        self._source_end = self._target_end = -1
        self._at_s = float("-inf")
        self._behind = None

    def acknowledged(self, copy: VerbatimCopy, base_offset: int, now_s: float) -> None:
        """Everything up to the end of `copy` has copies, and its own begins at `base_offset`."""
        if copy is self.first:
            self._lane_started(copy, int(base_offset), now_s)  # a plain number: others write it down
        self.first = None
        self._since += copy.record_count
        self._behind = copy.source_end, int(base_offset) + copy.record_count, self.stamp
        if self._since >= self._records or now_s - self._at_s >= self.every_s:
            self._record(copy.source_end, base_offset + copy.record_count, now_s)

    def _lane_started(self, copy: VerbatimCopy, base_offset: int, now_s: float) -> None:
        """The lane's first batch: what is due otherwise stays due."""
        behind, opened, at_s = self.stamp, self._opened, self._at_s
        is_told = self._told == (copy.source_start, base_offset, opened)
        if not is_told and opened is not None and behind == opened._replace(sequence=copy.record_count):
            self.stamp = opened
            self._record(copy.source_start, base_offset, now_s)
            self.stamp, self._at_s = behind, at_s

    def now(self, now_s: float) -> None:
        """Somebody waits for the next one: of what was acknowledged last."""
        if self._since and self._behind is not None:
            source_end, target_end, stamp = self._behind
            behind, self.stamp = self.stamp, stamp
            self._record(source_end, target_end, now_s)
            self.stamp = behind

    def wants_idle(self, now_s: float) -> bool:
        """Whether an idle barrier is due, if the replica is idle."""
        return now_s - self._at_s >= self.every_s

    def idle(self, source_end: int, target_end: int, now_s: float) -> None:
        """Nothing is under way, nor was while the destination told its end."""
        self._at_s = now_s
        if source_end > self._source_end or target_end > self._target_end:
            self._record(source_end, target_end, now_s)

    def _record(self, source_end: int, target_end: int, now_s: float) -> None:
        if source_end < self.quiet_below or source_end < self._source_end:
            return
        self._source_end, self._target_end = source_end, target_end
        self._since, self._at_s = 0, now_s
        self._told = source_end, target_end, self.stamp
        self._emit(source_end, target_end, self.stamp)
