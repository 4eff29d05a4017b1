"""A message that is too large is no overload, whichever gRPC implementation the receiver uses."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.size_refusal import SizeRefusal, size_refusal
from app.kernel.grpc_status import INTERNAL, OK, OUT_OF_RANGE, RESOURCE_EXHAUSTED, UNAVAILABLE, UNKNOWN
from tests.dispatch.push.grpc_servers import CountingCaller, serving, unary_target
from tests.dispatch.push.stream_servers import ReceiverStream, StreamRecord, streaming

pytestmark = pytest.mark.each_transport

REFUSALS = [
    (RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (5 vs. 4)", (5, 4)),
    (RESOURCE_EXHAUSTED, "Received message larger than max (5 vs. 4)", (5, 4)),
    (
        RESOURCE_EXHAUSTED,
        "received metadata size exceeds hard limit (9001 vs. 8192);  :path:45B",
        (None, None),
    ),
    (
        RESOURCE_EXHAUSTED,
        "received metadata size exceeds soft limit (9001 vs. 8192), "
        "rejecting requests with some random probability",
        (None, None),
    ),
    (RESOURCE_EXHAUSTED, "received initial metadata size exceeds limit", (None, None)),
    (RESOURCE_EXHAUSTED, "grpc: received message larger than max (5 vs. 4)", (5, 4)),
    (RESOURCE_EXHAUSTED, "grpc: received message after decompression larger than max (5 vs. 4)", (5, 4)),
    (RESOURCE_EXHAUSTED, "grpc: received message after decompression larger than max 4", (None, 4)),
    (
        RESOURCE_EXHAUSTED,
        "rpc error: code = ResourceExhausted desc = trying to send message larger than max (5 vs. 4)",
        (5, 4),
    ),
    (RESOURCE_EXHAUSTED, "gRPC message exceeds maximum size 4194304: 6144592", (6_144_592, 4_194_304)),
    (RESOURCE_EXHAUSTED, "Decompressed gRPC message exceeds maximum size 4194304", (None, 4_194_304)),
    (RESOURCE_EXHAUSTED, "Compressed gRPC message exceeds maximum size 4: 5 bytes read", (5, 4)),
    (RESOURCE_EXHAUSTED, "Client Headers of size 9001 exceeded Metadata size soft limit: 8192", (None, None)),
    (INTERNAL, "http2 exception Header size exceeded max allowed size (8192)", (None, None)),
    (RESOURCE_EXHAUSTED, "Received message larger than max (5 vs 4)", (5, 4)),
    (RESOURCE_EXHAUSTED, "Received message that decompresses to a size larger than 4", (None, 4)),
    (
        OUT_OF_RANGE,
        "Error, decoded message length too large: found 8423749 bytes, the limit is: 4194304 bytes",
        (8_423_749, 4_194_304),
    ),
    (
        RESOURCE_EXHAUSTED,
        "Error decompressing: size limit, of 4 bytes, exceeded while decompressing message",
        (None, 4),
    ),
    (RESOURCE_EXHAUSTED, "Received message exceeds the maximum configured message size.", (None, None)),
    (RESOURCE_EXHAUSTED, "message size 5 is larger than configured max 4", (5, 4)),
    (
        RESOURCE_EXHAUSTED,
        "message is larger than configured max 4 - unable to determine message size: EOF",
        (None, 4),
    ),
    (UNKNOWN, "Payload Too Large", (None, None)),
    (UNKNOWN, "Request Header Fields Too Large", (None, None)),
    (UNKNOWN, "Received http2 header with status: 413", (None, None)),
    (UNKNOWN, "Received http2 header with status: 431", (None, None)),
]
OTHERS = [
    (RESOURCE_EXHAUSTED, ""),
    (RESOURCE_EXHAUSTED, "too many requests"),
    (RESOURCE_EXHAUSTED, "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute'"),
    (RESOURCE_EXHAUSTED, "request queue exceeds maximum size 1000"),
    (RESOURCE_EXHAUSTED, "the batch of pending messages is larger than max"),
    (RESOURCE_EXHAUSTED, "connection pool exhausted: 50 vs. 50"),
    (RESOURCE_EXHAUSTED, "Bandwidth exhausted or memory limit exceeded"),
    (RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
    (RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (5 vs. 4)"),
    (
        RESOURCE_EXHAUSTED,
        "Stream removed (received metadata size exceeds hard limit (value length 20000 vs. 16384))",
    ),
    (UNKNOWN, "order 17 failed: Payload Too Large"),
    (UNKNOWN, "Received http2 header with status: 429"),
    (UNAVAILABLE, "SERVER: Received message larger than max (5 vs. 4)"),
    (OK, "gRPC message exceeds maximum size 4: 5"),
]


@pytest.mark.parametrize(("code", "details", "numbers"), REFUSALS, ids=lambda value: str(value)[:40])
def test_a_refusal_for_size_is_known_by_the_words_of_every_implementation(
    code: int, details: str, numbers: tuple[int | None, int | None]
) -> None:
    assert size_refusal(code, details) == SizeRefusal(*numbers)
    assert CallResult(code, details).too_large


@pytest.mark.parametrize(("code", "details"), OTHERS, ids=lambda value: str(value)[:40])
def test_an_overload_and_an_unreadable_answer_are_no_refusals_for_size(code: int, details: str) -> None:
    assert size_refusal(code, details) is None
    assert not CallResult(code, details).too_large


def test_the_receivers_action_overrides_the_look_of_its_details() -> None:
    assert not CallResult(RESOURCE_EXHAUSTED, "gRPC message exceeds maximum size 4: 5", "Retry").too_large


@pytest.mark.parametrize("ending", ["status", "trailer"])
async def test_long_details_are_read_and_do_not_make_the_message_too_large(ending: str) -> None:
    async def talk(_: bytes, context: Any) -> bytes:
        if ending == "status":
            await context.abort(grpc.StatusCode.INTERNAL, "Traceback " + "x" * 30_000)
        context.set_trailing_metadata((("kafka-note", "y" * 30_000),))
        return b""

    async with serving(talk) as call:
        result = await call()

    assert (result.code, result.too_large) == (INTERNAL if ending == "status" else OK, False)
    assert result.details.startswith("Traceback" if ending == "status" else "")


class _AnyMethod(grpc.GenericRpcHandler):
    def service(self, _: Any) -> Any:
        async def talk(_: bytes, __: Any) -> bytes:
            return b""

        return grpc.unary_unary_rpc_method_handler(talk)


async def test_many_headers_that_a_receiver_refuses_without_details_are_too_large() -> None:
    server = aio.server()  # with gRPC's own limits for metadata
    server.add_generic_rpc_handlers((_AnyMethod(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    caller = CountingCaller(unary_target(f"127.0.0.1:{port}", "/any/method"))
    result = await caller(b"", [(f"kafka-header-{number}-bin", bytes(100)) for number in range(200)])
    await caller.target.close()
    await server.stop(None)

    assert (result.code, result.too_large) == (RESOURCE_EXHAUSTED, True)
    assert "metadata" in result.details


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "gRPC message exceeds maximum size 1000: {size}"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message exceeds the maximum configured message size."),
        (
            grpc.StatusCode.OUT_OF_RANGE,
            "Error, decoded message length too large: found {size} bytes, the limit is: 1000 bytes",
        ),
    ],
)
async def test_a_stream_that_ends_over_a_large_message_drops_it_by_any_implementations_details(
    code: grpc.StatusCode, details: str
) -> None:
    async def refuse(stream: ReceiverStream) -> None:
        await stream.accept(1 << 40)
        while (request := await stream.request()) is not None:
            size = request.ByteSize()
            if size > 1_000:
                await stream.context.abort(code, details.format(size=size))

    async with streaming(refuse) as sender:
        sender.send([StreamRecord(0, bytes(300_000))])
        await asyncio.wait_for(sender.all_reported(), 30)

    assert sender.codes() == [RESOURCE_EXHAUSTED]
    assert sender.results[0, 0].too_large
