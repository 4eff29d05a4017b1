"""Schemas for tests: from `.proto` sources by protoc, and built as descriptors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2

from app.payload.codec import PayloadCodec
from app.payload.descriptors import Schema, parse_set
from app.payload.proto_compiler import compile_source

ORDERS = """
syntax = "proto3";
package acme;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { UNKNOWN = 0; PAID = 1; SENT = 2; }
message Order {
  map<string, int64> weights = 14;
  message Line { string sku = 1; uint32 count = 2; Line inner = 3; repeated Line lines = 4; }
  string order_id = 1;
  int64 cents = 2;
  double ratio = 3;
  float share = 4;
  bytes blob = 5;
  bool gift = 6;
  State state = 7;
  repeated string tags = 8;
  repeated Line lines = 9;
  google.protobuf.Timestamp at = 10;
  google.protobuf.Duration took = 11;
  google.protobuf.Any extra = 12;
  google.protobuf.Struct free = 13;
  map<bool, Line> by_gift = 15;
  map<int32, State> by_number = 16;
  google.protobuf.StringValue note = 17;
  google.protobuf.Value any_value = 18;
  google.protobuf.ListValue list = 19;
  google.protobuf.FieldMask mask = 20;
  google.protobuf.Int64Value big = 21;
  repeated double ratios = 22;
  oneof choice { string left = 23; fixed64 right = 24; }
  optional sint32 maybe = 25;
  repeated State states = 26;
  google.protobuf.NullValue nothing = 27;
}
message Refund { string order_id = 1; }
"""

OLD = """
syntax = "proto2";
package old;
message Thing {
  required string name = 1;
  optional group Part = 2 { optional int32 size = 3; }
  optional string words = 4;
  extensions 100 to 200;
}
extend Thing { optional Thing more = 100; optional int64 number = 101; }
"""


def write_source(folder: Path, text: str, name: str = "orders.proto") -> Path:
    """The path of a new `.proto` file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def compile_set(folder: Path, text: str, name: str = "orders.proto") -> bytes:
    """The descriptor set of a source."""
    path = write_source(folder, text, name)
    return compile_source(path).descriptor_set


def schema_of(folder: Path, text: str) -> Schema:
    """The schema of a source."""
    return Schema(folder / "orders.proto", parse_set(folder, compile_set(folder, text)))


def codec_of(schema: Schema, message: str) -> PayloadCodec:
    """A codec without framing."""
    return PayloadCodec(schema.message_class(message))


def file_of(name: str, *messages: str, package: str = "acme", imports: tuple[str, ...] = ()) -> Any:
    """A message file whose messages have one string field each."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    file.dependency.extend(imports)
    for message in messages:
        file.message_type.add(name=message).field.add(name="word", number=1, label=1, type=9)
    return file


def set_of(*files: Any) -> bytes:
    """The bytes of a descriptor set."""
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def varint(number: int) -> bytes:
    """The varint as Protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def framed(schema_id: int, indexes: list[int], body: bytes) -> bytes:
    """A value in Confluent's wire format, with its indexes in full."""
    numbers = [len(indexes), *indexes]
    return b"\0" + schema_id.to_bytes(4, "big") + b"".join(varint(number << 1) for number in numbers) + body
