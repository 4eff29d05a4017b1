"""Messages to proto3 JSON (protobuf.dev, "ProtoJSON Format"), field names as they stand in the `.proto`.

The same as `google.protobuf.json_format` (a property in the tests), a few times faster because what a type
needs is worked out once, and bounded: `MAX_DEPTH` levels, `MAX_NODES` values, `MAX_JSON_BYTES` of text,
`MAX_ANY_BYTES` unpacked from `google.protobuf.Any`, which begins anew what the parser bounds.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any, cast

import orjson
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from app.payload.parser import InvalidPayload, Parser

MAX_NODES = 250_000  # about a quarter of a second
MAX_DEPTH = 100  # what the parser takes at most, too
MAX_JSON_BYTES = 16 * 1024 * 1024
MAX_ANY_BYTES = 16 * 1024 * 1024
_PACKAGE = "google.protobuf."
_SPOKEN = {f"{_PACKAGE}{name}" for name in ("Timestamp", "Duration", "FieldMask")}  # they write themselves
_WRAPPERS = "google/protobuf/wrappers.proto"
_SPECIAL_FLOATS = {math.inf: "Infinity", -math.inf: "-Infinity"}


class WriteBudget:
    """What is left for one message."""

    __slots__ = ("any_bytes", "depth", "nodes")

    def __init__(self) -> None:
        self.nodes = MAX_NODES
        self.depth = 0
        self.any_bytes = MAX_ANY_BYTES

    def spend(self, nodes: int) -> None:
        """Counts values before they are made."""
        self.nodes -= nodes
        if self.nodes < 0:
            raise InvalidPayload(f"more than {MAX_NODES} values: too many to write as JSON")

    def enter(self) -> None:
        """One level deeper; the way back is `depth -= 1`."""
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

    def write(self, message: Message) -> bytes:
        """The message as JSON, on one line.

        Raises:
            InvalidPayload: it has none (a Timestamp out of range, an unknown type in an Any), or too much.
        """
        descriptor = cast(Descriptor, message.DESCRIPTOR)
        try:
            text = orjson.dumps(self._convert(descriptor)(message, WriteBudget()))
        except InvalidPayload:
            raise
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            # orjson's TypeError: a proto2 string that is not UTF-8. Its words may hold the value.
            raise InvalidPayload(
                f"a {descriptor.full_name} that cannot be written as JSON ({type(error).__name__})"
            ) from None
        if len(text) > MAX_JSON_BYTES:
            limit = MAX_JSON_BYTES // 1024 // 1024
            raise InvalidPayload(f"more than {limit} MiB as JSON")
        return text

    def _convert(self, descriptor: Descriptor) -> Convert:
        """How messages of a type are converted, worked out once."""
        name = descriptor.full_name
        found = self._converts.get(name)
        if found is None:
            if name in _SPOKEN:
                found = _spoken
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

        def convert(message: Any, run: WriteBudget) -> dict[str, Any]:
            run.enter()
            present = message.ListFields()
            run.spend(len(present) + 1)
            out: dict[str, Any] = {}
            for described, value in present:
                number = described.number
                field = fields.get(number)
                if field is None:  # now, not before: types may hold themselves
                    field = fields[number] = self._field(described)
                name, convert = field
                out[name] = value if convert is None else convert(value, run)
            run.depth -= 1
            return out

        return convert

    def _field(self, field: FieldDescriptor) -> Field:
        name = f"[{field.full_name}]" if field.is_extension else field.name
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            return name, self._map(kind)
        one = self._single(field)
        return name, _repeated(one) if field.is_repeated else one

    def _single(self, field: FieldDescriptor) -> Convert | None:
        return _scalar(field) if field.message_type is None else self._convert(field.message_type)

    def _map(self, entry: Descriptor) -> Convert:
        one = self._single(entry.fields_by_name["value"])
        truth = entry.fields_by_name["key"].type == FieldDescriptor.TYPE_BOOL

        def convert(value: Any, run: WriteBudget) -> dict[str, Any]:
            run.spend(len(value))
            return {
                (str(key).lower() if truth else str(key)): inner if one is None else one(inner, run)
                for key, inner in value.items()
            }

        return convert

    # -- well-known types ------------------------------------------------------------------------

    def _any(self, message: Any, run: WriteBudget) -> dict[str, Any]:
        if not message.ListFields():
            return {}
        run.enter()
        url, packed = message.type_url, message.value
        run.any_bytes -= len(packed)
        if run.any_bytes < 0:
            raise InvalidPayload("an Any in an Any in an Any: too much to unpack")
        try:
            descriptor = self._pool.FindMessageTypeByName(url.rpartition("/")[2])
        except (KeyError, ValueError):
            raise InvalidPayload(
                "an Any of a type that the descriptor set does not define; add its file to the set"
            ) from None
        inner = self._parser.parse(message_factory.GetMessageClass(descriptor), packed)
        convert = self._convert(descriptor)
        written = convert(inner, run)
        run.depth -= 1
        if descriptor.full_name in _OWN_FORM or descriptor.file.name == _WRAPPERS:
            return {"@type": url, "value": written}
        return {"@type": url, **written}

    def _struct(self, message: Any, run: WriteBudget) -> dict[str, Any]:
        run.enter()
        run.spend(len(message.fields) + 1)
        out = {key: self._value(value, run) for key, value in message.fields.items()}
        run.depth -= 1
        return out

    def _list_value(self, message: Any, run: WriteBudget) -> list[Any]:
        run.enter()
        run.spend(len(message.values) + 1)
        out = [self._value(value, run) for value in message.values]
        run.depth -= 1
        return out

    def _value(self, message: Any, run: WriteBudget) -> Any:
        kind = message.WhichOneof("kind")
        if kind is None or kind == "null_value":
            return None
        value = getattr(message, kind)
        if kind == "struct_value":
            return self._struct(value, run)
        if kind == "list_value":
            return self._list_value(value, run)
        if kind == "number_value" and not math.isfinite(value):
            raise InvalidPayload("a google.protobuf.Value of a number that JSON does not have")
        return value


_OWN_FORM = _SPOKEN | {f"{_PACKAGE}{name}" for name in ("Any", "Struct", "ListValue", "Value")}


def _spoken(message: Any, run: WriteBudget) -> Any:
    return message.ToJsonString()


def _wrapper(one: Convert | None) -> Convert:
    def convert(message: Any, run: WriteBudget) -> Any:
        return message.value if one is None else one(message.value, run)

    return convert


def _repeated(one: Convert | None) -> Convert:
    def convert(value: Any, run: WriteBudget) -> list[Any]:
        run.spend(len(value))
        return list(value) if one is None else [one(inner, run) for inner in value]

    return convert


# -- scalars -----------------------------------------------------------------------------------------


def _scalar(field: FieldDescriptor) -> Convert | None:
    """How a scalar is converted; None: as it is."""
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


def _text(value: int, run: WriteBudget) -> str:
    return str(value)


def _base64(value: bytes, run: WriteBudget) -> str:
    return base64.b64encode(value).decode()


def _double(value: float, run: WriteBudget) -> float | str:
    if math.isfinite(value):
        return value
    return _SPECIAL_FLOATS.get(value, "NaN")


def _float(value: float, run: WriteBudget) -> float | str:
    """The shortest number that is the same 32-bit float."""
    if not math.isfinite(value):
        return _SPECIAL_FLOATS.get(value, "NaN")
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:  # rounded up beyond the greatest
            continue
    return float(f"{value:.9g}")


def _enum(field: FieldDescriptor) -> Convert:
    kind = field.enum_type
    assert kind is not None
    if kind.full_name == f"{_PACKAGE}NullValue":
        return lambda value, run: None
    names = {number: value.name for number, value in kind.values_by_number.items()}
    return lambda value, run: names.get(value, value)
