"""Outliers: endpoints that fail what the others take, or take far longer, and how long they pause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.outlier_detection import (
    FAILED_SHARE,
    INTERVAL_S,
    MAX_PAUSE_S,
    MIN_CALLS,
    PAUSE_S,
    SLOW_BY_S,
    WINDOW_S,
    CallCounts,
    Standing,
    failing,
    slow,
)

COUNTS = st.builds(
    lambda calls, failed, mean_s: CallCounts(calls, min(calls, failed), calls * mean_s),
    st.integers(0, 500),
    st.integers(0, 500),
    st.floats(0.0, 30.0),
)
WELL = CallCounts(100, 1, 0.5)


def numbers(found: list[tuple[int, str]]) -> list[int]:
    return [number for number, _ in found]


def test_one_that_fails_what_the_others_take_is_found() -> None:
    bad = CallCounts(80, 60, 0.4)
    (outlier,) = failing([WELL, bad, WELL])
    assert outlier == (1, "it failed 60 of 80 messages, the others 2 of 200")


def test_the_worst_comes_first() -> None:
    found = failing([CallCounts(100, 40, 1.0), *[WELL] * 9, CallCounts(100, 80, 1.0)])
    assert numbers(found) == [10, 0]


def test_faulty_messages_fail_everywhere_and_make_no_outlier() -> None:
    assert failing([CallCounts(100, 60, 1.0), CallCounts(100, 40, 1.0), CallCounts(100, 50, 1.0)]) == []


@pytest.mark.parametrize(
    "counts",
    [
        [CallCounts(MIN_CALLS - 1, MIN_CALLS - 1, 1.0), WELL],
        [CallCounts(MIN_CALLS, MIN_CALLS, 1.0), CallCounts(MIN_CALLS - 1, 0, 1.0)],
        [CallCounts(100, 100, 1.0)],
        [],
    ],
)
def test_few_calls_say_nothing(counts: list[CallCounts]) -> None:
    assert failing(counts) == []
    assert slow(counts) == []


def test_one_that_takes_far_longer_is_slow() -> None:
    (outlier,) = slow([WELL, CallCounts(30, 0, 6.0), WELL])
    assert outlier == (1, "it takes 200 ms for a message, the others 5 ms")


def test_a_difference_that_nobody_notices_is_not_slow() -> None:
    assert slow([CallCounts(100, 0, 0.01), CallCounts(100, 0, 100 * SLOW_BY_S * 0.9)]) == []


@given(st.lists(COUNTS, max_size=12))
def test_never_all_are_outliers(counts: list[CallCounts]) -> None:
    for found in (failing(counts), slow(counts)):
        assert len({number for number, _ in found}) == len(found)
        assert len(found) < max(1, len(counts))
    for number, _ in failing(counts):
        assert counts[number].failed_share >= FAILED_SHARE


def test_the_calls_of_the_last_seconds_count() -> None:
    standing, now_s = Standing(), 0.0
    standing.counts(now_s)
    while now_s < 3 * WINDOW_S:
        now_s += INTERVAL_S
        standing.add(10, 0.1, failed=now_s <= WINDOW_S)
        counts = standing.counts(now_s)
        assert counts.calls <= 10 * (2 * WINDOW_S / INTERVAL_S + 1)
    assert counts.failed == 0
    assert counts.mean_s == pytest.approx(0.1)


def test_an_ejection_begins_the_count_anew_and_ends_by_time_only() -> None:
    standing = Standing()
    standing.counts(0.0)
    standing.add(50, 0.1, failed=True)
    assert standing.counts(1.0).failed == 50
    standing.eject("it fails", 1.0)
    assert standing.counts(2.0).calls == 0
    assert standing.is_paused(1.0 + PAUSE_S - 0.1, answers=99)
    assert not standing.is_paused(1.0 + PAUSE_S, answers=0)
    assert standing.is_ejected, "until it takes a message"
    standing.recover()
    assert not standing.is_ejected
    assert standing.outlier(PAUSE_S), "who looks a moment later is told, too"
    assert not standing.outlier(1.0 + MAX_PAUSE_S)


def test_a_pause_ends_with_an_answer_to_a_health_check() -> None:
    standing = Standing()
    assert standing.failed_beside_others(5.0, 4.0, answers=7, timed_out=True), "a check is asked for"
    assert standing.is_paused(6.0, answers=7)
    assert not standing.is_paused(6.0, answers=8)


def test_a_probe_that_times_out_pauses_it_for_longer_whatever_its_health() -> None:
    standing = Standing()
    standing.failed_beside_others(5.0, 4.0, answers=7, timed_out=True)
    assert not standing.failed_beside_others(6.0, 4.5, answers=8, timed_out=True), "a call of before"
    assert not standing.is_paused(6.0, answers=8)
    standing.failed_beside_others(7.0, 5.5, answers=8, timed_out=True)
    assert standing.is_paused(7.0 + 2 * PAUSE_S - 0.1, answers=99)
    assert not standing.is_paused(7.0 + 2 * PAUSE_S, answers=8)


def test_pauses_that_follow_soon_grow_up_to_a_minute_and_shrink_after_a_good_time() -> None:
    standing, now_s = Standing(), 0.0
    for _ in range(20):
        standing.eject("it fails", now_s)
        length_s = standing.pauses_until_s - now_s
        now_s = standing.pauses_until_s + 1.0
        standing.recover()
    assert length_s == MAX_PAUSE_S
    standing.eject("it fails", now_s + 2 * MAX_PAUSE_S)
    assert standing.pauses_until_s == now_s + 2 * MAX_PAUSE_S + PAUSE_S


def test_the_last_one_that_is_left_does_not_pause() -> None:
    standing = Standing()
    standing.eject("it fails", 1.0)
    standing.end_pause()
    assert not standing.is_paused(1.0, answers=0)
    assert standing.is_ejected
