"""The time index: where in a log the records of a window are. It is kept beside the counts.

    span       [start, end) of the offsets of a source's records of one window: from the lowest to the highest
    of a time  the hull of the spans of all windows that overlap it

Spans are joined by lowest and highest offset, so order and repetition do not matter, and a replay gives the
same. A producer that writes old event times after new ones makes spans long, but never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Range = tuple[int, int]  # half-open: [start, end)

MAX_OFFSET = 2**63 - 1  # int64 on Kafka's wire
NO_SPAN: Range = (0, 0)  # of no records, or of unknown offsets


def hull(one: Range, other: Range) -> Range:
    """The smallest span that contains both."""
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
    """A span that contains all counted records whose event times are in [from_ms, before_ms)."""
    found = NO_SPAN
    for window in windows:
        if window.end_ms > from_ms and window.start_ms < before_ms:
            found = hull(found, window.span)
    return found
