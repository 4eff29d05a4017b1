"""Compares two tiers of a topic in one window: whether the upstream's records have arrived downstream.

    upstream  what an earlier tier counted     downstream  what a later tier counted
              (sums over its clusters)                     (sums over its clusters)

Rules, the first that applies (tests/audit/folds/test_comparison.py)
1. Missing knowledge is not a loss. While the two differ, a tier is absent if its audit is silent. So is a
   tier that closed the window without a source that may have counted some of it. So is one with a source
   that is silent now, while no more differs than came late to the other tier.
2. Equal counts and fingerprints: the records have arrived. The verdict is late if more of them came after the
   closing than upstream. Fingerprints are compared if both tiers have one of the same kind (values, ids, or
   offsets of the same clusters) for all their records; `by` names the kind.
3. Until both have closed the window, a difference is provisional. If records are missing long after its end,
   and the downstream's watermark has not passed it although it reports, the records are late.
4. After that, a difference stays provisional while it is at most what came late just now, because the other
   tier may still get it. One tier may count in time what comes late to the other, from several sources. So
   while anything came late just now, a window that was closed just now is provisional, too.
5. Fewer downstream: lossy. More: duplicated. The same count with another fingerprint: corrupted (some are
   missing, and others are there instead). Late records count on both sides.
6. A tolerance turns small differences to ok; `missing` and `extra` still report them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app.audit.folds.tier import TierRecord, closed_at, is_reporting, watermark
from app.audit.folds.window import WindowPhase, WindowRecord
from switchyard.audit.model.totals import NO_TOTALS, Totals

NEVER = 1 << 62  # above all positions of events
IN_ORDER = [WindowPhase.OPEN, WindowPhase.PROVISIONAL, WindowPhase.CLOSED]


class WindowState(enum.Enum):
    """The states of a compared window; tables, REST and alerts use the values."""

    OK = "ok"
    PROVISIONAL = "provisional"
    LOSSY = "lossy"
    DUPLICATED = "duplicated"
    CORRUPTED = "corrupted"
    LATE = "late"
    ABSENT = "absent-audit"


class ComparedBy(enum.Enum):
    COUNT = "count"
    IDS = "ids"
    VALUES = "values"  # ids together with values
    OFFSETS = "offsets"


class TierSide(NamedTuple):
    """A tier's counts in a window.

    Attributes:
        totals, late: The counts until the window was closed, and afterwards.
        phase: The earliest of its clusters.
        watermark_ms: The lowest of its clusters.
        is_heard: Each of its clusters has a source that reported lately.
        without: Silent sources that the window was closed without.
        late_ms: When the last late records were reported; -1: there are none.
        closed_ms: When the last of its clusters closed the window; -1: none did.
        has_silent: Some source did not report lately, and may or may not come back.
    """

    tier: str
    totals: Totals
    late: Totals
    phase: WindowPhase
    watermark_ms: int
    is_heard: bool
    without: tuple[str, ...] = ()
    late_ms: int = -1
    closed_ms: int = -1
    has_silent: bool = False

    @property
    def all(self) -> Totals:
        return _sum(self.totals, self.late)


class Tolerance(NamedTuple):
    """Shares of the upstream's count that may be missing or extra in an ok window."""

    missing: float = 0.0
    extra: float = 0.0


NO_TOLERANCE = Tolerance()


class WindowVerdict(NamedTuple):
    """The result of a comparison.

    Attributes:
        missing, extra: Records, at least; -1: the two differ, and counts do not show by how many.
        absent: The tiers whose audit is missing.
        lag_ms: By how much the downstream's median latency is higher; None: unknown.
        behind_ms: By how much the downstream's watermark is behind the upstream's.
    """

    state: WindowState
    missing: int = 0
    extra: int = 0
    by: ComparedBy = ComparedBy.COUNT
    absent: tuple[str, ...] = ()
    lag_ms: float | None = None
    behind_ms: int = 0


def side(
    tier: str,
    end_ms: int,
    windows: Iterable[WindowRecord],
    clusters: Iterable[Sequence[TierRecord]],
    now_ms: int,
    silence_ms: int,
) -> TierSide:
    """A tier's side of a window: its clusters and shards together.

    Args:
        windows: The tier's records of it in all these clusters; empty: nothing was counted.
        clusters: For each cluster the tier's records; empty where it never reported.
    """
    totals = late = NO_TOTALS
    late_ms = closed_ms = -1
    for window in windows:
        late_ms = max(late_ms, window.late_ms)
        totals, late = _sum(totals, window.totals), _sum(late, window.late)
    phases: list[WindowPhase] = []
    marks: list[int] = []
    heard: list[bool] = []
    has_silent = False
    without: list[str] = []
    for records in clusters:
        marks.append(watermark(records, now_ms, silence_ms))
        sources = [source for record in records for source in record.sources.values()]
        lately = [is_reporting(source, now_ms, silence_ms) for source in sources]
        heard.append(any(lately))
        has_silent |= not all(lately)
        # By the tier's closings, because a tier that counted nothing has no window.
        closings = filter(None, (closed_at(record, end_ms, NEVER) for record in records))
        closing = min(closings, key=lambda known: known.position, default=None)
        if closing is not None:
            phases.append(WindowPhase.CLOSED)
            closed_ms = max(closed_ms, closing.at_ms)
            without += closing.missed(end_ms)
        else:
            phases.append(WindowPhase.PROVISIONAL if marks[-1] >= end_ms else WindowPhase.OPEN)
    earliest = min(phases, key=IN_ORDER.index, default=WindowPhase.OPEN)
    return TierSide(
        tier,
        totals,
        late,
        earliest,
        min(marks, default=-1),
        bool(heard) and all(heard),
        tuple(without),
        late_ms,
        closed_ms,
        has_silent,
    )


