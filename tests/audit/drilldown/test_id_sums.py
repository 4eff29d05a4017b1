from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.audit.drilldown.id_sums import IdDifference, difference_of
from switchyard.audit.model.fingerprint import Fingerprint, Words, of_ids

ids = st.sets(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, 9)), min_size=2, max_size=40)


def rows(many: list[tuple[int, int]]) -> Words:
    return np.array(many, dtype=np.uint64).reshape(-1, 2)


@given(ids, st.data())
def test_sums_name_missing_and_doubled_ids(known: set[tuple[int, int]], chance: st.DataObject) -> None:
    upstream = sorted(known)
    missing = chance.draw(st.lists(st.sampled_from(upstream), max_size=2, unique=True))
    left = [one for one in upstream if one not in missing]
    doubled = chance.draw(st.lists(st.sampled_from(upstream), max_size=2 - len(missing), unique=True))
    doubled = [one for one in doubled if one in left]
    difference = of_ids(rows(upstream)).minus(of_ids(rows(left + doubled)))
    found = difference_of(difference, len(missing) - len(doubled), rows(upstream))
    if missing or doubled:
        assert found is not None
        assert {upstream[row] for row in found.missing} == set(missing)
        assert {upstream[row] for row in found.doubled} == set(doubled)
    else:
        assert found is None


def test_sums_name_neither_more_than_two_nor_unknown_ids() -> None:
    many = rows([(n, n) for n in range(100)])
    assert difference_of(of_ids(many[:3]), 3, many) is None
    for surplus in (-2, -1, 1, 2):
        assert difference_of(Fingerprint(1, 1), surplus, many) is None
        assert difference_of(Fingerprint(1, 1), surplus, many[:0]) is None
    assert difference_of(of_ids(many[5:6]), 1, many) == IdDifference([5], [])
