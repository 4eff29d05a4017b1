"""A real gRPC receiver gets the value and metadata that a chain lets through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.grpc_client.metadata import wire_field
from app.payload.descriptors import Schema
from app.payload.grpc_metadata import MAX_METADATA_BYTES, PAIR_BYTES, check_metadata
from app.payload.interceptors import InterceptorChain, Message, Outgoing, Send
from app.payload.protobuf_interceptor import Deliver, ProtobufInterceptor
from tests.dispatch.push.grpc_servers import serving
from tests.payload.schemas import codec_of

Pairs = tuple[tuple[str, str | bytes], ...]


class AddsMetadata:
    """An interceptor that adds metadata."""

    def __init__(self, metadata: Pairs) -> None:
        self.metadata = metadata

    def before(self, message: Message) -> Send:
        return Send(metadata=self.metadata)


async def _received(chain: InterceptorChain, value: bytes | None) -> tuple[bytes, dict[str, str | bytes]]:
    sent = chain.before(Message("orders", 0, 0, None, value))
    assert isinstance(sent, Outgoing)
    got: list[tuple[bytes, dict[str, str | bytes]]] = []

    async def note(body: bytes, context: Any) -> bytes:
        got.append((body, dict(context.invocation_metadata())))
        return b""

    async with serving(note) as call:
        result = await call(sent.value, sent.metadata)
    assert (result.code, result.local_error) == (0, None)
    return got[0]


@pytest.mark.parametrize(
    "metadata",
    [
        (("plain", "text with ~ and  spaces"), ("a.b_c-d", "")),
        (("bytes-bin", bytes(range(256))), ("empty-bin", b"")),
        (("0", "x" * (MAX_METADATA_BYTES - PAIR_BYTES - 1)),),
        (("n" * 256, "1"),),
    ],
)
async def test_accepted_metadata_arrives_as_it_was_added(metadata: Pairs) -> None:
    body, arrived = await _received(InterceptorChain([("adds", AddsMetadata(metadata))]), b"value")
    assert body == b"value"
    assert {name: arrived.get(name) for name, _ in metadata} == dict(metadata)


@given(
    st.text(st.sampled_from("abz09-._ \u00e4:")) | st.sampled_from(["host", "te", "connection", "a-bin"]),
    st.text(st.sampled_from(" az~\x1f\u00e4")) | st.binary(max_size=4),
)
def test_whatever_an_interceptor_may_add_can_be_sent(name: str, value: str | bytes) -> None:
    if check_metadata(((name, value),)) is None:
        wire_field(name, value)


async def test_a_protobuf_message_arrives_as_json_with_metadata(orders: Schema) -> None:
    protobuf = ProtobufInterceptor(codec_of(orders, "acme.Refund"), deliver=Deliver.JSON)
    body, arrived = await _received(InterceptorChain([("protobuf", protobuf)]), b"\x0a\x01x")
    assert body == b'{"order_id":"x"}'
    assert arrived["switchyard-payload-format"] == "json"
    assert arrived["switchyard-payload-message"] == "acme.Refund"
