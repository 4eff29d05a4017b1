"""The time index: the offsets of a time, as the audit counted them, and the limits of its knowledge."""

from __future__ import annotations

from typing import Any

import msgspec

from app.audit.folds.collector import Collector
from app.audit.folds.tier import ForgetWindows
from app.audit.pump.counting_spec import time_of
from app.audit.query.record_search import EventTimeRange, SearchRange, _part, _with_archive
from app.audit.query.time_index import TimeIndex, share, time_index
from app.audit.query.view import BookShare, WindowQuery, joined
from switchyard.audit.model.reports import Increment, Report, Scope, report_id
from switchyard.audit.model.spans import Indexed
from switchyard.audit.model.tally import RecordArrays, Tally
from tests.audit.query.arrays import numbers
from tests.audit.query.test_view import audit_plan

WIDTH_MS = 1_000
PLACE = ("orders", "regional", "home")
WANTED = WindowQuery(*PLACE)


class Audit:
    """One worker's books."""

    def __init__(self, tier: str = PLACE[1], cluster: str = PLACE[2]) -> None:
        self.collector, self.position = Collector(), 0
        self._scope = Scope(PLACE[0], tier, cluster, WIDTH_MS)

    def count(
        self,
        source: str,
        *records: tuple[int, int],
        mark_ms: int = 0,
        at_ms: int = 9_000,
        complete_ms: int = -1,
    ) -> None:
        """Records (offset, event time) that a source has counted."""
        tally = Tally(WIDTH_MS)
        offsets, times = numbers([one for one, _ in records]), numbers([at for _, at in records])
        tally.add(RecordArrays(times, offsets * 0 + 1, offsets))
        spans = {start: sums.span for start, sums in tally.windows.items()}
        windows = tuple(Increment(start, totals, spans[start]) for start, totals in tally.totals().items())
        scope, part = self._scope, self.position
        report = Report(
            report_id(scope, source, part, 0, 1, final=True), *scope, source, at_ms, windows, part=part,
            upto=1, final=True, watermark_ms=mark_ms, complete_ms=complete_ms,
        )  # fmt: skip
        self.collector.apply(report, self.position)
        self.position += 1

    def share(self, partition: int = 7) -> BookShare:
        made = share({partition: self.position}, [self.collector], WANTED)
        return msgspec.json.decode(msgspec.json.encode(made), type=BookShare)

    def index(self, topic_id: str | None = "t") -> Any:
        return time_index(joined([self.share()], lambda _: 7), topic_id)


def test_an_instant_has_the_first_offset_of_its_window_or_of_a_later_record() -> None:
    audit = Audit()
    audit.count("t/0", (10, 100), (11, 2_500), (12, 1_900), (13, 2_900), (14, 4_000), mark_ms=4_000)
    index = audit.index()
    assert index.at(0, 0) == (10, "")
    assert index.at(0, 1_000) == (11, ""), "an older record behind newer ones does not hide them"
    assert index.at(0, 2_000) == (11, "")
    assert index.at(0, 2_600) == (11, "window")
    assert index.at(0, 3_000) == (14, "")
    assert index.at(0, 5_000) == (15, "beyond-end")
    assert index.at(1, 0) is None


def test_records_from_before_counting_are_unknown() -> None:
    audit = Audit()
    audit.count("t/0", (10, 100), (11, 2_500), complete_ms=2_000)
    index = audit.index()
    assert index.at(0, 100) == (10, "before-start")
    assert index.at(0, 1_500) == (11, "before-start"), "older ones may lie before it"
    assert index.at(0, 2_100) == (11, "window")
    assert not index.knows(0, 1_999)
    assert index.knows(0, 2_100)


def test_recreated_topics_truncated_logs_and_clients_are_distinguished() -> None:
    audit = Audit()
    audit.count("old/0", (900, 3_000), at_ms=1_000)
    audit.count("t/0@1", (5, 3_000))
    audit.count("t/0@2", (3, 3_100))
    audit.count("t/12", (70, 3_200), at_ms=9_500)
    audit.count("app@1", (1, 3_000), at_ms=10_000)
    index = audit.index()
    assert index.windows == {0: [Indexed(3_000, 4_000, (3, 6))], 12: [Indexed(3_000, 4_000, (70, 71))]}
    assert audit.index("old").at(0, 0) == (900, "")
    assert audit.index(None).windows.keys() == {0, 12}, "that which was heard last"
    assert audit.index("none") is None


