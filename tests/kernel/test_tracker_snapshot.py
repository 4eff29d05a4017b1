"""Snapshots: their normal form, their bytes, and the laws of their union."""

from __future__ import annotations

import itertools
from zlib import crc32

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from app.kernel.ranges import BITMAP, MAX_OFFSET, RUNS, CorruptSnapshot, Snapshot, outside, union, unpack
from app.kernel.tracker import Tracker

CHECKED_BYTES = 5  # version and checksum stand before what the checksum covers

small = st.tuples(st.integers(0, 120), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair)))
huge = st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)).map(lambda pair: (pair[0], sum(pair)))
snapshots = st.builds(
    Snapshot, st.integers(0, 60), st.lists(small | huge, max_size=12).map(tuple)
) | st.builds(Snapshot, st.integers(0, 2**62), st.lists(huge, max_size=12).map(tuple))
small_snapshots = st.builds(Snapshot, st.integers(0, 60), st.lists(small, max_size=12).map(tuple))


def offsets(snapshot: Snapshot) -> set[int]:
    """All finished offsets below 200."""
    return set(range(snapshot.base)) | {o for start, end in snapshot.finished for o in range(start, end)}


def checked(body: bytes) -> bytes:
    """A body under a valid version and checksum."""
    return bytes([1]) + crc32(body).to_bytes(4, "big") + body


def is_normal(snapshot: Snapshot) -> bool:
    """Ranges are sorted, not empty, and touch neither each other nor the base."""
    edges = [snapshot.base, *(edge for span in snapshot.finished for edge in span)]
    return all(one < two for one, two in itertools.pairwise(edges))


@given(snapshots)
def test_a_snapshot_is_normal_however_it_is_given(snapshot: Snapshot) -> None:
    assert is_normal(snapshot)


@given(st.integers(0, 60), st.lists(small, max_size=12))
def test_a_snapshot_has_exactly_the_offsets_of_its_ranges(base: int, ranges: list[tuple[int, int]]) -> None:
    finished = set(range(base)) | {offset for start, end in ranges for offset in range(start, end)}
    assert offsets(Snapshot(base, tuple(ranges))) == finished


@given(snapshots)
def test_bytes_give_the_same_snapshot_back(snapshot: Snapshot) -> None:
    assert Snapshot.from_bytes(snapshot.to_bytes()) == snapshot


@given(snapshots, snapshots, snapshots)
def test_merge_is_a_join(one: Snapshot, two: Snapshot, three: Snapshot) -> None:
    assert one.merge(two) == two.merge(one)
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(one) == one
    assert one.merge(two).merge(two) == one.merge(two)


@given(small_snapshots, small_snapshots)
def test_merge_knows_all_that_either_knows_and_nothing_more(one: Snapshot, two: Snapshot) -> None:
    assert offsets(one.merge(two)) == offsets(one) | offsets(two)


@given(small_snapshots, small_snapshots)
def test_equal_facts_have_equal_bytes(one: Snapshot, two: Snapshot) -> None:
    assert (one.to_bytes() == two.to_bytes()) == (offsets(one) == offsets(two))


def test_scattered_acknowledgements_become_a_bitmap_and_stragglers_runs() -> None:
    scattered = Snapshot(0, tuple((at, at + 1) for at in range(1, 10_000, 2))).to_bytes()
    stragglers = Snapshot(0, ((1, 5_000), (5_001, 10_000))).to_bytes()
    assert scattered[CHECKED_BYTES + 1] == BITMAP
    assert len(scattered) == CHECKED_BYTES + 2 + 10_000 / 8
    assert stragglers[CHECKED_BYTES + 1] == RUNS
    assert len(stragglers) < 20


def test_the_bytes_of_version_1_stay_readable() -> None:
    """Every later release must read the bytes that tables hold today."""
    runs = bytes.fromhex("016f3acc4ce807000281019f8d0606")
    bitmap = bytes.fromhex("0135da3474e8070155")
    assert Snapshot.from_bytes(runs) == Snapshot(1_000, ((1_002, 1_131), (101_130, 101_136)))
    scattered = ((1_001, 1_002), (1_003, 1_004), (1_005, 1_006), (1_007, 1_008))
    assert Snapshot.from_bytes(bitmap) == Snapshot(1_000, scattered)


@pytest.mark.parametrize("length", [127, 128, 129, 16_383, 16_384])
def test_runs_of_lengths_around_a_further_byte_come_back(length: int) -> None:
    snapshot = Snapshot(5, ((5 + length, 5 + 2 * length), (5 + 3 * length, 5 + 4 * length)))
    assert Snapshot.from_bytes(snapshot.to_bytes()) == snapshot


@given(st.integers(0, 100), st.binary(max_size=12) | st.lists(st.integers(0, 3), max_size=12).map(bytes))
@example(0, bytes([RUNS, 1, 1, 0, 1]))  # a run that touches the one before
def test_unpacked_ranges_are_normal_whatever_the_bytes(base: int, data: bytes) -> None:
    try:
        ranges = unpack(base, data)
    except ValueError:
        return
    assert ranges == union(ranges)


@given(st.binary(max_size=60))
def test_garbage_is_named_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot, match="snapshot"):
        Snapshot.from_bytes(data)


@given(st.binary(max_size=60))
def test_garbage_under_a_valid_checksum_is_normal_or_corrupt(body: bytes) -> None:
    try:
        snapshot = Snapshot.from_bytes(checked(body))
    except CorruptSnapshot:
        return
    assert is_normal(snapshot)


@given(snapshots, st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_is_noticed(snapshot: Snapshot, at: int, bit: int) -> None:
    """One wrong bit would mark an unfinished message as finished: a lost message."""
    data = bytearray(snapshot.to_bytes())
    data[at % len(data)] ^= 1 << bit
    with pytest.raises(CorruptSnapshot):
        Snapshot.from_bytes(bytes(data))


@given(snapshots, st.integers(1, 50))
def test_a_cut_snapshot_is_noticed(snapshot: Snapshot, cut: int) -> None:
    data = snapshot.to_bytes()
    with pytest.raises(CorruptSnapshot):
        Snapshot.from_bytes(data[:-cut])


@pytest.mark.parametrize("base", [-1, MAX_OFFSET + 1])
def test_offsets_that_kafka_does_not_have_are_refused(base: int) -> None:
    with pytest.raises(ValueError, match="outside 0"):
        Snapshot(base)


@given(st.sets(st.integers(0, 300), max_size=200))
def test_a_snapshot_is_never_larger_than_a_bit_an_offset_and_its_header(acked: set[int]) -> None:
    tracker = Tracker(0, 1_000)
    tracker.fetched(0, 301)
    tracker.ack_many(acked)
    assert len(tracker.snapshot().to_bytes()) <= CHECKED_BYTES + 2 + 1 + (301 + 7) // 8


@given(st.lists(small, max_size=10), st.integers(0, 130), st.integers(0, 130))
def test_union_and_outside_divide_an_interval(ranges: list[tuple[int, int]], one: int, two: int) -> None:
    start, end = sorted((one, two))
    assume(start < end)
    normal = union(ranges)
    inside = {offset for first, last in normal for offset in range(first, last)}
    left = [offset for first, last in outside(normal, start, end) for offset in range(first, last)]
    assert left == [offset for offset in range(start, end) if offset not in inside]
