"""Bounds on clients: their times stay within the audit's clock, and their memory is limited."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit.folds import collector as folds_collector
from app.audit.folds import tier, window
from app.audit.folds.collector import Collector
from app.audit.folds.counted_parts import ReportOutcome
from app.audit.folds.tier import CloseWindows, ForgetWindows, PlanBounds, TierKey
from app.audit.folds.window import WindowKey
from app.audit.query.view import RegionCounts, window_rows
from switchyard.audit.model.reports import Increment, Report, Scope, client_report, report_id
from switchyard.audit.model.tally import SKEW_MS, UNTIMED
from switchyard.audit.model.totals import Totals

WIDTH = 1_000
SCOPE = Scope("topic", "consumer", "east", WIDTH)
TIER = TierKey(*SCOPE[:3])
BOUNDS = PlanBounds(
    lateness_ms=500, most_lateness_ms=10_000, silence_ms=2_000, give_up_ms=20_000, keep_ms=100_000
)
FAR_MS = 1_000 << 35


def report(
    source: str,
    at_ms: int,
    start_ms: int = 0,
    watermark_ms: int = -1,
    scope: Scope = SCOPE,
    sequence: int = 0,
) -> Report:
    """All in one table value."""
    made = client_report(
        scope, source, sequence, {start_ms: Totals(1)}, at_ms=at_ms, watermark_ms=watermark_ms
    )
    return msgspec.structs.replace(made, shard=0)


def test_a_client_with_a_fast_clock_closes_nothing_early_and_falls_silent() -> None:
    collector = Collector()
    collector.apply(report("wrong", FAR_MS, watermark_ms=FAR_MS), 0, recorded_ms=1_800)
    collector.apply(report("right", 1_800, watermark_ms=1_800), 1, recorded_ms=1_800)
    (close,) = collector.due(1_800, BOUNDS)
    assert isinstance(close, CloseWindows)
    assert close.before_ms == 1_000
    collector.apply(report("right", 9_000, 5_000, 9_000, sequence=1), 2, recorded_ms=9_000)
    (close,) = collector.due(9_000, BOUNDS)
    assert isinstance(close, CloseWindows)
    assert (close.before_ms, close.without) == (8_000, (("wrong", 1_800),))


def test_late_records_of_a_client_with_a_wrong_clock_are_not_late_in_the_future() -> None:
    collector = Collector()
    collector.apply(report("right", 1_800, watermark_ms=1_800), 0, recorded_ms=1_800)
    (close,) = collector.due(1_800, BOUNDS)
    collector.apply(close, 1)
    collector.apply(report("wrong", FAR_MS), 2, recorded_ms=2_000)
    (record,) = collector.windows.values()
    assert (record.late.count, record.late_ms) == (1, 2_000)


def test_no_report_makes_windows_of_the_future_incomplete() -> None:
    collector = Collector()
    wrong = msgspec.structs.replace(report("wrong", 1_000), complete_ms=FAR_MS)
    collector.apply(wrong, 0, recorded_ms=1_500)
    assert collector.tiers[TIER].complete_ms == 1_500


def test_future_times_in_old_records_close_nothing_early() -> None:
    """A topic whose records have their producers' timestamps."""
    collector = Collector()
    collector.apply(report("wrong", FAR_MS, watermark_ms=FAR_MS), 0)
    assert collector.due(5_000, BOUNDS) == [], "no usable report has arrived"
    collector.apply(report("right", 5_000, watermark_ms=5_000), 1)
    (close,) = collector.due(5_000, BOUNDS)
    assert isinstance(close, CloseWindows)
    assert (close.before_ms, close.given_up) == (4_000, ("wrong",))


def test_too_many_tiers_are_refused_and_too_many_windows_are_counted_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folds_collector, "MOST_TIERS", 2)
    monkeypatch.setattr(folds_collector, "MOST_WINDOWS", 5)
    monkeypatch.setattr(folds_collector, "MOST_OF_TIER", 3)
    collector, position = Collector(), 0

    def verdict(topic: str, start_ms: int) -> ReportOutcome:
        nonlocal position
        position += 1
        one = report("a", 1_000, start_ms, scope=SCOPE._replace(topic=topic), sequence=position)
        return collector.apply(one, position).verdicts[0][1]

    assert [verdict("one", start * WIDTH) for start in range(4)] == [ReportOutcome.COUNTED] * 3 + [
        ReportOutcome.APART
    ]
    assert [verdict("two", start * WIDTH) for start in range(3)] == [
        ReportOutcome.COUNTED,
        *[ReportOutcome.APART] * 2,
    ]
    monkeypatch.setattr(folds_collector, "MOST_WINDOWS", 100)
    assert verdict("three", 0) is ReportOutcome.FULL
    assert verdict("one", 0) is ReportOutcome.COUNTED
    assert (len(collector.windows), len(collector.tiers)) == (6, 2)
    beside = WindowKey(*SCOPE._replace(topic="two"), UNTIMED)
    assert (collector.windows[beside].apart.count, collector.windows[beside].totals.count) == (2, 0)


NOW_MS = 50_000
times_ms = st.integers(0, NOW_MS) | st.integers(NOW_MS, 1 << 47)


