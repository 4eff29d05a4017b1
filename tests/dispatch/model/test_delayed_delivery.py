"""Delayed messages: never early, the earliest first, little memory for many; and the header `not-before`."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.dispatch.model.delayed_delivery import (
    LEVELS_MS,
    MAX_DELAY_MS,
    MOST_ARRIVALS,
    Arrivals,
    DueQueue,
    level_of,
    not_before_ms,
)
from app.dispatch.model.retry_headers import POSTPONED_TO

NOW_MS = 1_900_000_000_000


def test_nothing_comes_out_early_and_the_earliest_comes_first() -> None:
    queue: DueQueue[str] = DueQueue()
    for due_ms, offset in [(300, 1), (100, 2), (200, 3), (100, 0)]:
        queue.push(due_ms, offset, f"batch {offset}")
    assert queue.next_due_ms == 100
    assert queue.pop_due(99) == []
    assert queue.pop_due(200) == [(0, "batch 0"), (2, "batch 2"), (3, "batch 3")]
    assert queue.next_due_ms == 300
    assert queue.pop_due(10**15) == [(1, "batch 1")]
    assert queue.next_due_ms is None
    assert len(queue) == 0


def test_a_flood_of_due_messages_takes_turns() -> None:
    queue: DueQueue[None] = DueQueue()
    for offset in range(10):
        queue.push(5, offset)
    assert queue.pop_due(5, limit=4) == [(0, None), (1, None), (2, None), (3, None)]
    assert queue.pop_due(5, limit=0) == []
    assert len(queue.pop_due(5)) == 6


def test_a_million_delayed_messages_stay_small() -> None:
    queue: DueQueue[None] = DueQueue()
    tracemalloc.start()
    try:
        for offset in range(100_000):
            queue.push(NOW_MS + offset * 7919 % 100_003, 5_000_000_000 + offset)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / 100_000 * 1_000_000 < 100e6


class Delays(RuleBasedStateMachine):
    """The queue against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: DueQueue[int] = DueQueue()
        self.model: dict[int, int] = {}

    @rule(due_ms=st.integers(-5, 50), offset=st.integers(0, 40))
    def push(self, due_ms: int, offset: int) -> None:
        if offset not in self.model:
            self.queue.push(due_ms, offset, offset * 2)
            self.model[offset] = max(0, due_ms)

    @rule(now_ms=st.integers(-5, 60), limit=st.none() | st.integers(0, 5))
    def pop(self, now_ms: int, limit: int | None) -> None:
        due = sorted((due, offset) for offset, due in self.model.items() if due <= now_ms)[:limit]
        assert self.queue.pop_due(now_ms, limit) == [(offset, offset * 2) for _, offset in due]
        for _, offset in due:
            del self.model[offset]

    @rule(offset=st.integers(0, 40))
    def take(self, offset: int) -> None:
        there = self.model.pop(offset, None) is not None
        assert self.queue.remove(offset) == (offset * 2 if there else None)

    @invariant()
    def the_next_is_the_earliest(self) -> None:
        assert len(self.queue) == len(self.model)
        assert all(offset in self.queue for offset in self.model)
        assert all(offset in self.queue and self.queue[offset] == offset * 2 for offset in self.model)
        assert self.queue.next_due_ms == min(self.model.values(), default=None)


TestDelays = Delays.TestCase


@given(st.integers(0, MAX_DELAY_MS), st.lists(st.integers(0, 10**5), max_size=60))
def test_the_levels_never_make_a_message_late_and_copy_it_rarely(wait_ms: int, delays_ms: list[int]) -> None:
    """It is late only by the delay of the levels' pumps, which may read its record later than possible."""
    left_ms, hops = wait_ms, 0
    while (level := level_of(left_ms)) is not None:
        assert LEVELS_MS[level] <= left_ms
        assert level + 1 == len(LEVELS_MS) or left_ms < LEVELS_MS[level + 1]
        lost_ms = delays_ms[hops] if hops < len(delays_ms) else 0
        left_ms -= LEVELS_MS[level] + lost_ms
        hops += 1
    assert left_ms < LEVELS_MS[0]
    assert left_ms >= -max(delays_ms, default=0)
    assert hops <= 30 + 4 + 6 + 6 + 10 + 6


