"""Answers that gRPC's own servers do not give: an acknowledgement counts, and no other is made of them."""

from __future__ import annotations

import pytest

from app.dispatch.definition import CONNECTIONS
from app.grpc_client import frames
from app.kernel.grpc_status import OK, RESOURCE_EXHAUSTED, UNAVAILABLE
from tests.dispatch.push.grpc_servers import CountingCaller, unary_target
from tests.dispatch.push.http2_server import ending_with
from tests.grpc_client.servers import Wire, serving

pytestmark = pytest.mark.each_transport


async def test_ok_without_a_message_is_an_acknowledgement() -> None:
    async with ending_with((b"grpc-status", b"0")) as port:
        call = CountingCaller(unary_target(f"127.0.0.1:{port}"))
        result = await call(b"v")
        await call.target.close()
    assert (result.code, result.action, result.local_error) == (OK, None, None)


@pytest.mark.parametrize(("status", "code"), [(b"404", UNAVAILABLE), (b"503", UNAVAILABLE)])
async def test_an_http_answer_decides_nothing_about_the_message(status: bytes, code: int) -> None:
    head = ((b":status", status), (b"content-type", b"text/html"))
    async with ending_with((b"kafka-action", b"Skip"), head=head) as port:
        call = CountingCaller(unary_target(f"127.0.0.1:{port}"))
        result = await call(b"v")
        await call.target.close()
    assert (result.code, result.action) == (code, None)


async def test_a_call_that_is_reset_as_too_much_at_once_does_not_count_as_too_large() -> None:
    async def calm(wire: Wire) -> None:
        await wire.start()
        while stream_id := await wire.request():
            code = frames.ErrorCode.ENHANCE_YOUR_CALM.to_bytes(4, "big")
            wire.send(frames.frame(frames.RST_STREAM, 0, stream_id, code))

    async with serving(*[calm] * CONNECTIONS) as server:
        call = CountingCaller(unary_target(f"127.0.0.1:{server.port}"))
        result = await call(b"v")
        await call.target.close()
    assert (result.code, result.too_large) == (RESOURCE_EXHAUSTED, False)
