from __future__ import annotations

import msgspec
import pytest

from app.audit.folds.collector import Collector
from app.audit.folds.counted_parts import ReportOutcome
from app.audit.folds.tier import (
    CloseWindows,
    ForgetWindows,
    PlanBounds,
    SourceStatus,
    TierKey,
    TierRecord,
    check,
    due,
    lateness,
    watermark,
)
from app.audit.folds.window import WindowKey, WindowPhase, phase
from app.controllog import codec
from app.failover.topology import AGGREGATE, REGIONAL
from switchyard.audit.model.places import OF_WORKERS
from switchyard.audit.model.reports import CLIENT_SHARDS, MOST_SOURCES, BadReport, Scope, client_report
from switchyard.audit.model.totals import Totals

WIDTH = 1_000
SCOPE = Scope("topic", "regional", "east", WIDTH)
BOUNDS = PlanBounds(
    lateness_ms=500, most_lateness_ms=10_000, silence_ms=2_000, give_up_ms=20_000, keep_ms=100_000
)
WINDOW = WindowKey(*SCOPE, 0)


class Topic:
    """Events in their order, folded at once."""

    def __init__(self) -> None:
        self.collector = Collector()
        self.position = 0
        self.sequences: dict[str, int] = {}

    def report(
        self, source: str, watermark_ms: int, at_ms: int, start: int = 0, count: int = 1, **more: object
    ) -> ReportOutcome:
        sequence = self.sequences.get(source, 0)
        self.sequences[source] = sequence + 1
        one = client_report(
            SCOPE,
            source,
            sequence,
            {start: Totals(count)} if count else {},
            at_ms=at_ms,
            watermark_ms=watermark_ms,
        )
        written = self.collector.apply(msgspec.structs.replace(one, **{"shard": 0, **more}), self.position)
        self.position += 1
        return written.verdicts[0][1] if count else ReportOutcome.REPEATED

    def sweep(self, now_ms: int) -> list[CloseWindows | ForgetWindows]:
        events = self.collector.due(now_ms, BOUNDS)
        for event in events:
            self.collector.apply(event, self.position)
            self.position += 1
        return events


def test_a_window_is_open_then_provisional_then_closed() -> None:
    topic = Topic()
    topic.report("a", 900, 900)
    record = topic.collector.windows[WINDOW]
    assert phase(WINDOW, record, 900) is WindowPhase.OPEN
    topic.report("a", 1_400, 1_400, count=0)
    assert phase(WINDOW, record, 1_400) is WindowPhase.PROVISIONAL
    assert topic.sweep(1_400) == []
    topic.report("a", 1_500, 1_500, count=0)
    assert [event.before_ms for event in topic.sweep(1_500)] == [1_000]
    assert phase(WINDOW, topic.collector.windows[WINDOW], 1_500) is WindowPhase.CLOSED
    assert topic.sweep(1_501) == []


def test_reports_after_the_closing_are_late_and_change_nothing_else() -> None:
    topic = Topic()
    topic.report("a", 1_500, 1_500, count=5)
    topic.sweep(1_500)
    assert topic.report("a", 1_600, 1_600, count=2) is ReportOutcome.LATE
    record = topic.collector.windows[WINDOW]
    assert (record.totals.count, record.late.count, record.closed_ms) == (5, 2, 1_500)


def test_a_window_whose_first_report_comes_after_its_closing_is_created_closed() -> None:
    topic = Topic()
    topic.report("a", 1_500, 1_500, count=0)
    topic.collector.apply(CloseWindows(*SCOPE[:3], 1_000, 1_500), topic.position)
    topic.position += 1
    assert topic.report("b", 100, 1_600, count=2) is ReportOutcome.LATE
    assert topic.collector.windows[WINDOW].closed_ms == 1_500


def test_the_slowest_reporting_source_holds_windows_open() -> None:
    topic = Topic()
    topic.report("fast", 5_000, 5_000)
    topic.report("slow", 700, 5_000)
    assert topic.sweep(5_000) == []
    assert topic.report("slow", 5_000, 5_100, start=1_000) is ReportOutcome.COUNTED
    assert [event.before_ms for event in topic.sweep(5_100)] == [4_000]


def test_a_silent_source_holds_no_window_open_and_closed_windows_name_it() -> None:
    topic = Topic()
    topic.report("dead", 700, 700)
    topic.report("alive", 5_000, 5_000)
    (close,) = topic.sweep(5_000)
    assert isinstance(close, CloseWindows)
    assert close.without == (("dead", 700),)
    assert topic.collector.windows[WINDOW].without == ("dead",)


def test_a_silent_source_that_had_come_past_the_window_is_not_missed() -> None:
    topic = Topic()
    topic.report("dead", 1_200, 1_200)
    topic.report("alive", 5_000, 5_000)
    topic.sweep(5_000)
    assert topic.collector.windows[WINDOW].without == ()


def test_windows_do_not_wait_for_a_client_that_came_back_as_another_incarnation() -> None:
    topic = Topic()
    topic.report("web@1", 700, 700)
    topic.report("web@2", 5_000, 5_000)
    (close,) = topic.sweep(5_000)
    assert isinstance(close, CloseWindows)
    assert close.given_up == ("web@1",)
    assert list(topic.collector.tiers[TierKey(*SCOPE[:3])].sources) == ["web@2"]


def test_windows_do_not_wait_for_a_source_that_leaves() -> None:
    topic = Topic()
    topic.report("a", 700, 700, leaves=True)
    topic.report("b", 1_500, 1_500)
    (close,) = topic.sweep(1_500)
    assert isinstance(close, CloseWindows)
    assert close.without == ()


