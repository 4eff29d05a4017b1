from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit.folds.comparison import ComparedBy, TierSide, Tolerance, WindowState, compare, side
from app.audit.folds.tier import Closing, SourceStatus, TierRecord
from app.audit.folds.window import WindowPhase, WindowRecord
from switchyard.audit.model.fingerprint import ids_of, of_ids
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.totals import NO_TOTALS, Totals

END, NOW, PATIENCE = 1_000, 5_000, 2_000


def seen(*names: bytes) -> Totals:
    return Totals(len(names), ids=of_ids(ids_of(names)), identified=len(names))


def tier(name: str, totals: Totals, late: Totals = NO_TOTALS, **changes: object) -> TierSide:
    made = TierSide(name, totals, late, WindowPhase.CLOSED, watermark_ms=4_000, is_heard=True)
    return made._replace(**changes)  # type: ignore[arg-type]


BEFORE = tier("regional", seen(b"a", b"b", b"c"))


@pytest.mark.parametrize(
    ("after", "state", "missing", "extra"),
    [
        (tier("aggregate", seen(b"c", b"b", b"a")), WindowState.OK, 0, 0),
        (tier("aggregate", seen(b"a", b"b")), WindowState.LOSSY, 1, 0),
        (tier("aggregate", NO_TOTALS), WindowState.LOSSY, 3, 0),
        (tier("aggregate", seen(b"a", b"b", b"c", b"c")), WindowState.DUPLICATED, 0, 1),
        (tier("aggregate", seen(b"a", b"b", b"b")), WindowState.CORRUPTED, -1, -1),
        (tier("aggregate", seen(b"a", b"b"), seen(b"c")), WindowState.LATE, 0, 0),
        (tier("aggregate", seen(b"a"), seen(b"c")), WindowState.LOSSY, 1, 0),
        (tier("aggregate", seen(b"a", b"b"), seen(b"x")), WindowState.CORRUPTED, -1, -1),
        (tier("aggregate", seen(b"a", b"b"), without=("p/0",)), WindowState.ABSENT, 1, 0),
        (tier("aggregate", seen(b"a", b"b"), phase=WindowPhase.PROVISIONAL), WindowState.PROVISIONAL, 1, 0),
        (tier("aggregate", seen(b"a", b"b", b"c"), phase=WindowPhase.PROVISIONAL), WindowState.OK, 0, 0),
        (tier("aggregate", seen(b"a", b"b", b"c"), phase=WindowPhase.OPEN), WindowState.PROVISIONAL, 0, 0),
        (tier("aggregate", seen(b"a"), phase=WindowPhase.OPEN, is_heard=False), WindowState.ABSENT, 2, 0),
        (tier("aggregate", seen(b"a"), phase=WindowPhase.OPEN, watermark_ms=700), WindowState.LATE, 2, 0),
    ],
)
def test_verdict_on_a_window(after: TierSide, state: WindowState, missing: int, extra: int) -> None:
    verdict = compare(BEFORE, after, END, NOW, PATIENCE)
    assert (verdict.state, verdict.missing, verdict.extra) == (state, missing, extra)


def test_an_absent_audit_of_either_tier_is_named_and_is_no_loss() -> None:
    late = tier("regional", seen(b"a"), phase=WindowPhase.OPEN, is_heard=False)
    verdict = compare(late, BEFORE._replace(tier="aggregate"), END, NOW, PATIENCE)
    assert (verdict.state, verdict.absent) == (WindowState.ABSENT, ("regional",))
    blind = tier("regional", seen(b"a"), without=("web@1",))
    assert compare(blind, BEFORE, END, NOW, PATIENCE).absent == ("regional",)


def test_a_tier_closed_without_a_source_that_still_counted_more_proves_a_loss() -> None:
    blind = tier("regional", seen(b"a", b"b"), without=("web@1",))
    assert compare(blind, tier("aggregate", seen(b"a")), END, NOW, PATIENCE).state is WindowState.LOSSY


def test_a_silent_or_slow_tier_gets_no_verdict_before_its_time() -> None:
    for after in (
        tier("aggregate", seen(b"a"), phase=WindowPhase.OPEN, is_heard=False),
        tier("aggregate", seen(b"a"), phase=WindowPhase.OPEN, watermark_ms=700),
    ):
        assert compare(BEFORE, after, END, END + PATIENCE - 1, PATIENCE).state is WindowState.PROVISIONAL


def test_small_differences_may_be_tolerated_and_are_reported() -> None:
    after = tier("aggregate", seen(b"a", b"b"))
    verdict = compare(BEFORE, after, END, NOW, PATIENCE, Tolerance(missing=0.34))
    assert (verdict.state, verdict.missing) == (WindowState.OK, 1)
    more = tier("aggregate", seen(b"a", b"b", b"c", b"c"))
    assert compare(BEFORE, more, END, NOW, PATIENCE, Tolerance(extra=0.33)).state is WindowState.DUPLICATED


def test_without_fingerprints_of_all_records_only_counts_are_compared() -> None:
    after = tier("aggregate", Totals(3, ids=of_ids(ids_of([b"x"])), identified=1))
    verdict = compare(BEFORE, after, END, NOW, PATIENCE)
    assert (verdict.state, verdict.by) == (WindowState.OK, ComparedBy.COUNT)
    assert compare(BEFORE, BEFORE, END, NOW, PATIENCE).by is ComparedBy.IDS


