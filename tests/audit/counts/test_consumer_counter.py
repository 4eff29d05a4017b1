"""Counts of a consumer that is never at the end of its log, or that did not see all of it."""

from __future__ import annotations

import random
import struct
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit.counts import consumer_counter
from app.audit.counts.consumer_counter import MOST_PIECES, ConsumerReader
from app.audit.counts.counter import ANY_DISORDER, CountingSpec
from app.audit.counts.handover import CountsFrom
from app.audit.counts.partition_counter import IDLE_MS, PartitionReader
from app.kafka.fetch.decoder import records_of
from app.kafka.records.verbatim_copy import TRANSACTIONAL
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.latencies import BINS, Latencies
from switchyard.audit.model.reports import PART_OFFSETS, Scope
from switchyard.audit.model.tally import SKEW_MS, UNTIMED
from tests.audit.counts.logs import Log
from tests.examples import as_profile

SCOPE = Scope("topic", "consumer", "east:billing", 60_000)
SOURCE = FingerprintSource("cluster", "id", 0)
BEGAN_MS = 1_700_000_040_000
LATENESS_MS = 5_000


def consumer(next_offset: int = 0, *, disorder_ms: int = ANY_DISORDER) -> ConsumerReader:
    spec = CountingSpec(records_of, SOURCE, disorder_ms=disorder_ms)
    counts = CountsFrom(next_offset, None, is_cut=False)
    return ConsumerReader(SCOPE, SOURCE, spec, counts, lateness_ms=LATENESS_MS, at_ms=BEGAN_MS)


def test_a_consumer_that_never_reaches_the_end_of_a_log_with_future_times_holds_no_window_open() -> None:
    """Ten records a second, all with future times; the consumer is three records behind."""
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


def test_finished_records_have_a_latency_whether_counted_from_headers_or_decoded() -> None:
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


def test_the_end_of_a_log_counts_once_it_is_finished_and_as_of_the_time_it_was_fetched() -> None:
    one, log = consumer(), Log()
    log.append([1] * 4)
    one.fetched(*_only(log, 0))
    one.finished(0, BEGAN_MS)
    one.ended(4, 0, BEGAN_MS)
    one.finished(4, BEGAN_MS + 500)
    one.ended(9, 4, BEGAN_MS + 500)
    assert one.reader.watermark_ms(BEGAN_MS + 500) == BEGAN_MS - IDLE_MS
    one.ended(9, 9, BEGAN_MS + 600)
    assert one.reader.watermark_ms(BEGAN_MS + 600) == BEGAN_MS - IDLE_MS, (
        "no reader brought the finished records"
    )
    one.ended(4, 9, BEGAN_MS + 700)  # the log lost its end
    assert one.reader.watermark_ms(BEGAN_MS + 700) == BEGAN_MS + 700 - IDLE_MS


def test_a_future_time_hides_no_window_after_unseen_messages() -> None:
    one, log = consumer(), Log()
    log.append([BEGAN_MS, BEGAN_MS + (1 << 40)])
    log.append([BEGAN_MS])
    one.fetched(*_only(log, 0))
    one.finished(2, BEGAN_MS + 100)
    log.next_offset = 10  # another consumer finishes [3, 10)
    log.append([BEGAN_MS + 150])
    data, end = log.fetch(10, 1)
    one.fetched(data, 10, end)
    one.finished(11, BEGAN_MS + 200)
    assert one.reader.complete_ms == BEGAN_MS + 200


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(200), deadline=None)
def test_chunks_counted_together_give_the_same_reports_as_single_ones(seed: int) -> None:
    chance, log, aborted = random.Random(seed), Log(next_offset=PART_OFFSETS - 40), [(7, 0)]
    for _ in range(chance.randrange(1, 60)):
        first_ms = BEGAN_MS + chance.choice([0, 0, SCOPE.width_ms - 20_000]) + chance.randrange(30_000)
        log.append([first_ms + chance.randrange(9_000) for _ in range(chance.choice([1, 3, 9]))])
        if chance.random() < 0.1:  # of a producer whose transaction is aborted
            base, data, times = log.batches[-1]
            changed = bytearray(data)
            struct.pack_into(">h", changed, 21, TRANSACTIONAL)
            struct.pack_into(">q", changed, 43, 7)
            log.batches[-1] = base, bytes(changed), times
    position = log.batches[0][0] + chance.choice([0, 0, 1])  # perhaps within a batch
    together, each = consumer(position, disorder_ms=1_000), consumer(position, disorder_ms=1_000)
    most_heads = chance.choice([3, consumer_counter.MOST_HEADS])
    now_ms, base = BEGAN_MS + 200_000, position
    while base < log.next_offset:
        if position < log.next_offset:
            data, end = log.fetch(position, chance.randrange(1, 6))
            known = chance.choice([[], [], aborted])
            if chance.random() < 0.9:  # otherwise no reader brings the batches
                with patch.object(consumer_counter, "MOST_HEADS", most_heads):
                    together.fetched(data, position, end, known)
                with patch.object(PartitionReader, "heads_of", lambda *_: None):
                    each.fetched(data, position, end, known)
            position = end - chance.choice([0, 0, 0, 2]) if end > position + 2 else end
        if chance.random() < 0.2 or position == log.next_offset:
            base, now_ms = chance.randrange(base, position + 1), now_ms + 1_000
            base = position if position == log.next_offset else base
            for one in (together, each):
                one.finished(base, now_ms)
            assert together.next_offset == each.next_offset
    assert _window_counts(together, now_ms) == _window_counts(each, now_ms)


