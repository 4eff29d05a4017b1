"""Spans of offsets in reports and tables: exact, whichever reports arrive and how often."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.audit.counts.counter import CountingSpec
from app.audit.counts.partition_counter import PartitionReader
from app.audit.folds.collector import Collector
from app.audit.folds.counted_parts import NOTHING_COUNTED, count_report, span_of
from app.kafka.fetch.decoder import records_of
from app.kernel.ranges import Range
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import PART_OFFSETS, Increment, Report, Scope
from switchyard.audit.model.spans import NO_SPAN, Indexed, hull, span_between
from switchyard.audit.model.tally import UNTIMED
from switchyard.audit.model.totals import Totals
from tests.audit.counts.logs import Log

WIDTH_MS = 1_000
SOURCE = FingerprintSource("c", "t", 0)
SCOPE = Scope("orders", "regional", "home", WIDTH_MS)
FAR = PART_OFFSETS - 20  # a log that starts here soon reaches the next part

narrow = st.builds(
    lambda start, more: [start + one for one in more],
    st.integers(0, 9_500),
    st.lists(st.integers(0, 400), min_size=1, max_size=9),
)
times = st.lists(narrow | st.lists(st.integers(-1, 9_999), min_size=1, max_size=9), min_size=1, max_size=12)
moves = st.lists(st.sampled_from(["read", "tell", "lose", "repeat", "die"]), min_size=1, max_size=40)


def exact_spans(log: Log, upto: int) -> dict[int, Range]:
    """Maps each window to its span, by reading every record."""
    found: dict[int, Range] = {}
    for offset, timestamp_ms in log.records(end=upto):
        start = UNTIMED if timestamp_ms < 0 else timestamp_ms - timestamp_ms % WIDTH_MS
        found[start] = hull(found.get(start, NO_SPAN), (offset, offset + 1))
    return found


def collected_spans(collector: Collector) -> dict[int, Range]:
    spans: dict[int, Range] = {}
    for key, record in collector.windows.items():
        for counted in record.counted.values():
            spans[key.start_ms] = hull(spans.get(key.start_ms, NO_SPAN), span_of(counted))
    return spans


@given(times, moves, st.sampled_from([0, FAR]), st.booleans())
def test_spans_are_those_of_the_records_whatever_becomes_of_reports_and_readers(
    batches: list[list[int]], story: list[str], base: int, by_records: bool
) -> None:
    log, collector, position = Log(next_offset=base), Collector(), 0
    for timestamps in batches:
        timed = [max(0, timestamps[0]), *timestamps[1:]]  # aiokafka's batch builder needs a first timestamp
        log.append(timed if by_records else sorted(max(0, at_ms) for at_ms in timed))
    how = CountingSpec(records_of, SOURCE, disorder_ms=0, by_value=by_records)
    reader = PartitionReader(SCOPE, SOURCE, how, base)
    begin, delivered = base, list[Report]()

    def deliver(reports: list[Report], *, is_acknowledged: bool) -> None:
        nonlocal position
        for report in reports:
            collector.apply(report, position)
            position += 1
            delivered.append(report)
            if is_acknowledged:
                reader.acknowledged(report)

    for move in [*story, *["read"] * len(batches), "tell"]:
        if move == "read":
            data, following = log.fetch(reader.next_offset, 1 + len(delivered) % 3)
            reader.fetched(data, following, at_ms=5)
        elif move == "lose":
            reader.reports(5)
        elif move == "repeat" and delivered:
            deliver(delivered[-2:], is_acknowledged=False)
        elif move == "die":
            begin = max(begin, reader.state()[0].since)
            reader = PartitionReader(SCOPE, SOURCE, how, begin)
        elif move == "tell":
            deliver(reader.reports(5), is_acknowledged=len(delivered) % 3 != 0)
    assert collected_spans(collector) == exact_spans(log, log.next_offset)


def report(part: int, since: int, upto: int, *, final: bool) -> Report:
    name = f"00000000-0000-0000-0000-{part:06d}{upto:06d}"
    return Report(name, *SCOPE, "t/0", 5, (), part=part, since=since, upto=upto, final=final)


def test_reports_of_older_versions_make_spans_wider_never_wrong() -> None:
    old, _, _ = count_report(
        NOTHING_COUNTED, report(2, 2 * PART_OFFSETS, 3 * PART_OFFSETS, final=True), Totals(9)
    )
    assert (old.span, span_of(old)) == (NO_SPAN, (2 * PART_OFFSETS, 3 * PART_OFFSETS))
    new, _, _ = count_report(
        old, report(4, 4 * PART_OFFSETS, 5 * PART_OFFSETS, final=True), Totals(1), (300_000, 300_001)
    )
    assert span_of(new) == (2 * PART_OFFSETS, 300_001)
    back, _, _ = count_report(new, report(5, 5 * PART_OFFSETS, 5 * PART_OFFSETS + 7, final=False), Totals(1))
    assert span_of(back) == (2 * PART_OFFSETS, 5 * PART_OFFSETS + 7)
    growing, _, _ = count_report(
        NOTHING_COUNTED, report(1, PART_OFFSETS + 5, PART_OFFSETS + 9, final=False), Totals(2)
    )
    assert span_of(growing) == (PART_OFFSETS + 5, PART_OFFSETS + 9)


def test_reports_with_and_without_spans_are_read_by_each_other() -> None:
    with_span = msgspec.json.encode(Increment(0, Totals(1), (7, 9)))
    assert msgspec.json.decode(with_span, type=Increment).span == (7, 9)
    without_span = b'[0,{"count":1}]'
    assert msgspec.json.decode(without_span, type=Increment) == Increment(0, Totals(1))


def test_a_time_lies_in_the_windows_that_it_touches() -> None:
    windows = [Indexed(0, 10, (5, 7)), Indexed(10, 20, (1, 6)), Indexed(30, 40, (9, 12))]
    assert span_between(windows, 0, 10) == (5, 7)
    assert span_between(windows, 9, 11) == (1, 7)
    assert span_between(windows, 20, 30) == NO_SPAN
    assert span_between(windows, 0, 99) == (1, 12)
