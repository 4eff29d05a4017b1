"""Decides when a replica emits an offset sync (a barrier of the offset map), and which.

Rules
1. An offset sync is emitted only at a new maximum of the source, and not below `quiet_below`. Below it an
   earlier owner may have sent records twice; all records from there on were sent once, so offset syncs are
   true.
2. The first offset sync is the genesis: where copying begins, and where the destination ended before that.
3. An idle offset sync follows once everything is acknowledged and the source has no more. It names the
   destination's end, read while nothing was in flight. It follows again when that end moves, also before
   anything was appended, once all that a former owner wrote is accounted for.
4. Otherwise an offset sync follows every `every_s` seconds or `records` records, whichever comes first, or
   when a consumer waits for it.
5. Each has the lane's stamp at that point, if there was one. An offset sync is also emitted where a lane's
   first batch begins, so that later records are known from the first one on
   (`app.offsets.model.source_frontier`).
6. Before that, one with a former owner's stamp is emitted where its lane ended, as soon as that is certain.
"""

from __future__ import annotations

from collections.abc import Callable

from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import VerbatimCopy

# source's and destination's next offset, the lane's stamp
EmitOffsetSync = Callable[[int, int, ProducerStamp | None], None]


class OffsetSyncEmitter:
    """The offset syncs of one replica.

    Attributes:
        quiet_below: No offset sync is emitted below this offset of the source.
        stamp: The producer's stamp after the last acknowledged batch.
        first: The lane's first batch, if the source offset at which it begins is known.
    """

    __slots__ = (
        "_acknowledged_end",
        "_at_s",
        "_emit",
        "_last_emitted",
        "_opened",
        "_records",
        "_records_since",
        "_source_end",
        "_target_end",
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
        self._acknowledged_end: tuple[int, int, ProducerStamp | None] | None = None
        self._opened: ProducerStamp | None = None
        self._last_emitted: tuple[int, int, ProducerStamp | None] | None = None
        self._records = records
        self._emit = emit
        self._source_end = self._target_end = -1
        self._records_since = 0
        self._at_s = float("-inf")

    def opened(self, stamp: ProducerStamp) -> None:
        """Takes the stamp of a lane to which nothing was appended yet."""
        self._opened = self.stamp = stamp

    def genesis(self, source_end: int, target_end: int, now_s: float) -> None:
        self._emit_at(source_end, target_end, now_s)

    def closed(self, source_end: int, target_end: int, stamp: ProducerStamp, now_s: float) -> None:
        """Emits the end of a former owner's lane, before anything else is acknowledged; the next is not
        postponed."""
        own_stamp, at_s = self.stamp, self._at_s
        self.stamp = stamp
        self._emit_at(source_end, target_end, now_s)
        self.stamp, self._at_s = own_stamp, at_s

    def lost(self) -> None:
        """Forgets what was emitted: the destination has lost its end, so it belongs to another line."""
        self._source_end = self._target_end = -1
        self._at_s = float("-inf")
        self._acknowledged_end = None

    def acknowledged(self, copy: VerbatimCopy, base_offset: int, now_s: float) -> None:
        """Takes an acknowledged copy, which begins at `base_offset`; everything before it has copies."""
        if copy is self.first:
            self._emit_lane_start(copy, int(base_offset), now_s)  # a plain int, because it is serialized
        self.first = None
        self._records_since += copy.record_count
        self._acknowledged_end = copy.source_end, int(base_offset) + copy.record_count, self.stamp
        if self._records_since >= self._records or now_s - self._at_s >= self.every_s:
            self._emit_at(copy.source_end, base_offset + copy.record_count, now_s)

    def _emit_lane_start(self, copy: VerbatimCopy, base_offset: int, now_s: float) -> None:
        """Emits the start of the lane's first batch. Does not postpone the next one."""
        stamp, opened, at_s = self.stamp, self._opened, self._at_s
        is_emitted = self._last_emitted == (copy.source_start, base_offset, opened)
        if not is_emitted and opened is not None and stamp == opened._replace(sequence=copy.record_count):
            self.stamp = opened
            self._emit_at(copy.source_start, base_offset, now_s)
            self.stamp, self._at_s = stamp, at_s

    def now(self, now_s: float) -> None:
        """Emits the last acknowledged position, because a consumer waits for it."""
        if self._records_since and self._acknowledged_end is not None:
            source_end, target_end, stamp = self._acknowledged_end
            present_stamp, self.stamp = self.stamp, stamp
            self._emit_at(source_end, target_end, now_s)
            self.stamp = present_stamp

    def wants_idle(self, now_s: float) -> bool:
        """Whether an idle offset sync is due, if the replica is idle."""
        return now_s - self._at_s >= self.every_s

    def idle(self, source_end: int, target_end: int, now_s: float) -> None:
        """Takes the destination's end, read while nothing was in flight, and emits it if it is new."""
        self._at_s = now_s
        if source_end > self._source_end or target_end > self._target_end:
            self._emit_at(source_end, target_end, now_s)

    def _emit_at(self, source_end: int, target_end: int, now_s: float) -> None:
        if source_end < self.quiet_below or source_end < self._source_end:
            return
        self._source_end, self._target_end = source_end, target_end
        self._records_since, self._at_s = 0, now_s
        self._last_emitted = source_end, target_end, self.stamp
        self._emit(source_end, target_end, self.stamp)
