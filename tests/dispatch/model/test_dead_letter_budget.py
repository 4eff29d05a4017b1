"""Successes, and time a little, buy dead letters; withheld messages are tried a few at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.dead_letter_budget import (
    DEAD_LETTER_BURST,
    MOST_AT_ONCE,
    START_LETTERS,
    TRIAL_MAX_S,
    TRIAL_MIN_S,
    DeadLetterBudget,
    DeadLetterTrials,
    spelled,
)

SHARES = st.floats(0, 0.95)
RATES = st.floats(0, 600)
BURSTS = st.integers(1, 1_000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.integers(1, 512)),
        st.tuples(st.just("fail"), st.integers(1, 512)),
        st.tuples(st.just("wait"), st.integers(0, 3_600)),
    ),
    max_size=60,
)


@given(SHARES, RATES, BURSTS, STEPS)
def test_dead_letters_are_never_more_than_the_start_the_share_and_the_rate_allow(
    share: float, per_minute: float, burst: int, steps: list[tuple[str, int]]
) -> None:
    now_s, acks, letters = 0.0, 0, 0
    budget = DeadLetterBudget(now_s, share, per_minute, burst)
    for what, amount in steps:
        if what == "wait":
            now_s += amount
        elif what == "ack":
            acks += amount
            budget.earn(now_s, amount)
        else:
            at_once = sum(budget.try_spend(now_s) for _ in range(amount))
            assert at_once <= max(burst, 1)
            letters += at_once
        assert budget.available(now_s) <= burst
        allowed = min(START_LETTERS, burst) + acks * share / (1 - share) + now_s * per_minute / 60
        assert letters <= allowed + 1e-3


@given(st.floats(0.01, 0.95), st.integers(1, 200))
def test_bad_messages_within_the_share_are_all_dead_lettered(share: float, rounds: int) -> None:
    budget = DeadLetterBudget(0.0, share, 0.001, DEAD_LETTER_BURST)
    good = -(-(1 - share) // share)  # for each bad one, rounded up
    for _ in range(rounds):
        budget.earn(0.0, int(good))
        assert budget.try_spend(0.0)


@given(RATES.filter(lambda rate: rate > 0.01), st.integers(0, 100))
def test_time_alone_always_gives_the_next_one_and_never_saves_up_more_than_a_start(
    per_minute: float, taken: int
) -> None:
    budget = DeadLetterBudget(0.0, 0.1, per_minute, DEAD_LETTER_BURST)
    for _ in range(taken):
        budget.try_spend(0.0)
    wait_s = budget.wait_s(0.0)
    assert budget.try_spend(wait_s)
    assert budget.available(wait_s + 1e9) <= START_LETTERS


def test_a_new_worker_has_fewer_tokens_than_one_that_earned_them() -> None:
    fresh, earned = DeadLetterBudget(0.0), DeadLetterBudget(0.0)
    earned.earn(0.0, 1_000_000)
    assert (fresh.available(0.0), earned.available(0.0)) == (START_LETTERS, DEAD_LETTER_BURST)


@given(SHARES, RATES, BURSTS, SHARES, RATES, BURSTS, st.integers(0, 100))
def test_a_change_returns_no_spent_token(
    share: float, rate: float, burst: int, other: float, other_rate: float, other_burst: int, taken: int
) -> None:
    budget = DeadLetterBudget(0.0, share, rate, burst)
    for _ in range(taken):
        budget.try_spend(0.0)
    before = budget.available(0.0)
    budget.change(0.0, other, other_rate, other_burst)
    assert budget.available(0.0) <= before
    assert budget.available(0.0) <= other_burst


def test_share_one_is_no_limit() -> None:
    budget = DeadLetterBudget(0.0, 1.0, 0.001, 1)
    assert all(budget.try_spend(0.0) for _ in range(10_000))
    assert not budget.is_spent(0.0)


@pytest.mark.parametrize(("share", "rate", "burst"), [(-0.1, 1, 1), (1.1, 1, 1), (0.1, -1, 1), (0.1, 1, 0)])
def test_figures_out_of_bounds_are_refused(share: float, rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        DeadLetterBudget(0.0, share, rate, burst)


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.floats(0, 400), st.lists(st.booleans(), max_size=300)), max_size=40
    )
)
def test_trials_are_bounded_to_one_round_at_a_time_and_never_end(
    rounds: list[tuple[float, float, list[bool]]],
) -> None:
    trials, now_s = DeadLetterTrials(), 0.0
    trials.withheld(now_s)
    for passed_s, tokens, answers in rounds:
        now_s += passed_s
        room = trials.room(now_s, tokens)
        assert room <= max(MOST_AT_ONCE, 1)
        sent = answers[:room]
        for _ in sent:
            trials.sent()
        for taken in sent:
            assert trials.room(now_s, tokens) == 0
            trials.answered(now_s, taken=taken)
        assert trials.out == 0
        assert trials.next_at_s <= now_s + TRIAL_MAX_S
        assert trials.room(now_s + TRIAL_MAX_S, 0.0) >= 1


def test_failed_rounds_become_rarer_and_smaller_and_a_taken_one_doubles_the_next() -> None:
    trials = DeadLetterTrials()
    trials.withheld(0.0)
    assert trials.room(0.0, 0.0) == 0
    assert trials.room(0.0, 3.7) == 3  # what may be dead-lettered goes at once
    now_s, sizes = TRIAL_MIN_S, []
    for _ in range(5):
        sizes.append(room := trials.room(now_s, 0.0))
        for _ in range(room):
            trials.sent()
        for _ in range(room):
            trials.answered(now_s, taken=True)
    assert sizes == [1, 2, 4, 8, 16]
    waits = []
    for _ in range(6):
        trials.sent()
        trials.answered(now_s, taken=False)
        waits.append(trials.next_at_s - now_s)
        now_s = trials.next_at_s
    assert waits == [1, 2, 4, 8, 10, 10]


def test_failures_are_spelled_the_most_frequent_first() -> None:
    assert spelled({"NOT_FOUND": 2, "INTERNAL": 9}) == "INTERNAL 9 times, NOT_FOUND 2 times"
    assert spelled({str(code): code for code in range(9)}).endswith(" and 4 more")
