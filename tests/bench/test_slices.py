"""The benches' ratios of workers that run side by side."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.slices import Ratio, Second, Slice, ratio, total_of


def seconds(*records: tuple[int, int]) -> list[Second]:
    """Slices of two workers, second by second."""
    return [{"one": Slice(a, 1.0, 0.5), "other": Slice(b, 1.0, 0.25)} for a, b in records]


def test_a_ratio_is_the_median_of_the_ratios_of_single_seconds() -> None:
    """A load that slows both down in the same second does not matter."""
    found = ratio(seconds((200, 100), (20, 10), (2_000, 1_000)), lambda one: one.rate, "one", "other")
    assert found == Ratio(2.0, 2.0, 2.0)
    found = ratio(seconds((100, 100)), lambda one: one.cpu, "one", "other")
    assert found == Ratio(2.0, 2.0, 2.0)


def test_bounds_of_many_seconds_are_near_the_median_and_those_of_few_are_their_extremes() -> None:
    rates = [(100 + n, 100) for n in range(101)]
    found = ratio(seconds(*rates), lambda one: one.rate, "one", "other")
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.40, 1.60))
    found = ratio(seconds(*rates[:3]), lambda one: one.rate, "one", "other")
    assert (found.value, found.low, found.high) == pytest.approx((1.01, 1.0, 1.02))


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=60))
def test_a_ratio_is_a_median_between_its_bounds_and_whole_sums_all_seconds(
    records: list[tuple[int, int]],
) -> None:
    samples = seconds(*records)
    found = ratio(samples, lambda one: one.rate, "one", "other")
    assert found.low <= found.value <= found.high
    assert found.value == median(max(1, a) / max(1, b) for a, b in records)
    assert total_of(samples, "one").records == sum(a for a, _ in records)
