"""The tracker's promises one by one; `test_tracker_model` compares it with a model in random order."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.ranges import Snapshot
from app.kernel.tracker import OffsetState, Tracker, TrackerError


def test_the_base_waits_for_the_slowest_message() -> None:
    tracker = Tracker(10, 100)
    assert tracker.fetched(10, 15) == [(10, 15)]
    assert tracker.ack_range(11, 15) == 4
    assert (tracker.base, tracker.end, tracker.oldest_unfinished) == (10, 15, 10)
    assert tracker.ack(10)
    assert (tracker.base, tracker.idle, tracker.oldest_unfinished) == (15, True, None)


def test_late_and_foreign_answers_change_nothing() -> None:
    tracker = Tracker(10, 100)
    tracker.fetched(10, 20)
    tracker.nack(12)
    tracker.ack_range(10, 12)
    version = tracker.version
    for offset in (-1, 0, 9, 10, 11, 12, 20, 21, 10**15):
        assert not tracker.ack(offset)
        assert not tracker.nack(offset)
        assert not tracker.cancel(offset)
    assert tracker.ack_range(0, 13) == tracker.ack_range(20, 10**15) == tracker.ack_range(15, 15) == 0
    assert tracker.ack_many([0, 9, 12, 20, -5]) == 0
    assert (tracker.version, tracker.base, tracker.unfinished) == (version, 13, 7)


def test_a_range_may_begin_below_the_base_also_after_the_window_was_trimmed() -> None:
    tracker = Tracker(0, 10_000)
    tracker.fetched(0, 10_000)
    tracker.ack_range(0, 9_000)
    tracker.fetched(10_000, 10_010)
    assert tracker.ack_range(8_000, 9_003) == 3
    assert (tracker.base, tracker.unfinished) == (9_003, 1_007)


def test_a_range_keeps_the_marks_of_what_was_finished_before() -> None:
    tracker = Tracker(0, 10)
    tracker.fetched(0, 10)
    tracker.nack(4)
    tracker.ack(6)
    assert tracker.ack_range(3, 6) == 2
    assert tracker.nack_range(5, 8) == 1
    states = [tracker.state(offset) for offset in range(3, 9)]
    assert states == [
        OffsetState.ACKED,
        OffsetState.NACKED,
        OffsetState.ACKED,
        OffsetState.ACKED,
        OffsetState.NACKED,
        OffsetState.IN_FLIGHT,
    ]


def test_a_canceled_message_holds_the_base_until_it_is_stashed() -> None:
    tracker = Tracker(0, 10)
    tracker.fetched(0, 3)
    assert tracker.cancel(0)
    assert not tracker.cancel(0)
    tracker.ack_range(1, 3)
    assert (tracker.base, tracker.in_flight, tracker.canceled, tracker.unfinished) == (0, 0, 1, 1)
    assert tracker.nack(0)
    assert (tracker.base, tracker.canceled, tracker.unfinished) == (3, 0, 0)


def test_a_canceled_message_that_is_acknowledged_after_all_counts_as_acknowledged() -> None:
    tracker = Tracker(0, 10)
    tracker.fetched(0, 3)
    tracker.cancel(1)
    assert tracker.ack(1)
    assert (tracker.state(1), tracker.canceled) == (OffsetState.ACKED, 0)


def test_gaps_of_any_width_cost_neither_memory_nor_room() -> None:
    tracker = Tracker(0, 10)
    tracemalloc.start()
    for step in range(5):
        start = step * 10**12
        assert tracker.fetched(start, start + 2) == [(start, start + 2)]
    tracker.skip(tracker.end, 10**13)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000
    assert (tracker.room, tracker.base, tracker.end) == (0, 0, 10**13)
    assert len(tracker.snapshot().to_bytes()) < 100
    assert tracker.ack_range(0, 2) == 2
    assert tracker.base == 10**12
    assert tracker.ack_range(1, 10**13) == 8
    assert (tracker.base, tracker.room) == (10**13, 10)


def test_an_idle_tracker_jumps_over_a_gap() -> None:
    tracker = Tracker(5, 10)
    assert tracker.skip(5, 10**12) == 0
    assert (tracker.base, tracker.end, tracker.idle) == (10**12, 10**12, True)
    assert tracker.fetched(2 * 10**12, 2 * 10**12 + 1) == [(2 * 10**12, 2 * 10**12 + 1)]
    assert tracker.base == 2 * 10**12


def test_more_than_there_is_room_for_is_refused_and_nothing_of_it_registered() -> None:
    tracker = Tracker(0, 10)
    tracker.fetched(0, 6)
    with pytest.raises(TrackerError, match=r"fetched \[6, 11\): 5 to deliver, but room for 4"):
        tracker.fetched(6, 11)
    assert (tracker.end, tracker.unfinished, tracker.room) == (6, 6, 4)
    assert tracker.fetched(6, 10) == [(6, 10)]


def test_a_smaller_capacity_leaves_what_is_tracked_and_no_room() -> None:
    tracker = Tracker(0, 10)
    tracker.fetched(0, 10)
    tracker.capacity = 4
    assert (tracker.room, tracker.unfinished) == (0, 10)
    tracker.ack_range(0, 8)
    assert tracker.room == 2


@pytest.mark.parametrize(("start", "end"), [(9, 12), (0, 5), (12, 11)])
def test_offsets_that_are_not_next_are_refused(start: int, end: int) -> None:
    tracker = Tracker(10, 100)
    with pytest.raises(TrackerError, match="the next offset to fetch is 10"):
        tracker.fetched(start, end)


def test_a_skip_that_would_lose_unread_offsets_is_refused() -> None:
    tracker = Tracker(10, 100)
    with pytest.raises(TrackerError, match="would lose the offsets from 10 on"):
        tracker.skip(11, 20)
    assert tracker.end == 10


@pytest.mark.parametrize(("next_offset", "capacity"), [(-1, 10), (0, 0), (0, -5)])
def test_a_tracker_without_a_position_or_a_place_is_refused(next_offset: int, capacity: int) -> None:
    with pytest.raises(TrackerError, match=f"{-1 if next_offset < 0 else capacity}"):
        Tracker(next_offset, capacity)


def test_a_takeover_starts_at_the_higher_of_commit_and_snapshot() -> None:
    snapshot = Snapshot(50, ((60, 70),))
    assert Tracker(40, 10, snapshot).end == 50
    assert Tracker(55, 10, snapshot).end == 55
    assert Tracker(65, 10, snapshot).end == 70


def test_offsets_that_an_earlier_owner_finished_take_no_room() -> None:
    tracker = Tracker(0, 3, Snapshot(0, ((1, 1_000),)))
    assert tracker.fetched(0, 1_002) == [(0, 1), (1_000, 1_002)]
    assert (tracker.room, tracker.state(500)) == (0, OffsetState.GAP)


@given(
    ends=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    acked=st.sets(st.integers(0, 240)),
    committed=st.integers(0, 240),
)
def test_an_acknowledged_message_is_not_delivered_again_after_takeover(
    ends: list[int], acked: set[int], committed: int
) -> None:
    first = Tracker(0, 1_000)
    for size in ends:
        first.fetched(first.end, first.end + size)
    first.ack_many(acked)
    second = Tracker(min(committed, first.base), 1_000, Snapshot.from_bytes(first.snapshot().to_bytes()))
    deliver = second.fetched(second.end, max(second.end, first.end + 10))
    got = {offset for start, end in deliver for offset in range(start, end)}
    assert got == set(range(first.end + 10)) - (acked & set(range(first.end)))


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_a_long_run_in_random_order_ends_with_everything_finished_once(seed: int, width: int) -> None:
    source = random.Random(seed)
    tracker = Tracker(7, 500)
    unfinished: list[int] = []
    finished = 0
    while tracker.end < 7 + 10_000:
        size = min(tracker.room, source.randint(1, width))
        unfinished.extend(range(tracker.end, tracker.end + size))
        tracker.fetched(tracker.end, tracker.end + size)
        source.shuffle(unfinished)
        batch = unfinished[len(unfinished) // 2 :]
        del unfinished[len(unfinished) // 2 :]
        finished += tracker.ack_many(batch[:1]) + sum(tracker.ack(offset) for offset in batch[1:])
        assert tracker.base == min(unfinished, default=tracker.end)
    finished += tracker.ack_range(0, tracker.end)
    assert (tracker.base, finished) == (tracker.end, tracker.end - 7)
    assert tracker.snapshot() == Snapshot(tracker.end)


def test_asking_for_some_unfinished_ranges_does_not_lock_the_window() -> None:
    tracker = Tracker(0, 100)
    tracker.fetched(0, 10)
    tracker.ack(5)
    first = tracker.unfinished_ranges(1)
    assert tracker.fetched(10, 20) == [(10, 20)]
    assert first == [(0, 5)]
