"""Delayed messages: never early, the earliest first, a million of them small; the header that says when."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.core.due import MAX_DELAY_MS, DueQueue, not_before_ms

NOW_MS = 1_900_000_000_000


def test_nothing_comes_out_early_and_the_earliest_comes_first() -> None:
    queue: DueQueue[str] = DueQueue()
    for due_ms, offset in [(300, 1), (100, 2), (200, 3), (100, 0)]:
        assert queue.push(due_ms, offset, f"batch {offset}")
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


def test_a_full_queue_says_so() -> None:
    queue: DueQueue[None] = DueQueue(capacity=2)
    assert queue.push(5, 0)
    assert queue.room == 1
    assert queue.push(6, 1)
    assert not queue.push(7, 2)
    assert queue.pop_due(9) == [(0, None), (1, None)]
    assert queue.room == 2


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
        self.queue: DueQueue[int] = DueQueue(capacity=20)
        self.model: dict[int, int] = {}

    @rule(due_ms=st.integers(-5, 50), offset=st.integers(0, 40))
    def push(self, due_ms: int, offset: int) -> None:
        if offset in self.model:
            return
        fits = len(self.model) < 20
        assert self.queue.push(due_ms, offset, offset * 2) == fits
        if fits:
            self.model[offset] = max(0, due_ms)

    @rule(now_ms=st.integers(-5, 60), limit=st.none() | st.integers(0, 5))
    def pop(self, now_ms: int, limit: int | None) -> None:
        due = sorted((due, offset) for offset, due in self.model.items() if due <= now_ms)[:limit]
        assert self.queue.pop_due(now_ms, limit) == [(offset, offset * 2) for _, offset in due]
        for _, offset in due:
            del self.model[offset]

    @rule(base=st.integers(0, 40))
    def discard(self, base: int) -> None:
        gone = [offset for offset in self.model if offset < base]
        assert self.queue.discard_below(base) == len(gone)
        for offset in gone:
            del self.model[offset]

    @invariant()
    def the_next_is_the_earliest(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.next_due_ms == min(self.model.values(), default=None)


TestDelays = Delays.TestCase


@given(st.integers(0, NOW_MS + MAX_DELAY_MS))
def test_milliseconds_are_read_as_they_are(at_ms: int) -> None:
    assert not_before_ms([("not-before", str(at_ms).encode())], NOW_MS) == (at_ms, "")


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
def test_whatever_a_header_holds_it_is_a_time_or_a_reason(value: bytes) -> None:
    at_ms, reason = not_before_ms([("not-before", value)], NOW_MS)
    assert (at_ms is None) == bool(reason)
    assert at_ms is None or 0 <= at_ms <= NOW_MS + MAX_DELAY_MS


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"soon", "neither milliseconds"),
        (b"", "neither milliseconds"),
        (b"-5", "neither milliseconds"),
        (b"2031-05-01T12:00:00", "with an offset"),
        (str(NOW_MS + MAX_DELAY_MS + 1).encode(), "30 days ahead"),
        (b"9999-12-31T23:59:59Z", "days ahead"),
        (b"1" * 10_000, "10000 bytes"),
        (b"\xff\xfe", "neither milliseconds"),
    ],
)
def test_a_header_that_cannot_be_kept_is_told_and_delays_nothing(value: bytes, words: str) -> None:
    at_ms, reason = not_before_ms([("not-before", value)], NOW_MS)
    assert at_ms is None
    assert words in reason


def test_the_last_header_counts_and_none_is_no_delay() -> None:
    headers = [("not-before", b"1"), ("other", b"x"), ("not-before", b"2")]
    assert not_before_ms(headers, NOW_MS) == (2, "")
    assert not_before_ms([("other", b"x")], NOW_MS) == (None, "")
    assert not_before_ms([("not-before", b"1"), ("not-before", None)], NOW_MS) == (None, "")


def test_a_queue_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        DueQueue(0)
