"""A partition's reader where a part lasts long, or a record's time lies in the future."""

from __future__ import annotations

import tracemalloc

from app.core.audit.count import UNTIMED, How
from app.core.audit.fingerprint import Source
from app.core.audit.latencies import BINS
from app.core.audit.reader import PartitionReader
from app.core.audit.reports import Scope
from app.kafka.decode import records_of
from tests.core.audit.logs import Log

SCOPE = Scope("topic", "regional", "east", 600_000)
SOURCE = Source("cluster", "id", 0)
BEGAN_MS = 1_700_000_400_000


def reader() -> PartitionReader:
    return PartitionReader(SCOPE, SOURCE, How(records_of, SOURCE), 0)


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

    log.append([BEGAN_MS + 1])
    data, end = log.fetch(windows, 1)
    one.fetched(data, end, at_ms=at_ms, seen_at_ms=BEGAN_MS + 1_001)
    ((_, totals, _),) = ((i.start_ms, i.totals, i.span) for i in one.reports(at_ms)[0].windows)
    assert totals.count == 2
    fast, slow = totals.percentiles_ms(0.5, 1.0)
    assert 49 < fast < 51
    assert 990 < slow < 1_010
    assert sum(i.totals.count for i in one.state()[-1].windows) == windows + 1


def test_many_windows_at_once_keep_their_latencies() -> None:
    one, log, windows = reader(), Log(), 100
    log.append([BEGAN_MS + number * SCOPE.width_ms for number in range(windows)])
    data, end = log.fetch(0, 1)
    at_ms = BEGAN_MS + windows * SCOPE.width_ms
    one.fetched(data, end, at_ms=at_ms, seen_at_ms=at_ms)
    (report,) = one.reports(at_ms)
    for increment in report.windows:
        (told,) = increment.totals.percentiles_ms(0.5)
        latency_ms = at_ms - increment.totals.last_ms
        assert abs(told - latency_ms) <= 0.011 * latency_ms


def test_a_time_in_the_future_makes_nothing_late() -> None:
    one, log = reader(), Log()
    for number, time_ms in enumerate([BEGAN_MS, BEGAN_MS + 365 * 86_400_000, BEGAN_MS + 1, BEGAN_MS + 2]):
        log.append([time_ms])
        data, end = log.fetch(number, 1)
        one.fetched(data, end, at_ms=BEGAN_MS + 100, at_end=True)
    (report,) = one.reports(BEGAN_MS + 100)
    assert report.late_ms == 0


def test_a_time_beyond_all_calendars_is_none() -> None:
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
