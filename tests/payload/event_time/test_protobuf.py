"""The event time in a Protobuf field is that of Protobuf's own parser."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.payload.codec import Framing, PayloadCodec
from app.payload.descriptors import Schema
from app.payload.event_time.instant import MAX_MS, Absent, Instant, TimeFormat, UnusableField
from app.payload.event_time.protobuf_field import MAX_TAGS, ProtobufTime, open_protobuf
from tests.payload.random_messages import fill
from tests.payload.schemas import compile_set, framed, schema_of, varint

TIMES = """
syntax = "proto3";
package acme;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Meta {
  string id = 1;
  int64 ms = 2;
  google.protobuf.Timestamp at = 3;
  Meta inner = 4;
  repeated Meta others = 5;
}
message Event {
  bytes blob = 1;
  int64 i64 = 2;
  int32 i32 = 3;
  uint64 u64 = 4;
  uint32 u32 = 5;
  sint64 s64 = 6;
  sint32 s32 = 7;
  fixed64 f64 = 8;
  sfixed64 sf64 = 9;
  fixed32 f32 = 10;
  sfixed32 sf32 = 11;
  double real = 12;
  float small = 13;
  string text = 14;
  google.protobuf.Timestamp at = 15;
  Meta meta = 16;
  repeated int64 many = 17;
  map<string, int64> by_name = 18;
  bool flag = 19;
  google.protobuf.Int64Value wrapped = 20;
  oneof one { int64 left = 21; Meta right = 22; }
  optional int64 maybe = 23;
  repeated string tags = 24;
  int64 far = 100000;
}
"""
PATHS = [
    "i64", "i32", "u64", "u32", "s64", "s32", "f64", "sf64", "f32", "sf32", "real", "text", "at", "meta.ms",
    "meta.at", "meta.inner.ms", "meta.inner.inner.at", "wrapped.value", "left", "right.ms", "right.at",
    "maybe", "far",
]  # fmt: skip
NOW_MS = 1_795_335_887_123


@pytest.fixture(scope="session")
def times(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    """The schema `TIMES`."""
    return schema_of(tmp_path_factory.mktemp("times"), TIMES)


def _source(schema: Schema, path: str, time_format: TimeFormat | None = None) -> ProtobufTime:
    return ProtobufTime(schema.message_class("acme.Event"), tuple(path.split(".")), time_format)


def _parsed(message: Any, path: str, time_format: TimeFormat | None) -> int | Absent:
    """The time that the parsed message gives."""
    *outer, last = path.split(".")
    for name in outer:
        if not message.HasField(name):
            return Absent.NO_FIELD
        message = getattr(message, name)
    if not any(field.name == last for field, _ in message.ListFields()):
        return Absent.NO_FIELD
    found = getattr(message, last)
    instant = Instant(time_format or TimeFormat.EPOCH_MS)
    if isinstance(found, str):
        return instant.of_text(found)
    if isinstance(found, int | float):
        return instant.of_int(found) if isinstance(found, int) else instant.of_float(found)
    if not 0 <= found.nanos < 10**9:
        return Absent.NOT_A_TIME
    return Instant(TimeFormat.EPOCH_MS).of_int(found.seconds * 1000 + found.nanos // 10**6)


@given(st.data(), st.sampled_from(PATHS), st.booleans())
def test_the_time_of_any_message_is_that_of_the_parser(
    times: Schema, data: st.DataObject, path: str, in_order: bool
) -> None:
    message: Any = times.message_class("acme.Event")()
    fill(data.draw, message, 3)
    if data.draw(st.booleans()):  # else it is rarely there
        *outer, last = path.split(".")
        leaf = message
        for name in outer:
            leaf = getattr(leaf, name)
        if last == "at":
            leaf.at.seconds = data.draw(st.integers(0, MAX_MS // 1000))
            leaf.at.nanos = data.draw(st.integers(0, 10**9 - 1))
        elif last == "text":
            leaf.text = data.draw(st.integers(0, MAX_MS).map(str) | st.datetimes().map(datetime.isoformat))
        else:
            setattr(leaf, last, data.draw(st.integers(0, 2**31 - 1)))
    value = cast(bytes, message.SerializeToString())
    if not in_order:
        value = _shuffled(data.draw, message)
        assert type(message).FromString(value) == message
    is_text, is_stamp = path == "text", path.endswith("at")
    formats = [None] if is_stamp else list(TimeFormat)[: None if is_text else -1]
    time_format = data.draw(st.sampled_from(formats))
    source = _source(times, path, time_format)
    expected = _parsed(message, path, time_format)
    assert source.read(value) == expected
    if not isinstance(expected, Absent):
        for end in range(len(value)):  # cut off behind the field, or before it
            assert source.read(value[:end]) in (expected, Absent.MALFORMED, Absent.NO_FIELD)


def _shuffled(draw: Any, message: Any) -> bytes:
    """The message's fields in random order, as a relay that knows only some of them may write them."""
    pieces = []
    for field, found in message.ListFields():
        piece: Any = type(message)()
        if field.message_type is not None and not field.is_repeated:
            getattr(piece, field.name).CopyFrom(found)
        elif field.is_repeated:
            getattr(piece, field.name).MergeFrom(found)
        else:
            setattr(piece, field.name, found)
        pieces.append(piece.SerializeToString())
    return b"".join(draw(st.permutations(pieces)))


