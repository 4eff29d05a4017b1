"""Durations and sizes as people write them: "90s", "1h30m", "500ms", 2.5 (seconds); "4MiB", 1024 (bytes).

A duration is a whole number of milliseconds, a size a whole number of bytes: what is finer is refused and not
rounded, so that `parse(format(x)) == x` always holds.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

MAX_DURATION_MS = 366 * 86_400_000  # nothing here waits longer than a year; keeps arithmetic exact
MAX_SIZE_BYTES = 2**63 - 1  # what Kafka counts bytes in

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_UNIT_BYTES = {
    "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1,
}  # fmt: skip
_NUMBER = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"
_DURATION = r"\s*".join(f"(?:({_NUMBER}){unit})?" for unit in _UNIT_MS)  # largest unit first, each once
_SIZE = rf"({_NUMBER})\s*({'|'.join(_UNIT_BYTES)})?"
_DURATION_HINT = "write one like 10s, 500ms or 1h30m"
_SIZE_HINT = "write one like 4MiB or 500kB"


def parse_duration(value: Any) -> float:
    """Seconds of "10s", "1m", "500ms", "1h30m" or a number of seconds.

    Raises:
        ValueError: anything else, below zero, finer than a millisecond, or longer than a year.
    """
    if isinstance(value, str):
        found = re.fullmatch(_DURATION, value.strip())
        if found is None or not any(found.groups()):
            raise ValueError(f"not a duration; {_DURATION_HINT}")
        numbers = zip(found.groups(), _UNIT_MS.values(), strict=True)
        exact_ms = sum((Decimal(number) * unit for number, unit in numbers if number), Decimal(0))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        exact_ms = Decimal(repr(value)) * 1000 if abs(value) <= MAX_DURATION_MS else Decimal("Infinity")
    else:
        raise ValueError(f"not a duration; {_DURATION_HINT}")
    if not 0 <= exact_ms <= MAX_DURATION_MS:
        raise ValueError(f"not a duration from 0 to 366 days; {_DURATION_HINT}")
    if exact_ms != int(exact_ms):
        raise ValueError("finer than a millisecond; write whole milliseconds, such as 5ms")
    return int(exact_ms) / 1000


def format_duration(seconds: float) -> str:
    """The writing that `parse_duration` reads back to the same number of milliseconds: 5400.0 is "1h30m"."""
    left_ms, parts = round(seconds * 1000), []
    for unit, unit_ms in _UNIT_MS.items():
        count, left_ms = divmod(left_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(value: Any) -> int:
    """Bytes of "4MiB", "10kB", "1.5GiB" or a number of bytes.

    Raises:
        ValueError: anything else, below zero, no whole number of bytes, or more than 2**63 - 1.
    """
    if isinstance(value, str):
        found = re.fullmatch(_SIZE, value.strip())
        if found is None:
            raise ValueError(f"not a size; {_SIZE_HINT}")
        exact = Decimal(found[1]) * _UNIT_BYTES[found[2] or "B"]
        if exact != int(exact):
            raise ValueError(f"not a whole number of bytes; {_SIZE_HINT}")
        count = int(exact)
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        raise ValueError(f"not a size; {_SIZE_HINT}")
    if not 0 <= count <= MAX_SIZE_BYTES:
        raise ValueError(f"not a size from 0 to 8 EiB; {_SIZE_HINT}")
    return count


def duration_within(low_s: float, high_s: float) -> AfterValidator:
    """Bounds of a duration, both included."""
    low, high = format_duration(low_s), format_duration(high_s)

    def check(seconds: float) -> float:
        if not low_s <= seconds <= high_s:
            raise ValueError(f"must be from {low} to {high}; choose one within")
        return seconds

    return AfterValidator(check)


def _schema(kind: str, pattern: str, examples: list[str]) -> WithJsonSchema:
    text = {"type": "string", "pattern": f"^(?!$){pattern}$"}
    return WithJsonSchema({"anyOf": [{"type": kind, "minimum": 0}, text], "examples": examples})


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    _schema("number", _DURATION, ["10s", "500ms", "1h30m"]),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    _schema("integer", _SIZE, ["4MiB", "500kB"]),
]
