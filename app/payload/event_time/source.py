"""`EventTime`, the interface of all sources of event times, and event times in headers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from app.kafka.records.record import Record
from app.payload.event_time.instant import Absent, Instant, TimeFormat, UnusableField

NO_TIME = -1  # Kafka's timestamp for no time
INT64_BYTES = 8


class EventTime(ABC):
    """Reads event times. Never raises, whatever a record holds."""

    __slots__ = ()

    @abstractmethod
    def of(self, record: Record) -> int | Absent:
        """The record's event time (ms since 1970, UTC), or the reason why it has none."""


class HeaderTime(EventTime):
    """The event time in a header: text in the format, or 8 bytes, big-endian (Java's long).

    If a record has the header twice, the first counts, so that a proxy that appends one changes nothing.
    """

    __slots__ = ("_instant", "_is_binary", "_name")

    def __init__(
        self, name: str, time_format: TimeFormat = TimeFormat.EPOCH_MS, *, is_binary: bool = False
    ) -> None:
        """Raises UnusableField: the header is binary (8 bytes) and the format ISO 8601."""
        if is_binary and time_format is TimeFormat.ISO_8601:
            raise UnusableField(
                name, "8 binary bytes cannot hold iso-8601", "configure the unit of the number: epoch-ms"
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
    """The event time in a field of the record's value."""

    __slots__ = ()

    @abstractmethod
    def read(self, value: bytes) -> int | Absent:
        """The event time of a value, or the reason why it has none."""

    def of(self, record: Record) -> int | Absent:
        value = record.value
        return Absent.NO_VALUE if value is None else self.read(value)
