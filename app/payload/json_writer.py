"""Writes messages as proto3 JSON (protobuf.dev, "ProtoJSON Format"), with field names as in the `.proto`.

The JSON equals that of `google.protobuf.json_format` (a property in `tests/payload/test_codec.py`). It takes
less time, because the conversion of each type is built once. The bounds are `MAX_DEPTH` levels, `MAX_NODES`
values, `MAX_JSON_BYTES` of text, and `MAX_ANY_BYTES` unpacked from `google.protobuf.Any`. The last is needed
because the parser bounds each Any alone.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any, cast

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from app.kernel.json_types import JsonObject
from app.payload.message_classes import TooManyMessages, message_class_of
from app.payload.parser import InvalidPayload, Parser

MAX_NODES = 250_000  # about a quarter of a second
MAX_DEPTH = 100  # the parser's own bound
MAX_JSON_BYTES = 16 * 1024 * 1024
MAX_ANY_BYTES = 16 * 1024 * 1024
_PACKAGE = "google.protobuf."
_SELF_WRITTEN = {f"{_PACKAGE}{name}" for name in ("Timestamp", "Duration", "FieldMask")}  # `ToJsonString`
_WRAPPERS = "google/protobuf/wrappers.proto"
_SPECIAL_FLOATS = {math.inf: "Infinity", -math.inf: "-Infinity"}


class WriteBudget:
    """The bounds that are left for one message."""

    __slots__ = ("any_bytes", "depth", "nodes")

    def __init__(self) -> None:
        self.nodes = MAX_NODES
        self.depth = 0
        self.any_bytes = MAX_ANY_BYTES

    def spend(self, nodes: int) -> None:
        """Counts values before they are made, or raises InvalidPayload: there are too many."""
        self.nodes -= nodes
        if self.nodes < 0:
            raise InvalidPayload(f"more than {MAX_NODES} values: too many to write as JSON")

    def enter(self) -> None:
        """Goes one level deeper, or raises InvalidPayload: it is too deep. `depth -= 1` goes back."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidPayload(f"nested deeper than {MAX_DEPTH} levels")


Convert = Callable[[Any, WriteBudget], Any]
Field = tuple[str, Convert | None]


