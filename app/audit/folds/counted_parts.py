"""Decides which reports of a source count in a window, and what each adds (`switchyard.audit.model.reports`).

nothing of the part is counted yet                  count it
counted [since, upto) contains the report's         repeated
the report's [since, upto) contains the counted     count the difference
the ranges are disjoint                             count both (the start of the part had left the log)
other overlaps, or the report counts less           refuse and report: other starts, or expired records
"""

from __future__ import annotations

import enum

import msgspec

from app.kernel.ranges import union
from switchyard.audit.model.reports import MOST_IDS, NO_PART, PART_OFFSETS, Report
from switchyard.audit.model.spans import NO_SPAN, Range, hull
from switchyard.audit.model.totals import NO_TOTALS, Totals


class ReportOutcome(enum.Enum):
    """The outcome of a report in one window."""

    COUNTED = "counted"
    REPEATED = "repeated"  # it has nothing new
    LATE = "late"  # counted, after the window was closed
    OVERLAPS = "overlaps"  # refused: see the module
    TOO_MANY = "too-many"  # refused: too many reports without a part
    FULL = "full"  # refused: the bound of tiers, windows or sources is reached
    APART = "apart"  # counted without a window of its own: the bound of windows is reached
    FORGOTTEN = "forgotten"  # refused: the window was dropped


class Growing(msgspec.Struct, frozen=True, array_like=True):
    """The counted range of a part that is not final."""

    part: int
    since: int
    upto: int
    totals: Totals


class Counted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source's counts in a window. `done`: final parts, as normal ranges (`kernel.ranges`). `span`: the
    range of the records' offsets, which older versions did not note (`span_of`)."""

    done: tuple[Range, ...] = ()
    growing: tuple[Growing, ...] = ()
    ids: tuple[str, ...] = ()
    span: Range = NO_SPAN


NOTHING_COUNTED = Counted()


def span_of(counted: Counted) -> Range:
    """The range of a partition's offsets in a window; of its parts, where nothing closer is known."""
    found = counted.span
    if found == NO_SPAN:
        for first, end in counted.done:
            found = hull(found, (first * PART_OFFSETS, end * PART_OFFSETS))
        for entry in counted.growing:
            found = hull(found, (entry.since, entry.upto))
    return found


def count_report(
    counted: Counted, report: Report, totals: Totals, span: Range = NO_SPAN
) -> tuple[Counted, Totals, ReportOutcome]:
    """The counts of one window after the report, the totals that it added, and its outcome."""
    after, added, verdict = _count_report(counted, report, totals)
    if verdict is ReportOutcome.COUNTED:
        if span != NO_SPAN:
            span = hull(span_of(counted), span)
        elif counted.span != NO_SPAN:  # an older version's report, after one of this version
            span = hull(counted.span, (report.since, report.upto))
        after = msgspec.structs.replace(after, span=span)
    return after, added, verdict


def _count_report(counted: Counted, report: Report, totals: Totals) -> tuple[Counted, Totals, ReportOutcome]:
    if report.part == NO_PART:
        return _take_by_id(counted, report, totals)
    part, since, upto = report.part, report.since, report.upto
    if any(first <= part < end for first, end in counted.done):
        return counted, NO_TOTALS, ReportOutcome.REPEATED
    rest = tuple(
        entry for entry in counted.growing if entry.part != part or entry.upto <= since or upto <= entry.since
    )
    overlapping = [entry for entry in counted.growing if entry not in rest]
    if not all(since <= entry.since and entry.upto <= upto for entry in overlapping):
        is_contained = any(entry.since <= since and upto <= entry.upto for entry in overlapping)
        return counted, NO_TOTALS, ReportOutcome.REPEATED if is_contained else ReportOutcome.OVERLAPS
    known = NO_TOTALS
    for entry in overlapping:
        known = known.plus(entry.totals)
    is_known = any((entry.since, entry.upto) == (since, upto) for entry in overlapping)
    if is_known and not report.final:
        return counted, NO_TOTALS, ReportOutcome.REPEATED
    if totals.count < known.count:
        return counted, NO_TOTALS, ReportOutcome.OVERLAPS
    added = totals.beyond(known)
    if report.final:
        done = union(counted.done, ((part, part + 1),))
        growing = tuple(entry for entry in rest if entry.part != part)
        return Counted(done, growing, counted.ids), added, ReportOutcome.COUNTED
    grown = (*rest, Growing(part, since, upto, known.plus(added)))
    return Counted(counted.done, grown, counted.ids), added, ReportOutcome.COUNTED


def _take_by_id(counted: Counted, report: Report, totals: Totals) -> tuple[Counted, Totals, ReportOutcome]:
    if report.id in counted.ids:
        return counted, NO_TOTALS, ReportOutcome.REPEATED
    if len(counted.ids) >= MOST_IDS:
        return counted, NO_TOTALS, ReportOutcome.TOO_MANY
    known = Counted(counted.done, counted.growing, (*counted.ids, report.id))
    return known, totals, ReportOutcome.COUNTED