def test_the_share_that_has_read_furthest_counts() -> None:
    further, behind = Audit(), Audit()
    for audit in (further, behind):
        audit.count("t/0", (10, 100))
    further.count("t/0", (5, 150))
    for shares in ([further.share(), behind.share()], [behind.share(), further.share()]):
        found = time_index(joined(shares, lambda _: 7), "t")
        assert found is not None
        assert found.at(0, 0) == (5, "")


def known(*windows: Indexed, mark_ms: int = 0, complete_ms: int = -1) -> TimeIndex:
    return TimeIndex({0: list(windows)}, {0: mark_ms}, complete_ms)


def test_a_search_reads_no_further_than_it_must() -> None:
    log, times = (20, 500), EventTimeRange(1_000, 3_000)
    windows = (
        Indexed(0, 1_000, (1, 40)), Indexed(1_000, 2_000, (30, 70)), Indexed(3_000, 4_000, (60, 90)),
    )  # fmt: skip
    over, running = known(*windows, mark_ms=3_000), known(*windows, mark_ms=2_999)
    assert _part(0, log, None, times, over) == SearchRange(0, 30, 70, "audit")
    assert _part(0, log, None, times, running) == SearchRange(0, 30, 500, "audit"), "more of it may come"
    assert _part(0, log, 35, times, over) == SearchRange(0, 35, 70, "audit")
    assert _part(0, log, 35, times, running) == SearchRange(0, 35, 500, "timestamps")
    assert _part(0, log, -1, times, None) == SearchRange(0, 500, 500, "timestamps")
    assert _part(0, log, None, times, None) == SearchRange(0, 20, 500, "log")
    assert _part(0, log, None, times, known(*windows, complete_ms=1_001)) == SearchRange(0, 20, 500, "log")
    old = EventTimeRange(0, 1_000)
    assert _part(0, log, None, old, over) == SearchRange(0, 20, 40, "audit", (1, 20)), (
        "retention has taken some"
    )
    gap = EventTimeRange(2_000, 3_000)
    assert _part(0, log, None, gap, over) == SearchRange(0, 90, 90, "audit")
    assert _part(0, log, None, gap, running) == SearchRange(0, 90, 500, "audit")
    assert _part(0, (60, 500), None, old, over) == SearchRange(0, 60, 60, "audit", (1, 40))


def test_a_record_has_the_time_by_which_it_was_counted() -> None:
    class Record:
        offset, timestamp, key, headers = 0, 5, None, ()

        def __init__(self, value: bytes) -> None:
            self.value = value

    at_field: dict[str, Any] = {"source": "json", "field": "at"}
    assert time_of(None)(Record(b"")) == 5
    assert time_of(audit_plan())(Record(b"")) == 5
    by_field = time_of(audit_plan(timestamp=at_field))
    assert (by_field(Record(b'{"at": 77}')), by_field(Record(b"{}"))) == (77, 5)
    assert time_of(audit_plan(timestamp={**at_field, "otherwise": "none"}))(Record(b"{}")) == -1


def test_deleted_offsets_are_read_from_the_archive_and_only_the_rest_is_lost() -> None:
    gone = SearchRange(0, 20, 40, "audit", (1, 20))
    some = _with_archive(gone, 20, ((0, 10), (12, 30)), is_known=True)
    assert (some.archived, some.lost) == (((1, 10), (12, 20)), 2)
    assert _with_archive(gone, 20, (), is_known=True).lost == 19
    none = SearchRange(0, 30, 70, "audit")
    assert _with_archive(none, 20, ((0, 10),), is_known=True) == none, "nothing of the time is gone"
    unknown = _with_archive(SearchRange(0, 20, 500, "log"), 20, ((3, 15),), is_known=False)
    assert (unknown.gone, unknown.archived, unknown.lost) == ((3, 20), ((3, 15),), 5)
    assert _with_archive(SearchRange(0, 20, 500, "log"), 20, (), is_known=False).lost == 0, (
        "no lost records are known"
    )


def test_windows_dropped_as_too_old_are_unknown() -> None:
    audit = Audit()
    audit.count("t/0", (10, 100), (11, 5_500), mark_ms=6_000)
    assert audit.index().knows(0, 100)
    audit.collector.apply(ForgetWindows(*PLACE, 2_000, 9_000), audit.position)
    index = audit.index()
    assert index.at(0, 100) == (11, "before-start")
    assert (index.knows(0, 1_999), index.knows(0, 2_000)) == (False, True)
