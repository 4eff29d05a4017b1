"""The event time in a field of a Protobuf message, found by the tags before it.

Rules
1. Other fields are skipped by their lengths, at most `MAX_TAGS` of them; then the result is `BEYOND_LIMIT`.
   Serializers write fields in the order of their numbers, so a field with a low number is found at once.
2. The first of several equal fields counts, and the first of several messages on the path. A parser would
   take the last field and merge the messages, but no serializer writes them.
3. A field that is not written is `NO_FIELD`, even where a parser would return the default 0.

Source of the wire format: protobuf.dev, "Encoding". `tests/payload/event_time/test_protobuf.py` compares with
Protobuf's parser.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from app.payload.codec import Framing, PayloadCodec
from app.payload.event_time.instant import MAX_TEXT_CHARS, Absent, Instant, TimeFormat, UnusableField
from app.payload.event_time.source import ValueTime
from app.payload.parser import BYTES, END_GROUP, FIXED32, FIXED64, GROUP, MAX_DEPTH, VARINT, InvalidPayload
from app.payload.schema_files import ANYWHERE, SchemaFiles
from app.payload.schema_registry import open_source
from app.payload.varints import CUT_OFF, signed, varint, zigzag

MAX_TAGS = 256  # which take about a tenth of a millisecond
MAX_NANOS = 999_999_999
_TIMESTAMP = "google.protobuf.Timestamp"
_SECONDS, _NANOS = 1, 2
_NO_FIELD, _MALFORMED, _BEYOND = -1, -2, -3  # in place of a position
_ABSENT = {_NO_FIELD: Absent.NO_FIELD, _MALFORMED: Absent.MALFORMED, _BEYOND: Absent.BEYOND_LIMIT}
_TIMES = "name an integer, a double, a string or a google.protobuf.Timestamp"

Decode = Callable[[int], int]
_VARINTS: dict[int, Decode] = {
    FieldDescriptor.TYPE_INT64: signed,
    FieldDescriptor.TYPE_INT32: signed,
    FieldDescriptor.TYPE_UINT64: int,
    FieldDescriptor.TYPE_UINT32: int,
    FieldDescriptor.TYPE_SINT64: zigzag,
    FieldDescriptor.TYPE_SINT32: zigzag,
}
_FIXED = {
    FieldDescriptor.TYPE_FIXED64: struct.Struct("<Q"),
    FieldDescriptor.TYPE_SFIXED64: struct.Struct("<q"),
    FieldDescriptor.TYPE_FIXED32: struct.Struct("<I"),
    FieldDescriptor.TYPE_SFIXED32: struct.Struct("<i"),
    FieldDescriptor.TYPE_DOUBLE: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class ProtobufFieldPlan:
    """The tags of the messages on the path, then the field's, and how the field is written.

    `decode` reads a varint, `fixed` a number of fixed size; with neither, the field is text. Without an
    `instant`, it is a Timestamp.
    """

    tags: tuple[int, ...]
    instant: Instant | None
    decode: Decode | None = None
    fixed: struct.Struct | None = None


def plan_for(
    descriptor: Descriptor, path: tuple[str, ...], time_format: TimeFormat | None
) -> ProtobufFieldPlan:
    """The plan for the field at `path`, with names as in the `.proto`.

    `time_format` None is `EPOCH_MS`; a Timestamp must not have one.

    Raises:
        UnusableField: There is no such field, or it cannot be a time.
    """
    field_path = ".".join(path)
    tags: list[int] = []
    field: FieldDescriptor | None = None
    for name in path:
        if field is not None:
            if field.message_type is None:
                raise UnusableField(field_path, f"{field.name!r} is not a message", "correct the path")
            descriptor = field.message_type
            tags.append(field.number << 3 | BYTES)
        field = descriptor.fields_by_name.get(name)
        if field is None:
            known = ", ".join(list(descriptor.fields_by_name)[:10]) or "none"
            raise UnusableField(
                field_path, f"{descriptor.full_name} has no field {name!r}", f"it has: {known}"
            )
        if field.is_repeated:
            raise UnusableField(field_path, f"{name!r} is repeated", "name a field that is not repeated")
        if field.type == FieldDescriptor.TYPE_GROUP:
            raise UnusableField(field_path, f"{name!r} is a group", "name a field outside the group")
    if field is None:
        raise UnusableField(field_path, "the path is empty", "name a field: meta.created_at")
    return _leaf_plan(field_path, field, tags, time_format)


def _leaf_plan(
    field_path: str, field: FieldDescriptor, tags: list[int], time_format: TimeFormat | None
) -> ProtobufFieldPlan:
    number, kind = field.number << 3, field.type
    if field.message_type is not None:
        if field.message_type.full_name != _TIMESTAMP:
            raise UnusableField(
                field_path, f"is a {field.message_type.full_name}, which cannot be a time", _TIMES
            )
        if time_format is not None:
            raise UnusableField(
                field_path, f"{time_format} is configured, but the field is a Timestamp", "remove the format"
            )
        return ProtobufFieldPlan((*tags, number | BYTES), None)
    instant = Instant(time_format or TimeFormat.EPOCH_MS)
    if kind == FieldDescriptor.TYPE_STRING:
        return ProtobufFieldPlan((*tags, number | BYTES), instant)
    if kind not in _VARINTS and kind not in _FIXED:
        float32 = kind == FieldDescriptor.TYPE_FLOAT
        why = "a float, which is exact to minutes at best" if float32 else "of a type that cannot be a time"
        raise UnusableField(field_path, f"is {why}", _TIMES)
    if instant.format is TimeFormat.ISO_8601:
        raise UnusableField(
            field_path, "iso-8601 is configured, but the field is a number", "use epoch-ms or epoch-s"
        )
    if kind in _VARINTS:
        return ProtobufFieldPlan((*tags, number | VARINT), instant, decode=_VARINTS[kind])
    fixed = _FIXED[kind]
    return ProtobufFieldPlan(
        (*tags, number | (FIXED64 if fixed.size == 8 else FIXED32)), instant, fixed=fixed
    )


class ProtobufTime(ValueTime):
    """A field of a Protobuf message. Framing as in `app.payload.codec`."""

    __slots__ = ("_codec", "_format", "_path", "_plan", "_plans")

    def __init__(
        self,
        kind: type[Message],
        path: tuple[str, ...],
        time_format: TimeFormat | None = None,
        codec: PayloadCodec | None = None,
    ) -> None:
        """Reads a field of messages of `kind`. `codec` None: values have no frame.

        Raises:
            UnusableField: `kind` has no such field, or it cannot be a time.
        """
        self._path = path
        self._format = time_format
        self._codec = codec
        self._plan = plan_for(cast(Descriptor, kind.DESCRIPTOR), path, time_format)
        # By class, because versions of a message may number its fields differently; None: no such field.
        self._plans: dict[type[Message], ProtobufFieldPlan | None] = {kind: self._plan}

    def read(self, value: bytes) -> int | Absent:
        if self._codec is None:
            return _read(self._plan, value)
        try:
            found, body = self._codec.unframed(value)
        except InvalidPayload:
            return Absent.UNKNOWN_SCHEMA
        try:
            plan = self._plans[found.kind]
        except KeyError:
            plan = self._plans[found.kind] = self._plan_for(found.kind)
        return Absent.UNKNOWN_SCHEMA if plan is None else _read(plan, body)

    def _plan_for(self, kind: type[Message]) -> ProtobufFieldPlan | None:
        try:
            return plan_for(cast(Descriptor, kind.DESCRIPTOR), self._path, self._format)
        except UnusableField:
            return None


def open_protobuf(
    source: str | Path,
    message: str,
    path: tuple[str, ...],
    time_format: TimeFormat | None,
    framing: Framing,
    files: SchemaFiles = ANYWHERE,
) -> ProtobufTime:
    """Event times by a descriptor set, a `.proto` or a registry folder among `files`.

    Raises:
        DescriptorError: The descriptor cannot be used, or lacks the message.
        UnusableField: The message has no such field, or it cannot be a time.
    """
    opened = open_source(source, files)
    kind = opened.message_class(message)
    codec = None if framing is Framing.NONE else PayloadCodec(kind, framing, source=opened)
    return ProtobufTime(kind, path, time_format, codec)


def _read(plan: ProtobufFieldPlan, value: bytes) -> int | Absent:
    at, end, tags_left = 0, len(value), MAX_TAGS
    for tag in plan.tags:
        at, tags_left = _find(tag, value, at, end, tags_left)
        if at < 0:
            return _ABSENT[at]
        if tag & 7 == BYTES:
            length, at = varint(value, at)
            if at == CUT_OFF or at + length > end:
                return Absent.MALFORMED
            end = at + length
    if plan.instant is None:
        return _timestamp(value, at, end, tags_left)
    if plan.decode is not None:
        number, at = varint(value, at)
        return Absent.MALFORMED if not 0 <= at <= end else plan.instant.of_int(plan.decode(number))
    if plan.fixed is not None:
        if at + plan.fixed.size > end:
            return Absent.MALFORMED
        found = plan.fixed.unpack_from(value, at)[0]
        return plan.instant.of_float(found) if isinstance(found, float) else plan.instant.of_int(found)
    return plan.instant.of_bytes(value[at:end]) if end - at <= MAX_TEXT_CHARS else Absent.NOT_A_TIME


def _find(wanted: int, value: bytes, at: int, end: int, tags_left: int) -> tuple[int, int]:
    """(position behind the first tag that is `wanted`, tags that may still be skipped). The position may
    be `_NO_FIELD`, `_MALFORMED` or `_BEYOND`.
    """
    groups: list[int] = []  # numbers of the open groups
    while at < end:
        tag = value[at]
        at += 1
        if tag >= 0x80:
            tag, at = varint(value, at - 1)
        if tag == wanted and not groups:
            return (at, tags_left) if 0 <= at <= end else (_MALFORMED, tags_left)
        tags_left -= 1
        if tags_left < 0:
            return _BEYOND, tags_left
        wire = tag & 7
        if not 0 < tag >> 3 < 1 << 29 or at < 0:
            return _MALFORMED, tags_left
        if wire == BYTES:
            length, at = varint(value, at)
            at = at + length if at != CUT_OFF else CUT_OFF
        elif wire == VARINT:
            _, at = varint(value, at)
        elif wire == FIXED64:
            at += 8
        elif wire == FIXED32:
            at += 4
        elif wire == GROUP and len(groups) < MAX_DEPTH:
            groups.append(tag >> 3)
        elif wire != END_GROUP or not groups or groups.pop() != tag >> 3:
            return _MALFORMED, tags_left
        if at < 0:
            return _MALFORMED, tags_left
    return (_NO_FIELD if at == end and not groups else _MALFORMED), tags_left


def _timestamp(value: bytes, at: int, end: int, tags_left: int) -> int | Absent:
    """The time of a google.protobuf.Timestamp's body, which may lack fields that are 0."""
    numbers = []
    for number in (_SECONDS, _NANOS):
        found, tags_left = _find(number << 3 | VARINT, value, at, end, tags_left)
        count = 0
        if found >= 0:
            count, found = varint(value, found)
            if not 0 <= found <= end:
                return Absent.MALFORMED
        elif found != _NO_FIELD:
            return _ABSENT[found]
        numbers.append(signed(count))
    seconds, nanos = numbers
    if not 0 <= nanos <= MAX_NANOS:
        return Absent.NOT_A_TIME
    return _SECONDS_TO_MS.of_int(seconds * 1000 + nanos // 1_000_000)


_SECONDS_TO_MS = Instant(TimeFormat.EPOCH_MS)
