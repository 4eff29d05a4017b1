from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit.counts.counter import ANY_DISORDER, CountingSpec, count_chunk
from app.kafka.fetch.decoder import records_of
from app.kafka.records.batch import CorruptBatch, ReadCommittedFilter, RecordBatch, iter_batches
from app.kafka.records.header_arrays import headers_of
from app.kafka.records.record import Record
from switchyard.audit.model.fingerprint import FingerprintSource, ids_of, of_ids, of_offsets
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.tally import UNTIMED, RecordArrays, Tally, window_of
from tests.audit.counts.logs import Log
from tests.kafka.records.batches import make_batch, make_marker, patched

WIDTH = 1_000
SOURCE = FingerprintSource("cluster", "topic", 0)

timestamps = st.integers(-1, 3_500)
# The builder takes a first timestamp of -1 for none yet, and gives that record the next one's.
times = st.lists(timestamps, min_size=1, max_size=8).filter(lambda some: some[0] >= 0 or max(some) < 0)
batches = st.lists(st.tuples(times, st.sampled_from([0, 0, 1, 4]), st.booleans()), max_size=8)


def log_of(drawn: list[tuple[list[int], int, bool]]) -> Log:
    log = Log()
    for times, codec, by_log in drawn:
        log.append(times, codec=codec, by_log=2_345 if by_log else -1)
    return log


def forbidden(batch: RecordBatch) -> Iterable[Record]:
    raise AssertionError(f"the batch at {batch.header.base_offset} is decoded")


@given(batches, st.integers(0, 60))
def test_every_record_is_counted_in_its_window(drawn: list[tuple[list[int], int, bool]], start: int) -> None:
    log, tally = log_of(drawn), Tally(WIDTH)
    data, _ = log.fetch(start, 99)
    count_chunk(
        tally, data, start, CountingSpec(records_of, SOURCE, disorder_ms=ANY_DISORDER), seen_at_ms=9_000
    )
    records = log.records(start)
    expected = Counter(window_of(timestamp_ms, WIDTH) for _, timestamp_ms in records)
    assert {window: sums.count for window, sums in tally.windows.items()} == expected
    assert sum(sums.nbytes for sums in tally.windows.values()) == len(data)
    assert tally.max_timestamp_ms == max((time for _, time in records), default=-1)
    for window, sums in tally.windows.items():
        here = [(offset, time) for offset, time in records if window_of(time, WIDTH) == window]
        assert sums.offsets == of_offsets(SOURCE, np.array([offset for offset, _ in here]))
        assert sums.sourced == len(here)
        assert (sums.first_ms, sums.last_ms) == (min(t for _, t in here), max(t for _, t in here))
        assert sums.latencies.count == (0 if window == UNTIMED else len(here))


