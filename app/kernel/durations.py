"""Durations as people write them: "90s", "1h30m", "500ms", 2.5 (seconds).

A duration is a whole number of milliseconds. Finer values are refused, not rounded, so that
`parse(format(x)) == x` always holds.
"""

from __future__ import annotations

import re
from decimal import Decimal

MAX_DURATION_MS = 366 * 86_400_000  # no wait is longer than a year; keeps the arithmetic exact
NUMBER = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
DURATION = r"\s*".join(f"(?:({NUMBER}){unit})?" for unit in _UNIT_MS)  # largest unit first, each once
_HINT = "write one like 10s, 500ms or 1h30m"


def parse_duration(value: object) -> float:
    """The seconds of "10s", "1m", "500ms", "1h30m", or of a number of seconds.

    Raises:
        ValueError: Not a duration, below zero, finer than a millisecond, or longer than 366 days.
    """
    if isinstance(value, str):
        found = re.fullmatch(DURATION, value.strip())
        if found is None or not any(found.groups()):
            raise ValueError(f"not a duration; {_HINT}")
        numbers = zip(found.groups(), _UNIT_MS.values(), strict=True)
        exact_ms = sum((Decimal(number) * unit for number, unit in numbers if number), Decimal(0))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        exact_ms = Decimal(repr(value)) * 1000 if abs(value) <= MAX_DURATION_MS else Decimal("Infinity")
    else:
        raise ValueError(f"not a duration; {_HINT}")
    if not 0 <= exact_ms <= MAX_DURATION_MS:
        raise ValueError(f"not a duration from 0 to 366 days; {_HINT}")
    if exact_ms != int(exact_ms):
        raise ValueError("finer than a millisecond; write whole milliseconds, such as 5ms")
    return int(exact_ms) / 1000


def format_duration(seconds: float) -> str:
    """The text that `parse_duration` reads back to the same number of milliseconds: 5400.0 is "1h30m"."""
    left_ms, parts = round(seconds * 1000), []
    for unit, unit_ms in _UNIT_MS.items():
        count, left_ms = divmod(left_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
