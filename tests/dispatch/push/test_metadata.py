"""A delivery's metadata has every header and byte, in order; a name that gRPC cannot carry is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.push.metadata import InvalidHeaderName, MetadataTemplate
from switchyard.receiver import Message, Receiver
from switchyard.receiver.unary_service import read_message
from tests.dispatch.push.conftest import CallTo
from tests.dispatch.push.grpc_servers import metadata_of

pytestmark = pytest.mark.each_transport

Headers = list[tuple[str, bytes | None]]

template = MetadataTemplate("orders", "billing", 3)
names = st.from_regex(r"[A-Za-z0-9_.-]{1,30}", fullmatch=True)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=50)), max_size=8)
keys = st.none() | st.binary(max_size=50)
numbers = st.integers(0, 2**63 - 1)


@given(headers, keys, numbers, numbers, st.integers(0, 10_000), st.integers(1, 10_000))
def test_a_receiver_reads_back_the_record_from_its_metadata(
    own: Headers, key: bytes | None, offset: int, timestamp_ms: int, retry_count: int, attempt: int
) -> None:
    metadata = metadata_of(template, offset, key, own, timestamp_ms, retry_count, attempt)

    message = read_message(b"value", metadata)

    assert (message.topic, message.group, message.partition) == ("orders", "billing", 3)
    assert (message.offset, message.key, message.value) == (offset, key, b"value")
    assert message.headers == [(name.lower(), value or b"") for name, value in own]
    assert (message.timestamp_ms, message.retry_count) == (timestamp_ms, retry_count)
    assert message.attempt == attempt


@given(headers, keys)
def test_grpc_accepts_all_names_and_values(own: Headers, key: bytes | None) -> None:
    for name, value in metadata_of(template, 0, key, own, -1, 0, 1):
        assert re.fullmatch(r"[0-9a-z_.-]+", name)
        assert isinstance(value, bytes) == name.endswith("-bin")
        assert isinstance(value, bytes) or value.isascii()


def test_the_names_are_those_that_every_receiver_reads() -> None:
    metadata = dict(metadata_of(template, 5, b"k", [("Zone", b"east")], 7, 1, 2))

    del metadata["traceparent"]
    assert metadata == {
        "kafka-topic": "orders", "kafka-consumergroup": "billing", "kafka-partition": "3",
        "kafka-offset": "5", "kafka-retrycount": "1", "kafka-attemptcount": "2", "kafka-timestamp": "7",
        "kafka-key-bin": b"k", "kafka-header-zone-bin": b"east",
    }  # fmt: skip


def test_no_key_is_not_an_empty_key() -> None:
    assert read_message(b"", metadata_of(template, 0, None, [], 0, 0, 1)).key is None
    assert read_message(b"", metadata_of(template, 0, b"", [], 0, 0, 1)).key == b""


@pytest.mark.parametrize("name", ["", "a b", "ö", "a:b", "a\n", "a/b", "x" * 257, "K\u0130"])
def test_a_name_that_cannot_be_metadata_is_reported_with_a_remedy(name: str) -> None:
    with pytest.raises(InvalidHeaderName, match="name headers with letters"):
        metadata_of(template, 0, None, [(name, b"")], 0, 0, 1)


def test_a_trace_continues_or_else_starts_once() -> None:
    given_trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    continued = dict(metadata_of(template, 0, None, [("traceparent", given_trace)], 0, 0, 1))
    derived, other, replaced = (
        dict(metadata_of(template, 0, None, own, 0, 0, 1))["traceparent"]
        for own in ([], [], [("traceparent", b"nonsense\n")])
    )

    assert continued["traceparent"] == given_trace.decode()
    assert derived == other
    assert all(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", str(trace)) for trace in (derived, replaced))


@pytest.mark.parametrize("timestamp_ms", [-1, 0])
def test_a_record_without_a_timestamp_has_none(timestamp_ms: int) -> None:
    assert (
        read_message(b"", metadata_of(template, 0, None, [], timestamp_ms, 0, 1)).timestamp_ms == timestamp_ms
    )


@pytest.mark.parametrize("text", ["", "-5", "1e3", "x", "9" * 20, "\u00b2", "\u0663"])
def test_numbers_that_cannot_be_read_do_no_harm(text: str) -> None:
    message = read_message(b"", [("kafka-offset", text), ("kafka-timestamp", text)])

    assert (message.offset, message.timestamp_ms) == (0, -1)


async def test_every_byte_of_key_value_and_headers_arrives_over_the_network_in_order(call_to: CallTo) -> None:
    received: list[Message] = []
    receiver = Receiver()
    receiver.on(topic="orders", group="billing")(received.append)
    call = await call_to(receiver)
    every = bytes(range(256))
    own: Headers = [("a", every), ("B.b", None), ("a", b""), ("a", every[::-1]), ("c_-", b"\x00")]
    own += [("each", bytes([byte])) for byte in range(256)]

    result = await call(every, metadata_of(template, 2**62, every, own, 1, 2, 3))

    assert result.code == 0
    (message,) = received
    assert (message.value, message.key, message.offset) == (every, every, 2**62)
    by_name = [[value for name, value in message.headers if name == n] for n in ("a", "b.b", "c_-", "each")]
    assert by_name == [[every, b"", every[::-1]], [b""], [b"\x00"], [bytes([byte]) for byte in range(256)]]
