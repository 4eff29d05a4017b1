"""`PayloadCodec` decodes a workload's values into Protobuf messages and JSON, or says why they are invalid.

Framing
- `none`: the value is the message.
- `confluent`: a byte 0, the schema id (4 bytes, big-endian), the message indexes, the message. The indexes
  are zig-zag varints: their count, then each index. A single 0 stands for [0], the file's first message.

Rules
1. The methods take bytes only. Callers handle null values (tombstones) themselves.
2. Hostile bytes raise `InvalidPayload` in bounded time and memory (`app.payload.parser`, `.json_writer`). The
   error's text holds nothing of the value.
3. Unknown fields are allowed, as in all of Protobuf, because producers may be newer than the descriptor.
4. If a message is configured and the framing names one, both must agree.

Clients count indexes in two ways. Confluent's Java serializer counts the messages in the source; others also
count the entry types of map fields. Java's count holds, unless only the other one gives the configured
message.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from app.payload.descriptors import Schema
from app.payload.json_writer import JsonWriter
from app.payload.parser import InvalidPayload, Parser
from app.payload.schema_files import ANYWHERE, DescriptorError, SchemaFiles
from app.payload.schema_registry import SchemaRegistry, open_source
from app.payload.varints import CUT_OFF, varint, zigzag

MAGIC = 0
HEADER_BYTES = 5
FIRST_BYTES = 6  # the whole frame of a file's first message
MAX_INDEXES = 32  # no schema nests messages this deep
MAX_CACHED_TYPES = 10_000  # frames; a producer can write the same numbers in many ways


class Framing(StrEnum):
    """The bytes in front of the message, see the module."""

    NONE = "none"
    CONFLUENT = "confluent"


class _Type(NamedTuple):
    """A message type with the parser and the JSON writer of its pool."""

    kind: type[Message]
    parser: Parser
    writer: JsonWriter


class PayloadCodec:
    """Decodes and checks the values of one workload.

    Attributes:
        framing: The bytes in front of each message.
        name: The full name of the configured message; "" if only the framing names messages.
    """

    def __init__(
        self,
        message_class: type[Message] | None,
        framing: Framing = Framing.NONE,
        *,
        source: Schema | SchemaRegistry | None = None,
    ) -> None:
        """A codec of one configured message, or of all messages that frames name.

        Args:
            message_class: The configured message; None with framing confluent: any that a frame names.
            framing: The bytes in front of each message.
            source: The schemas for framing confluent. A registry finds a schema by its id. A single schema
                counts for every id, and the indexes count in the configured message's file. None: every
                value is a `message_class`, whatever its frame names.

        Raises:
            ValueError: Neither the class nor the framing names the message.
        """
        if message_class is None and (framing is Framing.NONE or source is None):
            raise ValueError("a codec needs a message, or framing confluent and a registry folder")
        self.framing = framing
        self._source = source
        self._tools: dict[int, tuple[Parser, JsonWriter]] = {}
        self._types: dict[bytes, _Type] = {}
        self._named = self._type(message_class) if message_class is not None else None
        self.name = str(message_class.DESCRIPTOR.full_name) if message_class is not None else ""

    def decode(self, value: bytes) -> Message:
        """The message, or InvalidPayload: the value is not valid."""
        found, body = self.unframed(value)
        return found.parser.parse(found.kind, body)

    def to_named_json(self, value: bytes) -> tuple[str, bytes]:
        """(the message's full name, the message as proto3 JSON on one line). Field names as in the `.proto`.

        Raises:
            InvalidPayload: The value is not a valid message, or JSON cannot express it.
        """
        found, body = self.unframed(value)
        message = found.parser.parse(found.kind, body)
        _require_fields(message)
        return str(found.kind.DESCRIPTOR.full_name), found.writer.write(message)

    def check(self, value: bytes) -> str | None:
        """Why the value is invalid; None if it is valid."""
        try:
            _require_fields(self.decode(value))
        except InvalidPayload as error:
            return str(error)
        return None

    def unframed(self, value: bytes) -> tuple[_Type, bytes]:
        if self.framing is Framing.NONE:
            assert self._named is not None
            return self._named, value
        schema_id, indexes, at = read_frame(value)
        frame = value[:at]
        known = self._types.get(frame)
        if known is None:
            known = self._find(schema_id, indexes)
            if len(self._types) < MAX_CACHED_TYPES:
                self._types[frame] = known
        return known, value[at:]

    def _find(self, schema_id: int, indexes: tuple[int, ...]) -> _Type:
        """The type that a frame names, or InvalidPayload: no such type, or another one is configured."""
        source = self._source
        if source is None:
            assert self._named is not None
            return self._named
        try:
            schema = source.schema(schema_id) if isinstance(source, SchemaRegistry) else source
        except DescriptorError as error:
            raise InvalidPayload(f"schema id {schema_id}: {error}") from None
        if schema is None:
            assert isinstance(source, SchemaRegistry)
            raise InvalidPayload(
                f"schema id {schema_id} is not in {source.source}, which has {source.known_ids()}; "
                f"add {schema_id}.binpb to it"
            )
        names = schema.by_index(indexes, "" if isinstance(source, SchemaRegistry) else self.name)
        if not names:
            raise InvalidPayload(f"schema {schema.source.name} has no message with indexes {list(indexes)}")
        if self.name and self.name not in names:
            raise InvalidPayload(
                f"the frame names {names[0]} (schema id {schema_id}), but {self.name} is configured"
            )
        try:
            return self._type(schema.message_class(self.name or names[0]))
        except DescriptorError as error:
            raise InvalidPayload(f"schema id {schema_id}: {error}") from None

    def _type(self, kind: type[Message]) -> _Type:
        pool = cast(Descriptor, kind.DESCRIPTOR).file.pool
        tools = self._tools.get(id(pool))
        if tools is None:
            parser = Parser()
            tools = self._tools[id(pool)] = (parser, JsonWriter(pool, parser))
        return _Type(kind, *tools)


def _require_fields(message: Message) -> None:
    if not message.IsInitialized():
        raise InvalidPayload(f"a {message.DESCRIPTOR.full_name} that lacks required fields")


def read_frame(value: bytes) -> tuple[int, tuple[int, ...], int]:
    """(schema id, message indexes, position of the message), or InvalidPayload: there is no such frame."""
    if len(value) <= HEADER_BYTES or value[0] != MAGIC:
        raise InvalidPayload(
            "not in Confluent's wire format, which begins with a 0, a schema id and indexes (framing none?)"
        )
    indexes, at = ((0,), FIRST_BYTES) if value[HEADER_BYTES] == 0 else _read_indexes(value)
    return int.from_bytes(value[1:HEADER_BYTES], "big"), indexes, at


def _read_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """(indexes, position of the message), or InvalidPayload: they are cut off, negative or too many."""
    count, at = _zigzag(value, HEADER_BYTES)
    if not 0 < count <= MAX_INDEXES:
        raise InvalidPayload(
            f"message indexes in Confluent's wire format: their count is not 1 to {MAX_INDEXES}"
        )
    indexes = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        if index < 0:
            raise InvalidPayload("message indexes in Confluent's wire format: one is negative")
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number, at = varint(value, at)
    if at == CUT_OFF:
        raise InvalidPayload("message indexes in Confluent's wire format: they are cut off")
    return zigzag(number), at


def open_codec(
    name: str | Path, message: str = "", framing: Framing = Framing.NONE, files: SchemaFiles = ANYWHERE
) -> PayloadCodec:
    """The codec for a workload's definition.

    Args:
        name: A descriptor set, a `.proto` source or a registry folder among `files`.
        message: The full name of the values' message; "": each frame names it.

    Raises:
        DescriptorError: The descriptor cannot be used, or lacks the message.
        ValueError: Neither `message` nor the framing names a message.
    """
    source = open_source(name, files)
    kind = source.message_class(message) if message else None
    return PayloadCodec(kind, framing, source=source)
