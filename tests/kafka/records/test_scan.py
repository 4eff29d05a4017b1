"""Records are cut at their ends, and none beyond a limit becomes an object."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.batch import HEADER_BYTES
from app.kafka.records.scan import (
    HEADER_COST_BYTES,
    MAX_HEADERS,
    OWN_HEADERS,
    PRODUCER_LIMITS,
    RECORD_COST_BYTES,
    SHORT_BYTES,
    RecordLimits,
    cut,
    cut_short,
    lowest_delta,
)
from tests.kafka.records.batches import make_batch, packed_record, zigzag

fields = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=100)), max_size=3)


@given(
    st.lists(st.tuples(fields, fields), min_size=1, max_size=20),
    headers,
    st.integers(1, 8),
    st.integers(1, 3_000),
)
def test_cuts_are_contiguous_and_hold_all_records_within_both_limits(
    rows: list[tuple[bytes | None, bytes | None]], some: list[tuple[str, bytes]], most: int, most_bytes: int
) -> None:
    data = make_batch(0, rows, headers=some)[HEADER_BYTES:]
    at, left = 0, len(rows)
    while left:
        found = cut(data, at, left, most, most_bytes)
        assert found.excess is None
        assert 1 <= found.records <= most
        assert found.cost_bytes <= most_bytes or found.records == 1
        extra = RECORD_COST_BYTES + len(some) * HEADER_COST_BYTES
        assert found.cost_bytes > found.records * extra
        at, left = found.end, left - found.records
    assert at == len(data)


def test_record_with_too_many_headers_is_alone_and_its_neighbours_are_cut_as_usual() -> None:
    good = packed_record(0)
    data = good + packed_record(7, headers=MAX_HEADERS + 1) + good

    first = cut(data, 0, 3, 100, 1 << 20, PRODUCER_LIMITS)
    second = cut(data, first.end, 2, 100, 1 << 20, PRODUCER_LIMITS)
    third = cut(data, second.end, 1, 100, 1 << 20, PRODUCER_LIMITS)

    assert (first.records, first.excess) == (1, None)
    assert second.excess is not None
    assert (second.records, second.cost_bytes, second.excess.offset_delta) == (1, 0, 7)
    assert f"{MAX_HEADERS + 1} headers" in second.excess.reason
    assert (third.records, third.excess, third.end) == (1, None, len(data))
    most = packed_record(0, headers=MAX_HEADERS)
    assert cut(most, 0, 1, 1, 1, PRODUCER_LIMITS).excess is None, "as many as may be"
    copy = packed_record(0, headers=MAX_HEADERS + OWN_HEADERS)
    assert cut(copy, 0, 1, 1, 1).excess is None, "and what its copy says of itself"


def test_record_with_too_many_header_bytes_is_in_excess() -> None:
    data = make_batch(0, headers=[("h", b"v" * 1_000)])[HEADER_BYTES:]

    found = cut(data, 0, 1, 1, 1 << 20, RecordLimits(10, 1_000))

    assert found.excess is not None
    assert "bytes" in found.excess.reason


@given(st.binary(max_size=60), st.integers(1, 3))
def test_bytes_that_are_not_records_are_refused_without_reading_beyond_them(data: bytes, left: int) -> None:
    try:
        found = cut(data, 0, left, left, 1 << 20)
    except ValueError:
        return
    assert found.end <= len(data)
    assert found.records == left


@given(
    st.lists(st.tuples(st.integers(-(1 << 62), 1 << 62), st.binary(max_size=40_000)), min_size=1, max_size=6)
)
def test_lowest_delta_covers_all_records(rows: list[tuple[int, bytes]]) -> None:
    bodies = [b"\x00" + zigzag(delta) + value for delta, value in rows]
    data = b"".join(zigzag(len(body)) + body for body in bodies)
    assert lowest_delta(data, len(rows)) == min(delta for delta, _ in rows)
    for count, wrong in ((len(rows), data[:-1]), (len(rows) + 1, data), (len(rows), data + b"\x00")):
        with pytest.raises(ValueError, match="records"):
            lowest_delta(wrong, count)


@given(st.binary(max_size=200), st.integers(1, 1_000_000))
def test_bytes_that_are_not_records_have_no_lowest_delta_and_end_at_once(data: bytes, count: int) -> None:
    try:
        lowest_delta(data, count)
    except ValueError:
        return
    assert count <= len(data)


@given(
    st.lists(
        st.sampled_from([0, 1, 50, 70, 8_200, SHORT_BYTES - 40, SHORT_BYTES + 1]), min_size=1, max_size=12
    ),
    st.integers(1, 8),
    st.sampled_from([1, 5_000, 1 << 20]),
)
def test_short_cut_ends_records_where_the_full_cut_does(sizes: list[int], most: int, most_bytes: int) -> None:
    parts = [packed_record(0, b"v" * size) for size in sizes]
    data, at = b"".join(parts), 0
    while parts:
        found = cut_short(data, at, len(parts), most, most_bytes)
        assert found.records <= most
        if len(parts[0]) > SHORT_BYTES + 3:
            assert found.records == 0, "it is looked into"
        elif len(parts[0]) <= SHORT_BYTES:
            assert found.records, "one at least"
        count = found.records or 1
        at += sum(map(len, parts[:count]))
        assert not found.records or found.end == at
        del parts[:count]


@given(st.binary(max_size=60), st.integers(0, 60))
def test_short_cut_never_ends_beyond_the_buffer(data: bytes, at: int) -> None:
    found = cut_short(data, at, 100, 100, 1 << 20)
    assert at <= found.end <= max(at, len(data))
