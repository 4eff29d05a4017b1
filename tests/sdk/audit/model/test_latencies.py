"""Histograms of latencies: their accuracy, their bytes and their sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.audit.model.latencies import ACCURACY, LONGEST_MS, MOST_OF_BIN, CorruptLatencies, Latencies
from switchyard.audit.model.totals import NO_TOTALS, Totals

latencies = st.lists(st.integers(-5, 1 << 42) | st.integers(0, 2_000), max_size=60)


def histogram(many: list[int]) -> Latencies:
    found = Latencies()
    found.add(np.array(many, dtype=np.int64))
    return found


@given(latencies.filter(bool), st.floats(0, 1))
def test_a_percentile_is_within_one_percent_of_the_true_one(many: list[int], rank: float) -> None:
    (estimated_ms,) = histogram(many).quantiles_ms([rank])
    bounded = sorted(min(max(0, one), LONGEST_MS) for one in many)
    true_ms = bounded[max(1, math.ceil(rank * len(many))) - 1]
    assert abs(estimated_ms - true_ms) <= ACCURACY * true_ms * 1.000001


@given(latencies, st.lists(st.floats(0, 1), max_size=4), st.sampled_from([1, 200, 40_000, 1 << 40]))
def test_bytes_have_the_percentiles_of_their_histogram(
    many: list[int], ranks: list[float], weight: int
) -> None:
    found = histogram(many)
    found.counts *= weight
    assert Latencies.quantiles_of(found.to_bytes(), ranks) == found.quantiles_ms(ranks)


@given(st.lists(latencies, max_size=5), st.randoms(use_true_random=False))
def test_merged_in_any_order_it_gives_the_same_bytes(parts: list[list[int]], random: object) -> None:
    one, other = Latencies(), Latencies()
    for part in parts:
        one.merge(Latencies.from_bytes(histogram(part).to_bytes()))
    for part in reversed(parts):
        other.merge(histogram(part))
    whole = histogram([latency for part in parts for latency in part])
    assert one.to_bytes() == other.to_bytes() == whole.to_bytes()
    assert one.count == sum(map(len, parts))


@given(latencies, latencies)
def test_a_merged_histogram_can_be_taken_out_again(kept: list[int], taken: list[int]) -> None:
    both = histogram(kept + taken)
    both.subtract(histogram(taken))
    assert both.to_bytes() == histogram(kept).to_bytes()


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 9)), max_size=20))
def test_a_weight_counts_a_latency_several_times(weighted: list[tuple[int, int]]) -> None:
    found = Latencies()
    found.add(
        *(np.array(column, dtype=np.int64) for column in ([v for v, _ in weighted], [w for _, w in weighted]))
    )
    assert (
        found.to_bytes() == histogram([value for value, weight in weighted for _ in range(weight)]).to_bytes()
    )


@given(st.binary(max_size=60))
def test_any_bytes_are_a_histogram_or_refused(data: bytes) -> None:
    try:
        found = Latencies.from_bytes(data)
    except CorruptLatencies:
        with pytest.raises(CorruptLatencies):
            Latencies.quantiles_of(data, [0.5])
        return
    assert found.count >= 0
    assert Latencies.quantiles_of(data, [0.5])


@pytest.mark.parametrize("counts", [1, 200, 40_000, 1 << 40])
def test_large_counts_survive_their_bytes(counts: int) -> None:
    found = Latencies()
    found.add(np.array([3, 900]), np.array([counts, 1]))
    again = Latencies.from_bytes(found.to_bytes())
    assert again.counts.tolist() == found.counts.tolist()


def test_sums_of_any_counts_can_be_read_again() -> None:
    """Clients choose their counts freely, yet the bytes of any sum can be read again."""
    found, one = Latencies(), Latencies()
    one.add(np.arange(1 << 14), np.full(1 << 14, MOST_OF_BIN >> 12))
    one.merge(one)
    for _ in range(40):
        found.merge(one)
        found = Latencies.from_bytes(found.to_bytes())
    assert found.count > 0
    assert found.quantiles_ms([0.5])[0] > 0


def test_a_histogram_without_latencies_has_no_quantiles() -> None:
    assert Latencies().quantiles_ms([0.5, 0.99]) == [-1.0, -1.0]
    assert Latencies().to_bytes() == b""


def test_totals_that_go_beyond_others_give_themselves_when_added() -> None:
    less = Totals(3, 30, identified=3, latencies=histogram([1, 5, 9]).to_bytes(), first_ms=5, last_ms=9)
    more = Totals(
        5, 50, identified=5, latencies=histogram([1, 5, 9, 9, 70]).to_bytes(), first_ms=4, last_ms=11
    )
    assert less.plus(more.beyond(less)) == more
    assert NO_TOTALS.plus(less) == less
    assert less.percentiles_ms(0.5) == [pytest.approx(5, rel=ACCURACY)]


def test_a_backlog_read_without_latencies_takes_none_away() -> None:
    less = Totals(3, 30, latencies=histogram([1, 5, 9]).to_bytes())
    more = Totals(5, 50)
    assert less.plus(more.beyond(less)) == Totals(5, 50, latencies=less.latencies)
