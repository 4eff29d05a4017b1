"""The event time in a field of an Avro record, which fastavro reads up to the field (`avro_prefix`).

The framing is `none`, or `confluent`: a byte 0, the id of the schema that wrote the value (4 bytes,
big-endian), the record.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

from fastavro import schemaless_reader
from fastavro.types import Schema

from app.payload.codec import HEADER_BYTES, MAGIC, Framing
from app.payload.event_time.instant import Absent, Instant, TimeFormat
from app.payload.event_time.source import ValueTime

_INSTANTS = {time_format.name: Instant(time_format) for time_format in TimeFormat}


PrefixOf = Callable[[int], Schema | None]  # by schema id; None: no such schema, or no such field in it


class AvroTime(ValueTime):
    """A field of an Avro record."""

    __slots__ = ("_framing", "_prefix_of")

    def __init__(self, prefix_of: PrefixOf, framing: Framing = Framing.NONE) -> None:
        """Reads values by `prefix_of(schema id)`. Without framing, the id is 0."""
        self._prefix_of = prefix_of
        self._framing = framing

    def read(self, value: bytes) -> int | Absent:
        file = BytesIO(value)
        schema_id = 0
        if self._framing is Framing.CONFLUENT:
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES or header[0] != MAGIC:
                return Absent.MALFORMED
            schema_id = int.from_bytes(header[1:], "big")
        prefix = self._prefix_of(schema_id)
        return Absent.UNKNOWN_SCHEMA if prefix is None else _read(prefix, file)


def _read(prefix: Schema, file: BytesIO) -> int | Absent:
    try:
        found: Any = schemaless_reader(file, prefix, None)
    except (EOFError, IndexError, OverflowError):  # cut off; no such branch; a length beyond any memory
        return Absent.MALFORMED
    name = ""
    while isinstance(found, dict):
        if not found:
            return Absent.NOT_A_TIME
        name, found = found.popitem()  # the last field: rule 4 of `avro_prefix`
    if found is None:
        return Absent[name]
    instant = _INSTANTS[name]
    if isinstance(found, int):
        return instant.of_int(found)
    return instant.of_float(found) if isinstance(found, float) else instant.of_bytes(found)
