"""Where in a log the records of a window are: the time index, kept beside what is counted.

    span       [start, end) of the offsets of a source's records of one window: from the least to the largest
    of a time  the hull of the spans of all windows that lie in it, if only partly

Spans are joined by least and largest: in any order, however often, a replay comes to the same. Whoever writes
records of old times behind new ones makes spans long, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Range = tuple[int, int]  # half-open: [start, end)

MAX_OFFSET = 2**63 - 1  # int64 on Kafka's wire
NO_SPAN: Range = (0, 0)  # of nothing, or of offsets that nobody has told


def hull(one: Range, other: Range) -> Range:
    """The least span that holds both."""
    if one[0] >= one[1]:
        return other
    if other[0] >= other[1]:
        return one
    return min(one[0], other[0]), max(one[1], other[1])


class Indexed(NamedTuple):
    """The span of a partition's records of one window."""

    start_ms: int
    end_ms: int
    span: Range


def span_between(windows: Iterable[Indexed], from_ms: int, before_ms: int) -> Range:
    """Where all records with event times in [from_ms, before_ms) are that were counted, among others."""
    found = NO_SPAN
    for window in windows:
        if window.end_ms > from_ms and window.start_ms < before_ms:
            found = hull(found, window.span)
    return found
