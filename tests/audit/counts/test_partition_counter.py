"""A partition's reader with parts that last long, and with times in the future."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from app.audit.counts.counter import LIFTS, CountingSpec
from app.audit.counts.partition_counter import MOST_WINDOWS, PartitionReader, new_part
from app.kafka.fetch.decoder import records_of
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.latencies import BINS
from switchyard.audit.model.reports import Scope
from switchyard.audit.model.tally import SKEW_MS, UNTIMED
from tests.audit.counts.logs import Log

SCOPE = Scope("topic", "regional", "east", 600_000)
SOURCE = FingerprintSource("cluster", "id", 0)
BEGAN_MS = 1_700_000_400_000
DAY_MS = 86_400_000


def reader() -> PartitionReader:
    return PartitionReader(SCOPE, SOURCE, CountingSpec(records_of, SOURCE), 0)


def test_a_part_of_many_windows_takes_little_memory_and_its_latencies_stay() -> None:
    """A record in ten minutes: a part lasts for more than a year."""
    one, log, windows = reader(), Log(), 300
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(windows):
            at_ms = BEGAN_MS + number * SCOPE.width_ms
            log.append([at_ms])
            data, end = log.fetch(number, 1)
            one.fetched(data, end, at_ms=at_ms + 50, seen_at_ms=at_ms + 50, at_end=True)
            (report,) = one.reports(at_ms + 50)
            assert [increment.start_ms for increment in report.windows] == [at_ms - at_ms % SCOPE.width_ms]
            one.acknowledged(report)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / windows < 8 * BINS / 2

    starts = [at - at % SCOPE.width_ms for _, at in log.records()]
    log.append([BEGAN_MS + 1])
    data, end = log.fetch(windows, 1)
    one.fetched(data, end, at_ms=at_ms, seen_at_ms=BEGAN_MS + 1_001)
    ((_, totals, _),) = ((i.start_ms, i.totals, i.span) for i in one.reports(at_ms)[0].windows)
    assert totals.count == 2
    fast, slow = totals.percentiles_ms(0.5, 1.0)
    assert 49 < fast < 51
    assert 990 < slow < 1_010
    (state,) = one.state()
    assert [i.start_ms for i in state.windows] == [starts[0], *starts[-MOST_WINDOWS:]]
    assert state.whole_ms == starts[-MOST_WINDOWS]
    assert one.state(whole=True) == (new_part(0, 0),), "too many for a note"


def test_many_windows_at_once_keep_their_latencies() -> None:
    one, log, windows = reader(), Log(), 100
    log.append([BEGAN_MS + number * SCOPE.width_ms for number in range(windows)])
    data, end = log.fetch(0, 1)
    at_ms = BEGAN_MS + windows * SCOPE.width_ms
    one.fetched(data, end, at_ms=at_ms, seen_at_ms=at_ms)
    (report,) = one.reports(at_ms)
    for increment in report.windows:
        (median_ms,) = increment.totals.percentiles_ms(0.5)
        latency_ms = at_ms - increment.totals.last_ms
        assert abs(median_ms - latency_ms) <= 0.011 * latency_ms


def test_a_time_in_the_future_makes_nothing_late() -> None:
    one, log = reader(), Log()
    for number, time_ms in enumerate([BEGAN_MS, BEGAN_MS + 365 * 86_400_000, BEGAN_MS + 1, BEGAN_MS + 2]):
        log.append([time_ms])
        data, end = log.fetch(number, 1)
        one.fetched(data, end, at_ms=BEGAN_MS + 100, at_end=True)
    (report,) = one.reports(BEGAN_MS + 100)
    assert report.late_ms == 0


def test_a_time_beyond_all_calendars_counts_as_no_time() -> None:
    """Microseconds, say: each batch would have a window of its own that never ends."""
    one, log = reader(), Log()
    log.append([BEGAN_MS])
    log.append([BEGAN_MS * 1_000])
    log.append([BEGAN_MS * 1_000_000, BEGAN_MS + 1])
    data, end = log.fetch(0, 3)
    one.fetched(data, end, at_ms=BEGAN_MS + 100, at_end=True)
    (report,) = one.reports(BEGAN_MS + 100)
    counts = {increment.start_ms: increment.totals.count for increment in report.windows}
    assert counts == {UNTIMED: 2, BEGAN_MS - BEGAN_MS % SCOPE.width_ms: 2}
    assert one.max_timestamp_ms == BEGAN_MS + 1


@given(
    chunks=st.lists(st.integers(1, 200), min_size=1, max_size=12),
    strays=st.lists(
        st.tuples(st.integers(0, 11), st.integers(1, 199), st.integers(1, 400 * DAY_MS)), max_size=12
    ),
)
def test_future_records_in_a_backlog_raise_no_watermark_and_make_nothing_late(
    chunks: list[int], strays: list[tuple[int, int, int]]
) -> None:
    """A backlog of days, a minute a record. In a chunk fewer than one record in sixteen lies ahead of its
    time, or of the clock. It is never a batch's first, because that would misplace the others (rule 2 of
    `counter`)."""
    one, log, written = reader(), Log(), 0
    future = {(chunk, index): by_ms for chunk, index, by_ms in strays}
    for number, size in enumerate(chunks):
        times = [BEGAN_MS + (written + index) * 60_000 for index in range(size)]
        honest_ms = times[-1]
        left = (size - 1) // (LIFTS + 1)
        for index in range(size):
            if (number, index) in future and left:
                times[index] += future[number, index]
                left -= 1
        log.append(times)
        data, end = log.fetch(written, 1)
        written = end
        now_ms = BEGAN_MS + 100 * DAY_MS
        one.fetched(data, end, at_ms=now_ms)
        assert one.watermark_ms(now_ms) <= honest_ms + SCOPE.width_ms
        (report,) = one.reports(now_ms)
        assert report.late_ms <= SCOPE.width_ms
        one.acknowledged(report)
    assert one.watermark_ms(now_ms) >= 0


@given(st.integers(SKEW_MS + 1, 400 * DAY_MS), st.integers(1, 40))
def test_records_beyond_the_clock_raise_no_watermark_however_many(by_ms: int, many: int) -> None:
    one, log = reader(), Log()
    log.append([BEGAN_MS] * 3 + [BEGAN_MS + SCOPE.width_ms + by_ms] * many)
    data, end = log.fetch(0, 1)
    one.fetched(data, end, at_ms=BEGAN_MS + 5)
    assert one.watermark_ms(BEGAN_MS + 5) == BEGAN_MS


def test_a_successor_takes_no_watermark_from_a_future_time_in_the_state() -> None:
    one, log = reader(), Log()
    log.append([BEGAN_MS] * 40 + [BEGAN_MS + 50 * DAY_MS])
    data, end = log.fetch(0, 1)
    now_ms = BEGAN_MS + 99 * DAY_MS
    one.fetched(data, end, at_ms=now_ms)
    other = reader()
    other.resume(one.state(), now_ms)
    assert other.watermark_ms(now_ms) == one.watermark_ms(now_ms) == BEGAN_MS