@given(st.lists(st.lists(st.integers(0, 3_500), min_size=1, max_size=8).map(sorted), max_size=8))
def test_headers_and_single_records_give_the_same_counts(drawn: list[list[int]]) -> None:
    log = Log()
    for times in drawn:
        log.append(times)
    data, _ = log.fetch(0, 99)
    tallies = Tally(WIDTH), Tally(WIDTH)
    count_chunk(tallies[0], data, 0, CountingSpec(records_of, SOURCE, disorder_ms=0))
    count_chunk(tallies[1], data, 0, CountingSpec(records_of, SOURCE, disorder_ms=ANY_DISORDER))
    assert tallies[0].totals() == tallies[1].totals()
    within = sum(times[0] // WIDTH == times[-1] // WIDTH for times in drawn)
    assert tallies[0].from_headers == within


def test_a_batch_in_one_window_is_not_decoded() -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([1_500, 1_999, 1_480], codec=4)
    count_chunk(
        tally, log.fetch(0, 1)[0], 0, CountingSpec(forbidden, SOURCE, disorder_ms=100), seen_at_ms=2_000
    )
    assert (tally.windows[1_000].count, tally.from_headers) == (3, 1)


def test_a_record_older_than_the_first_one_is_counted_in_its_own_window() -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([1_050, 990, 1_200])
    count_chunk(tally, log.fetch(0, 1)[0], 0, CountingSpec(records_of, disorder_ms=100))
    assert {window: sums.count for window, sums in tally.windows.items()} == {0: 1, 1_000: 2}


@given(st.integers(1, 60), st.integers(0, 900), st.integers(0, 99))
def test_latencies_of_a_batch_are_spread_over_its_time(count: int, span: int, late: int) -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([5_000, *([5_000 + span] * (count - 1))])
    count_chunk(tally, log.fetch(0, 1)[0], 0, CountingSpec(forbidden, disorder_ms=0), seen_at_ms=5_999 + late)
    found = tally.windows[5_000].latencies
    assert found.count == count
    low, high = found.quantiles_ms([0, 1])
    least = 999 + late - (span if count > 1 else 0)
    assert low >= least * 0.98
    assert high <= (999 + late) * 1.02


def test_aborted_transactions_and_their_markers_are_not_counted() -> None:
    data = b"".join(
        (
            make_batch(0, [(b"a", b"1")] * 2, producer_id=7, transactional=True, timestamp_ms=500),
            make_batch(2, [(b"b", b"1")] * 3, timestamp_ms=500),
            make_marker(5, 7),
            make_batch(6, [(b"c", b"1")] * 4, producer_id=7, transactional=True, timestamp_ms=500),
        )
    )
    tally = Tally(WIDTH)
    count_chunk(
        tally,
        data,
        0,
        CountingSpec(forbidden, SOURCE, disorder_ms=0),
        committed=ReadCommittedFilter([(7, 0)]),
    )
    assert tally.windows[0].count == 7
    assert tally.windows[0].offsets == of_offsets(SOURCE, np.array([2, 3, 4, 6, 7, 8, 9]))


def test_the_offsets_of_a_compacted_batch_are_read_from_its_records() -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([10, 20, 30])
    data = patched(log.fetch(0, 1)[0], 23, ">i", 8)  # as if records behind these were gone
    count_chunk(tally, data, 0, CountingSpec(records_of, SOURCE, disorder_ms=0))
    assert (tally.decoded, tally.windows[0].sourced) == (1, 3)
    assert tally.windows[0].offsets == of_offsets(SOURCE, np.array([0, 1, 2]))


def test_a_delete_horizon_does_not_count_as_first_timestamp() -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([1_010, 1_020])
    data = patched(log.fetch(0, 1)[0], 21, ">h", 0x40)
    count_chunk(tally, data, 0, CountingSpec(records_of, disorder_ms=0))
    assert (tally.decoded, tally.from_headers) == (1, 0)


def test_a_batch_that_cannot_be_decoded_is_counted_from_its_header_and_noted() -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([990, 1_010])

    def broken(batch: RecordBatch) -> Iterable[Record]:
        raise ValueError("no codec")

    count_chunk(tally, log.fetch(0, 1)[0], 0, CountingSpec(broken))
    assert (tally.undecodable, tally.windows[0].count) == (1, 2)


@pytest.mark.parametrize("disorder_ms", [0, ANY_DISORDER])
def test_a_batch_counts_no_more_records_than_its_offsets_and_bytes_have_room_for(disorder_ms: int) -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([10, 20])
    data = log.fetch(0, 1)[0]
    forged = patched(patched(data, 57, ">i", 2_000_000_000), 23, ">i", 1_999_999_999)
    count_chunk(tally, forged, 0, CountingSpec(records_of, disorder_ms=disorder_ms))
    assert (tally.from_headers, tally.undecodable) == (0, 1)
    assert 2 <= tally.windows[0].count <= len(data) // 7


def test_message_ids_are_taken_from_headers() -> None:
    log, tally = Log(), Tally(WIDTH)
    log.append([10, 1_020, 30], names=[b"a", b"b", b"c"])
    log.append([40])

    def id_of(record: Record) -> bytes | None:
        return dict(record.headers).get("id")

    count_chunk(tally, log.fetch(0, 9)[0], 0, CountingSpec(records_of, id_of=id_of))
    assert (tally.windows[0].count, tally.windows[0].identified) == (3, 2)
    assert tally.windows[0].ids == of_ids(ids_of([b"c", b"a"]))
    assert tally.windows[1_000].ids == of_ids(ids_of([b"b"]))


def test_bytes_that_are_no_batches_are_refused() -> None:
    bad = patched(make_batch(0), 8, ">i", 3)
    with pytest.raises(CorruptBatch):
        count_chunk(Tally(WIDTH), bad, 0, CountingSpec(records_of))


@given(batches, st.integers(0, 40))
def test_header_arrays_equal_headers_read_one_by_one(
    drawn: list[tuple[list[int], int, bool]], cut: int
) -> None:
    data, _ = log_of(drawn).fetch(0, 99)
    data = data[: max(0, len(data) - cut)]
    headers = headers_of(data)
    assert headers is not None
    expected = list(iter_batches(data))
    found = [headers.batch(row) for row in range(len(headers.starts))]
    assert [(one.header, bytes(one.data)) for one in found] == [
        (one.header, bytes(one.data)) for one in expected
    ]
    assert headers.next_offset.tolist() == [one.header.next_offset for one in expected]
    assert headers.nbytes.tolist() == [len(one.data) for one in expected]
    for name in set(headers._fields) & set(expected[0].header._fields if expected else ()):
        assert getattr(headers, name).tolist() == [getattr(one.header, name) for one in expected]


def test_records_of_a_client_are_counted_as_arrays() -> None:
    tally = Tally(WIDTH)
    times = np.array([5, 1_005, 6, -1])
    tally.add(
        RecordArrays(times, np.array([10, 20, 30, 40]), ids=ids_of([b"a", b"b", b"c", b"d"])),
        seen_at_ms=1_010,
    )
    totals = tally.totals()
    assert {start: (one.count, one.nbytes) for start, one in totals.items()} == {
        UNTIMED: (1, 40), 0: (2, 40), 1_000: (1, 20)
    }  # fmt: skip
    assert totals[0].ids == of_ids(ids_of([b"a", b"c"]))
    assert Latencies.from_bytes(totals[1_000].latencies).quantiles_ms([1.0]) == [pytest.approx(5, rel=0.01)]


def test_a_window_has_a_width() -> None:
    with pytest.raises(ValueError, match="longer than 0"):
        Tally(0)


def test_a_truncated_batch_is_left_out() -> None:
    data = make_batch(0, timestamp_ms=5) + make_batch(1, timestamp_ms=6)
    tally = Tally(WIDTH)
    count_chunk(tally, data[:-1], 0, CountingSpec(records_of))
    assert tally.windows[0].count == 1
