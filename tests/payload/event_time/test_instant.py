"""Numbers and text become exact milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.payload.event_time.instant import MAX_MS, Absent, Instant, TimeFormat

UNITS = {"epoch-s": Fraction(1000), "epoch-ms": Fraction(1), "epoch-us": Fraction(1, 1000),
         "epoch-ns": Fraction(1, 1_000_000)}  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(0, 3 * 10**18).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


def _floor(number: Fraction) -> int | Absent:
    found = number.numerator // number.denominator
    return found if 0 <= found <= MAX_MS else Absent.OUT_OF_RANGE


@given(NUMBERS, st.sampled_from(sorted(UNITS)))
def test_a_number_is_cut_to_whole_milliseconds_exactly(text: str, unit: str) -> None:
    assert Instant(TimeFormat(unit)).of_number(text) == _floor(Fraction(text) * UNITS[unit])


@pytest.mark.parametrize("unit", sorted(UNITS))
@given(st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?", fullmatch=True), st.integers(10**3, 10**19))
@example("1", 10**18)
@example("0", 10**19)
def test_an_exponent_of_any_size_is_read(unit: str, digits: str, exponent: int) -> None:
    """Python's `decimal` refuses exponents of 10**18 and more."""
    instant, is_zero = Instant(TimeFormat(unit)), not Fraction(digits)
    too_small = Absent.OUT_OF_RANGE if digits.startswith("-") else 0
    for read in (instant.of_number, instant.of_text, lambda text: instant.of_bytes(text.encode())):
        assert read(f"{digits}e{exponent}") == (0 if is_zero else Absent.OUT_OF_RANGE)
        assert read(f"{digits}E-{exponent}") == (0 if is_zero else too_small)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(sorted(UNITS)))
def test_a_whole_number_is_the_same_as_its_digits(number: int, unit: str) -> None:
    instant = Instant(TimeFormat(unit))
    assert instant.of_int(number) == instant.of_number(str(number)) == instant.of_text(str(number))


@given(st.integers(0, MAX_MS))
def test_a_float_of_seconds_gives_the_milliseconds_that_were_written(time_ms: int) -> None:
    assert Instant(TimeFormat.EPOCH_S).of_float(time_ms / 1000) == time_ms


@pytest.mark.parametrize(
    "text",
    ["", "-", "1.", ".5", "1e", "+1", " 1", "1_0", "\u0661\u0667", "nan", "inf", "0x10", "1" * 65, "1\n"],
)
def test_text_that_is_not_a_number_is_no_time(text: str) -> None:
    instant = Instant(TimeFormat.EPOCH_MS)
    assert instant.of_text(text) is Absent.NOT_A_TIME
    assert instant.of_bytes(text.encode()) is Absent.NOT_A_TIME


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_special_floats_are_no_time(number: float) -> None:
    assert Instant(TimeFormat.EPOCH_S).of_float(number) is Absent.NOT_A_TIME


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(9998, 12, 31)),  # noqa: DTZ001
    st.integers(-23 * 60, 23 * 60),
    st.sampled_from("T t"),
)
def test_iso_8601_with_an_offset_is_the_instant(local: datetime, minutes: int, between: str) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    expected = since // timedelta(milliseconds=1)
    assert Instant(TimeFormat.ISO_8601).of_text(moment.isoformat(between)) == expected


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-22T08:24:47.123999999Z", 1795335887123),
        ("2026-11-22t08:24:47,5z", 1795335887500),
        ("2026-11-22 08:24:47", 1795335887000),
        ("2026-11-22T08:24", 1795335840000),
        ("2026-11-22T08:24:47-0330", 1795348487000),
        ("2026-11-22T08:24:47+02", 1795328687000),
        ("20261122T082447Z", 1795335887000),
    ],
)
def test_common_forms_of_iso_8601_are_read(text: str, time_ms: int) -> None:
    assert Instant(TimeFormat.ISO_8601).of_text(text) == time_ms


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-22T25:00:00Z", "now", "",
        "2026-W47-7T08:24:47", "2026-11-22T08:24:47+99:00", "1795335887", "2026-11-22T08:24:47Zz",
        "\u0662026-11-22T08:24:47Z", "0000-01-01T00:00:00Z", "2026-11-22T08:24:47." + "1" * 99,
    ],
)  # fmt: skip
def test_text_that_is_not_iso_8601_is_no_time(text: str) -> None:
    assert Instant(TimeFormat.ISO_8601).of_text(text) is Absent.NOT_A_TIME


def test_iso_8601_outside_the_range_is_out_of_range() -> None:
    iso = Instant(TimeFormat.ISO_8601)
    assert iso.of_text("1969-12-31T23:59:59.999Z") is Absent.OUT_OF_RANGE
    assert iso.of_text("9999-12-31T23:59:59.999Z") == MAX_MS
    assert iso.of_text("9999-12-31T23:59:59.999-01:00") is Absent.OUT_OF_RANGE
    assert iso.of_text("0001-01-01T00:00:00+23:59") is Absent.OUT_OF_RANGE
    assert iso.of_int(5) is Absent.NOT_A_TIME
    assert iso.of_number("5") is Absent.NOT_A_TIME


@given(st.text(max_size=80), st.sampled_from(list(TimeFormat)))
def test_any_text_gives_a_time_or_a_reason(text: str, time_format: TimeFormat) -> None:
    found = Instant(time_format).of_text(text)
    assert isinstance(found, Absent) or 0 <= found <= MAX_MS