@given(st.binary(max_size=60), st.sampled_from(PATHS))
def test_any_bytes_give_a_time_or_a_reason(times: Schema, value: bytes, path: str) -> None:
    found = _source(times, path).read(value)
    assert isinstance(found, Absent) or 0 <= found <= MAX_MS


@given(st.data(), st.sampled_from(PATHS))
def test_a_damaged_message_gives_a_time_or_a_reason(times: Schema, data: st.DataObject, path: str) -> None:
    message: Any = times.message_class("acme.Event")()
    fill(data.draw, message, 2)
    value = bytearray(message.SerializeToString() + b"\x10\x01")
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    found = _source(times, path).read(bytes(value))
    assert isinstance(found, Absent) or 0 <= found <= MAX_MS


def test_large_and_unknown_fields_before_the_field_are_skipped(times: Schema) -> None:
    unknown = varint(999 << 3 | 2) + varint(10**7) + b"x" * 10**7
    group = varint(998 << 3 | 3) + b"\x10\x05" + varint(998 << 3 | 4)  # holds a field of the same number
    value = unknown + group + b"\x10" + varint(NOW_MS)
    assert _source(times, "i64").read(value) == NOW_MS


def test_too_many_fields_before_the_field_are_beyond_the_limit(times: Schema) -> None:
    tag = varint(24 << 3 | 2) + b"\x00"
    value = tag * MAX_TAGS + b"\x10" + varint(NOW_MS)
    assert _source(times, "i64").read(value) == NOW_MS
    assert _source(times, "i64").read(tag + value) is Absent.BEYOND_LIMIT
    assert _source(times, "i64").read(varint(998 << 3 | 3) * 101) is Absent.MALFORMED  # groups without end


def test_the_first_of_equal_fields_counts_and_another_wire_type_does_not(times: Schema) -> None:
    assert _source(times, "i64").read(b"\x10\x01\x10\x02") == 1
    assert _source(times, "i64").read(b"\x12\x01\x05\x10\x02") == 2
    first, second = b"\x82\x01\x02\x10\x01", b"\x82\x01\x02\x10\x02"
    assert _source(times, "meta.ms").read(first + second) == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", 0),
        (b"\x08\x05", 5000),
        (b"\x10\xc0\x84\x3d", 1),
        (b"\x10\xc0\x84\x3d\x08\x05", 5001),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Absent.OUT_OF_RANGE),
        (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Absent.NOT_A_TIME),
        (b"\x10\x80\x94\xeb\xdc\x03", Absent.NOT_A_TIME),  # 1_000_000_000
        (b"\x08", Absent.MALFORMED),
        (b"\x08\x80", Absent.MALFORMED),
        (b"\x00\x00", Absent.MALFORMED),
    ],
)
def test_a_timestamp_is_read_by_its_seconds_and_nanos(
    times: Schema, body: bytes, expected: int | Absent
) -> None:
    assert _source(times, "at").read(b"\x7a" + varint(len(body)) + body) == expected