@given(
    st.lists(st.binary(min_size=1, max_size=1), max_size=6),
    st.lists(st.binary(min_size=1, max_size=1), max_size=6),
    st.integers(0, 6),
)
def test_verdicts_on_closed_windows_agree_with_the_multisets(
    before: list[bytes], after: list[bytes], on_time: int
) -> None:
    down = tier("aggregate", seen(*after[:on_time]), seen(*after[on_time:]))
    verdict = compare(tier("regional", seen(*before)), down, END, NOW, PATIENCE)
    if sorted(before) == sorted(after):
        assert verdict.state is (WindowState.LATE if after[on_time:] else WindowState.OK)
    elif len(before) != len(after):
        assert verdict.state is (WindowState.LOSSY if len(before) > len(after) else WindowState.DUPLICATED)
    else:
        assert verdict.state is WindowState.CORRUPTED


def record(**changes: object) -> TierRecord:
    made = TierRecord(sources={"p/0": SourceStatus(900, 4_500)})
    return msgspec.structs.replace(made, **changes)


def test_a_side_is_as_far_as_its_slowest_cluster() -> None:
    closing = Closing(1_000, 5, 4_000, (("p/9", 800), ("p/8", 1_200)))
    done = record(closings=(closing,), sources={"p/0": SourceStatus(3_000, 4_500)})
    windows = [WindowRecord(seen(b"a")), WindowRecord(seen(b"b"), late=seen(b"c"))]
    both = side("aggregate", END, windows, [[done], [record()]], NOW, 1_000)
    assert (both.phase, both.watermark_ms, both.is_heard) == (WindowPhase.OPEN, 900, True)
    assert (both.all, both.late.count, both.without) == (seen(b"a", b"b", b"c"), 1, ("p/9",))
    assert (both.closed_ms, both.has_silent) == (4_000, False)
    assert side("aggregate", END, [], [[done], [record()]], NOW + 501, 1_000).has_silent
    assert side("aggregate", END, [], [[done]], NOW, 1_000).phase is WindowPhase.CLOSED
    provisional = record(sources={"p/0": SourceStatus(1_000, 4_500)})
    assert side("aggregate", END, [], [[provisional]], NOW, 1_000).phase is WindowPhase.PROVISIONAL


def test_a_cluster_without_reports_is_absent() -> None:
    never = side("aggregate", END, [], [[record()], []], NOW, 1_000)
    assert (never.is_heard, never.phase) == (False, WindowPhase.OPEN)
    assert side("aggregate", END, [], [], NOW, 1_000).is_heard is False
    assert compare(BEFORE, never, END, NOW, PATIENCE).absent == ("aggregate",)


def test_the_lag_between_tiers_is_that_of_their_medians() -> None:
    def with_latency(latency_ms: int) -> Totals:
        found = Latencies()
        found.add(np.array([latency_ms] * 3))
        return msgspec.structs.replace(seen(b"a", b"b", b"c"), latencies=found.to_bytes())

    verdict = compare(tier("a", with_latency(10)), tier("b", with_latency(500)), END, NOW, PATIENCE)
    assert verdict.lag_ms == pytest.approx(490, rel=0.02)
    assert compare(BEFORE, BEFORE, END, NOW, PATIENCE).lag_ms is None


def test_records_late_at_one_tier_just_now_may_be_on_their_way_to_the_other() -> None:
    before = tier("regional", seen(b"a", b"b"), seen(b"c"), late_ms=NOW - PATIENCE + 1)
    after = tier("aggregate", seen(b"a", b"b"))
    assert compare(before, after, END, NOW, PATIENCE).state is WindowState.PROVISIONAL
    assert compare(before, after, END, NOW + 1, PATIENCE).state is WindowState.LOSSY
    assert compare(before, tier("aggregate", seen(b"a")), END, NOW, PATIENCE).state is WindowState.LOSSY
    more = tier("aggregate", seen(b"a", b"b"), seen(b"c"), late_ms=NOW)
    assert compare(after._replace(tier="regional"), more, END, NOW, PATIENCE).state is WindowState.PROVISIONAL


def test_records_late_upstream_are_not_this_tiers_fault() -> None:
    before = tier("regional", seen(b"a", b"b"), seen(b"c"))
    after = tier("aggregate", seen(b"a", b"b"), seen(b"c"))
    assert compare(before, after, END, NOW, PATIENCE).state is WindowState.OK


def test_a_window_closed_just_now_is_provisional_while_late_records_come() -> None:
    """One tier counts in time what comes late to the other, of one source after the other."""
    before = tier("regional", seen(b"a"), seen(b"b"), late_ms=NOW - 1, closed_ms=NOW - PATIENCE)
    after = tier("aggregate", seen(b"a", b"b", b"c", b"d"), closed_ms=NOW - PATIENCE + 1)
    assert compare(before, after, END, NOW, PATIENCE).state is WindowState.PROVISIONAL
    assert compare(before, after, END, NOW + 1, PATIENCE).state is WindowState.DUPLICATED
    in_time = before._replace(totals=before.all, late=NO_TOTALS, late_ms=-1)
    assert compare(in_time, after, END, NOW, PATIENCE).state is WindowState.DUPLICATED


def test_records_late_at_one_tier_are_no_loss_at_another_with_a_silent_source() -> None:
    before = tier("regional", seen(b"a"), seen(b"b"), late_ms=NOW - PATIENCE)
    after = tier("aggregate", seen(b"a"), has_silent=True)
    for first, second in ((before, after), (after, before)):
        verdict = compare(first, second, END, NOW, PATIENCE)
        assert (verdict.state, verdict.absent) == (WindowState.ABSENT, ("aggregate",))
    in_time = before._replace(totals=before.all, late=NO_TOTALS)
    assert compare(in_time, after, END, NOW, PATIENCE).state is WindowState.LOSSY
    heard = after._replace(has_silent=False)
    assert compare(before, heard, END, NOW, PATIENCE).state is WindowState.LOSSY
