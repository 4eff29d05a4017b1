"""Metadata is on the wire as gRPC says, and comes back as it was; what gRPC cannot send is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.grpc_client.metadata import read_metadata, wire_field

names = st.from_regex(r"[0-9a-z_.-]{1,30}", fullmatch=True).filter(
    lambda name: not name.startswith("grpc-") and not name.endswith("-bin") and name not in {"host", "te"}
)
texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)).map(str.strip)


@given(names, texts, st.binary())
def test_each_entry_comes_back(name: str, text: str, data: bytes) -> None:
    entries: list[tuple[str, str | bytes]] = [(name, text), (f"{name}-bin", data)]
    fields = [wire_field(*entry) for entry in entries]
    assert read_metadata(fields) == entries
    assert all(re.fullmatch(rb"[\x20-\x7e]*", value) for _, value in fields)


@pytest.mark.parametrize("text", [" x y", "x y ", "  x y  "])
def test_blanks_at_the_ends_of_a_value_are_not_sent(text: str) -> None:
    """HTTP/2 forbids them."""
    assert wire_field("a", text) == (b"a", b"x y")


def test_several_values_of_one_binary_entry_may_share_a_field_and_have_padding_or_not() -> None:
    assert read_metadata([(b"a-bin", b"YQ==,YWI,!,YWJj")]) == [
        ("a-bin", b"a"),
        ("a-bin", b"ab"),
        ("a-bin", b""),
        ("a-bin", b"abc"),
    ]  # fmt: skip - a line of values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a b", "x"),
        ("UPPER", "x"),
        ("", "x"),
        (":path", "/"),
        ("a", "new\nline"),
        ("a", "ö"),
        ("a", b"x"),
        ("a", "\tx"),
        ("host", "x"),
        ("grpc-timeout", "1S"),
        ("content-type", "text/html"),
    ],
    ids=repr,
)  # fmt: skip - pairs
def test_what_grpc_cannot_send_is_refused_by_name(name: str, value: str | bytes) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        wire_field(name, value)
