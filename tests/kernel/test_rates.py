"""Rates: even growth gives an exact rate, an unknown rate is None, and memory stays bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.rates import BUSY_STRETCH_S, MIN_GROWTH_WINDOW_S, WINDOW_S, JobRates, MeanLatency, RateWindow

steps = st.lists(st.floats(0.05, 20), min_size=1, max_size=200)


@given(steps, st.floats(0, 1e6), st.floats(-1e6, 1e6))
def test_an_even_rate_is_exact_however_often_it_is_read(
    gaps_s: list[float], per_s: float, start_s: float
) -> None:
    window, now_s = RateWindow(), start_s
    window.sample(now_s, 0.0)
    for gap_s in gaps_s:
        now_s += gap_s
        window.sample(now_s, per_s * (now_s - start_s))
        grown = window.growth()
        if grown is None:
            assert now_s - start_s < MIN_GROWTH_WINDOW_S
        else:
            assert grown[1][0] / grown[0] == pytest.approx(per_s, rel=1e-6, abs=1e-3)
            assert grown[0] <= 2 * WINDOW_S + 20, "one to two windows, and the gap between two looks"


@given(steps, st.lists(st.floats(0, 1e9), min_size=200, max_size=200))
def test_growth_is_never_negative_whatever_the_counter_does(
    gaps_s: list[float], counter: list[float]
) -> None:
    window, now_s = RateWindow(), 0.0
    for gap_s, value in zip(gaps_s, counter, strict=False):
        now_s += gap_s
        window.sample(now_s, value)
        grown = window.growth()
        assert grown is None or (grown[0] >= MIN_GROWTH_WINDOW_S and grown[1][0] >= 0)


def test_a_rate_follows_a_change_within_two_windows() -> None:
    window, count = RateWindow(), 0.0
    for now_s in range(300):
        window.sample(now_s, count)
        count += 10.0 if now_s < 200 else 0.0
    grown = window.growth()
    assert grown is not None
    assert grown[1][0] == 0


def look(
    rates: JobRates, start_s: int, end_s: int, arriving: int, done: int, waiting: int, alone: bool
) -> None:
    for now_s in range(start_s, end_s, 2):
        rates.sample(now_s, arriving * now_s, done * now_s, waiting, alone)


def test_what_a_partition_can_carry_shows_only_at_its_limit() -> None:
    rates = JobRates()
    look(rates, 0, 60, 100, 100, 0, True)
    assert rates.arriving == 100
    assert rates.ceiling is None, "it kept up: nobody knows what more it could"
    look(rates, 60, 120, 100, 80, 5_000, False)
    assert rates.ceiling is None, "the receiver was in its way"
    look(rates, 120, 180, 100, 80, 60, True)
    assert rates.ceiling is None, "less waits than arrives in a second: it keeps up"
    look(rates, 180, 240, 100, 80, 5_000, True)
    assert rates.ceiling == 80
    look(rates, 240, 300, 100, 40, 5_000, True)
    assert rates.ceiling == 80, "the highest that was seen"


def test_a_moment_at_the_limit_is_not_enough() -> None:
    rates = JobRates()
    look(rates, 0, 20, 100, 100, 0, True)
    look(rates, 20, 20 + int(BUSY_STRETCH_S), 100, 80, 5_000, True)
    look(rates, 40, 60, 100, 100, 0, True)
    assert rates.ceiling is None


def test_the_rate_of_finished_messages_is_known_while_the_log_does_not_grow() -> None:
    rates = JobRates()
    assert rates.finishing is None
    for second in range(20):
        rates.sample(float(second), 100, 5.0 * second, 0, alone=True)
    assert (rates.arriving, rates.finishing) == (0.0, 5.0)


def test_another_log_or_an_unknown_one_gives_no_rate() -> None:
    rates = JobRates()
    for now_s in range(0, 60, 2):
        rates.sample(now_s, -1, 0, 0, True)
    assert rates.arriving is None
    look(rates, 60, 90, 10, 10, 0, True)
    assert rates.arriving == 10
    rates.sample(90, 3, 0, 0, True)  # the topic was deleted and recreated
    assert rates.arriving is None


@given(st.lists(st.tuples(st.floats(0.001, 60), st.integers(1, 500)), min_size=1, max_size=100))
def test_the_mean_latency_is_within_what_was_measured(answers: list[tuple[float, int]]) -> None:
    mean = MeanLatency()
    assert mean.mean_s(0.0) is None
    for now_s, (latency_s, count) in enumerate(answers, 1):
        mean.add(latency_s, count)
        mean_s = mean.mean_s(float(now_s))
        assert mean_s is not None
        every = [latency_s for latency_s, _ in answers]
        assert min(every) * 0.999 <= mean_s <= max(every) * 1.001


def test_the_latency_that_is_known_stays_while_nothing_is_answered_and_follows_what_is() -> None:
    mean = MeanLatency()
    for now_s in range(60):
        mean.add(0.020, 10)
        mean.mean_s(now_s)
    assert mean.mean_s(600.0) == pytest.approx(0.020)
    for now_s in range(601, 700):
        mean.add(0.100, 10)
        mean.mean_s(now_s)
    assert mean.mean_s(700.0) == pytest.approx(0.100)
