"""Timestamps in any order: each record is counted in its own window, however batches are cut."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit.counts.consumer_counter import ConsumerReader
from app.audit.counts.counter import CountingSpec, count_chunk
from app.audit.counts.handover import CountsFrom
from app.audit.counts.partition_counter import PartitionReader
from app.audit.pump.counting_spec import how_of
from app.kafka.fetch.decoder import lowest_timestamp, records_of
from app.kafka.records.batch import ReadCommittedFilter, RecordBatch, iter_batches
from app.kafka.records.header_arrays import headers_of_heads, heads_of
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import Report, Scope
from switchyard.audit.model.tally import UNTIMED, Tally, window_of
from tests.audit.counts.logs import Log
from tests.audit.query.test_view import audit_plan
from tests.kafka.records.batches import make_batch, make_marker, patched

WIDTH_MS = 60_000
NOW_MS = 1_700_000_040_000  # the start of a window
SCOPE, SOURCE = Scope("orders", "regional", "east", WIDTH_MS), FingerprintSource("cluster", "id", 0)
HOW = how_of(audit_plan(), SOURCE)

# Times in a few windows, hours before them, and invalid ones.
time = st.one_of(
    st.integers(NOW_MS - 3 * WIDTH_MS, NOW_MS + 3 * WIDTH_MS),
    st.integers(NOW_MS - 10_000_000, NOW_MS),
    st.sampled_from([NOW_MS - 1, NOW_MS, -1, 0, 1 << 61]),
)
# The builder takes a first timestamp of -1 for none yet, and gives that record the next one's.
records = st.lists(time, max_size=60).map(lambda found: [NOW_MS, *found])
cuts = st.tuples(st.integers(0, 1 << 32), st.sampled_from([1, 2, 7, 60]))


def cut(times: Sequence[int], seed: int, most: int) -> Log:
    """A log of these records, in batches of at most `most`, of any codec."""
    chance, log, at = random.Random(seed), Log(), 0
    while at < len(times):
        some = chance.randint(1, most)
        batch = list(times[at : at + some])
        if batch[0] < 0:
            batch = batch[:1]
        log.append(batch, codec=chance.choice([0, 1, 2, 3, 4]))
        at += len(batch)
    return log


def windows_of(times: Sequence[int]) -> Counter[int]:
    return Counter(window_of(time_ms, WIDTH_MS) for time_ms in times)


def counted(reports: Sequence[Report]) -> Counter[int]:
    found: Counter[int] = Counter()
    for report in reports:
        found.update({window.start_ms: window.totals.count for window in report.windows})
    return found


def by_fetching(log: Log, chance: random.Random) -> PartitionReader:
    reader = PartitionReader(SCOPE, SOURCE, HOW, 0)
    while reader.next_offset < log.next_offset:
        data, end = log.fetch(reader.next_offset, chance.randint(1, 5))
        reader.fetched(data, end, at_ms=NOW_MS)
    return reader


def by_heads(log: Log, chance: random.Random) -> PartitionReader:
    """Counts like a follower: by headers if they suffice, otherwise by the bytes."""
    reader = PartitionReader(SCOPE, SOURCE, HOW, 0)
    while reader.next_offset < log.next_offset:
        data, end = log.fetch(reader.next_offset, chance.randint(1, 5))
        heads = reader.heads_of(data)
        headers = headers_of_heads(heads) if heads else None
        if heads and headers is not None and reader.countable_from_headers(headers) == len(heads):
            reader.add_headers(headers, end, at_ms=NOW_MS, seen_at_ms=NOW_MS)
        else:
            reader.fetched(data, end, at_ms=NOW_MS)
    return reader


def by_consumer(log: Log, chance: random.Random) -> PartitionReader:
    counts = CountsFrom(0, None, is_cut=False)
    consumer = ConsumerReader(SCOPE, SOURCE, HOW, counts, lateness_ms=0, at_ms=NOW_MS)
    position = 0
    while position < log.next_offset:
        data, end = log.fetch(position, chance.randint(1, 5))
        consumer.fetched(data, position, end)
        position = end
        if chance.random() < 0.5:
            consumer.finished(chance.randint(consumer.next_offset, position), NOW_MS)
    consumer.finished(position, NOW_MS)
    return consumer.reader


@given(records, cuts, cuts)
def test_source_and_copy_agree_however_their_batches_are_cut(
    times: list[int], source: tuple[int, int], copy: tuple[int, int]
) -> None:
    expected = windows_of(times)
    for seed, most in (source, copy):
        log = cut(times, seed, most)
        for read in (by_fetching, by_heads, by_consumer):
            reader = read(log, random.Random(seed))
            assert reader.records == len(times)
            assert counted(reader.reports(NOW_MS)) == expected, read.__name__


def test_only_a_broken_promise_of_order_moves_records_to_other_windows() -> None:
    """The second record is 70 s older than the first of its batch."""
    times = [NOW_MS + 30_000, NOW_MS - 40_000]
    by_promise = CountingSpec(records_of, SOURCE, disorder_ms=5_000)
    for how, moved in ((by_promise, True), (HOW, False)):
        together, alone = Tally(WIDTH_MS), Tally(WIDTH_MS)
        count_chunk(together, cut(times, 3, 60).fetch(0, 9)[0], 0, how)
        count_chunk(alone, cut(times, 0, 1).fetch(0, 9)[0], 0, how)
        counts = [{start: sums.count for start, sums in tally.windows.items()} for tally in (together, alone)]
        assert (counts[0] != counts[1]) is moved


def test_records_in_one_window_are_not_decoded_whatever_their_order() -> None:
    def forbidden(batch: RecordBatch) -> list[object]:
        raise AssertionError("decoded")

    log, tally = Log(), Tally(WIDTH_MS)
    for codec in range(5):
        log.append([NOW_MS + 59_999, NOW_MS, NOW_MS + 30_000], codec=codec)
    how = HOW._replace(decode=forbidden)  # type: ignore[arg-type]
    count_chunk(tally, log.fetch(0, 9)[0], 0, how)
    sums = tally.windows[NOW_MS]
    assert (sums.count, tally.from_headers) == (15, 5)
    assert (sums.first_ms, sums.last_ms) == (NOW_MS, NOW_MS + 59_999), (
        "the lowest time, not the first record's"
    )


def test_hidden_compacted_and_damaged_batches_count_the_same_as_without_headers() -> None:
    data = b"".join(
        (
            make_batch(0, [(b"a", b"1")] * 2, producer_id=7, transactional=True, timestamp_ms=NOW_MS),
            make_batch(2, [(b"b", b"1")] * 3, timestamp_ms=NOW_MS - 1),
            patched(make_batch(5, [(b"c", b"1")] * 2, timestamp_ms=NOW_MS), 23, ">i", 4),  # thinned
            make_marker(10, 7),
            patched(make_batch(11, [(b"d", b"1")] * 3, timestamp_ms=NOW_MS), 57, ">i", 2),  # no such count
        )
    )
    tallies = Tally(WIDTH_MS), Tally(WIDTH_MS)
    for tally, how in zip(tallies, (HOW, HOW._replace(lowest=None)), strict=True):
        count_chunk(tally, data, 0, how, committed=ReadCommittedFilter([(7, 0)]))
    assert tallies[0].totals() == tallies[1].totals()
    assert tallies[0].windows[NOW_MS].count == 2 + 2 + 2, (
        "an unreadable batch is counted at its first timestamp"
    )
    assert (tallies[0].decoded, tallies[0].undecodable) == (2, 1)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_a_lowest_time_in_a_header_from_a_log_is_not_trusted(magic: int) -> None:
    """The format is internal, so a log with such a value proves nothing."""
    data = patched(make_batch(0, [(b"a", b"1")] * 2, timestamp_ms=NOW_MS), 16, "b", magic)
    assert heads_of(data) is None
    assert PartitionReader(SCOPE, SOURCE, HOW, 0).heads_of(data) is None


def test_a_lowest_time_before_all_calendars_is_ignored() -> None:
    log, tally = Log(), Tally(WIDTH_MS)
    log.append([NOW_MS, -1])
    count_chunk(tally, log.fetch(0, 9)[0], 0, HOW)
    assert {start: sums.count for start, sums in tally.windows.items()} == {NOW_MS: 1, UNTIMED: 1}
    (batch,) = iter_batches(log.fetch(0, 1)[0])
    assert lowest_timestamp(batch) == -1
