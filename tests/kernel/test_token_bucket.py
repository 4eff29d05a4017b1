"""The token bucket: it never releases more than was promised, and never blocks for ever."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.token_bucket import DEFAULT_BURST_S, MIN_WAIT_S, TokenBucket

rates = st.floats(0.01, 1e9)
times = st.floats(0, 1e7)


def slack(rate: float) -> float:
    """The tokens that rule 3 and the clock's resolution may release early."""
    return rate * (2 * MIN_WAIT_S + 1e-8)


def goes(bucket: TokenBucket, now_s: float) -> bool:
    """Takes one token if the bucket allows it; returns whether it did."""
    may = bucket.wait_s(now_s) == 0
    if may:
        bucket.take(now_s)
    return may


@given(
    rates,
    st.none() | st.floats(1, 1e6),
    times,
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1e6)), max_size=60),
)
def test_no_stretch_of_time_passes_more_than_its_rate_a_burst_and_one_debt(
    rate: float, burst: float | None, start_s: float, steps: list[tuple[float, float]]
) -> None:
    bucket, now_s = TokenBucket(rate, burst), start_s
    taken: list[tuple[float, float]] = []
    for pause_s, amount in steps:
        now_s += pause_s
        if bucket.wait_s(now_s, amount) == 0:
            bucket.take(now_s, amount)
            taken.append((now_s, amount))
    for first, (from_s, _) in enumerate(taken):
        total = largest = 0.0
        for at_s, amount in taken[first:]:
            total, largest = total + amount, max(largest, amount)
            bound = rate * (at_s - from_s) + max(bucket.burst, largest) + slack(rate)
            assert total <= bound * (1 + 1e-9)


@given(
    rates, st.none() | st.floats(1, 1e6), times, st.lists(st.floats(0, 1e7), max_size=20), st.floats(0, 1e8)
)
def test_after_its_wait_a_message_of_any_size_may_go(
    rate: float, burst: float | None, now_s: float, before: list[float], amount: float
) -> None:
    bucket = TokenBucket(rate, burst)
    for earlier in before:
        bucket.take(now_s, earlier)
    wait_s = bucket.wait_s(now_s, amount)
    assert 0 <= wait_s <= sum(before) / rate + 1e-6
    late_s = now_s + wait_s
    if late_s - now_s >= wait_s * (1 - 1e-12):  # otherwise rounding of the sum has lost the wait
        assert bucket.wait_s(math.nextafter(late_s, math.inf), amount) == 0


@given(rates, rates, times, st.floats(0, 1e6))
def test_a_changed_rate_forgives_no_debt_and_gives_no_tokens(
    old: float, new: float, now_s: float, amount: float
) -> None:
    bucket = TokenBucket(old)
    bucket.take(now_s, amount)
    before = bucket.available(now_s)
    bucket.change(new, now_s)
    expected = min(before, bucket.burst)
    assert bucket.available(now_s) == pytest.approx(expected, rel=1e-6, abs=1e-6 + new * 4e-9)
    assert bucket.rate_per_s == new
    assert bucket.burst == max(1.0, new * DEFAULT_BURST_S)


def test_a_steady_stream_gets_its_whole_rate() -> None:
    bucket, now_s, passed = TokenBucket(1000.0), 50.0, 0
    while now_s < 60.0:
        wait_s = bucket.wait_s(now_s)
        if wait_s:
            now_s += wait_s
            continue
        bucket.take(now_s)
        passed += 1
    assert passed == pytest.approx(10_000 + 100, abs=2)


def test_a_message_larger_than_the_burst_goes_when_full_and_the_next_waits_for_its_debt() -> None:
    bucket = TokenBucket(100.0, burst=10)
    assert bucket.wait_s(0.0, 1000) == 0
    bucket.take(0.0, 1000)
    assert bucket.available(0.0) == pytest.approx(-990)
    assert bucket.wait_s(0.0, 1) == pytest.approx(9.91)
    assert bucket.wait_s(0.0, 0) == pytest.approx(9.9)
    assert bucket.wait_s(0.0, 5000) == pytest.approx(10.0)


def test_a_slow_rate_still_lets_one_message_go_at_once() -> None:
    bucket = TokenBucket(0.1)
    assert [goes(bucket, at_s) for at_s in (5.0, 5.0, 14.9, 15.0, 15.0)] == [1, 0, 0, 1, 0]


def test_time_that_stands_still_gives_nothing() -> None:
    bucket = TokenBucket(10.0, burst=3)
    assert [goes(bucket, 1.0) for _ in range(5)] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(("rate", "burst"), [(0, None), (-1, None), (math.inf, None), (math.nan, None),
                                             (1, 0.5), (1, math.inf), (1, math.nan)])  # fmt: skip
def test_impossible_figures_are_refused(rate: float, burst: float | None) -> None:
    with pytest.raises(ValueError, match=r"rate|burst"):
        TokenBucket(rate, burst)
