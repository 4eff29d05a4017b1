"""Durations and sizes: the program reads them as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.quantities import parse_size
from app.kernel.durations import format_duration, parse_duration

YEAR_MS = 366 * 86_400_000
FACTORS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


@given(st.integers(0, YEAR_MS))
def test_a_duration_that_is_written_and_read_is_the_same(milliseconds: int) -> None:
    seconds = milliseconds / 1000

    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)
    assert format_duration(parse_duration(format_duration(seconds))) == format_duration(seconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("1m", 60), ("500ms", 0.5), ("2h", 7200), ("1h30m", 5400), ("30d", 2592000), ("0s", 0),
     ("1.5s", 1.5), (10, 10), (0.25, 0.25)],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "10 seconds", "5x", "-1s", -1, True, None, [], float("nan"), "1e3s"]
)
def test_an_invalid_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        parse_duration(text)


@given(st.integers(0, 2**20), st.sampled_from(sorted(FACTORS)), st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str, space: str) -> None:
    assert parse_size(f"{number}{space}{unit}") == number * FACTORS[unit]


@pytest.mark.parametrize("text", ["", "MiB", "4 megs", "4mib", "-1B", -1, 1.5, True, None, [4]])
def test_an_invalid_size_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match=r"size"):
        parse_size(text)


def test_a_binary_unit_is_not_its_decimal_neighbour() -> None:
    assert (parse_size("1MiB"), parse_size("1MB")) == (1_048_576, 1_000_000)
