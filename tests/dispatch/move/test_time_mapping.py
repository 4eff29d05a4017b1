"""The mapping by time: nothing unfinished is passed over, whatever the clocks of its producers say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.move.time_mapping import SourcePartition, times

NOW = 1_000


def seen(partition: int, position: int, *timestamps: int) -> SourcePartition:
    source = SourcePartition(partition, 0, position, len(timestamps))
    for offset, timestamp in enumerate(timestamps):
        source.see(offset, timestamp, NOW)
    return source


def test_the_oldest_unfinished_counts_and_the_newest_when_nothing_is_unfinished() -> None:
    assert times([seen(0, 1, 10, 30, 20)], 1) == [20]
    assert times([seen(0, 3, 10, 30, 20)], 1) == [20]


def test_without_a_record_or_a_timestamp_a_partition_begins_at_its_start() -> None:
    assert times([seen(0, 0), seen(1, 0, -1), seen(2, 1, 5)], 3) == [None, None, 5]


def test_records_from_the_future_do_not_set_the_time_beyond_later_records() -> None:
    assert times([seen(0, 2, 10, 900, 9_999)], 1) == [900]
    assert times([seen(0, 0, 9_999)], 1) == [None]


def test_with_unequal_counts_the_least_time_counts_for_all_and_finished_partitions_do_not_count() -> None:
    assert times([seen(0, 0, 50), seen(1, 1, 40), seen(2, 0)], 2) == [40, 40]
    assert times([seen(0, 0, 50), seen(1, 0, -1)], 1) == [None]
    assert times([seen(0, 0)], 2) == [None, None]


logs = st.lists(st.tuples(st.integers(-1, NOW + 500), st.booleans()), max_size=12)  # timestamp, finished


@given(st.lists(logs, min_size=1, max_size=4), st.integers(1, 4))
def test_the_copy_of_an_unfinished_message_is_never_before_the_mapped_time(
    partitions: list[list[tuple[int, bool]]], there: int
) -> None:
    sources = []
    for number, log in enumerate(partitions):
        base = next((offset for offset, (_, done) in enumerate(log) if not done), len(log))
        sources.append(seen(number, base, *(timestamp for timestamp, _ in log)))
    found = times(sources, there)
    for number, log in enumerate(partitions):
        unfinished = [timestamp for timestamp, done in log if not done]
        targets = [number] if there == len(partitions) else range(there)
        for target in targets:
            time = found[target]
            assert time is None or all(timestamp >= time for timestamp in unfinished)
