"""Durations and sizes as people write them: "90s", "1h30m", "500ms", 2.5 (seconds); "4MiB", 1024 (bytes).

A duration is a whole number of milliseconds, a size a whole number of bytes. Finer values are refused, not
rounded, so that `parse(format(x)) == x` always holds.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from app.kernel.durations import DURATION, NUMBER, format_duration, parse_duration
from app.kernel.json_types import JsonObject

MAX_SIZE_BYTES = 2**63 - 1  # Kafka's int64

_UNIT_BYTES = {
    "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1,
}  # fmt: skip
_SIZE = rf"({NUMBER})\s*({'|'.join(_UNIT_BYTES)})?"
_SIZE_HINT = "write one like 4MiB or 500kB"


def parse_size(value: object) -> int:
    """Bytes of "4MiB", "10kB", "1.5GiB" or a number of bytes.

    Raises:
        ValueError: Anything else, below zero, no whole number of bytes, or more than 2**63 - 1.
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


def _forms(kind: str, pattern: str) -> list[JsonObject]:
    return [{"type": kind, "minimum": 0}, {"type": "string", "pattern": f"^(?!$){pattern}$"}]


def _schema(kind: str, pattern: str, examples: list[str]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": _forms(kind, pattern), "examples": examples})


DURATION_SCHEMA = _forms("number", DURATION)

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    _schema("number", DURATION, ["10s", "500ms", "1h30m"]),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    _schema("integer", _SIZE, ["4MiB", "500kB"]),
]
