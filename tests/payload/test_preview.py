"""Previews of values are decoded if possible, harmless and bounded."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.payload.descriptors import Schema
from app.payload.preview import Preview, PreviewKind, preview
from tests.payload.schemas import codec_of


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, PreviewKind.NULL, ""),
        (b"", PreviewKind.EMPTY, ""),
        (b"hello", PreviewKind.TEXT, "hello"),
        (b"a\tb\r\nc", PreviewKind.TEXT, r"a\tb\r\nc"),
        (b"\x1b[31mred\x7f", PreviewKind.TEXT, r"\x1b[31mred\x7f"),
        ("abc\u202egnp.exe\u200b".encode(), PreviewKind.TEXT, r"abc\u{202e}gnp.exe\u{200b}"),
        ("żółć 日本 🙂".encode(), PreviewKind.TEXT, "żółć 日本 🙂"),
        (b'{"a": [1, 2]}', PreviewKind.JSON, '{"a": [1, 2]}'),
        (b"[1,\n2]", PreviewKind.JSON, r"[1,\n2]"),
        (b"{not json", PreviewKind.TEXT, "{not json"),
        (b"42", PreviewKind.TEXT, "42"),
        (b"\xff\x00a", PreviewKind.BINARY, "ff 00 61"),
        (b"a\x00b", PreviewKind.BINARY, "61 00 62"),
    ],
)
def test_a_value_is_shown_by_its_form(value: bytes | None, kind: PreviewKind, text: str) -> None:
    assert preview(value) == Preview(kind, text, truncated=False, size_bytes=len(value or b""))


def test_a_protobuf_message_is_shown_as_json_with_its_name(orders: Schema) -> None:
    codec = codec_of(orders, "acme.Refund")
    value = codec.decode(b"\x0a\x02a\x07").SerializeToString()
    assert preview(value, codec) == Preview(
        PreviewKind.PROTOBUF, r'{"order_id":"a\u0007"}', truncated=False, size_bytes=4, message="acme.Refund"
    )
    assert preview(None, codec).kind is PreviewKind.NULL
    assert preview(b"", codec).text == "{}"


def test_a_refused_value_is_shown_by_its_likely_form_with_the_reason(orders: Schema) -> None:
    shown = preview(b'{"order_id": "x"}', codec_of(orders, "acme.Refund"))
    assert shown.kind is PreviewKind.JSON
    assert shown.text == '{"order_id": "x"}'
    assert "it begins like JSON" in shown.problem


def test_a_longer_text_than_the_limit_is_cut_and_marked(orders: Schema) -> None:
    assert preview(b"x" * 10, limit=10) == Preview(PreviewKind.TEXT, "x" * 10, truncated=False, size_bytes=10)
    assert preview(b"x" * 11, limit=10) == Preview(PreviewKind.TEXT, "x" * 10, truncated=True, size_bytes=11)
    assert preview(b"\n" * 10, limit=10) == Preview(
        PreviewKind.TEXT, r"\n" * 5, truncated=True, size_bytes=10
    )
    for size in range(20):  # whatever the cut falls into
        shown = preview(("a" * size + "🙂" * 20).encode(), limit=10)
        assert (shown.kind, shown.truncated) == (PreviewKind.TEXT, True)
    assert preview(b"\xff" * 4, limit=10) == Preview(
        PreviewKind.BINARY, "ff ff ff f", truncated=True, size_bytes=4
    )
    codec = codec_of(orders, "acme.Refund")
    value = b"\x0a\x7f" + b"w" * 127
    shown = preview(value, codec, limit=20)
    assert (shown.text, shown.truncated) == ('{"order_id":"wwwwwww', True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=50).map(str.encode)), st.integers(1, 60))
def test_the_text_of_any_value_is_printable_and_bounded(orders: Schema, value: bytes, limit: int) -> None:
    for codec in (None, codec_of(orders, "acme.Order")):
        shown = preview(value, codec, limit)
        assert len(shown.text) <= limit
        assert shown.text.isprintable()
        assert shown.problem.isprintable()
        assert shown.size_bytes == len(value)
        if shown.kind is PreviewKind.BINARY and not shown.truncated:
            assert bytes.fromhex(shown.text) == value
