"""`EventTime`: what tells a record's event time; by its timestamp, by a header, by its value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

from app.kafka.records.record import Record
from app.payload.event_time.instant import MAX_MS, Absent, Instant, TimeFormat, UnusableField

NO_TIME = -1  # as Kafka's own timestamps say it
INT64_BYTES = 8


class EventTimes(NamedTuple):
    """Event times of many records.

    `times_ms`: one a record, in order, `NO_TIME` where it has none; `absent`: how often for which reason.
    """

    times_ms: list[int]
    absent: dict[Absent, int]


class EventTime(ABC):
    """Tells event times. Never raises, whatever a record holds."""

    __slots__ = ()

    @abstractmethod
    def of(self, record: Record) -> int | Absent:
        """The record's event time (ms since 1970, UTC), or why it has none."""

    def of_many(self, records: Iterable[Record]) -> EventTimes:
        """The same of many records."""
        return collected(map(self.of, records))


class RecordTime(EventTime):
    """The record's timestamp: of its producer, or of the broker where a topic says LogAppendTime."""

    __slots__ = ()

    def of(self, record: Record) -> int | Absent:
        time_ms = record.timestamp
        if 0 <= time_ms <= MAX_MS:
            return time_ms
        return Absent.NO_TIMESTAMP if time_ms == NO_TIME else Absent.OUT_OF_RANGE


class HeaderTime(EventTime):
    """A header's value: text in the format, or a number of 8 bytes, big-endian (Java's long).

    Where the header is there twice, the first counts: what a hop on the way appends changes nothing.
    """

    __slots__ = ("_instant", "_is_binary", "_name")

    def __init__(
        self, name: str, time_format: TimeFormat = TimeFormat.EPOCH_MS, *, is_binary: bool = False
    ) -> None:
        """`is_binary`: 8 bytes instead of text.

        Raises:
            UnusableField: a binary header of ISO 8601.
        """
        if is_binary and time_format is TimeFormat.ISO_8601:
            raise UnusableField(
                name, "8 binary bytes cannot hold iso-8601", "give the number's unit: epoch-ms"
            )
        self._name = name
        self._instant = Instant(time_format)
        self._is_binary = is_binary

    def of(self, record: Record) -> int | Absent:
        name = self._name
        for found, value in record.headers:
            if found == name:
                return self._read(value)
        return Absent.NO_HEADER

    def _read(self, value: bytes | None) -> int | Absent:
        if value is None:
            return Absent.NULL
        if not self._is_binary:
            return self._instant.of_bytes(value)
        if len(value) != INT64_BYTES:
            return Absent.MALFORMED
        return self._instant.of_int(int.from_bytes(value, "big", signed=True))


class ValueTime(EventTime):
    """A field of the record's value."""

    __slots__ = ()

    @abstractmethod
    def read(self, value: bytes) -> int | Absent:
        """The event time that a value holds, or why it holds none."""

    def of(self, record: Record) -> int | Absent:
        value = record.value
        return Absent.NO_VALUE if value is None else self.read(value)

    def of_values(self, values: Iterable[bytes | None]) -> EventTimes:
        """Of many values, None for a tombstone."""
        read = self.read
        return collected(Absent.NO_VALUE if value is None else read(value) for value in values)


def collected(found: Iterable[int | Absent]) -> EventTimes:
    """Times and reasons apart."""
    times_ms: list[int] = []
    absent: dict[Absent, int] = {}
    for one in found:
        if isinstance(one, Absent):
            absent[one] = absent.get(one, 0) + 1
            times_ms.append(NO_TIME)
        else:
            times_ms.append(one)
    return EventTimes(times_ms, absent)
