"""A decoded Kafka record, whichever library decoded it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.kafka.records.scan import HEADER_COST_BYTES


class Record(Protocol):
    """A decoded record: aiokafka's C object, a consumer's record, or a substitute."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class PlacedRecord(Record, Protocol):
    """A record that a consumer has read."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


def size_of(record: Record) -> int:
    """About the bytes that a record's key, value and headers take in memory, at least 1."""
    nbytes = len(record.key or b"") + len(record.value or b"") + 1
    for name, value in record.headers:
        nbytes += len(name) + len(value or b"") + HEADER_COST_BYTES
    return nbytes
