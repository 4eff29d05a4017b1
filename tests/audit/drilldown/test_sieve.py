from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.audit.drilldown.sieve import MOST_PRINTS, Prints, Sieve

prints = st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 5), max_size=60)


def array(many: list[int]) -> Prints:
    return np.array(many, dtype=np.uint64)


def sifted(sieve: Sieve, upstream: Prints, downstream: Prints) -> Sieve:
    sieve.add(upstream, is_upstream=True)
    sieve.add(downstream, is_upstream=False)
    return sieve


@given(prints, prints, prints)
def test_a_sieve_finds_the_difference_of_two_multisets(
    both: list[int], before: list[int], after: list[int]
) -> None:
    found = sifted(Sieve(400), array(both + before), array(after + both)).found()
    difference = Counter(before)
    difference.subtract(Counter(after))
    assert found.is_complete
    assert found.surplus == {name: count for name, count in difference.items() if count}


def test_a_difference_without_room_fits_the_next_sieve() -> None:
    many = np.random.default_rng(5).integers(0, 1 << 63, 60_000).astype(np.uint64)
    first = sifted(Sieve(), many, many[:10_000]).found()
    assert not first.is_complete
    assert 25_000 < first.estimate < 100_000
    again = Sieve().wider(first.estimate)
    found = sifted(again, many, many[:10_000]).found()
    assert (found.is_complete, len(found.surplus), again.bits) == (True, 50_000, 0)


def test_a_difference_beyond_the_largest_table_gives_a_sample() -> None:
    sieve = Sieve().wider(40 * MOST_PRINTS)
    assert sieve.bits == 6
    many = np.random.default_rng(5).integers(0, 1 << 63, 500_000).astype(np.uint64)
    found = sifted(sieve, many, many[:0]).found()
    assert found.is_complete
    assert 6_000 < len(found.surplus) < 10_000
    assert 400_000 < found.estimate < 640_000
    assert found.surplus.keys() <= set(many.tolist())


def test_a_sieve_that_was_too_small_is_never_followed_by_a_smaller_one() -> None:
    sieve = Sieve()
    for _ in range(12):
        wider = sieve.wider(1)
        assert (wider.bits, -wider._cells) > (sieve.bits, -sieve._cells) or wider._cells > sieve._cells
        sieve = wider
