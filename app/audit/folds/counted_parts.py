"""Which reports of a source count in a window, and what each adds (`switchyard.audit.model.reports`).

nothing of the part is counted yet                   count it
counted [since, upto) holds the report's             repeated
the report's [since, upto) holds what is counted     count the difference
they lie apart                                       count both (the start of the part had left the log)
they overlap otherwise, or it says less than that    refuse, and tell: starts differ, or records have gone
"""

from __future__ import annotations

import enum

import msgspec

from app.kernel.ranges import union
from switchyard.audit.model.reports import MOST_IDS, NO_PART, PART_OFFSETS, Report
from switchyard.audit.model.spans import NO_SPAN, Range, hull
from switchyard.audit.model.totals import NO_TOTALS, Totals


class ReportOutcome(enum.Enum):
    """What became of a report in one window."""

    COUNTED = "counted"
    REPEATED = "repeated"  # it says nothing new
    LATE = "late"  # counted, after the window was closed
    OVERLAPS = "overlaps"  # refused: see the module
    TOO_MANY = "too-many"  # refused: reports without a sequence number
    FULL = "full"  # refused: there are as many tiers, windows or sources as are kept
    APART = "apart"  # counted, but in no window of its own: there are as many as are kept
    FORGOTTEN = "forgotten"  # refused: the window is older than what is kept


class Growing(msgspec.Struct, frozen=True, array_like=True):
    """A part that is not final: what of it is counted."""

    part: int
    since: int
    upto: int
    totals: Totals


class Counted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a source is counted in a window. `done`: final parts, as normal ranges (`kernel.ranges`).
    `span`: of the offsets of its records; not told of what older versions have counted (`span_of`)."""

    done: tuple[Range, ...] = ()
    growing: tuple[Growing, ...] = ()
    ids: tuple[str, ...] = ()
    span: Range = NO_SPAN


NOTHING_COUNTED = Counted()


def span_of(counted: Counted) -> Range:
    """Of a partition's records of a window: the parts they are in, where nothing closer is known."""
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
    """Of one window: what is counted with the report, what it adds, and what becomes of it."""
    taken, added, verdict = _count_report(counted, report, totals)
    if verdict is ReportOutcome.COUNTED:
        if span != NO_SPAN:
            span = hull(span_of(counted), span)
        elif counted.span != NO_SPAN:  # an older version's report, behind one of this
            span = hull(counted.span, (report.since, report.upto))
        taken = msgspec.structs.replace(taken, span=span)
    return taken, added, verdict


def _count_report(counted: Counted, report: Report, totals: Totals) -> tuple[Counted, Totals, ReportOutcome]:
    if report.part == NO_PART:
        return _take_by_id(counted, report, totals)
    part, since, upto = report.part, report.since, report.upto
    if any(first <= part < end for first, end in counted.done):
        return counted, NO_TOTALS, ReportOutcome.REPEATED
    others = tuple(
        entry for entry in counted.growing if entry.part != part or entry.upto <= since or upto <= entry.since
    )
    same = [entry for entry in counted.growing if entry not in others]
    if not all(since <= entry.since and entry.upto <= upto for entry in same):
        held = any(entry.since <= since and upto <= entry.upto for entry in same)
        return counted, NO_TOTALS, ReportOutcome.REPEATED if held else ReportOutcome.OVERLAPS
    known = NO_TOTALS
    for entry in same:
        known = known.plus(entry.totals)
    is_known = any((entry.since, entry.upto) == (since, upto) for entry in same)
    if is_known and not report.final:
        return counted, NO_TOTALS, ReportOutcome.REPEATED
    if totals.count < known.count:
        return counted, NO_TOTALS, ReportOutcome.OVERLAPS
    added = totals.beyond(known)
    if report.final:
        done = union(counted.done, ((part, part + 1),))
        growing = tuple(entry for entry in others if entry.part != part)
        return Counted(done, growing, counted.ids), added, ReportOutcome.COUNTED
    grown = (*others, Growing(part, since, upto, known.plus(added)))
    return Counted(counted.done, grown, counted.ids), added, ReportOutcome.COUNTED


def _take_by_id(counted: Counted, report: Report, totals: Totals) -> tuple[Counted, Totals, ReportOutcome]:
    if report.id in counted.ids:
        return counted, NO_TOTALS, ReportOutcome.REPEATED
    if len(counted.ids) >= MOST_IDS:
        return counted, NO_TOTALS, ReportOutcome.TOO_MANY
    known = Counted(counted.done, counted.growing, (*counted.ids, report.id))
    return known, totals, ReportOutcome.COUNTED
