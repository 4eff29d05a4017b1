"""What a call ends with is what gRPC's own client (grpc.aio, the C core) ends with, at the same server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from grpc import aio

from app.grpc_client.address import Address
from app.grpc_client.calls import StreamCall, UnaryCall
from app.grpc_client.channel import Channel, ChannelOptions
from app.grpc_client.connection import ConnectionOptions
from app.grpc_client.metadata import read_metadata, wire_field

LIMIT = 1_000_000
TIMEOUT_S = 20.0
Outcome = tuple[str, str, dict[str, str | bytes], bytes | list[bytes] | None]
Context = aio.ServicerContext[bytes, bytes]


async def fail(request: bytes, context: Context) -> bytes:
    """`CODE message`; the trailers are the same for each."""
    code, _, message = request.decode().partition(" ")
    context.set_trailing_metadata((("x-text", "some text"), ("x-bytes-bin", bytes(range(256)))))
    await context.abort(grpc.StatusCode[code], message)


async def echo(request: bytes, context: Context) -> bytes:
    found = [(name, value) for name, value in context.invocation_metadata() or () if name.startswith("x-")]
    context.set_trailing_metadata(found)
    return request


async def compressed(request: bytes, context: Context) -> bytes:
    context.set_compression(grpc.Compression.Gzip)
    return bytes(int(request))


async def sleep(_: bytes, __: Context) -> bytes:
    await asyncio.sleep(60)
    return b""


async def raising(_: bytes, __: Context) -> bytes:
    raise RuntimeError("a defect of the service")


async def chat(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
    """Echoes; `CODE message` ends the stream so."""
    async for request in requests:
        if request.startswith(b"end "):
            await context.abort(grpc.StatusCode.ABORTED, request.decode())
        yield request


UNARY: dict[str, Callable[[bytes, Context], Awaitable[bytes]]] = {
    "Fail": fail,
    "Echo": echo,
    "Compressed": compressed,
    "Sleep": sleep,
    "Raise": raising,
}  # fmt: skip - a method and what it does


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = aio.server(
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    )
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(method) for name, method in UNARY.items()
    }
    handlers["Chat"] = grpc.stream_stream_rpc_method_handler(chat)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))
    number = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield number
    await server.stop(None)


async def of_core(
    port: int, method: str, request: bytes, metadata: tuple[tuple[str, str | bytes], ...], timeout_s: float
) -> Outcome:
    options = [("grpc.max_receive_message_length", LIMIT)]
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        call = channel.unary_unary(f"/test.Service/{method}", None, None)(
            request, metadata=metadata, timeout=timeout_s
        )
        answer: bytes | None = None
        with contextlib.suppress(aio.AioRpcError):
            answer = await call
        trailers = {str(name): value for name, value in await call.trailing_metadata() or ()}
        return (await call.code()).name, await call.details() or "", trailers, answer


async def of_ours(
    port: int, method: str, request: bytes, metadata: tuple[tuple[str, str | bytes], ...], timeout_s: float
) -> Outcome:
    options = ChannelOptions(connection=ConnectionOptions(max_message_bytes=LIMIT))
    channel = Channel(Address.parse(f"127.0.0.1:{port}"), options)
    try:
        future: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
        wire = [wire_field(name, value) for name, value in metadata]
        channel.unary(channel.method(f"/test.Service/{method}"), request, wire, timeout_s, future.set_result)
        call = await asyncio.wait_for(future, TIMEOUT_S)
    finally:
        await channel.close()
    assert call.code is not None
    trailers = {name: value for name, value in read_metadata(call.trailers) if name.startswith("x-")}
    return call.code.name, call.message, trailers, call.answer if call.code == 0 else None


CODES = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
MESSAGES = [
    "",
    "plain",
    "50 % of 100 %",
    "äöü 漢字 🎈",
    "two\nlines\tand a tab",
    "%41%zz",
    " blanks ",
    "x" * 2_000,
]


@pytest.mark.parametrize("code", CODES)
async def test_each_status_comes_as_grpcs_own_client_reports_it(port: int, code: str) -> None:
    request = f"{code} because of it".encode()
    ours, core = await of_ours(port, "Fail", request, (), 10), await of_core(port, "Fail", request, (), 10)
    assert ours == core
    assert ours[0] == code


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
async def test_each_message_comes_as_grpcs_own_client_reports_it(port: int, message: str) -> None:
    request = f"INTERNAL {message}".encode()
    ours, core = await of_ours(port, "Fail", request, (), 10), await of_core(port, "Fail", request, (), 10)
    assert ours == core


@pytest.mark.parametrize(
    "metadata",
    [
        (("x-text", "plain"), ("x-empty", ""), ("x-more", "~!@#$%^&*()")),
        (("x-any-bin", b""), ("x-all-bin", bytes(range(256))), ("x-odd-bin", b"a"), ("x-two-bin", b"ab")),
        (("x-long", "l" * 3_000), ("x-long-bin", b"\xff" * 3_000)),
    ],
    ids=["text", "bytes", "long"],
)
async def test_metadata_arrives_as_grpcs_own_client_sends_it(
    port: int, metadata: tuple[tuple[str, str | bytes], ...]
) -> None:
    ours, core = (
        await of_ours(port, "Echo", b"v", metadata, 10),
        await of_core(port, "Echo", b"v", metadata, 10),
    )
    assert ours == core
    assert ours[2] == dict(metadata)


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 65_530, 65_531, 300_000, LIMIT])
async def test_messages_of_each_size_come_back_whole(port: int, size: int) -> None:
    request = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert await of_ours(port, "Echo", request, (), 10) == ("OK", "", {}, request)


@pytest.mark.parametrize("size", [0, 1, 100_000, LIMIT])
async def test_compressed_answers_are_read(port: int, size: int) -> None:
    assert await of_ours(port, "Compressed", b"%d" % size, (), 10) == ("OK", "", {}, bytes(size))


@pytest.mark.parametrize(
    ("method", "request_", "timeout_s"),
    [
        ("Echo", b"x" * (LIMIT + 1), 10),
        ("Compressed", b"%d" % (LIMIT + 1), 10),
        ("Nothing", b"", 10),
        ("Raise", b"", 10),
        ("Sleep", b"", 0.2),
    ],
    ids=["too-large", "too-large-decompressed", "no-method", "raises", "deadline"],
)  # fmt: skip - one case a line is longer
async def test_other_failures_have_the_code_of_grpcs_own_client(
    port: int, method: str, request_: bytes, timeout_s: float
) -> None:
    ours = await of_ours(port, method, request_, (), timeout_s)
    core = await of_core(port, method, request_, (), timeout_s)
    assert ours[0] == core[0]
    assert ours[0] != "OK"
    assert ours[1]


async def stream_of_ours(port: int, requests: list[bytes]) -> Outcome:
    channel = Channel(Address.parse(f"127.0.0.1:{port}"))
    try:
        ended: asyncio.Future[StreamCall] = asyncio.get_running_loop().create_future()
        received: list[bytes] = []
        call = channel.stream(
            channel.method("/test.Service/Chat"), (), 10, lambda _, m: received.append(m), ended.set_result
        )
        for request in requests:
            call.send(request)
        call.close_sending()
        await asyncio.wait_for(ended, TIMEOUT_S)
    finally:
        await channel.close()
    assert call.code is not None
    return call.code.name, call.message, {}, received


async def stream_of_core(port: int, requests: list[bytes]) -> Outcome:
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream("/test.Service/Chat", None, None)(aiter_of(requests), timeout=10)
        received: list[bytes] = []
        try:
            async for message in call:
                received.append(message)  # noqa: PERF401 - what came before an error counts
        except aio.AioRpcError:
            pass
        return (await call.code()).name, await call.details() or "", {}, received


async def aiter_of(items: list[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        yield item


@pytest.mark.parametrize(
    "requests",
    [[], [b""], [b"%d" % number for number in range(1_000)], [b"x" * 100_000] * 20, [b"a", b"b", b"end now"]],
    ids=["none", "empty", "many", "large", "aborted"],
)
async def test_a_stream_ends_as_with_grpcs_own_client(port: int, requests: list[bytes]) -> None:
    assert await stream_of_ours(port, requests) == await stream_of_core(port, requests)
