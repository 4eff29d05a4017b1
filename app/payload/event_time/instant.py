"""Converts numbers and text to milliseconds since 1970 (UTC), or gives the reason why they are no time.

Fractions of a millisecond are cut off. Times before 1970 or after the year 9999 are out of range: most of
them are numbers of another unit than the configured one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum

MAX_MS = 253_402_300_799_999  # the end of the year 9999
MAX_TEXT_CHARS = 64  # longer text is no time
_MAX_POWER = 110  # of ten. With 64 digits, a higher power is out of range in every unit; a lower one gives 0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)
_ISO = re.compile(
    r"(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?"
    r"|[0-9]{8}T[0-9]{4}(?:[0-9]{2}(?:[.,][0-9]+)?)?)"
    r"(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?",
    re.ASCII,
)


class Absent(StrEnum):
    """The reason why a record has no event time."""

    NO_HEADER = "no-header"
    NO_VALUE = "no-value"  # a tombstone
    NO_FIELD = "no-field"
    NULL = "null"  # the field or header exists and is null
    MALFORMED = "malformed"  # not in the defined form up to the field; for JSON, up to its end
    NOT_A_TIME = "not-a-time"
    OUT_OF_RANGE = "out-of-range"
    BEYOND_LIMIT = "beyond-limit"  # too many Protobuf fields before the field, or JSON nested too deep
    UNKNOWN_SCHEMA = "unknown-schema"  # the value names a schema that does not exist or lacks the field


class UnusableField(ValueError):
    """A field or header that cannot give an event time. `field` is its path in the definition."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class TimeFormat(StrEnum):
    """The form of a time: a number since 1970 (UTC), or ISO 8601 with date and time of day.

    ISO 8601 without an offset is UTC. A number may also be text, because JSON writers write 64 bits as text.
    """

    EPOCH_S = "epoch-s"
    EPOCH_MS = "epoch-ms"
    EPOCH_US = "epoch-us"
    EPOCH_NS = "epoch-ns"
    ISO_8601 = "iso-8601"


_SCALES = {
    TimeFormat.EPOCH_S: (1000, 1),
    TimeFormat.EPOCH_MS: (1, 1),
    TimeFormat.EPOCH_US: (1, 1000),
    TimeFormat.EPOCH_NS: (1, 1_000_000),
}


class Instant:
    """Reads times of one format."""

    __slots__ = ("_divide", "_multiply", "format")

    def __init__(self, time_format: TimeFormat) -> None:
        self.format = time_format
        self._multiply, self._divide = _SCALES.get(time_format, (0, 1))

    def of_int(self, number: int) -> int | Absent:
        """The time of a whole number of the format's units."""
        if self.format is not TimeFormat.EPOCH_MS:
            if not self._multiply:
                return Absent.NOT_A_TIME
            number = number * self._multiply // self._divide
        return number if 0 <= number <= MAX_MS else Absent.OUT_OF_RANGE

    def of_float(self, number: float) -> int | Absent:
        """The time of a float by its shortest decimals: 0.123 s is 123 ms, although the float is less."""
        return self.of_number(repr(number))  # "nan" and "inf" are no numbers

    def of_number(self, text: str) -> int | Absent:
        """The time of decimal digits, with or without a fraction and an exponent."""
        if len(text) > MAX_TEXT_CHARS or not (found := _NUMBER.fullmatch(text)):
            return Absent.NOT_A_TIME
        if not self._multiply:
            return Absent.NOT_A_TIME
        sign, whole, fraction, exponent = found.groups("")
        digits, power = int(whole + fraction), int(exponent or 0) - len(fraction)
        if not digits:
            return 0
        if sign or power > _MAX_POWER:
            return Absent.OUT_OF_RANGE
        if power < -_MAX_POWER:
            return 0
        if power < 0:
            return _within(digits * self._multiply // (self._divide * 10**-power))
        return _within(digits * self._multiply * 10**power // self._divide)

    def of_text(self, text: str) -> int | Absent:
        if self._multiply:
            return self.of_number(text)
        if len(text) > MAX_TEXT_CHARS or not _ISO.fullmatch(text := text.upper()):
            return Absent.NOT_A_TIME
        try:
            found = datetime.fromisoformat(text)
            since = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)) - _EPOCH
        except (ValueError, OverflowError):  # such as a month 13, or an offset of 99 hours
            return Absent.NOT_A_TIME
        return _within((since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000)

    def of_bytes(self, text: bytes) -> int | Absent:
        """The time of ASCII text in the format."""
        if len(text) > MAX_TEXT_CHARS or not text.isascii():
            return Absent.NOT_A_TIME
        return self.of_text(text.decode("ascii"))


def _within(time_ms: int) -> int | Absent:
    return time_ms if 0 <= time_ms <= MAX_MS else Absent.OUT_OF_RANGE
