"""The circuit breaker: when it opens, how it probes, and which answers do not count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.circuit_breaker import (
    DOWN_FAILURES,
    FIRST_PROBE_S,
    LONGEST_PROBE_S,
    OVERLOAD_CALLS,
    STREAK_FAILURES,
    WINDOW_S,
    BreakerLimits,
    BreakerState,
    CircuitBreaker,
)

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, PERMISSION_DENIED = 0, 1, 2, 3, 4, 7
RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 8, 12, 14, 16


def fail(breaker: CircuitBreaker, code: int, times: int, now_s: float = 1.0) -> None:
    """`times` calls fail at the same moment."""
    for _ in range(times):
        breaker.on_result(code, now_s, now_s - 0.01)


limits = st.builds(
    BreakerLimits,
    unavailable=st.integers(1, 50),
    failures=st.integers(1, 50),
    overload_share=st.floats(0, 1),
    overload_calls=st.integers(1, 100),
    window_s=st.floats(1, 3_600),
    first_probe_s=st.floats(0.01, 10),
    longest_probe_s=st.floats(10, 600),
)


def opened(now_s: float = 1.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    fail(breaker, UNAVAILABLE, DOWN_FAILURES, now_s)
    assert not breaker.closed
    return breaker


def test_a_new_breaker_lets_calls_through() -> None:
    breaker = CircuitBreaker()
    assert breaker.closed
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allow(0.0)


def test_an_unreachable_receiver_opens_it_at_once() -> None:
    breaker = CircuitBreaker()
    fail(breaker, UNAVAILABLE, DOWN_FAILURES - 1)
    assert breaker.closed
    fail(breaker, UNAVAILABLE, 1)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allow(1.0)
    assert "in a row found no receiver" in breaker.reason


def test_one_dead_instance_among_many_does_not_open_it() -> None:
    breaker = CircuitBreaker()
    for _ in range(100):
        fail(breaker, UNAVAILABLE, DOWN_FAILURES - 1)
        breaker.on_result(OK, 1.0, 0.9)
    assert breaker.closed


@pytest.mark.parametrize("code", [DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED])
def test_overload_in_a_row_opens_it(code: int) -> None:
    breaker = CircuitBreaker()
    fail(breaker, code, STREAK_FAILURES - 1)
    assert breaker.closed
    fail(breaker, code, 1)
    assert not breaker.closed


@pytest.mark.parametrize("code", [UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED])
def test_a_receiver_that_refuses_everything_opens_it_and_a_single_message_does_not(code: int) -> None:
    breaker = CircuitBreaker()
    fail(breaker, code, 3)  # the attempts of one message in memory
    assert breaker.closed
    fail(breaker, code, STREAK_FAILURES)
    assert not breaker.closed


@pytest.mark.parametrize("code", [UNKNOWN, INVALID_ARGUMENT, OK])
def test_answers_about_the_message_never_open_it(code: int) -> None:
    breaker = CircuitBreaker()
    fail(breaker, code, 10_000)
    assert breaker.closed


def test_more_than_half_of_the_calls_failing_by_overload_opens_it() -> None:
    breaker = CircuitBreaker()
    for call in range(OVERLOAD_CALLS):
        assert breaker.closed
        breaker.on_result(DEADLINE_EXCEEDED if call % 5 < 3 else OK, 1.0 + call / 100, 1.0)
    breaker.on_result(DEADLINE_EXCEEDED, 2.0, 1.0)
    assert not breaker.closed
    assert "failed by overload" in breaker.reason


def test_half_of_the_calls_failing_by_overload_does_not_open_it() -> None:
    breaker = CircuitBreaker()
    for call in range(1_000):
        breaker.on_result(OK if call % 2 == 0 else DEADLINE_EXCEEDED, 1.0, 1.0)
    assert breaker.closed


def test_overload_of_long_ago_is_forgotten() -> None:
    breaker = CircuitBreaker()
    for call in range(OVERLOAD_CALLS - 2):
        breaker.on_result(OK if call % 3 == 0 else DEADLINE_EXCEEDED, 1.0, 1.0)
    late_s = 1.0 + 2 * WINDOW_S
    for call in range(OVERLOAD_CALLS - 2):
        breaker.on_result(OK if call % 3 == 0 else DEADLINE_EXCEEDED, late_s, late_s)
    assert breaker.closed


def test_probes_start_soon_and_become_rarer_up_to_a_bound() -> None:
    breaker = opened(now_s=0.0)
    now_s, probes = 0.0, []
    while now_s < 10:
        now_s = round(now_s + 0.01, 2)
        if breaker.allow(now_s):
            probes.append(now_s)
            breaker.on_result(UNAVAILABLE, now_s, now_s)
    waits = [round(two - one, 2) for one, two in zip([0.0, *probes], probes, strict=False)]
    assert waits[0] == FIRST_PROBE_S
    assert waits == sorted(waits)
    assert max(waits) == LONGEST_PROBE_S


@given(
    away_s=st.floats(0.05, 100), answer_s=st.floats(0.001, 0.3), swallowing=st.booleans(),
    tick_s=st.sampled_from([0.01, 0.05]),
)  # fmt: skip
def test_recovery_is_noticed_within_two_seconds(
    away_s: float, answer_s: float, swallowing: bool, tick_s: float
) -> None:
    """Also if the receiver never answered the earlier calls, whose deadlines are still to come."""
    breaker = opened(now_s=0.0)
    now_s = 0.0
    pending: list[float] = []
    while not breaker.closed:
        now_s += tick_s
        assert now_s < away_s + 2
        for started_s in [one for one in pending if one + answer_s <= now_s]:
            pending.remove(started_s)
            if started_s >= away_s:
                breaker.on_result(OK, now_s, started_s)
            elif not swallowing:
                breaker.on_result(UNAVAILABLE, now_s, started_s)
        while breaker.allow(now_s) and not breaker.closed:
            pending.append(now_s)
    assert now_s >= away_s


def test_a_successful_probe_closes_it_and_says_since_when() -> None:
    breaker = opened(now_s=1.0)
    assert breaker.allow(1.2)
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.allow(1.2)
    breaker.on_result(OK, 1.3, 1.2)
    assert (breaker.state, breaker.closed_at_s) == (BreakerState.CLOSED, 1.3)
    assert breaker.allow(1.3)


def test_a_failed_probe_opens_it_again() -> None:
    breaker = opened(now_s=1.0)
    assert breaker.allow(1.2)
    breaker.on_result(RESOURCE_EXHAUSTED, 1.25, 1.2)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allow(1.25)


@pytest.mark.parametrize("code", [UNKNOWN, INVALID_ARGUMENT])
def test_a_probe_with_a_poison_pill_closes_it_too(code: int) -> None:
    breaker = opened(now_s=1.0)
    assert breaker.allow(1.2)
    breaker.on_result(code, 1.3, 1.2)
    assert breaker.closed


def fails_everything() -> CircuitBreaker:
    """A breaker that opened because every message failed while no dead letter was allowed."""
    breaker = CircuitBreaker()
    for _ in range(STREAK_FAILURES):
        breaker.on_result(UNKNOWN, 1.0, 1.0, failed=True, spent=True)
    return breaker


def test_a_receiver_that_fails_everything_opens_it_once_no_dead_letter_may_be_written() -> None:
    breaker = CircuitBreaker()
    for _ in range(100):
        breaker.on_result(UNKNOWN, 1.0, 1.0, failed=True)
    assert breaker.closed
    breaker.on_result(UNKNOWN, 1.0, 1.0, failed=True, spent=True, count=STREAK_FAILURES - 1)
    assert breaker.closed
    breaker.on_result(UNKNOWN, 1.0, 1.0, failed=True, spent=True)
    assert not breaker.closed
    assert breaker.failed
    assert "the last with UNKNOWN" in breaker.reason


def test_failures_among_successes_do_not_open_it_whatever_dead_letters_may_be_written() -> None:
    breaker = CircuitBreaker()
    for call in range(1_000):
        bad = call % STREAK_FAILURES != 0
        breaker.on_result(UNKNOWN if bad else OK, 1.0, 1.0, failed=bad, spent=True)
    assert breaker.closed


@pytest.mark.parametrize("spent", [False, True])
def test_after_failures_only_a_success_closes_it(spent: bool) -> None:
    breaker = fails_everything()
    assert breaker.allow(1.2)
    breaker.on_result(UNKNOWN, 1.3, 1.2, failed=True, spent=spent)
    assert breaker.state is BreakerState.OPEN
    assert breaker.allow(2.0)
    breaker.on_result(OK, 2.1, 2.0)
    assert breaker.closed
    assert not breaker.failed


def test_a_receiver_that_comes_back_and_fails_everything_does_not_close_it() -> None:
    breaker = opened(now_s=1.0)
    assert breaker.allow(1.2)
    breaker.on_result(UNKNOWN, 1.3, 1.2, failed=True, spent=True)
    assert not breaker.closed
    assert breaker.failed
    assert "UNKNOWN" in breaker.reason


def test_results_of_calls_that_began_before_it_opened_do_not_close_it() -> None:
    breaker = opened(now_s=1.0)
    breaker.on_result(OK, 1.05, 0.5)
    assert not breaker.closed
    assert breaker.allow(1.2)
    breaker.on_result(OK, 1.25, 0.5)
    breaker.on_result(UNAVAILABLE, 1.25, 0.5)
    assert breaker.state is BreakerState.HALF_OPEN


def test_results_of_calls_that_began_before_it_closed_do_not_open_it() -> None:
    breaker = opened(now_s=1.0)
    breaker.allow(1.2)
    breaker.on_result(OK, 1.3, 1.2)
    for _ in range(100):
        breaker.on_result(DEADLINE_EXCEEDED, 1.4, 0.9)
    assert breaker.closed


def test_a_probe_that_was_not_made_or_was_canceled_may_be_made_again_at_once() -> None:
    breaker = opened(now_s=1.0)
    assert breaker.allow(1.2)
    breaker.forgo(1.2)
    assert breaker.state is BreakerState.OPEN
    assert breaker.allow(1.2)
    breaker.on_result(CANCELLED, 1.25, 1.2)
    assert breaker.allow(1.25)


def test_canceled_calls_do_not_count() -> None:
    breaker = CircuitBreaker()
    fail(breaker, UNAVAILABLE, DOWN_FAILURES - 1)
    fail(breaker, CANCELLED, 100)
    assert breaker.closed
    fail(breaker, UNAVAILABLE, 1)
    assert not breaker.closed


def test_closing_resets_its_counts() -> None:
    breaker = opened(now_s=1.0)
    breaker.allow(1.2)
    breaker.on_result(OK, 1.3, 1.2)
    fail(breaker, UNAVAILABLE, DOWN_FAILURES - 1, now_s=2.0)
    assert breaker.closed
    fail(breaker, UNAVAILABLE, 1, now_s=2.0)
    assert breaker.next_probe_at_s == 2.0 + FIRST_PROBE_S


@given(
    st.lists(st.tuples(st.integers(0, 17), st.floats(0, 0.5), st.floats(0, 2), st.booleans()), max_size=200)
)
def test_while_open_no_more_than_a_probe_an_interval_gets_through(
    steps: list[tuple[int, float, float, bool]],
) -> None:
    breaker, now_s = CircuitBreaker(), 10.0
    for code, pause_s, took_s, start in steps:
        now_s += pause_s
        breaker.on_result(code, now_s, now_s - took_s)
        if breaker.closed:
            assert breaker.allow(now_s)
        elif start:
            due = now_s >= breaker.next_probe_at_s
            assert breaker.allow(now_s) == due
            assert not breaker.allow(now_s)
            assert (
                not due or FIRST_PROBE_S * 0.99 <= breaker.next_probe_at_s - now_s <= LONGEST_PROBE_S + 1e-9
            )


@given(limits, st.sampled_from([UNAVAILABLE, UNIMPLEMENTED]))
def test_it_opens_after_exactly_as_many_failures_as_its_limits_say(wanted: BreakerLimits, code: int) -> None:
    breaker = CircuitBreaker(wanted)
    enough = wanted.failures  # of any kind, so also of the calls that find no receiver
    if code == UNAVAILABLE:
        enough = min(enough, wanted.unavailable)
    fail(breaker, code, enough - 1)
    assert breaker.closed
    fail(breaker, code, 1)
    assert not breaker.closed


@given(limits, st.lists(st.booleans(), max_size=200))
def test_overload_opens_it_by_the_share_of_its_limits(wanted: BreakerLimits, overloads: list[bool]) -> None:
    wanted = replace(wanted, failures=1_000)
    breaker = CircuitBreaker(wanted)
    for number, is_overload in enumerate(overloads):
        if not breaker.closed:
            break
        breaker.on_result(RESOURCE_EXHAUSTED if is_overload else OK, 1.0, 1.0)
        calls, overloaded = number + 1, sum(overloads[: number + 1])
        is_due = is_overload and calls >= wanted.overload_calls
        assert breaker.closed == (not is_due or overloaded <= calls * wanted.overload_share)


@given(limits)
def test_its_probes_wait_as_its_limits_say(wanted: BreakerLimits) -> None:
    breaker, now_s, waits = CircuitBreaker(wanted), 1.0, []
    breaker.open(now_s, "")
    for _ in range(30):
        waits.append(round(breaker.next_probe_at_s - now_s, 6))
        now_s = breaker.next_probe_at_s
        assert breaker.allow(now_s)
        breaker.on_result(UNAVAILABLE, now_s, now_s)
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(wanted.first_probe_s, abs=1e-5)
    assert waits[-1] == pytest.approx(wanted.longest_probe_s, abs=1e-5)


@given(limits, limits, st.integers(0, 20), st.floats(0, 1_000))
def test_an_open_breaker_heeds_changed_limits_at_once(
    former: BreakerLimits, wanted: BreakerLimits, probes: int, later_s: float
) -> None:
    breaker, now_s = CircuitBreaker(former), 1.0
    breaker.open(now_s, "")
    for _ in range(probes):
        now_s = breaker.next_probe_at_s
        assert breaker.allow(now_s)
        breaker.on_result(UNAVAILABLE, now_s, now_s)
    now_s += later_s
    breaker.change(wanted, now_s)
    assert breaker.next_probe_at_s <= now_s + wanted.longest_probe_s
    now_s = max(now_s, breaker.next_probe_at_s)
    assert breaker.allow(now_s)
    assert breaker.next_probe_at_s <= now_s + wanted.longest_probe_s
    breaker.on_result(OK, now_s + 0.1, now_s)
    assert breaker.closed
    fail(breaker, UNIMPLEMENTED, wanted.failures, now_s + 1.0)
    assert not breaker.closed


@given(limits)
def test_only_calls_in_a_row_that_find_no_receiver_count_as_such(wanted: BreakerLimits) -> None:
    breaker = CircuitBreaker(replace(wanted, unavailable=2, failures=1_000, overload_share=1.0))
    for _ in range(100):
        fail(breaker, UNAVAILABLE, 1)
        fail(breaker, DEADLINE_EXCEEDED, 1)
    assert breaker.closed
    fail(breaker, UNAVAILABLE, 2)
    assert breaker.reason == "2 calls in a row found no receiver"


def test_a_shorter_window_forgets_what_is_older() -> None:
    breaker = CircuitBreaker(BreakerLimits(failures=1_000, window_s=3_600.0))
    for call in range(200):
        breaker.on_result(RESOURCE_EXHAUSTED if call % 2 else OK, 1.0, 1.0)
    breaker.change(BreakerLimits(failures=1_000, window_s=10.0), 1_000.0)
    for _ in range(OVERLOAD_CALLS - 1):
        breaker.on_result(RESOURCE_EXHAUSTED, 1_001.0, 1_001.0)
    assert breaker.closed
    breaker.on_result(RESOURCE_EXHAUSTED, 1_001.0, 1_001.0)
    assert not breaker.closed


def test_a_probe_that_tells_nothing_leaves_no_longer_wait_than_changed_limits_have() -> None:
    breaker = CircuitBreaker(BreakerLimits(first_probe_s=600.0, longest_probe_s=600.0))
    breaker.open(1.0, "")
    assert breaker.allow(601.0)
    breaker.change(BreakerLimits(), 602.0)
    breaker.forgo(602.0)
    assert breaker.allow(602.0)
    assert breaker.next_probe_at_s <= 603.0
