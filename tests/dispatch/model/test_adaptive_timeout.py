"""The adaptive timeout: up after repeated timeouts, down after quick answers, at least the definition's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.adaptive_timeout import RECEIVER_FACTOR, STREAK, WINDOW_CALLS, AdaptiveTimeout

NOW_S = 100.0


def raised() -> AdaptiveTimeout:
    """A timeout of twice its base, after several timeouts in a row."""
    timeout = AdaptiveTimeout(10.0)
    timeout.on_timeout(NOW_S, 10.0, STREAK)
    assert timeout.timeout_s == 20.0
    return timeout


def test_timeouts_in_a_row_double_it_and_a_single_one_does_not() -> None:
    timeout = AdaptiveTimeout(10.0)
    for _ in range(10):
        timeout.on_timeout(NOW_S, 10.0, STREAK - 1)
        timeout.on_answers(NOW_S, 20, 1.0)
    assert timeout.timeout_s == 10.0
    timeout.on_timeout(NOW_S, 10.0, STREAK)
    assert timeout.timeout_s == 20.0


def test_a_third_of_all_calls_timing_out_doubles_it_though_never_in_a_row() -> None:
    timeout = AdaptiveTimeout(10.0)
    for _ in range(WINDOW_CALLS // 3 + 1):
        timeout.on_timeout(NOW_S, 10.0)
        timeout.on_answers(NOW_S, 2, 1.0)
    assert timeout.timeout_s == 20.0


def test_a_poison_pill_in_a_thousand_changes_nothing() -> None:
    timeout = AdaptiveTimeout(10.0)
    for _ in range(100):
        timeout.on_timeout(NOW_S, 10.0)
        timeout.on_answers(NOW_S, 999, 1.0)
        assert timeout.timeout_s == 10.0


def test_calls_with_the_former_timeout_do_not_count() -> None:
    timeout = raised()
    timeout.on_timeout(NOW_S + 9.0, 10.0, 1000)
    assert timeout.timeout_s == 20.0
    timeout.on_timeout(NOW_S + 30.0, 20.0, STREAK)
    assert timeout.timeout_s == 40.0


def test_quick_answers_lower_it_and_slow_ones_do_not() -> None:
    timeout = raised()
    timeout.on_answers(NOW_S + 15.0, WINDOW_CALLS, 9.0)
    assert timeout.timeout_s == 20.0  # at 10 s the slowest would soon time out again
    timeout.on_answers(NOW_S + 30.0, WINDOW_CALLS, 7.0)
    assert timeout.timeout_s == 10.0
    timeout.on_answers(NOW_S + 60.0, WINDOW_CALLS, 0.1)
    assert timeout.timeout_s == 10.0


def test_a_hanging_receiver_gets_at_most_eight_times_the_timeout() -> None:
    timeout, now_s = AdaptiveTimeout(10.0), NOW_S
    for _ in range(20):
        now_s += 1000.0
        timeout.on_timeout(now_s, timeout.timeout_s, STREAK)
    assert timeout.timeout_s == RECEIVER_FACTOR * 10.0
    timeout.reset(now_s)
    assert timeout.timeout_s == 10.0


def test_a_message_that_times_out_gets_twice_the_time_each_time_up_to_the_maximum() -> None:
    timeout = AdaptiveTimeout(10.0, 60.0)
    assert [timeout.for_message(timeouts) for timeouts in range(5)] == [10.0, 20.0, 40.0, 60.0, 60.0]
    assert raised().for_message(0) == raised().for_message(1) == 20.0


steps = st.tuples(st.sampled_from(["answer", "answers", "timeout", "reset"]), st.floats(0, 60),
                  st.floats(0, 100), st.integers(0, 200))  # fmt: skip


@given(st.floats(0.001, 3600), st.floats(1, 10), st.lists(steps, max_size=80))
def test_the_timeout_always_stays_between_base_and_maximum(
    base_s: float, factor: float, events: list[tuple[str, float, float, int]]
) -> None:
    timeout, now_s = AdaptiveTimeout(base_s, base_s * factor), NOW_S
    for kind, pause_s, latency_s, count in events:
        now_s += pause_s
        before_s = timeout.timeout_s
        match kind:
            case "answer":
                timeout.on_answer(now_s, latency_s)
                assert before_s / 2 <= timeout.timeout_s <= 2 * before_s
            case "answers":
                timeout.on_answers(now_s, count, latency_s)
            case "timeout":
                timeout.on_timeout(now_s, latency_s, count)
                assert before_s / 2 <= timeout.timeout_s <= 2 * before_s
            case _:
                timeout.reset(now_s)
        timeouts_s = [timeout.for_message(timeouts) for timeouts in range(40)]
        assert base_s <= timeout.timeout_s == timeouts_s[0]
        assert timeouts_s == sorted(timeouts_s)
        assert timeouts_s[-1] <= timeout.maximum_s


@pytest.mark.parametrize(("base_s", "maximum_s"), [(0, 1), (-1, 1), (2, 1), (1, float("inf"))])
def test_impossible_figures_are_refused(base_s: float, maximum_s: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        AdaptiveTimeout(base_s, maximum_s)