class JsonWriter:
    """Writes messages of the types of one pool."""

    def __init__(self, pool: DescriptorPool, parser: Parser) -> None:
        self._pool = pool
        self._parser = parser
        self._converts: dict[str, Convert] = {}
        self._classes: dict[str, type[Message]] = {}  # of messages in an Any

    def write(self, message: Message) -> bytes:
        """The message as JSON, on one line.

        Raises:
            InvalidPayload: It is too large, or JSON cannot express it (an Any of an unknown type).
        """
        descriptor = cast(Descriptor, message.DESCRIPTOR)
        try:
            text = orjson.dumps(self._convert(descriptor)(message, WriteBudget()))
        except InvalidPayload:
            raise
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            # orjson raises TypeError for a proto2 string that is not UTF-8. Its text may hold the value.
            raise InvalidPayload(
                f"a {descriptor.full_name} that cannot be written as JSON ({type(error).__name__})"
            ) from None
        if len(text) > MAX_JSON_BYTES:
            limit = MAX_JSON_BYTES // 1024 // 1024
            raise InvalidPayload(f"more than {limit} MiB as JSON")
        return text

    def _convert(self, descriptor: Descriptor) -> Convert:
        """The conversion of a message type, built once."""
        name = descriptor.full_name
        found = self._converts.get(name)
        if found is None:
            if name in _SELF_WRITTEN:
                found = _self_written
            elif descriptor.file.name == _WRAPPERS:
                found = _wrapper(_scalar(descriptor.fields_by_name["value"]))
            else:
                found = {
                    f"{_PACKAGE}Any": self._any,
                    f"{_PACKAGE}Struct": self._struct,
                    f"{_PACKAGE}ListValue": self._list_value,
                    f"{_PACKAGE}Value": self._value,
                }.get(name) or self._regular()
            self._converts[name] = found
        return found

    def _regular(self) -> Convert:
        fields: dict[int, Field] = {}

        def convert(message: Any, budget: WriteBudget) -> JsonObject:
            budget.enter()
            present = message.ListFields()
            budget.spend(len(present) + 1)
            out: JsonObject = {}
            for descriptor, value in present:
                number = descriptor.number
                field = fields.get(number)
                if field is None:  # built at first use, because a type may contain itself
                    field = fields[number] = self._field(descriptor)
                name, convert = field
                out[name] = value if convert is None else convert(value, budget)
            budget.depth -= 1
            return out

        return convert

    def _field(self, field: FieldDescriptor) -> Field:
        name = f"[{field.full_name}]" if field.is_extension else field.name
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            return name, self._map(kind)
        convert_item = self._single(field)
        return name, _repeated(convert_item) if field.is_repeated else convert_item

    def _single(self, field: FieldDescriptor) -> Convert | None:
        return _scalar(field) if field.message_type is None else self._convert(field.message_type)

    def _map(self, entry: Descriptor) -> Convert:
        convert_item = self._single(entry.fields_by_name["value"])
        is_bool = entry.fields_by_name["key"].type == FieldDescriptor.TYPE_BOOL

        def convert(value: Any, budget: WriteBudget) -> JsonObject:
            budget.spend(len(value))
            return {
                (str(key).lower() if is_bool else str(key)): inner
                if convert_item is None
                else convert_item(inner, budget)
                for key, inner in value.items()
            }

        return convert

    # -- well-known types ------------------------------------------------------------------------

    def _any(self, message: Any, budget: WriteBudget) -> JsonObject:
        if not message.ListFields():
            return {}
        budget.enter()
        url, packed = message.type_url, message.value
        budget.any_bytes -= len(packed)
        if budget.any_bytes < 0:
            raise InvalidPayload(
                f"more than {MAX_ANY_BYTES // 1024 // 1024} MiB in nested Any messages: too much to unpack"
            )
        try:
            descriptor = self._pool.FindMessageTypeByName(url.rpartition("/")[2])
        except (KeyError, ValueError):
            raise InvalidPayload(
                "an Any of a type that the descriptor set does not define; add its file to the set"
            ) from None
        kind = self._classes.get(descriptor.full_name)
        if kind is None:
            try:
                kind = self._classes[descriptor.full_name] = message_class_of(descriptor)
            except TooManyMessages as error:
                raise InvalidPayload(f"an Any: {error}") from None
        inner = self._parser.parse(kind, packed)
        convert = self._convert(descriptor)
        written = convert(inner, budget)
        budget.depth -= 1
        if descriptor.full_name in _OWN_FORM or descriptor.file.name == _WRAPPERS:
            return {"@type": url, "value": written}
        return {"@type": url, **written}

    def _struct(self, message: Any, budget: WriteBudget) -> JsonObject:
        budget.enter()
        budget.spend(len(message.fields) + 1)
        out = {key: self._value(value, budget) for key, value in message.fields.items()}
        budget.depth -= 1
        return out

    def _list_value(self, message: Any, budget: WriteBudget) -> list[Any]:
        budget.enter()
        budget.spend(len(message.values) + 1)
        out = [self._value(value, budget) for value in message.values]
        budget.depth -= 1
        return out

    def _value(self, message: Any, budget: WriteBudget) -> Any:
        kind = message.WhichOneof("kind")
        if kind is None or kind == "null_value":
            return None
        value = getattr(message, kind)
        if kind == "struct_value":
            return self._struct(value, budget)
        if kind == "list_value":
            return self._list_value(value, budget)
        if kind == "number_value" and not math.isfinite(value):
            raise InvalidPayload("a google.protobuf.Value of NaN or Infinity, which JSON cannot express")
        return value


_OWN_FORM = _SELF_WRITTEN | {f"{_PACKAGE}{name}" for name in ("Any", "Struct", "ListValue", "Value")}


def _self_written(message: Any, budget: WriteBudget) -> Any:
    return message.ToJsonString()


def _wrapper(convert_item: Convert | None) -> Convert:
    def convert(message: Any, budget: WriteBudget) -> Any:
        return message.value if convert_item is None else convert_item(message.value, budget)

    return convert


def _repeated(convert_item: Convert | None) -> Convert:
    def convert(value: Any, budget: WriteBudget) -> list[Any]:
        budget.spend(len(value))
        return list(value) if convert_item is None else [convert_item(inner, budget) for inner in value]

    return convert


# -- scalars -----------------------------------------------------------------------------------------


def _scalar(field: FieldDescriptor) -> Convert | None:
    """The conversion of a scalar; None: JSON takes the value as it is."""
    kind = field.cpp_type
    if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
        return _text
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return _double
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        return _float
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return _enum(field)
    return _base64 if field.type == FieldDescriptor.TYPE_BYTES else None


def _text(value: int, budget: WriteBudget) -> str:
    return str(value)


def _base64(value: bytes, budget: WriteBudget) -> str:
    return base64.b64encode(value).decode()


def _double(value: float, budget: WriteBudget) -> float | str:
    if math.isfinite(value):
        return value
    return _SPECIAL_FLOATS.get(value, "NaN")


def _float(value: float, budget: WriteBudget) -> float | str:
    """The shortest number that is the same 32-bit float."""
    if not math.isfinite(value):
        return _SPECIAL_FLOATS.get(value, "NaN")
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:  # rounded up beyond the largest float
            continue
    return float(f"{value:.9g}")


def _enum(field: FieldDescriptor) -> Convert:
    kind = field.enum_type
    assert kind is not None
    if kind.full_name == f"{_PACKAGE}NullValue":
        return lambda value, budget: None
    names = {number: value.name for number, value in kind.values_by_number.items()}
    return lambda value, budget: names.get(value, value)
