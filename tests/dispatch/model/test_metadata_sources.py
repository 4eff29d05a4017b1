"""What a definition's metadata means, and what record headers, which are untrusted, give to calls."""

from __future__ import annotations

import re
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.model.metadata_sources import MAX_MAPPED_BYTES, HeaderMap, Source, check_name, read_source
from app.grpc_client.header_encoder import header_list_size


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("header:x-zone", Source(header="x-zone")),
        ("header:Zone of origin", Source(header="Zone of origin")),
        ("secret:billing", Source("", "", "billing")),
        ("Bearer secret:billing", Source("", "Bearer ", "billing")),
        ("production", Source(text="production")),
        ("a header:x", Source(text="a header:x")),
    ],
)
def test_a_value_is_a_header_or_a_text_with_a_secret_behind_it(value: str, source: Source) -> None:
    assert read_source(value) == source


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("header:", "write header:x-zone"), ("secret:", "last word"), ("secret:a b", "last word"),
        ("Bearersecret:a", "last word"), ("secret:a, secret:b", "last word"),
        ("Secret:billing", "last word"), ("Header:zone", "write header:x-zone"),
        ("header: zone", "write header:x-zone"),
    ],
)  # fmt: skip
def test_a_value_that_could_be_a_secret_by_mistake_is_refused(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_source(value)


@pytest.mark.parametrize(
    "name",
    [
        "kafka-topic",
        "switchyard-region",
        "traceparent",
        "grpc-timeout",
        "te",
        "X-Zone",
        "",
        ":path",
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ],
)
def test_names_that_calls_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="metadata"):
        check_name(name)


def test_the_last_header_of_a_name_counts_and_its_case_does_not() -> None:
    mapped = HeaderMap({"x-zone": "Zone", "x-also": "zone", "x-raw-bin": "raw"})
    headers = [("ZONE", b"a"), ("zone", b" b "), ("raw", b"\x00\xff"), ("other", b"c")]
    found = dict(mapped.fields(headers))
    assert (found[b"x-zone"], found[b"x-also"]) == (b"b", b"b")
    assert b64decode(found[b"x-raw-bin"] + b"=") == b"\x00\xff"
    assert mapped.fields([*headers, ("zone", None)]) == [(b"x-raw-bin", found[b"x-raw-bin"])]
    assert mapped.fields([]) == []


def test_headers_that_are_too_large_together_are_left_out_in_the_order_of_the_names() -> None:
    """A receiver would refuse all of a message's metadata, and the message with it."""
    mapped = HeaderMap({"x-a": "a", "x-b": "b", "x-c": "c", "x-b-bin": "b"})
    headers = [("c", b"c" * 100), ("b", b"b" * 900), ("a", b"a" * 100)]
    found = mapped.fields(headers)
    assert [name for name, _ in found] == [b"x-a", b"x-c"]
    assert [name for name, _ in mapped.fields(headers[1:2])] == [b"x-b"]
    assert mapped.fields([("b", b"b" * MAX_MAPPED_BYTES)]) == []


NAMES = {"x-a": "a", "x-b-bin": "b"}
values = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
long_values = st.integers(MAX_MAPPED_BYTES - 60, MAX_MAPPED_BYTES + 1).map(lambda size: b"a" * size)


@given(st.lists(st.tuples(st.sampled_from(["a", "A", "b"]) | st.text(max_size=5), values | long_values)))
def test_whatever_producers_write_only_what_grpc_can_carry_is_sent(
    headers: list[tuple[str, bytes | None]],
) -> None:
    """What is missing has no value, is no text, or is too large beside what is there."""
    found = HeaderMap(NAMES).fields(headers)
    last = {header.lower(): value for header, value in headers}
    assert header_list_size(found) <= MAX_MAPPED_BYTES
    sent = dict(found)
    for name, header in NAMES.items():
        value, wire = last.get(header), sent.get(name.encode())
        is_text = value is not None and re.fullmatch(rb"[\x20-\x7e]*", value) is not None
        if wire is None:
            size = header_list_size([(name.encode(), value or b""), *found])
            assert value is None or not (is_text or name == "x-b-bin") or size * 4 / 3 + 4 > MAX_MAPPED_BYTES
        elif name == "x-b-bin":
            assert b64decode(wire + b"=" * (-len(wire) % 4), validate=True) == value
        else:
            assert is_text
            assert value is not None
            assert wire == value.strip(b" ")
