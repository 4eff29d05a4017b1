"""Two tiers of a topic in one window: whether what was there has arrived.

    upstream  what an earlier tier saw       downstream  what a later one saw of the same
              (sums over its clusters)                   (sums over its clusters)

Rules, the first that applies
1. Whatever cannot be known is not called loss: a tier whose audit is silent, or closed the window without a
   source that may have seen some of it, is absent as long as the two differ. So is one that has a silent
   source now, as long as no more differs than came late to the other.
2. The same count and the same fingerprints: it has arrived; late, if more of it came after the closing than
   in the tier before.
   Fingerprints are compared if both tiers have one, of the same sort (ids, or offsets of the same clusters),
   of all their records; `by` says which.
3. Before both have closed the window a difference is provisional; when the downstream tier's watermark has
   not come past the window long after its end, while it is heard, the records are late: it lags.
4. Afterwards, too, while no more differs than came late just now: the other tier may be about to get it. If
   one tier counts in time what comes late to the other, from several sources, more may differ for a while:
   where anything came late just now, what was closed just now is not told yet.
5. Fewer downstream: lossy. More: duplicated. As many, with another fingerprint: corrupted (some are missing,
   and as many others are there instead). What came late counts on both sides.
6. A tolerance turns small differences to ok; `missing` and `extra` are told nevertheless.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from app.audit.folds.tier import TierRecord, closed_at, is_reporting, watermark
from app.audit.folds.window import WindowPhase, WindowRecord
from switchyard.audit.model.totals import NO_TOTALS, Totals

NEVER = 1 << 62  # a position that no event has
IN_ORDER = [WindowPhase.OPEN, WindowPhase.PROVISIONAL, WindowPhase.CLOSED]


class WindowState(enum.Enum):
    """See the module; the values are what tables, REST and alerts say."""

    OK = "ok"
    PROVISIONAL = "provisional"
    LOSSY = "lossy"
    DUPLICATED = "duplicated"
    CORRUPTED = "corrupted"
    LATE = "late"
    ABSENT = "absent-audit"


class ComparedBy(enum.Enum):
    """What was compared."""

    COUNT = "count"
    IDS = "ids"
    VALUES = "values"  # ids with the values that they came with
    OFFSETS = "offsets"


class TierSide(NamedTuple):
    """What a tier knows of a window.

    Attributes:
        totals, late: what it saw until the window was closed, and afterwards.
        phase: the earliest of its clusters.
        watermark_ms: the lowest of its clusters.
        is_heard: each of its clusters has a source that was heard lately.
        without: silent sources that the window was closed without.
        late_ms: when the last of what came late was reported, -1: nothing did.
        closed_ms: when the last of its clusters closed the window, -1: none did.
        has_silent: some source was not heard lately, and nobody knows whether it comes back.
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
        """With what came late."""
        return _sum(self.totals, self.late)


class Tolerance(NamedTuple):
    """Shares of the upstream's count that may be missing or too much before it is told as such."""

    missing: float = 0.0
    extra: float = 0.0


NO_TOLERANCE = Tolerance()


class WindowVerdict(NamedTuple):
    """What is to be said of a window.

    Attributes:
        missing, extra: records, at least; -1: they differ, and counts do not tell by how many.
        absent: the tiers whose audit is missing.
        lag_ms: by how much the median downstream is later, below 0: earlier; None: not known.
        behind_ms: by how much the downstream's watermark is behind the upstream's.
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
    """A tier's records of one window, put together.

    Args:
        end_ms: of the window.
        windows: the tier's records of it in all clusters that are meant, all shards; none: nothing was seen.
        clusters: of each of these clusters the tier's records, all shards; none where it was never heard.
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
        # Of what was closed anywhere: a tier that saw nothing has no window that could say so.
        closings = filter(None, (closed_at(record, end_ms, NEVER) for record in records))
        closing = min(closings, key=lambda one: one.position, default=None)
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
    """What is to be said of the window that ends at `end_ms`.

    Args:
        patience_ms: how long after the end an audit that does not come is not told as absent, and records
            that do not come not as late (`tier.lateness`, and the silence of the bounds).
    """
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
    if is_same and all(one.phase is not WindowPhase.OPEN for one in sides):
        return verdict._replace(
            state=WindowState.LATE if downstream.late.count > upstream.late.count else WindowState.OK
        )
    if not all(one.phase is WindowPhase.CLOSED for one in sides):
        if now_ms < end_ms + patience_ms:
            return verdict
        silent = tuple(one.tier for one in sides if one.phase is not WindowPhase.CLOSED and not one.is_heard)
        if silent:
            return verdict._replace(state=WindowState.ABSENT, absent=silent)
        lags = verdict.missing and downstream.watermark_ms < min(end_ms, upstream.watermark_ms)
        return verdict._replace(state=WindowState.LATE) if lags else verdict
    recent = [one.late.count for one in sides if one.late.count and now_ms < one.late_ms + patience_ms]
    is_new = now_ms < max(one.closed_ms for one in sides) + patience_ms
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
    """Of a window that both have closed, and that is not the same."""
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


def _sum(one: Totals, other: Totals) -> Totals:
    """Both together; most tiers have one window of a time, and nothing that was late."""
    if other == NO_TOTALS:
        return one
    return other if one is NO_TOTALS else one.plus(other)


def _content(before: Totals, after: Totals) -> tuple[ComparedBy, bool]:
    """What could be compared, and whether it differs; what differs comes first."""
    found: list[tuple[ComparedBy, bool]] = []
    if before.contained == before.count and after.contained == after.count:
        found.append((ComparedBy.VALUES, before.contents != after.contents))
    if before.identified == before.count and after.identified == after.count:
        found.append((ComparedBy.IDS, before.ids != after.ids))
    is_sourced = before.sourced == before.count and after.sourced == after.count
    if is_sourced and before.offsets_of == after.offsets_of:
        found.append((ComparedBy.OFFSETS, before.offsets != after.offsets))
    return next((one for one in found if one[1]), found[0] if found else (ComparedBy.COUNT, False))


def _lag_ms(before: Totals, after: Totals) -> float | None:
    (early,), (late,) = before.percentiles_ms(0.5), after.percentiles_ms(0.5)
    return None if min(early, late) < 0 else late - early