@given(st.lists(st.tuples(times_ms, st.sampled_from(["a@1", "b@1"])), max_size=40))
def test_records_of_any_time_count_once_and_current_ones_in_their_windows(
    written: list[tuple[int, str]],
) -> None:
    collector = Collector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds_collector, "MAX_FUTURE_WINDOWS", 5)
        for position, (time_ms, source) in enumerate(written):
            start_ms = time_ms - time_ms % WIDTH
            one = report(source, FAR_MS, start_ms, sequence=position)
            for again in range(2):
                collector.apply(one, position, recorded_ms=NOW_MS + again)
    future = {key for key in collector.windows if key.start_ms > NOW_MS + SKEW_MS + 1}
    assert len(future) <= 5
    counted = {key.start_ms: record.totals.count for key, record in collector.windows.items()}
    apart = sum(record.apart.count for record in collector.windows.values())
    assert sum(counted.values()) + apart == len(written)
    near = Counter(time_ms - time_ms % WIDTH for time_ms, _ in written if time_ms <= NOW_MS + SKEW_MS)
    assert all(counted[start_ms] == count for start_ms, count in near.items())


def test_a_growing_part_without_room_is_counted_apart_once_it_is_final(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folds_collector, "MAX_FUTURE_WINDOWS", 1)
    collector = Collector()
    for upto in range(1, 4):
        made = Report(
            report_id(SCOPE, "t/0", 0, 0, upto, final=upto == 3), *SCOPE, "t/0", NOW_MS,
            (Increment(NOW_MS, Totals(upto)), *(Increment(FAR_MS * n, Totals(upto)) for n in (1, 2))),
            part=0, since=0, upto=upto, final=upto == 3,
        )  # fmt: skip
        verdicts = [found for _, found in collector.apply(made, upto, recorded_ms=NOW_MS).verdicts]
        assert verdicts == [
            ReportOutcome.COUNTED,
            ReportOutcome.COUNTED,
            ReportOutcome.APART if upto == 3 else ReportOutcome.FULL,
        ]
    assert collector.windows[WindowKey(*SCOPE, UNTIMED)].apart.count == 3
    known = RegionCounts(collector.windows, collector.tiers)
    (row,) = [row for row in window_rows(known, NOW_MS, lambda *_: BOUNDS) if row["start_ms"] is None]
    assert (row["count"], row["remark"][:12]) == (3, "3 of them ha")


def test_a_tier_with_too_many_windows_drops_its_oldest_closed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds_collector, "KEPT_OF_TIER", 10)
    collector = Collector()
    for number in range(13):
        collector.apply(
            report("a", 13_000, number * WIDTH, watermark_ms=6_600 if number else -1, sequence=number), number
        )
    (close,) = collector.due(13_000, BOUNDS)
    collector.apply(close, 20)
    (forget,) = collector.due(13_000, BOUNDS)
    assert isinstance(forget, ForgetWindows)
    assert forget.before_ms == 4_000, "thirteen less four are nine tenths of ten"
    collector.apply(forget, 21)
    assert len(collector.windows) == 9
    assert collector.due(13_000, BOUNDS) == []


def test_the_sources_of_a_tier_and_of_a_window_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "MOST_SOURCES", 3)
    monkeypatch.setattr(window, "MOST_SOURCES", 3)
    collector = Collector()
    found = [collector.apply(report(f"client@{number}", 1_000), number).verdicts[0][1] for number in range(5)]
    assert found == [ReportOutcome.COUNTED] * 3 + [ReportOutcome.FULL] * 2
    assert len(collector.tiers[TIER].sources) == 3
    assert collector.apply(report("client@0", 1_000, sequence=1), 9).verdicts[0][1] is ReportOutcome.COUNTED


def test_records_of_a_longer_topic_count_on_in_a_recreated_one() -> None:
    collector = Collector()
    collector.apply(report("a", 1_800, watermark_ms=1_800), 500)
    (close,) = collector.due(1_800, BOUNDS)
    collector.apply(close, 501)
    collector.apply(report("a", 1_800, 1_000, 1_800, sequence=1), 502)
    changed = collector.rewind(3)
    assert changed == ([WindowKey(*SCOPE, 0), WindowKey(*SCOPE, 1_000)], [TIER])
    assert collector.rewind(3) == ([], [])
    again = collector.apply(report("a", 1_800, 1_000, sequence=1), 0)
    assert [verdict for _, verdict in again.verdicts] == [ReportOutcome.REPEATED]
    collector.apply(report("a", 2_000, 1_000, 2_600, sequence=2), 1)
    assert collector.windows[WindowKey(*SCOPE, 1_000)].totals.count == 2
    assert collector.apply(report("a", 2_000, 0, sequence=3), 2).verdicts[0][1] is ReportOutcome.LATE


def test_a_watermark_does_not_exceed_the_callers_clock() -> None:
    collector = Collector()
    collector.apply(report("a", 2_900, watermark_ms=2_900), 0)
    assert tier.watermark(collector.shards(SCOPE[:3]), 2_000, BOUNDS.silence_ms) == 2_000


def test_one_record_of_years_ago_holds_no_window_open_for_long() -> None:
    collector = Collector()
    late = msgspec.structs.replace(report("a", 1_000), late_ms=1 << 50)
    collector.apply(late, 0)
    record, closings = collector.tiers[TIER], 0
    while tier.lateness([record], BOUNDS) == BOUNDS.most_lateness_ms:
        closings += 1
        record = tier.on_close(record, CloseWindows(*TIER[:3], closings * WIDTH, closings), closings)
    assert closings < 200


def test_a_closing_by_a_fast_clock_closes_nothing_beyond_the_audits_clock() -> None:
    collector = Collector()
    collector.apply(report("a", 1_000, 5_000), 0, recorded_ms=1_000)
    collector.apply(CloseWindows(*TIER[:3], 1 << 50, 1 << 50), 1, recorded_ms=2_000)
    (record,) = collector.windows.values()
    assert not record.is_closed
    assert tier.closed_before(collector.tiers[TIER]) == 2_000
