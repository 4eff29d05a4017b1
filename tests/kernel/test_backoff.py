"""Backoff: waits grow up to a cap, and jitter shortens them by at most its share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.backoff import Backoff

backoffs = st.builds(
    lambda base_s, times, factor, jitter: Backoff(base_s, base_s * times, factor, jitter),
    st.floats(0.001, 100), st.floats(1, 1_000), st.floats(1, 10), st.floats(0, 1),
)  # fmt: skip


def test_waits_double_up_to_the_cap() -> None:
    backoff = Backoff(base_s=1, cap_s=5, factor=2, jitter=0)
    assert [backoff.delay_s(failures) for failures in (1, 2, 3, 4, 5, 10**9)] == [1, 2, 4, 5, 5, 5]


@given(backoffs, st.integers(-1, 10**9), st.floats(0, 1))
def test_a_wait_lies_between_its_share_without_jitter_and_the_cap(
    backoff: Backoff, failures: int, random01: float
) -> None:
    full_s = backoff.delay_s(failures)
    wait_s = backoff.delay_s(failures, random01)
    assert min(backoff.base_s, full_s) <= full_s <= backoff.cap_s
    assert full_s * (1 - backoff.jitter) - 1e-9 <= wait_s <= full_s


@given(backoffs, st.integers(1, 200))
def test_waits_never_shrink(backoff: Backoff, failures: int) -> None:
    assert backoff.delay_s(failures) <= backoff.delay_s(failures + 1)


def test_jitter_spreads_retries_of_calls_that_failed_together() -> None:
    backoff = Backoff(base_s=1, cap_s=8, jitter=0.5)
    assert [backoff.delay_s(3, random01) for random01 in (0, 0.5, 1)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"base_s": 0}, "backoff base 0 s"),
        ({"base_s": 2, "cap_s": 1}, "at most the cap 1 s"),
        ({"cap_s": float("inf")}, "at most the cap inf s"),
        ({"base_s": float("nan")}, "backoff base nan s"),
        ({"factor": 0.5}, "backoff factor 0.5"),
        ({"jitter": 1.5}, "backoff jitter 1.5"),
        ({"jitter": -0.1}, "backoff jitter -0.1"),
    ],
)
def test_figures_out_of_bounds_are_refused(figures: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Backoff(**figures)