@given(st.integers(0, MAX_DELAY_MS), st.integers(1, 10))
def test_a_topic_with_fewer_levels_takes_the_longest_it_has(wait_ms: int, levels: int) -> None:
    level, best = level_of(wait_ms, levels), level_of(wait_ms)
    assert level == (None if best is None else min(best, levels - 1))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=300),
    st.lists(st.tuples(st.integers(0, 20), st.integers(-(10**6), 10**9)), max_size=50),
)
def test_a_record_counts_as_appended_between_its_append_and_its_first_sight(
    growth: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    """The log grows by records; a record was appended at the time of the first sample that has it."""
    arrivals, appended_ms, present_ms = Arrivals(), [], 1_000
    for records, passed_ms in growth:
        present_ms += passed_ms
        appended_ms += [present_ms] * records
        arrivals.note(len(appended_ms), present_ms)
    last_seen_ms, offset = present_ms, 0
    for distance, timestamp_ms in wanted:
        offset += distance
        if offset >= len(appended_ms):
            break
        time_ms = arrivals.appended_ms(offset, timestamp_ms)
        if time_ms == timestamp_ms:
            assert timestamp_ms >= 0
        else:
            assert appended_ms[offset] <= time_ms <= last_seen_ms
        assert time_ms <= last_seen_ms


def test_the_arrivals_of_a_long_wait_stay_nearly_exact() -> None:
    arrivals = Arrivals()
    for second in range(10_000):
        arrivals.note((second + 1) * 100, second * 1_000)
    assert len(arrivals) <= MOST_ARRIVALS
    for second in range(0, 10_000, 7):
        time_ms = arrivals.appended_ms(second * 100, 10**15)
        assert second * 1_000 <= time_ms <= 10_000_000
    assert arrivals.appended_ms(999_999, 10**15) == 9_999_000


FIRST_MS = 100_000_000_001  # 1973: below it a number is one of seconds


@given(st.integers(FIRST_MS, NOW_MS + MAX_DELAY_MS), st.sampled_from([0, 3, 6]))
def test_milliseconds_microseconds_and_nanoseconds_are_the_same_instant(at_ms: int, digits: int) -> None:
    number = at_ms * 10**digits
    assert not_before_ms([("not-before", str(number).encode())], NOW_MS) == (at_ms, "")
    if digits:  # "not before" is kept to the millisecond
        assert not_before_ms([("not-before", str(number - 1).encode())], NOW_MS) == (at_ms, "")


@given(st.integers(0, (NOW_MS + MAX_DELAY_MS) // 1000))
def test_seconds_are_recognised_and_may_have_a_fraction(at_s: int) -> None:
    assert not_before_ms([("not-before", str(at_s).encode())], NOW_MS) == (at_s * 1000, "")
    if at_s * 1000 < NOW_MS:
        assert not_before_ms([("not-before", f"{at_s}.0015".encode())], NOW_MS) == (at_s * 1000 + 2, "")


def test_a_header_that_is_not_heeded_delays_nothing_and_a_copys_own_time_counts() -> None:
    later = str(NOW_MS + 1_000).encode()
    assert not_before_ms([("not-before", later)], NOW_MS, is_heeded=False) == (None, "")
    headers = [("not-before", b"soon"), (POSTPONED_TO, later)]
    assert not_before_ms(headers, NOW_MS, is_heeded=False) == (NOW_MS + 1_000, "")


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2030, 3, 1)),  # noqa: DTZ001 - the zone is drawn beside
    st.integers(-14 * 60, 14 * 60),
)
def test_a_time_with_an_offset_is_the_same_instant_and_never_early(at: datetime, minutes: int) -> None:
    zoned = at.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    at_ms, reason = not_before_ms([("not-before", zoned.isoformat().encode())], NOW_MS)
    assert reason == ""
    assert at_ms is not None
    early = zoned - (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms))
    assert timedelta(milliseconds=-1) < early <= timedelta(0)


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_header_gives_a_time_or_a_reason(value: bytes) -> None:
    at_ms, reason = not_before_ms([("not-before", value)], NOW_MS)
    assert (at_ms is None) == bool(reason)
    assert at_ms is None or 0 <= at_ms <= NOW_MS + MAX_DELAY_MS


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"soon", "neither a number"),
        (b"", "neither a number"),
        (b"-5", "neither a number"),
        (b"2031-05-01T12:00:00", "with an offset"),
        (str(NOW_MS + MAX_DELAY_MS + 1).encode(), "30 days ahead"),
        (b"9999-12-31T23:59:59Z", "days ahead"),
        (b"1" * 10_000, "10000 bytes"),
        (b"\xff\xfe", "neither a number"),
    ],
)
def test_an_unusable_header_is_reported_and_delays_nothing(value: bytes, words: str) -> None:
    at_ms, reason = not_before_ms([("not-before", value)], NOW_MS)
    assert at_ms is None
    assert words in reason


def test_the_last_header_counts_and_none_is_no_delay() -> None:
    headers = [("not-before", b"1"), ("other", b"x"), ("not-before", b"2")]
    assert not_before_ms(headers, NOW_MS) == (2_000, "")
    assert not_before_ms([("other", b"x")], NOW_MS) == (None, "")
    assert not_before_ms([("not-before", b"1"), ("not-before", None)], NOW_MS) == (None, "")


@given(st.none() | st.integers(FIRST_MS, NOW_MS + MAX_DELAY_MS), st.integers(0, NOW_MS + 2 * MAX_DELAY_MS))
def test_the_later_of_a_copys_time_and_its_producers_time_counts(header_ms: int | None, time_ms: int) -> None:
    headers = [(POSTPONED_TO, str(time_ms).encode())]
    if header_ms is not None:
        headers.append(("not-before", str(header_ms).encode()))
    kept = [ms for ms in (header_ms, time_ms) if ms is not None and ms <= NOW_MS + MAX_DELAY_MS]
    assert not_before_ms(headers, NOW_MS) == (max(kept, default=None), "")


@given(st.binary(max_size=60))
def test_a_copys_own_time_that_cannot_be_read_counts_as_absent(value: bytes) -> None:
    at_ms, problem = not_before_ms([(POSTPONED_TO, value)], NOW_MS)
    assert problem == ""
    assert at_ms is None or 0 <= at_ms <= NOW_MS + MAX_DELAY_MS