def compare(
    upstream: TierSide,
    downstream: TierSide,
    end_ms: int,
    now_ms: int,
    patience_ms: int,
    tolerance: Tolerance = NO_TOLERANCE,
) -> WindowVerdict:
    """The verdict on the window that ends at `end_ms`. For `patience_ms` after that a silent audit is not yet
    absent, and missing records are not yet late (`tier.lateness`, and the bounds' silence)."""
    before, after = upstream.all, downstream.all
    by, differs = _content(before, after)
    verdict = WindowVerdict(
        WindowState.PROVISIONAL,
        missing=max(0, before.count - after.count),
        extra=max(0, after.count - before.count),
        by=by,
        lag_ms=_lag_ms(before, after),
        behind_ms=max(0, upstream.watermark_ms - downstream.watermark_ms),
    )
    is_same = before.count == after.count and not differs
    sides = (upstream, downstream)
    if is_same and all(part.phase is not WindowPhase.OPEN for part in sides):
        return verdict._replace(
            state=WindowState.LATE if downstream.late.count > upstream.late.count else WindowState.OK
        )
    if not all(part.phase is WindowPhase.CLOSED for part in sides):
        if now_ms < end_ms + patience_ms:
            return verdict
        silent = tuple(
            part.tier for part in sides if part.phase is not WindowPhase.CLOSED and not part.is_heard
        )
        if silent:
            return verdict._replace(state=WindowState.ABSENT, absent=silent)
        lags = verdict.missing and downstream.watermark_ms < min(end_ms, upstream.watermark_ms)
        return verdict._replace(state=WindowState.LATE) if lags else verdict
    recent = [part.late.count for part in sides if part.late.count and now_ms < part.late_ms + patience_ms]
    is_new = now_ms < max(part.closed_ms for part in sides) + patience_ms
    if recent and (is_new or max(verdict.missing, verdict.extra) <= sum(recent)):
        return verdict
    return _closed(verdict, before.count, differs, upstream, downstream, tolerance)


def _closed(
    verdict: WindowVerdict,
    count: int,
    differs: bool,
    upstream: TierSide,
    downstream: TierSide,
    tolerance: Tolerance,
) -> WindowVerdict:
    """The verdict on a window that both have closed, and that differs."""
    is_unseen = downstream.has_silent and 0 < verdict.missing <= upstream.late.count
    if is_unseen or (downstream.without and not verdict.extra):
        return verdict._replace(state=WindowState.ABSENT, absent=(downstream.tier,))
    is_unseen = upstream.has_silent and 0 < verdict.extra <= downstream.late.count
    if is_unseen or (upstream.without and not verdict.missing):
        return verdict._replace(state=WindowState.ABSENT, absent=(upstream.tier,))
    if verdict.missing:
        is_small = verdict.missing <= tolerance.missing * count
        return verdict._replace(state=WindowState.OK if is_small else WindowState.LOSSY)
    if verdict.extra:
        is_small = verdict.extra <= tolerance.extra * count
        return verdict._replace(state=WindowState.OK if is_small else WindowState.DUPLICATED)
    assert differs
    return verdict._replace(state=WindowState.CORRUPTED, missing=-1, extra=-1)


def _sum(first: Totals, second: Totals) -> Totals:
    """The sum; usually a tier has one window of a time, and nothing late."""
    if second == NO_TOTALS:
        return first
    return second if first is NO_TOTALS else first.plus(second)


def _content(before: Totals, after: Totals) -> tuple[ComparedBy, bool]:
    """The strongest kind of fingerprint that both have, and whether it differs; a kind that differs wins."""
    found: list[tuple[ComparedBy, bool]] = []
    if before.contained == before.count and after.contained == after.count:
        found.append((ComparedBy.VALUES, before.contents != after.contents))
    if before.identified == before.count and after.identified == after.count:
        found.append((ComparedBy.IDS, before.ids != after.ids))
    is_sourced = before.sourced == before.count and after.sourced == after.count
    if is_sourced and before.offsets_of == after.offsets_of:
        found.append((ComparedBy.OFFSETS, before.offsets != after.offsets))
    return next((kind for kind in found if kind[1]), found[0] if found else (ComparedBy.COUNT, False))


def _lag_ms(before: Totals, after: Totals) -> float | None:
    (early,), (late,) = before.percentiles_ms(0.5), after.percentiles_ms(0.5)
    return None if min(early, late) < 0 else late - early
