"""Fingerprints of ids: they add up in any order, and reveal lost, doubled and replaced ids."""

from __future__ import annotations

import itertools
import random
import uuid

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchyard.audit.model.fingerprint import (
    NOTHING,
    FingerprintSource,
    id_bytes,
    ids_of,
    ids_of_offsets,
    of_ids,
    of_offsets,
    of_range,
    offset_of,
    with_content,
)

SOURCE = FingerprintSource("cluster", "topic", 3)
names = st.lists(st.binary(max_size=40), max_size=30)
offsets = st.integers(0, 1 << 62)


@given(names, st.randoms(use_true_random=False))
def test_a_fingerprint_does_not_depend_on_order_and_adds_up(many: list[bytes], random: random.Random) -> None:
    shuffled = list(many)
    random.shuffle(shuffled)
    cut = random.randint(0, len(many))
    whole = of_ids(ids_of(many))
    assert of_ids(ids_of(shuffled)) == whole
    assert of_ids(ids_of(many[:cut])).plus(of_ids(ids_of(many[cut:]))) == whole
    assert whole.minus(of_ids(ids_of(many[cut:]))) == of_ids(ids_of(many[:cut]))


@given(names.filter(bool), st.integers(0, 29), st.binary(max_size=40))
def test_one_id_replaced_by_another_is_found(many: list[bytes], at: int, other: bytes) -> None:
    at %= len(many)
    changed = [*many[:at], other, *many[at + 1 :]]
    same = ids_of([other]).tolist() == ids_of([many[at]]).tolist()
    assert (of_ids(ids_of(many)) == of_ids(ids_of(changed))) == same


def test_a_doubled_id_counts_twice() -> None:
    once, twice = of_ids(ids_of([b"a"])), of_ids(ids_of([b"a", b"a"]))
    assert twice == once.plus(once) != NOTHING


def test_a_uuid_is_the_same_id_as_text_and_as_bytes() -> None:
    one = uuid.UUID("6f1b7e2e-6a0e-5d0a-9a86-2b0f3f6c9f5e")
    assert ids_of([one.bytes]).tolist() == ids_of([str(one).encode()]).tolist()
    assert id_bytes(ids_of([one.bytes])[0]) == one.bytes
    assert ids_of([b"x" * 36]).shape == ids_of([b"\xff" * 36]).shape == (1, 2)


def test_changed_content_changes_the_fingerprint() -> None:
    ids = ids_of([b"a", b"b"])
    before, after = (with_content(ids, np.array([7, last], dtype=np.uint32)) for last in (8, 9))
    assert of_ids(before) != of_ids(after)
    assert of_ids(before) == of_ids(with_content(ids, np.array([7, 8], dtype=np.uint32)))


@given(offsets, st.integers(0, 300))
def test_a_range_has_the_fingerprint_of_its_offsets(start: int, length: int) -> None:
    end = start + length
    assert of_range(SOURCE, start, end) == of_offsets(SOURCE, np.arange(start, end, dtype=np.int64))


@given(st.lists(offsets, min_size=3, max_size=3).map(sorted))
def test_ranges_add_up(cuts: list[int]) -> None:
    first, middle, last = cuts
    whole = of_range(SOURCE, first, last)
    assert of_range(SOURCE, first, middle).plus(of_range(SOURCE, middle, last)) == whole


def test_the_same_offsets_of_another_source_have_another_fingerprint() -> None:
    found = {
        of_range(FingerprintSource(cluster, topic, partition), 5, 9)
        for cluster, topic, partition in itertools.product("ab", "cd", (0, 1))
    }
    assert len(found) == 8


@given(
    st.sets(st.integers(0, 100_000), max_size=5),
    st.sets(st.integers(0, 100_000), max_size=5),
    st.integers(0, 1 << 40),
)
def test_some_lost_and_as_many_doubled_are_always_found(lost: set[int], doubled: set[int], base: int) -> None:
    """At most DEGREE of each; also where they are arranged so that sums and sums of squares agree."""
    lost, doubled = lost - doubled, doubled - lost
    both = (np.array(sorted(some), dtype=np.int64) + base for some in (lost, doubled))
    one, other = (of_offsets(SOURCE, some) for some in both)
    assert (one == other) == (not lost and not doubled)


def test_equal_power_sums_up_to_the_fourth_do_not_hide_a_fault() -> None:
    lost, doubled = [0, 4, 8, 16, 17], [1, 2, 10, 14, 18]  # Prouhet, Tarry and Escott's problem, degree 4
    assert all(sum(o**k for o in lost) == sum(o**k for o in doubled) for k in range(5))
    assert of_offsets(SOURCE, np.array(lost)) != of_offsets(SOURCE, np.array(doubled))


def test_offsets_as_ids_are_distinct_and_read_back() -> None:
    sources = [SOURCE, FingerprintSource("cluster", "topic", 4)]
    ids = ids_of_offsets(sources[1], np.array([0, 7, 1 << 40]))
    assert [offset_of(sources, id_bytes(row)) for row in ids] == [(sources[1], o) for o in (0, 7, 1 << 40)]
    assert offset_of(sources, b"x" * 16) is None


def test_an_empty_range_is_nothing() -> None:
    assert (
        of_range(SOURCE, 5, 5) == of_range(SOURCE, 6, 5) == of_offsets(SOURCE, np.array([], dtype=np.int64))
    )
    assert of_ids(ids_of([])) == NOTHING
    assert str(NOTHING) == "0" * 32
