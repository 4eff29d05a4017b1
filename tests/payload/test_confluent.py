"""Confluent's wire format names a value's message by schema id and indexes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.payload.codec import Framing, PayloadCodec, open_codec
from app.payload.descriptors import Schema
from app.payload.parser import InvalidPayload
from app.payload.schema_files import DescriptorError, SchemaFiles
from tests.payload.schemas import ORDERS, compile_set, file_of, framed, set_of

WORD = b"\x0a\x01w"  # field 1, a string


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry: schema 7 has Order (with the entry of a map before Line) and Refund; schema 8 has
    Parcel."""
    path = tmp_path_factory.mktemp("registry")
    (path / "7.binpb").write_bytes(compile_set(tmp_path_factory.mktemp("source"), ORDERS))
    (path / "8.binpb").write_bytes(set_of(file_of("p.proto", "Parcel")))
    return path


@pytest.fixture(scope="module")
def any_codec(folder: Path) -> PayloadCodec:
    """A codec for every message of the registry."""
    return open_codec(folder, framing=Framing.CONFLUENT)


def test_the_schema_id_and_the_indexes_name_the_message(any_codec: PayloadCodec) -> None:
    for schema_id, indexes, name in [
        (7, [0], "acme.Order"),
        (7, [1], "acme.Refund"),
        (7, [0, 0], "acme.Order.Line"),
        (8, [0], "acme.Parcel"),
    ]:
        assert any_codec.to_named_json(framed(schema_id, indexes, WORD))[0] == name
    short = b"\0\0\0\0\x08\0"  # a single 0 stands for [0]
    assert any_codec.to_named_json(short + WORD) == ("acme.Parcel", b'{"word":"w"}')
    assert any_codec.to_named_json(short)[1] == b"{}"


def test_indexes_that_count_map_entries_are_accepted_if_a_message_is_configured(folder: Path) -> None:
    codec = open_codec(folder, "acme.Order.Line", Framing.CONFLUENT)
    assert codec.to_named_json(framed(7, [0, 0], WORD))[1] == b'{"sku":"w"}'  # as Java counts
    assert codec.to_named_json(framed(7, [0, 1], WORD))[1] == b'{"sku":"w"}'  # the entry of `weights` is 0


def test_another_message_than_the_configured_one_is_refused(folder: Path) -> None:
    codec = open_codec(folder, "acme.Order", Framing.CONFLUENT)
    assert codec.check(framed(7, [0], WORD)) is None
    problem = codec.check(framed(7, [1], WORD))
    assert problem == "the frame names acme.Refund (schema id 7), but acme.Order is configured"
    assert "acme.Parcel" in (codec.check(framed(8, [0], WORD)) or "")


def test_the_error_for_an_unknown_schema_id_names_the_folder_and_the_known_ids(
    any_codec: PayloadCodec, folder: Path
) -> None:
    problem = any_codec.check(framed(4_000_000_000, [0], WORD)) or ""
    assert "schema id 4000000000" in problem
    assert str(folder) in problem
    assert "which has 7, 8" in problem


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not in Confluent's wire format"),
        (WORD + b"more", "framing none?"),
        (b"\0\0\0\0\x08", "not in Confluent's wire format"),
        (framed(7, [5], WORD), "no message with indexes [5]"),
        (framed(7, [0, 9], WORD), "no message with indexes [0, 9]"),
        (b"\0\0\0\0\x08\x01" + WORD, "count is not 1 to 32"),
        (b"\0\0\0\0\x08" + b"\xff" * 9, "cut off"),
        (b"\0\0\0\0\x08\x04\x00", "cut off"),
        (b"\0\0\0\0\x08\x02\x01" + WORD, "negative"),
        (framed(8, [0], b"\x0a\x05w"), "not acme.Parcel"),
    ],
)
def test_an_invalid_frame_is_refused_with_a_reason(any_codec: PayloadCodec, value: bytes, words: str) -> None:
    assert words in (any_codec.check(value) or "")
    for read in (any_codec.decode, any_codec.to_named_json):
        with pytest.raises(InvalidPayload):
            read(value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.sampled_from([b"", b"\0", b"\0\0\0\0\x07", b"\0\0\0\0\x08\0"]))
def test_random_frames_are_refused_at_worst(any_codec: PayloadCodec, value: bytes, start: bytes) -> None:
    problem = any_codec.check(start + value)
    assert problem is None or problem


def test_a_single_set_counts_for_every_schema_id(orders: Schema) -> None:
    kind = orders.message_class("acme.Refund")
    codec = PayloadCodec(kind, Framing.CONFLUENT, source=orders)
    assert codec.to_named_json(framed(12345, [1], WORD))[1] == b'{"order_id":"w"}'
    assert "acme.Refund is configured" in (codec.check(framed(12345, [0], WORD)) or "")
    assert PayloadCodec(kind, Framing.CONFLUENT).to_named_json(framed(1, [3], WORD))[1] == b'{"order_id":"w"}'


def test_indexes_count_in_the_file_of_the_configured_message(tmp_path: Path) -> None:
    path = tmp_path / "all.binpb"
    path.write_bytes(set_of(file_of("a.proto", "A", "B"), file_of("z.proto", "Z")))
    assert open_codec(path, "acme.B", Framing.CONFLUENT).check(framed(1, [1], WORD)) is None


def test_a_codec_without_a_known_message_is_refused_when_it_is_opened(folder: Path) -> None:
    with pytest.raises(ValueError, match="a codec needs a message"):
        open_codec(folder)
    with pytest.raises(DescriptorError, match=r"did you mean acme\.Order"):
        open_codec(folder, "acme.Oder", Framing.CONFLUENT)


def test_a_bad_schema_file_that_is_added_later_affects_its_own_messages_only(
    tmp_path: Path,
) -> None:
    files = SchemaFiles(tmp_path)
    (tmp_path / "8.binpb").write_bytes(set_of(file_of("p.proto", "Parcel")))
    codec = open_codec(tmp_path, framing=Framing.CONFLUENT, files=files)
    (tmp_path / "9.binpb").write_bytes(b"{}")
    files.refresh()
    assert "9.binpb: is JSON" in (codec.check(framed(9, [0], WORD)) or "")
    assert codec.check(framed(8, [0], WORD)) is None
    (tmp_path / "9.binpb").write_bytes(set_of(file_of("q.proto", "Quote")))
    files.refresh()
    assert codec.to_named_json(framed(9, [0], WORD))[0] == "acme.Quote"
