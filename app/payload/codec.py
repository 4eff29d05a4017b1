"""`PayloadCodec`: a workload's values to Protobuf messages, to JSON, or to the reason why they are neither.

Framing
- `none`: the value is the message.
- `confluent`: a byte 0, the schema id (4 bytes, big-endian), the message's indexes in the schema's file
  (zig-zag varints: how many, then each; a single 0 stands for [0], the first message), the message.

Rules
1. A null value (tombstone) is no message: `decode`, `to_json` and `check` take only bytes.
2. Hostile bytes end as `InvalidPayload`, in bounded time and memory (`app.payload.parser`, `.to_json`), and
   its words hold nothing of the value.
3. Unknown fields are allowed, as everywhere in Protobuf: producers may be newer than the descriptor.
4. Where both a message is named and the framing names one, they must agree.

Clients disagree on indexes: Confluent's Java serializer numbers what stands in the source, others count
the entry types of map fields, too. Java's numbers hold, unless only the others' give the named message.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from app.payload.descriptors import DescriptorError, Schema
from app.payload.json_writer import JsonWriter
from app.payload.parser import InvalidPayload, Parser
from app.payload.schema_files import ANYWHERE, SchemaFiles
from app.payload.schema_registry import SchemaRegistry, open_source
from app.payload.varints import CUT_OFF, varint, zigzag

MAGIC = 0
HEADER_BYTES = 5
FIRST_BYTES = 6  # of a frame for the first message
MAX_INDEXES = 32  # messages nested deeper are nobody's
MAX_CACHED_TYPES = 10_000  # by frame; numbers may be written in more than one way


class Framing(StrEnum):
    """What stands before the message; see the module."""

    NONE = "none"
    CONFLUENT = "confluent"


class _Type(NamedTuple):
    """A message type with what reads and writes it; one parser and writer a pool."""

    kind: type[Message]
    parser: Parser
    writer: JsonWriter


class PayloadCodec:
    """See the module.

    Attributes:
        framing: see the module.
        name: the message's full name; "" when the framing alone tells it.
    """

    def __init__(
        self,
        message_class: type[Message] | None,
        framing: Framing = Framing.NONE,
        *,
        source: Schema | SchemaRegistry | None = None,
    ) -> None:
        """A codec.

        Args:
            message_class: what values are; None with framing confluent: whatever they say they are.
            framing: see the module.
            source: where framing confluent looks indexes up: a registry by the schema id; a single schema
                stands for every id, and its file with the named message is meant. None: every value is a
                `message_class`, whatever its frame says.

        Raises:
            ValueError: neither class nor framing tells what the values are.
        """
        if message_class is None and (framing is Framing.NONE or source is None):
            raise ValueError("a codec needs a message; or framing confluent and a registry folder")
        self.framing = framing
        self._source = source
        self._tools: dict[int, tuple[Parser, JsonWriter]] = {}
        self._types: dict[bytes, _Type] = {}
        self._named = self._type(message_class) if message_class is not None else None
        self.name = str(message_class.DESCRIPTOR.full_name) if message_class is not None else ""

    def decode(self, value: bytes) -> Message:
        """The message.

        Raises:
            InvalidPayload: the value is none.
        """
        found, body = self.unframed(value)
        return found.parser.parse(found.kind, body)

    def to_named_json(self, value: bytes) -> tuple[str, bytes]:
        """(the message's full name, the message as proto3 JSON on one line). Field names as in the `.proto`.

        Raises:
            InvalidPayload: the value is none, or one that JSON cannot tell.
        """
        found, body = self.unframed(value)
        message = found.parser.parse(found.kind, body)
        _require(message)
        return str(found.kind.DESCRIPTOR.full_name), found.writer.write(message)

    def check(self, value: bytes) -> str | None:
        """Why the value is invalid; None when it is valid."""
        try:
            _require(self.decode(value))
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
        """The type that a frame names.

        Raises:
            InvalidPayload: none, or not the one that was configured.
        """
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
                f"schema id {schema_id} is not in {source.source} (there: {source.known_ids()}); "
                f"add {schema_id}.binpb to it"
            )
        told = schema.by_index(indexes, "" if isinstance(source, SchemaRegistry) else self.name)
        if not told:
            raise InvalidPayload(f"schema {schema.source.name} has no message with indexes {list(indexes)}")
        if self.name and self.name not in told:
            raise InvalidPayload(f"a {told[0]} (schema id {schema_id}), and {self.name} is expected")
        return self._type(schema.message_class(self.name or told[0]))

    def _type(self, kind: type[Message]) -> _Type:
        pool = cast(Descriptor, kind.DESCRIPTOR).file.pool
        tools = self._tools.get(id(pool))
        if tools is None:
            parser = Parser()
            tools = self._tools[id(pool)] = (parser, JsonWriter(pool, parser))
        return _Type(kind, *tools)


def _require(message: Message) -> None:
    """Refuses a proto2 message without its required fields."""
    if not message.IsInitialized():
        raise InvalidPayload(f"a {message.DESCRIPTOR.full_name} without all its required fields")


def read_frame(value: bytes) -> tuple[int, tuple[int, ...], int]:
    """(schema id, message indexes, where the message begins) of Confluent's wire format.

    Raises:
        InvalidPayload: the value does not begin with such a frame.
    """
    if len(value) <= HEADER_BYTES or value[0] != MAGIC:
        raise InvalidPayload(
            "not in Confluent's wire format: no byte 0, schema id and indexes in front (framing none?)"
        )
    indexes, at = ((0,), FIRST_BYTES) if value[HEADER_BYTES] == 0 else _read_indexes(value)
    return int.from_bytes(value[1:HEADER_BYTES], "big"), indexes, at


def _read_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """(indexes, where the message begins).

    Raises:
        InvalidPayload: they are cut off, negative or too many.
    """
    count, at = _zigzag(value, HEADER_BYTES)
    if not 0 < count <= MAX_INDEXES:
        raise InvalidPayload("message indexes of Confluent's wire format that cannot be: wrong count")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        if index < 0:
            raise InvalidPayload("message indexes of Confluent's wire format that cannot be: negative")
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number, at = varint(value, at)
    if at == CUT_OFF:
        raise InvalidPayload("message indexes of Confluent's wire format that are cut off")
    return zigzag(number), at


def open_codec(
    name: str | Path, message: str = "", framing: Framing = Framing.NONE, files: SchemaFiles = ANYWHERE
) -> PayloadCodec:
    """The codec of a workload's definition: descriptor set, `.proto` or registry folder of `files`, and the
    message.

    Raises:
        DescriptorError: the descriptor cannot be used, or lacks the message.
        ValueError: no message is named, and the framing names none either.
    """
    source = open_source(name, files)
    kind = source.message_class(message) if message else None
    return PayloadCodec(kind, framing, source=source)
