"""The chain checks Protobuf values, delivers them as JSON, or rejects them with the reason."""

from __future__ import annotations

import pytest

from app.payload.codec import PayloadCodec
from app.payload.descriptors import Schema
from app.payload.interceptors import InterceptorChain, Message, Outgoing, Reject, Send
from app.payload.protobuf_interceptor import Deliver, Invalid, ProtobufInterceptor, workload_chain
from tests.payload.schemas import codec_of

VALID = b"\x0a\x01x"
BROKEN = b"\x0a\x09x"


@pytest.fixture
def codec(orders: Schema) -> PayloadCodec:
    return codec_of(orders, "acme.Refund")


def _message(value: bytes | None) -> Message:
    return Message("refunds", 0, 0, None, value)


def _chain(codec: PayloadCodec, deliver: Deliver, invalid: Invalid) -> InterceptorChain:
    chain = workload_chain([], ProtobufInterceptor(codec, deliver=deliver, invalid=invalid))
    assert chain is not None
    return chain


@pytest.mark.parametrize("deliver", list(Deliver))
@pytest.mark.parametrize("invalid", list(Invalid))
def test_a_tombstone_passes_as_it_is(codec: PayloadCodec, deliver: Deliver, invalid: Invalid) -> None:
    assert _chain(codec, deliver, invalid).before(_message(None)) == Outgoing(None, ())


@pytest.mark.parametrize("invalid", list(Invalid))
def test_a_valid_value_is_delivered_raw_or_as_json_with_metadata(
    codec: PayloadCodec, invalid: Invalid
) -> None:
    assert _chain(codec, Deliver.BYTES, invalid).before(_message(VALID)) == Outgoing(VALID, ())
    assert _chain(codec, Deliver.JSON, invalid).before(_message(VALID)) == Outgoing(
        b'{"order_id":"x"}',
        (("switchyard-payload-format", "json"), ("switchyard-payload-message", "acme.Refund")),
    )


@pytest.mark.parametrize("deliver", list(Deliver))
def test_an_invalid_value_is_rejected_with_the_reason_or_delivered_as_it_is(
    codec: PayloadCodec, deliver: Deliver
) -> None:
    verdict = _chain(codec, deliver, Invalid.DLQ).before(_message(BROKEN))
    assert isinstance(verdict, Reject)
    assert verdict.reason.startswith("interceptor protobuf: not acme.Refund: ")
    assert _chain(codec, deliver, Invalid.DELIVER).before(_message(BROKEN)) == Outgoing(BROKEN, ())


def test_it_runs_after_the_operators_interceptors(codec: PayloadCodec) -> None:
    class Unpack:
        def before(self, message: Message) -> Send:
            assert message.value is not None
            return Send(message.value.removeprefix(b"packed:"), (("unpacked", "yes"),))

    chain = workload_chain([("unpack", Unpack())], ProtobufInterceptor(codec, deliver=Deliver.JSON))
    assert chain is not None
    verdict = chain.before(_message(b"packed:" + VALID))
    assert isinstance(verdict, Outgoing)
    assert verdict.value == b'{"order_id":"x"}'
    assert verdict.metadata[0] == ("unpacked", "yes")


def test_a_workload_without_interceptors_has_no_chain() -> None:
    assert workload_chain([], None) is None
