"""The adaptive limit: near the best fixed limit, with short queues, and without unused growth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.concurrency_limit import INITIAL, SLACK_S, AdaptiveLimit, LimiterPhase
from tests.bench.simulate_concurrency import (
    BIN_S,
    MANY,
    SCENARIOS,
    TAILS,
    Fixed,
    Receiver,
    Vegas,
    best_fixed,
    simulate,
    slow_between,
)


def steady(
    limit: AdaptiveLimit, windows: int, latency_s: float, *, now_s: float = 100.0, used: bool = True
) -> float:
    """Windows with one latency; returns the time at their end."""
    for _ in range(windows):
        calls = 2 * limit.limit + 100
        now_s += 0.06 + latency_s
        limit.on_samples(now_s, calls, latency_s, limit.limit if used else limit.limit // 2)
    return now_s


@pytest.mark.parametrize("spread", [0.1, 1.0])
@pytest.mark.parametrize(
    ("servers", "service_s", "seconds"),
    [(2, 0.05, 160.0), (8, 0.01, 12.0), (100, 0.01, 6.0), (40, 0.05, 12.0)],
)
def test_throughput_is_that_of_the_best_fixed_limit_and_latency_at_most_twice_the_base(
    servers: int, service_s: float, seconds: float, spread: float
) -> None:
    receiver, half_s = Receiver(servers, service_s, spread=spread), seconds / 2
    run = simulate(receiver, AdaptiveLimit(), seconds)
    assert run.rate(half_s, seconds) >= 0.9 * best_fixed(receiver, seconds, half_s)
    assert run.mean_latency_s(half_s, seconds) <= 2 * receiver.base_s


def test_a_receiver_that_answers_at_once_keeps_its_throughput_and_its_queue_within_twice_the_slack() -> None:
    receiver = Receiver(4, 0.0001)
    run = simulate(receiver, AdaptiveLimit(), 2.0)
    assert run.rate(1.0, 2.0) >= 0.9 * best_fixed(receiver, 2.0, 1.0)
    assert run.mean_latency_s(1.0, 2.0) <= receiver.base_s + 2 * SLACK_S


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tail", TAILS)
def test_rare_long_messages_do_not_lower_the_limit_of_an_unlimited_receiver(tail: str, seed: int) -> None:
    mean_s, work = TAILS[tail]
    run = simulate(Receiver(MANY, mean_s, work=work, offered=2000), AdaptiveLimit(), 12.0, seed)
    assert run.rate(4.0, 12.0) >= 0.97 * 2000


@pytest.mark.parametrize(
    ("scenario", "least", "times"),
    [
        ("1/40 of 300 ms, 8 servers", 0.9, 2.5),
        ("30 % of 300 ms, 8 servers", 0.85, 4.0),
        ("lognormal, 10 ms, sigma 1.5, 8 servers", 0.9, 2.5),
        ("Pareto, 10 ms, alpha 1.5, 8 servers", 0.8, 2.5),  # hardly two seeds have the same work
        ("asyncio, 1 ms and 1/40 of 300 ms", 0.9, 2.5),
        ("asyncio, 1 ms and 1/40 of 300 ms, noisy", 0.8, 3.5),
        ("10 ms, 8 servers, noisy", 0.8, 3.0),
    ],
)
def test_a_limit_does_not_collapse_when_latencies_have_a_heavy_tail_or_the_machine_is_shared(
    scenario: str, least: float, times: float
) -> None:
    receiver, _ = SCENARIOS[scenario]
    best = simulate(receiver, Fixed(256), 30.0).rate(10.0, 30.0)
    runs = [simulate(receiver, AdaptiveLimit(), 30.0, seed) for seed in range(1, 5)]
    assert sum(run.rate(10.0, 30.0) for run in runs) / len(runs) >= least * best
    latency_s = sum(run.mean_latency_s(10.0, 30.0) for run in runs) / len(runs)
    assert latency_s <= times * receiver.base_s


def test_a_receiver_of_huge_parallelism_is_used_within_two_seconds() -> None:
    receiver, maximum = Receiver(100_000, 0.05), 2000
    run = simulate(receiver, AdaptiveLimit(maximum=maximum), 4.0)
    best = simulate(receiver, Fixed(maximum), 4.0)
    assert run.rate(2.0, 4.0) >= 0.9 * best.rate(2.0, 4.0)
    assert run.mean_latency_s(2.0, 4.0) <= 1.1 * receiver.base_s


def test_a_receiver_that_becomes_ten_times_slower_is_not_starved_and_comes_back() -> None:
    receiver = Receiver(50, 0.01, slowdown=slow_between(5, 15))
    run = simulate(receiver, AdaptiveLimit(), 20.0)
    best = simulate(receiver, Fixed(75), 20.0)
    for from_s, until_s in [(2, 5), (7, 15), (16, 20)]:
        assert run.rate(from_s, until_s) >= 0.9 * best.rate(from_s, until_s)
        base_s = receiver.rtt_s + 0.01 * receiver.slowdown(from_s)
        assert run.mean_latency_s(from_s, until_s) <= 2 * base_s
    starved = simulate(receiver, Vegas(), 20.0)  # why it is not Vegas
    assert starved.rate(7, 15) < 0.9 * best.rate(7, 15)


def test_after_an_outage_it_starts_slowly_and_is_at_full_rate_within_two_seconds() -> None:
    receiver, limit = Receiver(400, 0.05), AdaptiveLimit()
    run = simulate(receiver, limit, 8.0, at={4.0: lambda: limit.reset(4.0)})
    assert min(run.limits[round(4.0 / BIN_S) : round(4.3 / BIN_S)]) == INITIAL
    assert run.rate(6.0, 8.0) >= 0.9 * run.rate(2.0, 4.0)


def test_a_limit_that_is_not_used_does_not_grow() -> None:
    limit = AdaptiveLimit()
    steady(limit, 50, 0.01, used=False)
    assert limit.limit == INITIAL
    steady(limit, 2, 0.01, now_s=200.0)
    assert limit.limit > INITIAL


def test_a_limit_that_is_not_used_is_not_probed_either() -> None:
    limit = AdaptiveLimit(maximum=40)
    now_s = steady(limit, 20, 0.01)
    assert limit.phase in (LimiterPhase.HOLD, LimiterPhase.PROBE)
    now_s = steady(limit, 3, 0.01, now_s=now_s)
    assert limit.limit == 40
    steady(limit, 500, 0.01, now_s=now_s, used=False)
    assert limit.limit == 40


def test_one_dropped_call_in_five_cuts_the_limit_and_one_in_a_hundred_does_not() -> None:
    limit = AdaptiveLimit()
    limit.on_samples(100.0, 1, 0.01, 20)
    limit.on_samples(101.0, 198, 0.01, 20, dropped=2)
    assert limit.limit > INITIAL
    before = limit.limit
    limit.on_samples(102.0, 160, 0.01, before, dropped=40)
    assert limit.limit == round(before * 0.7)
    assert limit.phase is LimiterPhase.HOLD


def test_a_receiver_that_refuses_above_its_own_bound_is_held_near_it() -> None:
    """RESOURCE_EXHAUSTED above 64 in flight: the limit settles there."""
    limit, now_s, limits, dropped = AdaptiveLimit(), 100.0, [], 0
    for window in range(3000):
        now_s += 0.06
        refused = max(0, limit.limit - 64)
        limit.on_samples(now_s, 2 * (limit.limit - refused) + 100, 0.01, limit.limit, 8 * refused)
        if window > 200:
            limits.append(limit.limit)
            dropped += refused > 0
    assert sum(limits) / len(limits) >= 0.7 * 64
    assert dropped < 0.2 * len(limits)


def test_a_call_from_before_the_last_change_does_not_count() -> None:
    limit = AdaptiveLimit()
    limit.on_samples(100.0, 1, 0.001, 20)
    limit.on_samples(100.1, 200, 0.001, 20)
    assert limit.limit == 2 * INITIAL
    for _ in range(1000):
        limit.on_sample(100.2, 5.0, 40, dropped=True)
    assert limit.limit == 2 * INITIAL


def test_a_single_endless_message_does_not_change_the_limit() -> None:
    limit = AdaptiveLimit(maximum=200)
    now_s = steady(limit, 12, 0.01)
    held = limit.limit
    assert held == 200
    for number in range(20_000):
        now_s += 0.0001
        limit.on_sample(now_s, 0.06 if number % 1000 == 0 else 0.01, limit.limit)
    assert limit.limit >= held // 2  # a probe at most


samples = st.tuples(
    st.floats(0, 2),
    st.integers(0, 500),
    st.floats(0, 30),
    st.integers(0, 5000),
    st.integers(0, 100),
    st.sampled_from(["samples", "one", "dropped", "reset"]),
)


@given(st.integers(1, 10), st.integers(0, 50), st.integers(0, 5000), st.lists(samples, max_size=80))
def test_the_limit_always_stays_within_its_bounds(
    minimum: int, more: int, most: int, steps: list[tuple[float, int, float, int, int, str]]
) -> None:
    limit = AdaptiveLimit(minimum + more, minimum, minimum + more + most)
    now_s = 1000.0
    for pause_s, count, latency_s, in_flight, dropped, kind in steps:
        now_s += pause_s
        before = limit.limit
        match kind:
            case "samples":
                limit.on_samples(now_s, count, latency_s, in_flight, dropped)
            case "reset":
                limit.reset(now_s)
                before = limit.limit
            case _:
                limit.on_sample(now_s, latency_s, in_flight, kind == "dropped")
        assert limit.minimum <= limit.limit <= limit.maximum
        assert isinstance(limit.limit, int)
        assert limit.limit <= 2 * before or limit.phase is not LimiterPhase.RAMP


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40))
def test_the_bulk_form_decides_as_the_single_one_does(latencies: list[int]) -> None:
    single, bulk = AdaptiveLimit(maximum=500), AdaptiveLimit(maximum=500)
    single.on_sample(10.0, latencies[0] / 1024, 20)
    bulk.on_samples(10.0, 1, latencies[0] / 1024, 20)
    now_s = 10.0
    for latency_s in (number / 1024 for number in latencies):  # sums of these are exact
        now_s += 0.2
        calls = 0
        while calls == 0 or (single._own and calls < 2000):  # until a window has ended
            single.on_sample(now_s, latency_s, single.limit)
            calls += 1
        bulk.on_samples(now_s, calls, latency_s, bulk.limit)
        assert bulk.phase is single.phase
        assert bulk.limit == single.limit


@pytest.mark.parametrize(("initial", "minimum", "maximum"), [(0, 0, 10), (5, 6, 10), (11, 1, 10)])
def test_impossible_bounds_are_refused(initial: int, minimum: int, maximum: int) -> None:
    with pytest.raises(ValueError, match="limits must be"):
        AdaptiveLimit(initial, minimum, maximum)
