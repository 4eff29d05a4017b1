"""Event times in headers, and values that are missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.payload.event_time.instant import MAX_MS, Absent, TimeFormat, UnusableField
from app.payload.event_time.json_field import JsonTime
from app.payload.event_time.source import HeaderTime
from tests.payload.event_time.records import FakeRecord

NOW_MS = 1_795_335_887_123


@pytest.mark.parametrize(
    ("time_format", "is_binary", "value", "time"),
    [
        (TimeFormat.EPOCH_MS, False, b"1795335887123", NOW_MS),
        (TimeFormat.EPOCH_S, False, b"1795335887.1239", NOW_MS),
        (TimeFormat.ISO_8601, False, b"2026-11-22T08:24:47.123Z", NOW_MS),
        (TimeFormat.EPOCH_US, True, (NOW_MS * 1000 + 999).to_bytes(8, "big"), NOW_MS),
        (TimeFormat.EPOCH_MS, True, b"\xff" * 8, Absent.OUT_OF_RANGE),
        (TimeFormat.EPOCH_MS, True, b"1795335887123", Absent.MALFORMED),
        (TimeFormat.EPOCH_MS, True, b"", Absent.MALFORMED),
        (TimeFormat.EPOCH_MS, False, b"\xff", Absent.NOT_A_TIME),
        (TimeFormat.EPOCH_MS, False, b"", Absent.NOT_A_TIME),
        (TimeFormat.EPOCH_MS, False, None, Absent.NULL),
    ],
)
def test_a_header_holds_text_or_eight_bytes(
    time_format: TimeFormat, is_binary: bool, value: bytes | None, time: int | Absent
) -> None:
    header = HeaderTime("x-time", time_format, is_binary=is_binary)
    assert header.of(FakeRecord(headers=(("other", b"1"), ("x-time", value)))) == time


def test_the_first_of_equal_headers_counts_and_a_missing_header_is_reported() -> None:
    header = HeaderTime("x-time")
    assert header.of(FakeRecord(headers=(("x-time", b"1"), ("x-time", b"2")))) == 1
    assert header.of(FakeRecord(headers=(("X-Time", b"1"),))) is Absent.NO_HEADER
    assert header.of(FakeRecord()) is Absent.NO_HEADER


def test_eight_bytes_of_iso_8601_are_refused() -> None:
    with pytest.raises(UnusableField, match="x-time: 8 binary bytes cannot hold iso-8601; configure"):
        HeaderTime("x-time", TimeFormat.ISO_8601, is_binary=True)


def test_a_tombstone_has_no_event_time_in_its_value() -> None:
    assert JsonTime(["ts"]).of(FakeRecord(b'{"ts":5}')) == 5
    assert JsonTime(["ts"]).of(FakeRecord(None)) is Absent.NO_VALUE


@given(
    st.lists(st.tuples(st.sampled_from(["x-time", "y"]), st.none() | st.binary(max_size=9))), st.booleans()
)
def test_any_headers_give_a_time_or_a_reason(
    headers: list[tuple[str, bytes | None]], is_binary: bool
) -> None:
    found = HeaderTime("x-time", is_binary=is_binary).of(FakeRecord(headers=tuple(headers)))
    assert isinstance(found, Absent) or 0 <= found <= MAX_MS
