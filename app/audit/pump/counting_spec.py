"""Makes an audit plan's counting specification: its event time and its ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from app.audit.counts.counter import ANY_DISORDER, CountingSpec, Decode, IdOf
from app.audit.definition import AuditPlan, Timestamp
from app.kafka.fetch.decoder import lowest_timestamp, records_of
from app.kafka.records.batch import RecordBatch
from app.kafka.records.checksum import crc32c
from app.kafka.records.record import Record
from app.payload.codec import Framing
from app.payload.event_time.avro_schemas import open_avro
from app.payload.event_time.instant import Absent, TimeFormat
from app.payload.event_time.json_field import JsonTime
from app.payload.event_time.protobuf_field import open_protobuf
from app.payload.event_time.source import NO_TIME, EventTime, HeaderTime
from app.payload.schema_files import SchemaFiles
from app.payload.schema_loader import SchemaLoader
from switchyard.audit.model.fingerprint import FingerprintSource

NO_VALUE = 0x6E756C6C


class RetimedRecord(NamedTuple):
    """A record with an event time in place of its timestamp."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def needs_schema(plan: AuditPlan) -> bool:
    """Whether files must be read before the event time is known."""
    return plan.spec.timestamp.source in {"avro", "protobuf"}


async def open_times(plan: AuditPlan, schemas: SchemaLoader) -> EventTime | None:
    """The event time of a plan; schemas are opened off the event loop. Raises as `event_time`."""
    if not needs_schema(plan):
        return event_time(plan.spec.timestamp)
    return await schemas.run(event_time, plan.spec.timestamp, schemas.files)


def event_time(timestamp: Timestamp, files: SchemaFiles | None = None) -> EventTime | None:
    """The event time that a plan defines; None: the records' own timestamps. `files`: of schemas; None if it
    needs none. Raises UnusableField, DescriptorError: The field, its schema or descriptor cannot be used
    here."""
    unit = None if timestamp.format is None else TimeFormat(timestamp.format)
    path, framing = tuple((timestamp.field or "").split(".")), Framing(timestamp.framing)
    match timestamp.source:
        case "header":
            assert timestamp.header is not None, "checked when it was deployed"
            return HeaderTime(timestamp.header, unit or TimeFormat.EPOCH_MS, is_binary=timestamp.binary)
        case "json":
            return JsonTime(path, unit or TimeFormat.EPOCH_MS)
        case "avro":
            assert files is not None, "schemas are opened by `open_times`"
            return open_avro(timestamp.schema_ or "", path, unit, framing, files)
        case "protobuf":
            assert files is not None, "descriptors are opened by `open_times`"
            return open_protobuf(
                timestamp.descriptor or "", timestamp.message or "", path, unit, framing, files
            )
        case _:
            return None


def time_of(plan: AuditPlan | None, times: EventTime | None = None) -> Callable[[Record], int]:
    """A function for a record's event time; without a plan, its timestamp. `times`: of `open_times`, if the
    plan has a schema. Raises as `event_time`."""
    times = times if times is not None or plan is None else event_time(plan.spec.timestamp)
    if plan is None or times is None:
        return lambda record: record.timestamp
    keeps_own = plan.spec.timestamp.otherwise == "record"

    def event_time_of(record: Record) -> int:
        found = times.of(record)
        if isinstance(found, Absent):
            return record.timestamp if keeps_own else NO_TIME
        return found

    return event_time_of


def how_of(plan: AuditPlan, source: FingerprintSource, times: EventTime | None = None) -> CountingSpec:
    """How records of a partition are counted. Arguments and errors as of `time_of`."""
    spec = plan.spec
    by_value = plan.by_value
    decode: Decode = partial(_timed, time_of(plan, times)) if by_value else records_of
    id_of = None if spec.id is None else _id_of(spec.id.header)
    content_of = _content_of if spec.id is not None and spec.id.fingerprint == "values" else None
    disorder_ms = ANY_DISORDER if spec.disorder == "any" else round(spec.disorder * 1000)
    return CountingSpec(
        decode, source, id_of, disorder_ms, by_value=by_value, content_of=content_of, lowest=lowest_timestamp
    )


def _timed(event_time_of: Callable[[Record], int], batch: RecordBatch) -> Iterable[Record]:
    for record in records_of(batch):
        yield RetimedRecord(
            record.offset, event_time_of(record), record.key, record.value, tuple(record.headers)
        )


def _content_of(record: Record) -> int:
    """The checksum of the value; a missing value differs from an empty one."""
    value = record.value
    return NO_VALUE if value is None else crc32c(value)


def _id_of(header: str) -> IdOf:
    def found(record: Record) -> bytes | None:
        return next((value for name, value in record.headers if name == header), None)

    return found
