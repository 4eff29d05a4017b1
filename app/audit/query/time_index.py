"""The time index: from which offset on a topic's records of a time are, as their audit knows it. Pure.

    windows of the books --share--> of all workers --joined--> TimeIndex --spans--> offsets

Rules
1. It is by the event time of the plan, which need not be the records' timestamps, and by windows: what it
   says of an instant within a window holds for the window, and may be a little early. It is never late.
2. What was there before counting began, and windows that were dropped as too old, it does not know: it says
   so (`complete_ms`).
3. What lies behind all that was counted is newer, or comes late: up to `marks_ms` that only.
4. A topic that was made anew has another id: what was counted of the former one is of another log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from app.audit.folds.collector import Collector
from app.audit.folds.counted_parts import Counted, span_of
from app.audit.folds.window import WindowRecord
from app.audit.query.view import BookShare, RegionCounts, WindowQuery
from app.kernel.ranges import Range
from switchyard.audit.model.reports import INCARNATION
from switchyard.audit.model.spans import NO_SPAN, Indexed, hull, span_between
from switchyard.audit.model.tally import UNTIMED

MOST_INDEXED = 100_000  # windows of a share
EVER_MS = 1 << 62

Sure = Literal["", "before-start", "beyond-end", "window"]


class TimeIndex(NamedTuple):
    """See the module.

    Attributes:
        windows: by partition.
        marks_ms: nothing below is expected of a partition but what comes late.
        complete_ms: of windows that begin before it nothing is known, or not all.
    """

    windows: Mapping[int, list[Indexed]]
    marks_ms: Mapping[int, int]
    complete_ms: int

    def knows(self, partition: int, from_ms: int) -> bool:
        """Whether it knows of every record of that time or later that was counted."""
        of = self.windows.get(partition, ())
        begins_ms = [window.start_ms for window in of if window.start_ms <= from_ms < window.end_ms]
        return bool(of) and min([from_ms, *begins_ms]) >= self.complete_ms

    def end(self, partition: int) -> int:
        """Behind all that was counted of a partition."""
        return max((window.span[1] for window in self.windows.get(partition, ())), default=0)

    def between(self, partition: int, from_ms: int, before_ms: int) -> Range:
        """Where the records of a time are that were counted."""
        return span_between(self.windows.get(partition, ()), from_ms, before_ms)

    def at(self, partition: int, time_ms: int) -> tuple[int, Sure] | None:
        """The first offset of records of that time or later. None: nothing is known of the partition.

        "window": it is the first of a window that begins before the time; "beyond-end": none that was counted
        is that new, the offset is behind them all; "before-start": older ones may have been there.
        """
        windows = self.windows.get(partition)
        if not windows:
            return None
        start, end = self.between(partition, time_ms, EVER_MS)
        if start >= end:
            return self.end(partition), "beyond-end"
        if not self.knows(partition, time_ms):
            return start, "before-start"
        later = [window for window in windows if window.start_ms >= time_ms]
        sure = span_between(later, time_ms, EVER_MS)
        return start, "" if sure != NO_SPAN and sure[0] == start else "window"


def share(next_offsets: Mapping[int, int], books: Iterable[Collector], wanted: WindowQuery) -> BookShare:
    """What a worker's books know of where the windows of a topic are.

    Raises:
        ValueError: they are too many.
    """
    windows: dict[str, WindowRecord] = {}
    found = BookShare(dict(next_offsets), windows, {})
    for book in books:
        for key, record in book.windows.items():
            if key.start_ms != UNTIMED and wanted.means(key):
                spans = {source: Counted(span=span_of(of)) for source, of in record.counted.items()}
                windows[str(key)] = WindowRecord(counted=spans)
        if len(windows) > MOST_INDEXED:
            raise ValueError(f"more than {MOST_INDEXED} windows of {wanted.topic}: its windows are too short")
        tiers = {str(key): tier for key, tier in book.tiers.items() if wanted.means(key)}
        found = msgspec.structs.replace(found, tiers=found.tiers | tiers)
    return found


def time_index(known: RegionCounts, topic_id: str | None) -> TimeIndex | None:
    """Of one topic at one tier of a cluster. `topic_id` None: that which was heard last (where its cluster
    cannot be asked). None: nothing is known of it."""
    heard = {
        source: told.heard_ms
        for record in known.tiers.values()
        for source, told in record.sources.items()
        if _place(source) is not None
    }
    if topic_id is None:
        newest = max(heard, key=lambda source: (heard[source], source), default="")
        topic_id = (_place(newest) or ("", 0))[0]
    windows: dict[int, dict[tuple[int, int], Range]] = {}
    for key, record in known.windows.items():
        for source, counted in record.counted.items():
            place = _place(source)
            if place is not None and place[0] == topic_id and counted.span != NO_SPAN:
                of = windows.setdefault(place[1], {})
                at = key.start_ms, key.end_ms
                of[at] = hull(of.get(at, NO_SPAN), counted.span)
    marks_ms: dict[int, int] = {}
    for tier in known.tiers.values():
        for source, told in tier.sources.items():
            place = _place(source)
            if place is not None and place[0] == topic_id:
                marks_ms[place[1]] = max(marks_ms.get(place[1], -1), told.watermark_ms)
    if not windows and not marks_ms:
        return None
    known_ms = (max(record.complete_ms, record.forgotten_ms) for record in known.tiers.values())
    complete_ms = max(known_ms, default=-1)
    return TimeIndex(
        {
            partition: [Indexed(*at, span) for at, span in sorted(of.items())]
            for partition, of in windows.items()
        },
        marks_ms,
        complete_ms,
    )


def _place(source: str) -> tuple[str, int] | None:
    """Topic id and partition of a source that is one; None: it is a client."""
    name = source.partition(INCARNATION)[0]
    topic_id, slash, partition = name.rpartition("/")
    if not slash or not (partition.isascii() and partition.isdigit()):
        return None
    return topic_id, int(partition)
