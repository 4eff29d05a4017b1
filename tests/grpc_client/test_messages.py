"""Messages come whole, however the network cuts them, and none takes more memory than the limit."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.grpc_client.messages import ACCEPTED_ENCODINGS, MessageFault, MessageReader, prefixed
from app.grpc_client.status import StatusCode
from tests.examples import as_profile

LIMIT = 1_000
COMPRESS: dict[bytes, Callable[[bytes], bytes]] = {b"gzip": gzip.compress, b"deflate": zlib.compress}

messages = st.one_of(st.binary(max_size=30), st.integers(0, LIMIT).map(lambda size: b"m" * size))
encodings = st.sampled_from(sorted(COMPRESS))


def compressed(message: bytes, encoding: bytes) -> bytes:
    data = COMPRESS[encoding](message)
    return b"\1" + len(data).to_bytes(4, "big") + data


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(at)]


def read(reader: MessageReader, parts: Iterable[bytes]) -> list[bytes]:
    return [message for part in parts for message in reader.feed(part)]


def fault(data: bytes, encoding: bytes = b"identity", limit: int = LIMIT) -> MessageFault:
    with pytest.raises(MessageFault) as caught:
        read(MessageReader(limit, encoding), [data])
    assert len(str(caught.value)) < 200
    return caught.value


@settings(max_examples=as_profile(400), deadline=None)
@given(
    st.lists(st.tuples(messages, st.booleans()), max_size=8),
    encodings,
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_messages_come_in_order_however_they_are_cut(
    sent: list[tuple[bytes, bool]], encoding: bytes, cuts: list[int]
) -> None:
    data = b"".join(compressed(one, encoding) if is_small else prefixed(one) for one, is_small in sent)
    reader = MessageReader(LIMIT, encoding)
    found = read(reader, split(data, cuts))
    assert found == [message for message, _ in sent]
    assert {type(message) for message in found} <= {bytes}
    assert not reader.is_amid_message


@given(st.lists(messages, max_size=3), messages, st.integers(1, 10_000), st.lists(st.integers(0, 10_000)))
def test_a_message_that_is_cut_off_is_noticed(
    whole: list[bytes], last: bytes, missing: int, cuts: list[int]
) -> None:
    data = prefixed(last)
    kept = data[: -(missing % len(data)) or -1]
    reader = MessageReader(LIMIT)
    found = read(reader, split(b"".join(map(prefixed, whole)) + kept, cuts))
    assert found == whole
    assert reader.is_amid_message == bool(kept)


@given(st.lists(messages, max_size=3), st.lists(st.integers(0, 10_000), max_size=6))
def test_messages_before_a_broken_one_come_however_they_are_cut(whole: list[bytes], cuts: list[int]) -> None:
    data, found = b"".join(map(prefixed, whole)) + b"\2\0\0\0\0", list[bytes]()
    reader = MessageReader(LIMIT)
    with pytest.raises(MessageFault):
        found.extend(message for part in split(data, cuts) for message in reader.feed(part))
    assert found == whole


def test_a_message_as_large_as_the_limit_comes() -> None:
    for encoding in COMPRESS:
        reader = MessageReader(LIMIT, encoding)
        data = prefixed(b"m" * LIMIT) + compressed(b"m" * LIMIT, encoding)
        assert read(reader, [data]) == [b"m" * LIMIT] * 2


def test_a_message_above_the_limit_is_refused_before_it_is_there() -> None:
    too_large = prefixed(b"m" * (LIMIT + 1))
    for sent in (too_large[:5], too_large):
        found = fault(sent)
        assert (found.code, found.is_too_large) == (StatusCode.RESOURCE_EXHAUSTED, True)
        assert f"{LIMIT} bytes" in str(found)
        assert f"{LIMIT + 1} bytes" in str(found)


@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_message_is_not_decompressed_beyond_the_limit(encoding: bytes) -> None:
    found = fault(compressed(b"m" * (LIMIT + 1), encoding), encoding)
    assert (found.code, found.is_too_large) == (StatusCode.RESOURCE_EXHAUSTED, True)
    bomb = compressed(bytes(100 * 2**20), encoding)
    tracemalloc.start()
    try:
        assert fault(bomb, encoding, limit=2**20).is_too_large
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_small_parts_of_a_message_take_no_more_memory_than_it_has() -> None:
    size = 200_000
    reader, data = MessageReader(size), prefixed(bytes(range(250)) * (size // 250))
    parts = [data[at : at + 2] for at in range(0, len(data) - 2, 2)]
    tracemalloc.start()
    try:
        for at, part in enumerate(parts):
            parts[at] = b""
            assert not list(reader.feed(part))
            del part
        assert tracemalloc.get_traced_memory()[0] < 2 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flag", [2, 3, 128, 255])
def test_the_first_byte_of_a_message_is_0_or_1(flag: int) -> None:
    found = fault(bytes((flag, 0, 0, 0, 0)))
    assert (found.code, found.is_too_large) == (StatusCode.INTERNAL, False)
    assert f"first byte is {flag}" in str(found)


@pytest.mark.parametrize("encoding", [b"identity", b"br", b"", b"\xff" * 500])
def test_a_compressed_message_in_an_unknown_encoding_is_refused_by_its_name(encoding: bytes) -> None:
    found = fault(compressed(b"m", b"gzip"), encoding)
    assert (found.code, found.is_too_large) == (StatusCode.INTERNAL, False)
    assert "grpc-encoding" in str(found)


def test_an_unknown_encoding_does_not_matter_to_messages_that_are_not_compressed() -> None:
    assert read(MessageReader(LIMIT, b"br"), [prefixed(b"m")]) == [b"m"]


@settings(max_examples=as_profile(400), deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=300), encodings)
@example(b"message", b"", b"gzip")
def test_a_compressed_message_that_is_cut_or_goes_on_is_refused(
    message: bytes, more: bytes, encoding: bytes
) -> None:
    data = COMPRESS[encoding](message)
    for broken in [data[:-1], data[: len(data) // 2], b"", data + (more or b"\0"), data + data]:
        found = fault(b"\1" + len(broken).to_bytes(4, "big") + broken, encoding)
        assert (found.code, found.is_too_large) == (StatusCode.INTERNAL, False)


@settings(max_examples=as_profile(400), deadline=None)
@given(st.binary(max_size=60), encodings, st.lists(st.integers(0, 100), max_size=4))
def test_any_bytes_are_messages_or_a_fault(data: bytes, encoding: bytes, cuts: list[int]) -> None:
    reader = MessageReader(LIMIT, encoding)
    try:
        read(reader, split(data, cuts))
    except MessageFault as caught:
        reason = str(caught)
        assert reason.isprintable()


@settings(max_examples=as_profile(400), deadline=None)
@given(st.binary(max_size=60), encodings)
def test_any_bytes_as_a_compressed_message_are_one_or_a_fault(data: bytes, encoding: bytes) -> None:
    reader = MessageReader(LIMIT, encoding)
    try:
        found = read(reader, [b"\1" + len(data).to_bytes(4, "big") + data])
    except MessageFault as caught:
        code = caught.code
        assert code in {StatusCode.INTERNAL, StatusCode.RESOURCE_EXHAUSTED}
    else:
        assert found == [zlib.decompress(data, 47)]


def test_what_servers_are_told_is_what_can_be_read() -> None:
    for encoding in ACCEPTED_ENCODINGS.split(b","):
        data = prefixed(b"m") if encoding == b"identity" else compressed(b"m", encoding)
        assert read(MessageReader(LIMIT, encoding), [data]) == [b"m"]
