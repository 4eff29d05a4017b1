"""Messages and their JSON equal those of Google's library, and hostile bytes are refused."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.internal import type_checkers
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.payload import json_writer
from app.payload import parser as payload_parser
from app.payload.codec import PayloadCodec
from app.payload.descriptors import Schema
from app.payload.parser import InvalidPayload
from tests.payload.random_messages import fill
from tests.payload.schemas import codec_of, varint

# The fixtures are compiled schemas, which no example changes.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def _message(schema: Schema, kind: str = "acme.Order", **fields: Any) -> Any:
    return schema.message_class(kind)(**fields)


def _as_float32(value: Any) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _json_of_google(schema: Schema, message: Message) -> Any:
    return json.loads(
        json_format.MessageToJson(message, preserving_proto_field_name=True, descriptor_pool=schema.pool)
    )


def _assert_decoded_or_refused(codec: PayloadCodec, value: bytes) -> None:
    """Asserts that `check` agrees with decoding and that only `InvalidPayload` is raised."""
    problem = codec.check(value)
    assert problem is None or problem
    try:
        codec.decode(value)
        json.loads(codec.to_named_json(value)[1])
    except InvalidPayload as error:
        assert str(error)  # noqa: PT017 - it may raise or not
    else:
        assert problem is None


def test_json_has_the_field_names_of_the_proto(orders: Schema) -> None:
    message = _message(orders, order_id="o-1", cents=2**60, state=1, share=0.1, blob=b"\xff", tags=["a"])
    codec = codec_of(orders, "acme.Order")
    assert codec.name == "acme.Order"
    assert codec.decode(message.SerializeToString()) == message
    assert codec.to_named_json(message.SerializeToString()) == (
        "acme.Order",
        b'{"order_id":"o-1","cents":"1152921504606846976","share":0.1,"blob":"/w==","state":"PAID",'
        b'"tags":["a"]}',
    )
    assert codec.to_named_json(b"")[1] == b"{}"


@shared
@given(st.data())
def test_json_is_the_same_as_googles(orders: Schema, data: st.DataObject) -> None:
    message = _message(orders)
    fill(data.draw, message, 3)
    ours = json.loads(codec_of(orders, "acme.Order").to_named_json(message.SerializeToString())[1])
    assert ours == _json_of_google(orders, message)


@shared
@given(st.data())
def test_json_of_proto2_with_groups_and_extensions_is_the_same_as_googles(
    old: Schema, data: st.DataObject
) -> None:
    message = _message(old, "old.Thing", name="x")
    fill(data.draw, message, 2)
    message.name = "x"
    extensions = old.pool.FindFileByName("orders.proto").extensions_by_name
    message.Extensions[extensions["number"]] = data.draw(st.integers(0, 9))
    message.Extensions[extensions["more"]].name = "y"
    codec = codec_of(old, "old.Thing")
    value = message.SerializeToString()
    assert codec.check(value) is None
    assert json.loads(codec.to_named_json(value)[1]) == _json_of_google(old, message)


@given(st.floats(width=32) | st.decimals(-100, 100, places=4).map(_as_float32))
def test_a_float_is_written_as_googles_writes_it(value: float) -> None:
    written = json_writer._float(value, json_writer.WriteBudget())
    if math.isfinite(value):
        assert written == type_checkers.ToShortestFloat(value)
    else:
        assert written == {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]


def test_an_any_is_unpacked_by_its_own_set_and_refused_when_the_set_lacks_it(orders: Schema) -> None:
    codec = codec_of(orders, "acme.Order")
    message = _message(orders)
    for inner in (
        _message(orders, "acme.Refund", order_id="r"),
        _message(orders, "google.protobuf.Duration", seconds=3),
        _message(orders, "google.protobuf.Int64Value", value=3),
        _message(orders, "google.protobuf.Struct"),
    ):
        message.extra.Pack(inner)
        written = codec.to_named_json(message.SerializeToString())[1]
        assert json.loads(written) == _json_of_google(orders, message)
    message.extra.type_url = "type.googleapis.com/secret.Thing"
    value = message.SerializeToString()
    assert codec.check(value) is None
    with pytest.raises(InvalidPayload, match="add its file to the set") as caught:
        codec.to_named_json(value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff\xff", "not acme.Order: wire format was corrupt"),
        (b"\x0a\x05ab", "not acme.Order"),
        (b"\x0a\x02\xff\xfe", "utf-8"),
        (b'{"order_id": "x"}', "it begins like JSON"),
        (b"\0\0\0\0\x07\0\x0a\x01a", "framing confluent?"),
        (b"\0", "not acme.Order"),
    ],
)
def test_an_invalid_message_is_refused_with_a_reason(orders: Schema, value: bytes, words: str) -> None:
    codec = codec_of(orders, "acme.Order")
    assert words in (codec.check(value) or "")
    for read in (codec.decode, codec.to_named_json):
        with pytest.raises(InvalidPayload):
            read(value)


def test_every_truncated_message_is_refused_and_unknown_fields_are_not(orders: Schema) -> None:
    codec = codec_of(orders, "acme.Order")
    value = _message(orders, order_id="x" * 20).SerializeToString()
    assert codec.check(value) is None
    assert all(codec.check(value[:cut]) for cut in range(1, len(value)))
    assert codec.check(value + b"\xf8\x3f\x01") is None
    assert codec.to_named_json(b"\xf8\x3f\x01")[1] == b"{}"


def test_a_message_without_its_required_fields_and_text_that_is_not_utf8_are_refused(old: Schema) -> None:
    codec = codec_of(old, "old.Thing")
    assert "that lacks required fields" in (codec.check(b"") or "")
    with pytest.raises(InvalidPayload, match="required"):
        codec.to_named_json(b"")
    with pytest.raises(InvalidPayload, match="cannot be written as JSON") as caught:
        codec.to_named_json(b"\x0a\x06\xffsecre")
    assert "secre" not in str(caught.value)


def test_json_refuses_a_timestamp_out_of_range_without_showing_its_value(orders: Schema) -> None:
    message = _message(orders)
    message.at.seconds = 2**62
    with pytest.raises(InvalidPayload) as caught:
        codec_of(orders, "acme.Order").to_named_json(message.SerializeToString())
    assert str(2**62) not in str(caught.value)


# -- hostile bytes -----------------------------------------------------------------------------------


@shared
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_at_worst(orders: Schema, old: Schema, value: bytes) -> None:
    for schema, name in ((orders, "acme.Order"), (old, "old.Thing")):
        _assert_decoded_or_refused(codec_of(schema, name), value)


@shared
@given(st.data())
def test_damaged_messages_are_refused_at_worst(orders: Schema, data: st.DataObject) -> None:
    message = _message(orders)
    fill(data.draw, message, 3)
    message.extra.Pack(_message(orders, "acme.Refund", order_id="r"))
    value = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    _assert_decoded_or_refused(
        codec_of(orders, "acme.Order"), bytes(value[: data.draw(st.integers(0, len(value)))])
    )


def _nested(tag: bytes, levels: int, inner: bytes = b"") -> bytes:
    """`levels` messages, each the only field of the next."""
    sizes = [len(inner)]
    for _ in range(levels):
        sizes.append(sizes[-1] + len(tag) + len(varint(sizes[-1])))
    return b"".join(tag + varint(size) for size in reversed(sizes[:-1])) + inner


@pytest.mark.parametrize("levels", [90, 101, 20_000])
def test_a_message_nested_too_deep_is_refused(orders: Schema, levels: int) -> None:
    codec = codec_of(orders, "acme.Order.Line")
    value = _nested(b"\x1a", levels)
    _assert_decoded_or_refused(codec, value)
    assert (codec.check(value) is None) is (levels == 90)
    if levels == 90:
        assert codec.to_named_json(value)[1].count(b"inner") == 90
    groups = b"\x0b" * levels + b"\x0c" * levels
    _assert_decoded_or_refused(codec, groups)


def test_endlessly_nested_anys_are_refused(orders: Schema) -> None:
    url = b"\x0a" + varint(len(b"x/google.protobuf.Any")) + b"x/google.protobuf.Any"
    value = b"\x0a" + varint(len(b"x/acme.Refund")) + b"x/acme.Refund"
    for _ in range(2_000):
        value = url + b"\x12" + varint(len(value)) + value
    codec = codec_of(orders, "google.protobuf.Any")
    with pytest.raises(InvalidPayload, match="nested deeper"):
        codec.to_named_json(value)
    wide = url + b"\x12" + varint(5_000_000) + url + b"\x12" + varint(4_999_900) + bytes(4_999_900)
    _assert_decoded_or_refused(codec, wide)


def test_the_total_size_of_all_anys_of_a_message_is_bounded(
    orders: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = codec_of(orders, "google.protobuf.Any")
    message: Any = _message(orders, "google.protobuf.Any")
    for _ in range(5):
        inner = message
        message = _message(orders, "google.protobuf.Any")
        message.Pack(inner)
    value = message.SerializeToString()
    json.loads(codec.to_named_json(value)[1])
    monkeypatch.setattr(json_writer, "MAX_ANY_BYTES", len(value))
    with pytest.raises(InvalidPayload, match="too much to unpack"):
        codec.to_named_json(value)


def test_a_bomb_of_wide_submessages_is_refused_before_it_takes_memory(
    old: Schema, orders: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_parser, "MAX_PARSE_BYTES", 1_000_000)
    line = b"\x4a\x00"  # an empty line of an order
    codec = codec_of(orders, "acme.Order")
    assert codec.check(line * 1_000) is None
    assert "bomb" in (codec.check(line * 20_000) or "")
    assert "bomb" in (codec.check(b"\x4a" + varint(40_000) + b"\x22\x00" * 20_000) or "")
    # As many bytes of text, or in a field that is not known, take no such memory.
    assert codec.check(b"\x0a" + varint(40_000) + b"x" * 40_000) is None
    assert codec.check(b"\xfa\x3f\x00" * 13_000) is None
    groups = codec_of(old, "old.Thing")
    assert "bomb" in (groups.check(b"\x0a\x01x" + b"\xa2\x06\x00" * 20_000) or "")
    assert "bomb" in (groups.check(b"\x0a\x01x" + b"\x13\x14" * 20_000) or "")
    monkeypatch.setattr(payload_parser, "MAX_WALKED_FIELDS", 10_000)
    assert "more than 10000 fields" in (codec.check(b"\xf8\x3f\x00" * 15_000) or "")


@shared
@given(st.binary(max_size=200))
def test_the_walk_over_hostile_bytes_refuses_no_small_value(orders: Schema, value: bytes) -> None:
    parser = payload_parser.Parser()
    kind: Any = orders.message_class("acme.Order")
    parser._walk(kind.DESCRIPTOR, value)


def test_values_and_texts_beyond_the_limits_are_refused(
    orders: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = codec_of(orders, "acme.Order")
    assert "more than the 8 MiB" in (codec.check(bytes(payload_parser.MAX_VALUE_BYTES + 1)) or "")
    many = _message(orders, states=[1] * (json_writer.MAX_NODES + 1)).SerializeToString()
    assert codec.check(many) is None
    with pytest.raises(InvalidPayload, match="values: too many"):
        codec.to_named_json(many)
    monkeypatch.setattr(json_writer, "MAX_JSON_BYTES", 1024 * 1024)
    with pytest.raises(InvalidPayload, match="more than 1 MiB as JSON"):
        codec.to_named_json(_message(orders, order_id="\x01" * 200_000).SerializeToString())
