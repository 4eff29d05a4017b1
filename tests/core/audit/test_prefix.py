"""What a consumer has finished, where it is never at the end of its log, or did not see all of it."""

from __future__ import annotations

from app.core.audit.count import SKEW_MS, UNTIMED, How
from app.core.audit.fingerprint import Source
from app.core.audit.latencies import Latencies
from app.core.audit.prefix import ConsumerReader
from app.core.audit.reader import IDLE_MS
from app.core.audit.reports import Scope
from app.kafka.decode import records_of
from tests.core.audit.logs import Log

SCOPE = Scope("topic", "consumer", "east:billing", 60_000)
SOURCE = Source("cluster", "id", 0)
BEGAN_MS = 1_700_000_040_000
LATENESS_MS = 5_000


def consumer(next_offset: int = 0, *, is_cut: bool = False) -> ConsumerReader:
    return ConsumerReader(
        SCOPE, SOURCE, How(records_of, SOURCE), next_offset, is_cut=is_cut, lateness_ms=LATENESS_MS,
        at_ms=BEGAN_MS,
    )  # fmt: skip


def test_who_is_never_at_the_end_of_a_log_of_times_ahead_holds_no_window_open() -> None:
    """Ten records a second, all of them ahead of the clock; it is three of them behind."""
    one, log, lag = consumer(), Log(), 3
    for number in range(100):
        now_ms = BEGAN_MS + 100 * number
        log.append([now_ms + SKEW_MS + SCOPE.width_ms + 1_000])
        one.fetched(*_only(log, number))
        base = max(0, number + 1 - lag)
        one.finished(base, now_ms)
        one.ended(number + 1, base, now_ms)
        assert one.reader.watermark_ms(now_ms) <= now_ms - 100 * lag - IDLE_MS
    assert one.reader.watermark_ms(now_ms) >= now_ms - 200 * lag - IDLE_MS


def test_all_that_is_finished_has_a_latency_whether_its_header_tells_its_window_or_it_is_decoded() -> None:
    one, log = consumer(), Log()
    log.append([BEGAN_MS + 30_000] * 5)
    log.append([BEGAN_MS + 1, BEGAN_MS + SCOPE.width_ms + 1, -1])
    one.fetched(*_only(log, 0))
    one.fetched(*_only(log, 5))
    one.finished(8, BEGAN_MS + 90_000)
    (report,) = one.reader.reports(BEGAN_MS + 90_000)
    timed = {i.start_ms: Latencies.from_bytes(i.totals.latencies).count for i in report.windows}
    assert timed == {UNTIMED: 0, BEGAN_MS: 6, BEGAN_MS + SCOPE.width_ms: 1}
    slowest_ms = max(i.totals.percentiles_ms(1.0)[0] for i in report.windows)
    assert 89_000 < slowest_ms < 91_000


def test_the_end_of_a_log_is_believed_when_it_is_finished_and_of_the_time_when_it_was_asked_for() -> None:
    one, log = consumer(), Log()
    log.append([1] * 4)
    one.fetched(*_only(log, 0))
    one.finished(0, BEGAN_MS)
    one.ended(4, 0, BEGAN_MS)
    one.finished(4, BEGAN_MS + 500)
    one.ended(9, 4, BEGAN_MS + 500)
    assert one.reader.watermark_ms(BEGAN_MS + 500) == BEGAN_MS - IDLE_MS
    one.ended(9, 9, BEGAN_MS + 600)
    assert one.reader.watermark_ms(BEGAN_MS + 600) == BEGAN_MS - IDLE_MS, "nobody brought what is finished"
    one.ended(4, 9, BEGAN_MS + 700)  # it lost its end
    assert one.reader.watermark_ms(BEGAN_MS + 700) == BEGAN_MS + 700 - IDLE_MS


def test_a_time_in_the_future_mutes_no_window_behind_what_was_not_seen() -> None:
    one, log = consumer(), Log()
    log.append([BEGAN_MS, BEGAN_MS + (1 << 40)])
    log.append([BEGAN_MS])
    one.fetched(*_only(log, 0))
    one.finished(2, BEGAN_MS + 100)
    log.next_offset = 10  # [3, 10) is finished elsewhere
    log.append([BEGAN_MS + 150])
    data, end = log.fetch(10, 1)
    one.fetched(data, 10, end)
    one.finished(11, BEGAN_MS + 200)
    assert one.reader.complete_ms == BEGAN_MS + 200


def _only(log: Log, offset: int) -> tuple[bytes, int, int]:
    """The batch at the offset, and where it begins and ends."""
    data, end = log.fetch(offset, 1)
    return data, offset, end