def test_nothing_closes_while_all_sources_are_silent() -> None:
    topic = Topic()
    topic.report("a", 1_400, 1_400)
    assert topic.sweep(50_000) == []


def test_a_timestamp_in_the_future_closes_nothing() -> None:
    topic = Topic()
    topic.report("a", 9_999_999, 800)
    assert topic.sweep(800) == []
    assert topic.collector.tiers[TierKey(*SCOPE[:3])].sources["a"] == SourceStatus(800, 800)


def test_a_source_with_a_fast_clock_closes_no_window_early() -> None:
    topic = Topic()
    topic.report("east/0", watermark_ms=3_000, at_ms=3_200)
    assert topic.sweep(now_ms=1_400) == []
    assert watermark(topic.collector.shards(SCOPE[:3]), 1_400, BOUNDS.silence_ms) == 1_400
    (closed,) = topic.sweep(now_ms=1_500)
    assert closed.before_ms == WIDTH


def test_the_lateness_grows_with_late_records_and_fades() -> None:
    topic = Topic()
    topic.report("a", 1_500, 1_500)
    topic.sweep(1_500)
    topic.report("a", 1_600, 1_600, late_ms=3_000)
    records = topic.collector.shards(SCOPE[:3])
    assert lateness(records, BOUNDS) == 6_000
    assert lateness([TierRecord(late_ms=999_999)], BOUNDS) == 10_000
    topic.report("a", 7_900, 7_900, start=1_000)
    assert topic.sweep(7_900) == []
    topic.report("a", 8_000, 8_000, start=1_000)
    assert [event.before_ms for event in topic.sweep(8_000)] == [2_000]
    assert lateness(topic.collector.shards(SCOPE[:3]), BOUNDS) < 6_000


def test_old_windows_are_dropped_and_do_not_come_again() -> None:
    topic = Topic()
    topic.report("a", 1_500, 1_500)
    topic.sweep(1_500)
    topic.report("a", 150_000, 150_000, start=149_000)
    assert ForgetWindows(*SCOPE[:3], 50_000, 150_000) in topic.sweep(150_000)
    assert WINDOW not in topic.collector.windows
    assert topic.report("a", 150_000, 150_001) is ReportOutcome.FORGOTTEN
    assert WINDOW not in topic.collector.windows


def test_no_window_is_dropped_before_its_end_by_the_brokers_clock() -> None:
    topic = Topic()
    topic.report("a", 900, 900)
    topic.collector.apply(ForgetWindows(*SCOPE[:3], 1 << 62, 1_500), topic.position, 1_500)
    topic.position += 1
    assert topic.report("a", 1_600, 1_600, start=1_000) is ReportOutcome.COUNTED


def test_a_negative_time_is_not_a_brokers_time() -> None:
    topic = Topic()
    topic.report("a", 900, 900)
    topic.collector.apply(CloseWindows(*SCOPE[:3], 1_000, 1_000), 1, -1)
    assert topic.collector.windows[WINDOW].is_closed


@pytest.mark.parametrize("name", ["x" * 600, "\x01" * 600, "short"])
def test_a_closing_gives_up_as_many_silent_sources_as_an_event_may_name(name: str) -> None:
    """All shards of a tier full of dead ones."""
    many = CLIENT_SHARDS * (MOST_SOURCES if name == "short" else 1_000)
    dead = {f"{number:06}{name}"[:600]: SourceStatus(1, 1) for number in range(many)}
    names, given_up, now_ms = list(dead), set[str](), 1_000_000
    while len(given_up) < many:
        left = {one: dead[one] for one in names if one not in given_up}
        record = TierRecord(sources={**left, "alive": SourceStatus(now_ms, now_ms)})
        close, _ = due(SCOPE, [record], now_ms, BOUNDS)
        assert isinstance(close, CloseWindows)
        check(close)
        assert len(codec.encode(close)) < codec.MAX_EVENT_BYTES
        assert close.given_up, "the next event gives up further sources"
        given_up |= set(close.given_up)


@pytest.mark.parametrize("given_up", [["x"] * (MOST_SOURCES + 1), ["x" * 60_000] * 10])
def test_a_closing_that_gives_up_more_than_an_event_may_name_is_refused(given_up: list[str]) -> None:
    with pytest.raises(BadReport, match="let the next closing name the rest"):
        check(CloseWindows(*SCOPE[:3], 1_000, 1_000, (), tuple(given_up)))


def test_a_tier_without_reports_has_no_watermark() -> None:
    assert watermark([], 5, 5) == -1
    assert due(SCOPE, [], 50, BOUNDS) == []


@pytest.mark.parametrize("key", [WINDOW, WindowKey(*SCOPE, -1, 3), TierKey(*SCOPE[:3], 2)])
def test_a_key_is_read_back_from_its_text(key: WindowKey | TierKey) -> None:
    assert type(key).parse(str(key)) == key


def test_records_without_a_timestamp_have_a_window_that_never_closes() -> None:
    topic = Topic()
    topic.report("a", 50_000, 50_000, start=-1)
    topic.sweep(50_000)
    assert not topic.collector.windows[WindowKey(*SCOPE, -1)].is_closed


def test_the_tiers_of_workers_are_the_roles_of_clusters_and_none_of_them() -> None:
    assert (REGIONAL, AGGREGATE, "other") == OF_WORKERS
