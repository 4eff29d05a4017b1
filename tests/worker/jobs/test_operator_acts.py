"""The offsets that operators name in ranges, and what a move of a position says about itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.worker.jobs.operator_acts import MAX_OFFSETS, PositionMove, checked, count, offsets_of, runs


@given(st.sets(st.integers(0, 300)))
def test_offsets_become_ranges_and_ranges_offsets(offsets: set[int]) -> None:
    if offsets:
        assert list(offsets_of(runs(offsets))) == sorted(offsets)
        assert count(runs(offsets)) == len(offsets)
    else:
        with pytest.raises(ValueError, match="ranges"):
            checked(runs(offsets))


@given(st.lists(st.tuples(st.integers(-5, 20_000), st.integers(-5, 20_000)), max_size=6))
def test_ranges_are_bounded_disjoint_and_name_no_offset_twice(ranges: list[tuple[int, int]]) -> None:
    try:
        found = checked(ranges)
    except ValueError:
        wrong = any(not 0 <= start < end for start, end in ranges)
        named = {offset for start, end in ranges for offset in range(start, end)}
        assert not ranges or wrong or len(named) > MAX_OFFSETS
        return
    assert count(found) <= MAX_OFFSETS
    assert all(end < start for (_, end), (start, _) in pairwise(found))


@given(st.none() | st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_a_move_skips_or_repeats_never_both_and_says_so(start: int | None, to: int) -> None:
    move = PositionMove("j", start, to)
    assert not (move.skipped and move.again)
    if start is not None:
        assert start + move.skipped - move.again == to
    assert ("skipped" in move.describe()) == bool(move.skipped)
