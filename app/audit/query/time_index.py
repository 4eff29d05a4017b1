"""The time index: the offsets of a topic's records of a time, as the topic's audit counted them. Pure.

    windows of the books --share--> of all workers --joined, time_index--> TimeIndex --at, between--> offsets

Rules (tests/audit/query/test_time_index.py)
1. The index goes by windows and by the plan's event time, which need not be the records' timestamps. For an
   instant within a window it gives the window's offset. So an offset may be too early, never too late.
2. The index does not know records from before counting began, nor windows that were dropped as too old. It
   says so (`complete_ms`).
3. Records behind all counted ones are newer, or late. Below `marks_ms` they are late.
4. A recreated topic has another id, so counts of the former topic do not apply to its log.
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

Certainty = Literal["", "before-start", "beyond-end", "window"]


class TimeIndex(NamedTuple):
    """The windows of a topic at one tier of a cluster.

    Attributes:
        windows: Partition -> its windows.
        marks_ms: Partition -> the time below which only late records are still to come.
        complete_ms: Windows that begin before it are unknown, or incomplete.
    """

    windows: Mapping[int, list[Indexed]]
    marks_ms: Mapping[int, int]
    complete_ms: int

    def knows(self, partition: int, from_ms: int) -> bool:
        """Whether the index has all counted records of this time or later."""
        of = self.windows.get(partition, ())
        begins_ms = [window.start_ms for window in of if window.start_ms <= from_ms < window.end_ms]
        return bool(of) and min([from_ms, *begins_ms]) >= self.complete_ms

    def end(self, partition: int) -> int:
        """The offset behind all counted records of a partition."""
        return max((window.span[1] for window in self.windows.get(partition, ())), default=0)

    def between(self, partition: int, from_ms: int, before_ms: int) -> Range:
        """The offsets of the counted records of a time."""
        return span_between(self.windows.get(partition, ()), from_ms, before_ms)

    def at(self, partition: int, time_ms: int) -> tuple[int, Certainty] | None:
        """The first offset with records of this time or later, and its certainty; None: the partition is
        unknown.

        "window": the offset is the first of a window that begins before the time. "beyond-end": no counted
        record is that new; the offset is behind all of them. "before-start": older records may be uncounted.
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
    """The places of a topic's windows in this worker's books. Raises ValueError: more than `MOST_INDEXED`."""
    windows: dict[str, WindowRecord] = {}
    found = BookShare(dict(next_offsets), windows, {})
    for book in books:
        for key, record in book.windows.items():
            if key.start_ms != UNTIMED and wanted.means(key):
                spans = {source: Counted(span=span_of(of)) for source, of in record.counted.items()}
                windows[str(key)] = WindowRecord(counted=spans)
        if len(windows) > MOST_INDEXED:
            raise ValueError(
                f"{wanted.topic} has more than {MOST_INDEXED} windows; give its plan longer ones"
            )
        tiers = {str(key): tier for key, tier in book.tiers.items() if wanted.means(key)}
        found = msgspec.structs.replace(found, tiers=found.tiers | tiers)
    return found


def time_index(known: RegionCounts, topic_id: str | None) -> TimeIndex | None:
    """The index of one topic at one tier of a cluster; None: it is unknown. `topic_id` None: the id that
    reported last, for a cluster that does not answer."""
    heard_ms = {
        source: reported.heard_ms
        for record in known.tiers.values()
        for source, reported in record.sources.items()
        if _place(source) is not None
    }
    if topic_id is None:
        newest = max(heard_ms, key=lambda source: (heard_ms[source], source), default="")
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
        for source, reported in tier.sources.items():
            place = _place(source)
            if place is not None and place[0] == topic_id:
                marks_ms[place[1]] = max(marks_ms.get(place[1], -1), reported.watermark_ms)
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
    """A source's topic id and partition; None: the source is a client."""
    name = source.partition(INCARNATION)[0]
    topic_id, slash, partition = name.rpartition("/")
    if not slash or not (partition.isascii() and partition.isdigit()):
        return None
    return topic_id, int(partition)
