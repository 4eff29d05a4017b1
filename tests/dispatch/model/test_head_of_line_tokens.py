"""Tokens for moving heads away, while their rate changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.head_of_line import changed_tokens, shared_tokens

RATES = st.floats(0.01, 10_000)
STEPS = st.lists(st.tuples(RATES, st.floats(0, 30), st.integers(0, 50)), max_size=30)


@given(RATES, STEPS)
def test_however_often_the_rate_changes_no_more_is_spent_than_the_highest_allows(
    first: float, steps: list[tuple[float, float, int]]
) -> None:
    tokens, now_s, spent = shared_tokens(first), 0.0, 0
    for per_minute, passed_s, wanted in steps:
        now_s += passed_s
        tokens = changed_tokens(tokens, per_minute, now_s)
        for _ in range(wanted):
            if not tokens.wait_s(now_s):
                tokens.take(now_s)
                spent += 1
    highest = shared_tokens(max([first, *(step[0] for step in steps)]))
    assert spent <= highest.burst + highest.rate_per_s * now_s + 1e-3


@given(RATES, st.integers(0, 5))
def test_a_change_to_the_same_rate_changes_nothing(per_minute: float, taken: int) -> None:
    tokens = shared_tokens(per_minute)
    for _ in range(taken):
        tokens.take(0.0)
    assert changed_tokens(tokens, per_minute, 1.0) is tokens
