from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from app.audit.drilldown.reconciliation import CorruptTable, IdSetDifference, InvertibleBloomTable, cells_for
from app.audit.drilldown.strata_estimator import Strata
from switchyard.audit.model.fingerprint import Words, id_bytes, ids_of

words = st.integers(0, (1 << 64) - 1)
ids = st.lists(st.tuples(words, words) | st.tuples(st.just(0), st.integers(0, 3)), max_size=40)


def array(many: list[tuple[int, int]]) -> Words:
    return np.array(many, dtype=np.uint64).reshape(-1, 2)


def seeded(seed: int, many: int) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 63, (many, 2)).astype(np.uint64)


def differ(upstream: Words, downstream: Words, cells: int) -> IdSetDifference:
    tables = InvertibleBloomTable(cells), InvertibleBloomTable(cells)
    for table, found in zip(tables, (upstream, downstream), strict=True):
        table.insert(found)
    tables[0].subtract(tables[1])
    return tables[0].peel()


@given(ids, ids, ids)
def test_missing_and_doubled_ids_are_named(
    both: list[tuple[int, int]], before: list[tuple[int, int]], after: list[tuple[int, int]]
) -> None:
    one, other = Counter([*both, *before]), Counter([*both, *after])
    found = differ(array([*both, *before]), array([*after, *both]), cells_for(1_000))
    assert found.is_complete
    assert found.missing == {id_bytes(row): count for row, count in (one - other).items()}
    assert found.extra == {id_bytes(row): count for row, count in (other - one).items()}
    assert found.cells_needed == 0


@given(st.integers(0, 1 << 30), st.integers(2, 9))
def test_an_id_with_several_surplus_copies_is_named_with_their_number(seed: int, times: int) -> None:
    all_ids = seeded(seed, 50)
    found = differ(all_ids, np.concatenate((all_ids, np.repeat(all_ids[:2], times, axis=0))), 60)
    assert found.extra == {id_bytes(row): times for row in all_ids[:2].tolist()}
    assert not found.missing


@pytest.mark.parametrize("missing", [1, 5, 40, 300, 3_000])
def test_tables_of_the_advised_size_suffice(missing: int) -> None:
    tries = 60 if missing < 1_000 else 5
    failed = 0
    for seed in range(tries):
        all_ids = seeded(seed, 4 * missing)
        found = differ(all_ids, all_ids[missing:], cells_for(missing))
        failed += not found.is_complete
        assert len(found.missing) == missing or not found.is_complete
    assert failed <= 1


@pytest.mark.parametrize("missing", [60, 400, 5_000])
def test_a_table_that_is_too_small_reports_the_size_it_needs(missing: int) -> None:
    for seed in range(10):
        all_ids = seeded(seed, missing + 100)
        cells, rounds = 30, 0
        while True:
            found = differ(all_ids, all_ids[missing:], cells)
            assert found.missing.keys() <= {id_bytes(row) for row in all_ids[:missing].tolist()}
            if found.is_complete:
                break
            assert found.cells_needed > cells
            cells, rounds = found.cells_needed, rounds + 1
        assert 0 < rounds <= 9
        assert len(found.missing) == missing


def test_strata_estimate_how_many_ids_differ() -> None:
    for seed, missing in enumerate((0, 1, 10, 100, 1_000, 5_000)):
        all_ids = seeded(seed, missing + 20_000)
        one, other = Strata(), Strata()
        one.insert(all_ids)
        other.insert(all_ids[missing:])
        estimate = one.difference(other)
        assert missing / 2 <= estimate <= 2 * missing, (missing, estimate)


@given(ids)
def test_a_table_survives_its_bytes(many: list[tuple[int, int]]) -> None:
    table = InvertibleBloomTable(60)
    table.insert(array(many))
    again = InvertibleBloomTable.from_bytes(table.to_bytes())
    assert again.to_bytes() == table.to_bytes()
    again.subtract(table)
    assert again.peel() == IdSetDifference({}, {}, True, 0)


@given(st.binary(max_size=80), st.integers(0, 200), st.integers(1, 255))
@example(b"", 4, 1)  # it says that it has fewer cells than it holds
def test_bytes_that_are_not_a_table_are_refused(data: bytes, at: int, flip: int) -> None:
    with pytest.raises(CorruptTable):
        InvertibleBloomTable.from_bytes(data)
    table = InvertibleBloomTable(60)
    table.insert(ids_of([b"a", b"b"]))
    damaged = bytearray(table.to_bytes())
    damaged[at % len(damaged)] ^= flip
    with pytest.raises(CorruptTable):
        InvertibleBloomTable.from_bytes(bytes(damaged))


def test_tables_of_different_sizes_are_not_compared() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        InvertibleBloomTable(60).subtract(InvertibleBloomTable(90))
    with pytest.raises(ValueError, match="a table has"):
        InvertibleBloomTable(3)


class TableAgainstModel(RuleBasedStateMachine):
    """Two tables that are filled, sent and compared, against two multisets."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [InvertibleBloomTable(cells_for(200)), InvertibleBloomTable(cells_for(200))]
        self.model: list[Counter[bytes]] = [Counter(), Counter()]

    @rule(which=st.integers(0, 1), seed=st.integers(0, 5), many=st.integers(0, 10), both=st.booleans())
    def insert(self, which: int, seed: int, many: int, both: bool) -> None:
        found = seeded(seed, many)
        for side in (0, 1) if both else (which,):
            self.tables[side].insert(found)
            self.model[side].update(id_bytes(row) for row in found.tolist())

    @rule(which=st.integers(0, 1))
    def send(self, which: int) -> None:
        self.tables[which] = InvertibleBloomTable.from_bytes(self.tables[which].to_bytes())

    @rule()
    def compare(self) -> None:
        left = InvertibleBloomTable.from_bytes(self.tables[0].to_bytes())
        left.subtract(self.tables[1])
        found = left.peel()
        assert found.is_complete
        assert found.missing == self.model[0] - self.model[1]
        assert found.extra == self.model[1] - self.model[0]


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(stateful_step_count=15)


def test_a_million_of_the_same_ids_leave_nothing() -> None:
    all_ids = seeded(1, 1_100_000)
    shuffled = all_ids.copy()
    random.Random(1).shuffle(order := list(range(1_000)))
    shuffled[:1_000] = all_ids[order]
    assert differ(all_ids, shuffled[1:], 60).missing == {id_bytes(shuffled[0]): 1}