@pytest.mark.parametrize(
    ("path", "time_format", "words"),
    [
        ("when", None, "acme.Event has no field 'when'; it has: blob, i64"),
        ("meta.when", None, "acme.Meta has no field 'when'; it has: id, ms"),
        ("i64.ms", None, "'i64' is not a message"),
        ("many", None, "'many' is repeated"),
        ("by_name", None, "'by_name' is repeated"),
        ("meta.others.ms", None, "'others' is repeated"),
        ("meta", None, "is a acme.Meta, which cannot be a time"),
        ("small", None, "is a float, which is exact to minutes at best"),
        ("flag", None, "is of a type that cannot be a time"),
        ("blob", None, "is of a type that cannot be a time"),
        ("i64", TimeFormat.ISO_8601, "iso-8601 is configured, but the field is a number"),
        ("at", TimeFormat.EPOCH_MS, "epoch-ms is configured, but the field is a Timestamp"),
    ],
)
def test_a_field_that_cannot_be_a_time_is_refused(
    times: Schema, path: str, time_format: TimeFormat | None, words: str
) -> None:
    with pytest.raises(UnusableField) as caught:
        _source(times, path, time_format)
    assert words in str(caught.value)
    assert caught.value.field == path
    assert caught.value.remedy


def test_a_proto2_group_is_refused_as_a_field_and_skipped_before_one(old: Schema) -> None:
    kind = old.message_class("old.Thing")
    with pytest.raises(UnusableField, match="'part' is a group"):
        ProtobufTime(kind, ("part", "size"))
    with pytest.raises(UnusableField, match="the path is empty"):
        ProtobufTime(kind, ())
    message: Any = kind()
    message.part.size = 5
    message.words = "17"
    assert ProtobufTime(kind, ("words",)).read(message.SerializePartialToString()) == 17


def test_a_framed_message_is_read_by_the_schema_that_it_names(tmp_path: Path) -> None:
    older, newer = (
        f'syntax = "proto3"; package acme; message Other {{}} message Event {{ bool b = 1; int64 ts = {n}; }}'
        for n in (2, 3)
    )
    other = 'syntax = "proto3"; package acme; message Other {} message Event { string ts = 1; bool b = 2; }'
    lacks = 'syntax = "proto3"; package acme; message Other {} message Event { string id = 1; }'
    registry = tmp_path / "registry"
    registry.mkdir()
    for schema_id, text in ((7, older), (8, newer), (5, other), (6, lacks)):
        (registry / f"{schema_id}.binpb").write_bytes(compile_set(tmp_path / str(schema_id), text))
    source = open_protobuf(registry, "acme.Event", ("ts",), None, Framing.CONFLUENT)
    assert source.read(framed(7, [1], b"\x10" + varint(NOW_MS))) == NOW_MS
    assert source.read(framed(8, [1], b"\x18" + varint(NOW_MS))) == NOW_MS
    assert source.read(framed(8, [1], b"\x10" + varint(NOW_MS))) is Absent.NO_FIELD
    assert source.read(framed(5, [1], b"\x0a\x011")) == 1
    for unknown in (framed(6, [1], b""), framed(9, [1], b""), framed(7, [0], b""), b"\x10\x01", b""):
        assert source.read(unknown) is Absent.UNKNOWN_SCHEMA


def test_without_framing_the_value_is_the_message(tmp_path: Path) -> None:
    (tmp_path / "x.binpb").write_bytes(compile_set(tmp_path, TIMES))
    source = open_protobuf(tmp_path / "x.binpb", "acme.Event", ("i64",), TimeFormat.EPOCH_S, Framing.NONE)
    assert source.read(b"\x10\x05") == 5000
    framed_source = open_protobuf(
        tmp_path / "x.binpb", "acme.Event", ("i64",), TimeFormat.EPOCH_S, Framing.CONFLUENT
    )
    assert framed_source.read(framed(1, [1], b"\x10\x05")) == 5000


@given(st.binary(max_size=30))
def test_any_framed_bytes_give_a_time_or_a_reason(times: Schema, value: bytes) -> None:
    kind = times.message_class("acme.Event")
    source = ProtobufTime(kind, ("i64",), None, PayloadCodec(kind, Framing.CONFLUENT, source=times))
    found = source.read(b"\0" + value)
    assert isinstance(found, Absent) or 0 <= found <= MAX_MS
