"""Sums of records by window of event time, for clients and workers alike.

Rules
1. A window holds the event times [start, start + width). Records without a timestamp are counted apart
   (`UNTIMED`). So are records with a timestamp beyond the year 9999: a producer that writes microseconds
   would make windows without end.
2. A batch that is counted from its header has its latencies spread evenly between its first and highest
   timestamp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from switchyard.audit.model import fingerprint
from switchyard.audit.model.fingerprint import FingerprintSource, Words
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.totals import LAST_MS, NEVER_MS, Sums, Totals

Numbers = npt.NDArray[np.int64]

UNTIMED = -1  # the window of records without a timestamp
SKEW_MS = 120_000  # a timestamp further ahead of the clock does not show its source's progress
MANY_WINDOWS = 32  # in one call: with more, their histograms are packed to save memory
_SPREAD = 4  # points over which a batch's latencies are spread


def window_of(timestamp_ms: int, width_ms: int) -> int:
    """The start of the window of an event time."""
    return timestamp_ms - timestamp_ms % width_ms if 0 <= timestamp_ms <= LAST_MS else UNTIMED


def believed(timestamps_ms: Numbers) -> Numbers:
    """The timestamps (at least one), with `UNTIMED` instead of impossible ones."""
    if timestamps_ms.max() <= LAST_MS:
        return timestamps_ms
    return np.where(timestamps_ms > LAST_MS, UNTIMED, timestamps_ms)


class RecordArrays(NamedTuple):
    """Records as arrays of one length.

    `offsets`, `ids` and `contents` (ids that also depend on the values) are None if they are not available.
    """

    timestamps_ms: Numbers
    nbytes: Numbers
    offsets: Numbers | None = None
    ids: Words | None = None
    contents: Words | None = None


class UnsettledTimes(NamedTuple):
    """Event times of a window whose latencies are not known yet.

    For batches: `counts` records each, spread evenly over [last - span, last]. Single records have neither.
    """

    start_ms: int
    lasts_ms: Numbers
    spans_ms: Numbers | None = None
    counts: Numbers | None = None


class Tally:
    """Sums by window.

    Args:
        timed: Keep event times until `seen` says when this tier had the records.

    Attributes:
        windows: Start of the window -> its sums.
        from_headers, decoded, undecodable: Batches.
        max_timestamp_ms: The highest counted timestamp; -1: none.
        times: The kept event times; None: none are kept.
    """

    __slots__ = ("decoded", "from_headers", "max_timestamp_ms", "times", "undecodable", "width_ms", "windows")

    def __init__(self, width_ms: int, *, timed: bool = False) -> None:
        if width_ms <= 0:
            raise ValueError(f"a window of {width_ms} ms; it must be longer than 0")
        self.width_ms = width_ms
        self.windows: dict[int, Sums] = {}
        self.from_headers = self.decoded = self.undecodable = 0
        self.max_timestamp_ms = NEVER_MS
        self.times: list[UnsettledTimes] | None = [] if timed else None

    def seen(self, at_ms: int) -> None:
        """This tier had the counted records at `at_ms`: turns `times` into latencies."""
        are_many = len(self.times or ()) > MANY_WINDOWS
        for start, lasts_ms, spans_ms, counts in self.times or ():
            if spans_ms is None or counts is None:
                self.sums(start).latencies.add(at_ms - lasts_ms)
            else:
                add_spread_latencies(self.sums(start).latencies, at_ms - lasts_ms, spans_ms, counts)
            if are_many:
                self.sums(start).pack()
        self.times = None

    def merge(self, other: Tally) -> None:
        """Adds a tally of other records. The event times of both are dropped."""
        for start, sums in other.windows.items():
            self.sums(start).add(sums)
        self.from_headers += other.from_headers
        self.decoded += other.decoded
        self.undecodable += other.undecodable
        self.max_timestamp_ms = max(self.max_timestamp_ms, other.max_timestamp_ms)
        self.times = None

    def sums(self, start_ms: int) -> Sums:
        """The sums of a window."""
        found = self.windows.get(start_ms)
        if found is None:
            found = self.windows[start_ms] = Sums()
        return found

    def totals(self) -> dict[int, Totals]:
        return {start: sums.totals() for start, sums in sorted(self.windows.items())}

    def add(
        self,
        rows: RecordArrays,
        seen_at_ms: int | Numbers | None = None,
        source: FingerprintSource | None = None,
    ) -> None:
        """Counts records.

        Args:
            seen_at_ms: When this tier had them: one time for all, or one for each. None: unknown, or the
                audit itself is late and its own lag must not look like the tier's.
            source: The source of their offsets, to add these to the fingerprint.
        """
        if not rows.timestamps_ms.size:
            return
        timestamps = believed(rows.timestamps_ms)
        starts = np.where(timestamps < 0, UNTIMED, timestamps - timestamps % self.width_ms)
        found = np.unique(starts).tolist()
        for start in found:
            mask = starts == start
            sums, here = self.sums(start), timestamps[mask]
            sums.count += here.size
            sums.nbytes += int(rows.nbytes[mask].sum())
            sums.seen(int(here.min()), int(here.max()))
            if rows.offsets is not None:
                offsets = rows.offsets[mask]
                sums.at(int(offsets.min()), int(offsets.max()) + 1)
            if source is not None and rows.offsets is not None:
                sums.offsets = sums.offsets.plus(fingerprint.of_offsets(source, offsets))
                sums.offsets_of.add(source.cluster_id)
                sums.sourced += here.size
            if rows.ids is not None:
                sums.ids = sums.ids.plus(fingerprint.of_ids(rows.ids[mask]))
                sums.identified += here.size
            if rows.contents is not None:
                sums.contents = sums.contents.plus(fingerprint.of_ids(rows.contents[mask]))
                sums.contained += here.size
            if seen_at_ms is not None and start != UNTIMED:
                seen = seen_at_ms if isinstance(seen_at_ms, int) else seen_at_ms[mask]
                sums.latencies.add(seen - here)
                if len(found) > MANY_WINDOWS:
                    sums.pack()
            elif self.times is not None and start != UNTIMED:
                self.times.append(UnsettledTimes(start, here))
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(timestamps.max()))


def add_spread_latencies(latencies: Latencies, least_ms: Numbers, spans_ms: Numbers, counts: Numbers) -> None:
    """Counts the latencies of batches, each spread evenly over [least, least + span] (rule 2)."""
    narrow = (spans_ms == 0) | (counts == 1)
    if narrow.all():
        latencies.add(least_ms, counts)
        return
    latencies.add(least_ms[narrow], counts[narrow])
    least_ms, spans_ms, counts = least_ms[~narrow], spans_ms[~narrow], counts[~narrow]
    points = np.arange(_SPREAD)[:, np.newaxis]
    share = counts * (points + 1) // _SPREAD - counts * points // _SPREAD
    latencies.add((least_ms + spans_ms * (2 * points + 1) // (2 * _SPREAD)).ravel(), share.ravel())