def test_many_unfinished_chunks_are_joined_and_none_is_lost() -> None:
    one, log = consumer(), Log()
    for number in range(3 * MOST_PIECES):
        first_ms = BEGAN_MS + 30_000 if number % 3 else BEGAN_MS  # some have to be decoded
        log.append([first_ms, first_ms + 1] * 50)
    for base, _, _ in log.batches:
        one.fetched(*_only(log, base))
    assert len(one._pieces) == MOST_PIECES
    one.finished(log.next_offset, BEGAN_MS + 90_000)
    windows = [found for report in one.reader.reports(BEGAN_MS + 90_000) for found in report.windows]
    assert sum(found.totals.count for found in windows) == log.next_offset > PART_OFFSETS


def test_many_windows_take_little_memory_until_they_are_reported() -> None:
    """One record in each, of a backlog."""
    one, log, windows = consumer(), Log(), 600
    at_ms = BEGAN_MS + windows * SCOPE.width_ms
    for number in range(windows):
        log.append([BEGAN_MS + number * SCOPE.width_ms + 30_000])
    for first in range(0, windows, 100):
        data, end = log.fetch(first, 100)
        one.fetched(data, first, end)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        one.finished(windows, at_ms)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert taken / windows < 8 * BINS / 2
    (report,) = one.reader.reports(at_ms)
    assert len(report.windows) == windows
    for found in report.windows:
        latency_ms = at_ms - found.totals.last_ms
        assert abs(found.totals.percentiles_ms(0.5)[0] - latency_ms) <= 0.011 * latency_ms


@pytest.mark.parametrize("most_pieces", [1, MOST_PIECES])
def test_the_report_of_a_part_that_ends_is_final_whether_its_chunks_are_joined_or_not(
    most_pieces: int,
) -> None:
    one, log = consumer(PART_OFFSETS - 100), Log(next_offset=PART_OFFSETS - 100)
    for _ in range(2):
        log.append([BEGAN_MS + 30_000] * 50)
    with patch.object(consumer_counter, "MOST_PIECES", most_pieces):
        for base, _, _ in log.batches:
            one.fetched(*_only(log, base))
    one.finished(PART_OFFSETS, BEGAN_MS + 90_000)
    found = [(report.final, report.upto) for report in one.reader.reports(BEGAN_MS + 90_000)]
    assert found == [(True, PART_OFFSETS), (False, PART_OFFSETS)]


def _window_counts(one: ConsumerReader, at_ms: int) -> list[tuple[float, ...]]:
    """The windows of its reports."""
    return [
        (
            report.part, report.since, report.upto, found.start_ms, *found.span, found.totals.count,
            found.totals.nbytes, found.totals.first_ms, found.totals.last_ms, found.totals.sourced,
            hash(found.totals.offsets), Latencies.from_bytes(found.totals.latencies).count,
            *found.totals.percentiles_ms(0.0, 0.5, 0.9, 1.0),
        )
        for report in one.reader.reports(at_ms)
        for found in report.windows
    ]  # fmt: skip


def _only(log: Log, offset: int) -> tuple[bytes, int, int]:
    """The batch at the offset, and where it begins and ends."""
    data, end = log.fetch(offset, 1)
    return data, offset, end
