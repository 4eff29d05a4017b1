"""Durations and sizes as people write them: "90s", "1h30m", "500ms", 2.5 (seconds); "4MiB", 1024 (bytes)."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|kB|MB|GB)?")
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_duration(value: Any) -> float:
    """Seconds of "10s", "1m", "500ms", "1h30m" or a number of seconds.

    Raises:
        ValueError: anything else, or below zero.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a duration; write one like 10s, 500ms or 1h30m")
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        text = value.strip().replace(" ", "")
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{value!r} is not a duration; write one like 10s, 500ms or 1h30m")
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{value!r} is not a duration from 0 on")
    return seconds


def format_duration(seconds: float) -> str:
    """The shortest writing that `parse_duration` reads back to the same number of milliseconds."""
    milliseconds = round(seconds * 1000)
    if milliseconds == 0:
        return "0s"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size(value: Any) -> int:
    """Bytes of "4MiB", "10kB" or a number of bytes.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("not a size; write one like 4MiB or 500kB")
    if isinstance(value, int):
        count = value
    else:
        found = _SIZE.fullmatch(value.strip())
        if found is None:
            raise ValueError(f"{value!r} is not a size; write one like 4MiB or 500kB")
        count = int(float(found[1]) * _BYTES[found[2] or "B"])
    if count < 0:
        raise ValueError(f"{value!r} is not a size from 0 on")
    return count


Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(format_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
