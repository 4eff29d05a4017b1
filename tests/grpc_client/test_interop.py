"""The cases of gRPC's interoperability tests that a unary and a bidirectional client can have.

The servers are other people's: grpc-go, grpc-java on Netty, grpc-js, gRPC's C core and tonic. Names of the
cases are those of gRPC's document "interop-test-descriptions".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from app.grpc_client.address import Address
from app.grpc_client.calls import Loss, StreamCall, UnaryCall
from app.grpc_client.channel import Channel, ChannelOptions
from app.grpc_client.connection import ConnectionOptions
from app.grpc_client.metadata import read_metadata, wire_field
from app.grpc_client.status import StatusCode
from tests.grpc_client import peers
from tests.grpc_client.peers import Peer
from tests.grpc_client.peers.messages import message
from tests.grpc_client.servers import until

TIMEOUT_S = 60.0
LARGE_REQUEST, LARGE_RESPONSE = 271_828, 314_159
Metadata = Sequence[tuple[str, str | bytes]]


@pytest.fixture(scope="module", params=peers.PARAMETERS)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    peers.require(request.param)
    with peers.start(request.param) as started:
        yield started


@pytest.fixture
async def client(peer: Peer) -> AsyncIterator[Client]:
    made = Client(peer)
    yield made
    await made.channel.close()


class Client:
    """Calls of one channel to a peer."""

    def __init__(self, peer: Peer, options: ChannelOptions | None = None) -> None:
        self.peer = peer
        self.channel = Channel(Address.parse(peer.address), options)

    async def unary(
        self,
        method: str,
        request: Any,
        metadata: Metadata = (),
        timeout_s: float = TIMEOUT_S,
        service: str = "grpc.testing.TestService",
    ) -> UnaryCall:
        future: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
        self.channel.unary(
            self.channel.method(f"/{service}/{method}"),
            request.SerializeToString(),
            [wire_field(name, value) for name, value in metadata],
            timeout_s,
            future.set_result,
        )
        return await asyncio.wait_for(future, TIMEOUT_S)

    def stream(
        self, metadata: Metadata = (), timeout_s: float = TIMEOUT_S, method: str = "FullDuplexCall"
    ) -> Stream:
        return Stream(self.channel, metadata, timeout_s, method)


class Stream:
    """One call of FullDuplexCall, or of StreamingOutputCall."""

    def __init__(self, channel: Channel, metadata: Metadata, timeout_s: float, method: str) -> None:
        self.received: list[Any] = []
        self.ended: asyncio.Future[StreamCall] = asyncio.get_running_loop().create_future()
        self.call = channel.stream(
            channel.method(f"/grpc.testing.TestService/{method}"),
            [wire_field(name, value) for name, value in metadata],
            timeout_s,
            self._receive,
            self.ended.set_result,
        )

    def _receive(self, _: StreamCall, data: bytes) -> None:
        self.received.append(message("StreamingOutputCallResponse").FromString(data))

    def send(self, *sizes: int, body: int = 0, interval_us: int = 0, compressed: int = 0) -> None:
        """`compressed`: so many of the responses are to be."""
        request = message("StreamingOutputCallRequest")()
        for number, size in enumerate(sizes):
            parameters = request.response_parameters.add(size=size, interval_us=interval_us)
            parameters.compressed.value = number < compressed
        request.payload.body = bytes(body)
        self.call.send(request.SerializeToString())

    def send_status(self, code: int, text: str) -> None:
        request = message("StreamingOutputCallRequest")()
        request.response_status.code, request.response_status.message = code, text
        self.call.send(request.SerializeToString())

    async def end(self) -> StreamCall:
        return await asyncio.wait_for(self.ended, TIMEOUT_S)

    @property
    def sizes(self) -> list[int]:
        return [len(response.payload.body) for response in self.received]


def simple_request(size: int = 0, body: int = 0, *, compressed: bool = False) -> Any:
    request = message("SimpleRequest")(response_size=size)
    request.payload.body = bytes(body)
    request.response_compressed.value = compressed
    return request


def failing_request(code: int, text: str) -> Any:
    request = message("SimpleRequest")()
    request.response_status.code, request.response_status.message = code, text
    return request


def body_of(call: UnaryCall) -> bytes:
    assert call.code is StatusCode.OK, (call.code, call.message)
    assert call.answer is not None
    body: bytes = message("SimpleResponse").FromString(call.answer).payload.body
    return body


async def test_empty_unary(client: Client) -> None:
    call = await client.unary("EmptyCall", message("Empty")())
    assert (call.code, call.answer) == (StatusCode.OK, b"")


async def test_large_unary(client: Client) -> None:
    assert body_of(await client.unary("UnaryCall", simple_request(LARGE_RESPONSE, LARGE_REQUEST))) == bytes(
        LARGE_RESPONSE
    )


async def test_many_large_calls_at_once_fit_into_the_windows(client: Client) -> None:
    calls = await asyncio.gather(
        *(client.unary("UnaryCall", simple_request(200_000, 200_000)) for _ in range(100))
    )
    assert {len(body_of(call)) for call in calls} == {200_000}


async def test_thousands_of_calls_at_once(client: Client) -> None:
    calls = await asyncio.gather(
        *(
            client.unary("UnaryCall", simple_request(number), [("x-number", str(number))])
            for number in range(3_000)
        )
    )
    assert [len(body_of(call)) for call in calls] == list(range(3_000))


async def test_server_compressed_unary(client: Client) -> None:
    for compressed in (True, False):
        call = await client.unary("UnaryCall", simple_request(LARGE_RESPONSE, compressed=compressed))
        assert body_of(call) == bytes(LARGE_RESPONSE)


async def test_server_streaming(client: Client) -> None:
    stream = client.stream(method="StreamingOutputCall")
    sizes = [31_415, 9, 2_653, 58_979]
    stream.send(*sizes)
    stream.call.close_sending()
    assert (await stream.end()).code is StatusCode.OK
    assert stream.sizes == sizes


async def test_server_compressed_streaming(client: Client) -> None:
    stream = client.stream(method="StreamingOutputCall")
    stream.send(31_415, 92_653, compressed=1)
    stream.call.close_sending()
    ended = await stream.end()
    assert ended.code is StatusCode.OK
    assert stream.sizes == [31_415, 92_653]
    compresses = client.peer.language not in {"node", "rust"}  # these never compress a stream
    assert ended.head is not None
    assert ended.head.encoding == (b"gzip" if compresses else b"identity")


async def test_cancel_after_begin(client: Client) -> None:
    assert (await client.unary("EmptyCall", message("Empty")())).code is StatusCode.OK  # it is connected
    stream = client.stream()
    stream.call.cancel()
    assert (await stream.end()).code is StatusCode.CANCELLED
    assert not stream.received
    assert (await client.unary("EmptyCall", message("Empty")())).code is StatusCode.OK


async def test_ping_pong(client: Client) -> None:
    stream = client.stream()
    sizes = [31_415, 9, 2_653, 58_979]
    for number, (size, body) in enumerate(zip(sizes, [27_182, 8, 1_828, 45_904], strict=True), 1):
        stream.send(size, body=body)
        await until(lambda number=number: len(stream.received) == number)  # type: ignore[misc]
    stream.call.close_sending()
    assert (await stream.end()).code is StatusCode.OK
    assert stream.sizes == sizes


async def test_empty_stream(client: Client) -> None:
    stream = client.stream()
    stream.call.close_sending()
    assert (await stream.end()).code is StatusCode.OK
    assert not stream.received


async def test_a_stream_of_many_messages_both_ways(client: Client) -> None:
    stream = client.stream()
    for number in range(2_000):
        stream.send(number % 300, body=number % 1_000)
    stream.call.close_sending()
    assert (await stream.end()).code is StatusCode.OK
    assert stream.sizes == [number % 300 for number in range(2_000)]


async def test_cancel_after_first_response(client: Client) -> None:
    stream = client.stream()
    stream.send(31_415, body=27_182)
    await until(lambda: len(stream.received) == 1)
    stream.call.cancel()
    assert (await stream.end()).code is StatusCode.CANCELLED
    assert (await client.unary("EmptyCall", message("Empty")())).code is StatusCode.OK


async def test_timeout_on_sleeping_server(client: Client) -> None:
    stream = client.stream(timeout_s=0.3)
    stream.send(10, interval_us=30_000_000)
    assert (await stream.end()).code is StatusCode.DEADLINE_EXCEEDED
    call = await client.unary("UnaryCall", simple_request(), [("x-test-sleep-ms", "30000")], timeout_s=0.3)
    assert call.code is StatusCode.DEADLINE_EXCEEDED


async def test_sleeping_calls_overlap(client: Client) -> None:
    calls = await asyncio.gather(
        *(client.unary("UnaryCall", simple_request(), [("x-test-sleep-ms", "500")]) for _ in range(500))
    )
    assert {call.code for call in calls} == {StatusCode.OK}


async def test_custom_metadata(client: Client) -> None:
    sent: Metadata = [
        ("x-grpc-test-echo-initial", "test_initial_metadata_value"),
        ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab"),
    ]
    call = await client.unary("UnaryCall", simple_request(LARGE_RESPONSE, LARGE_REQUEST), sent)
    assert len(body_of(call)) == LARGE_RESPONSE
    assert call.head is not None
    assert sent[0] in read_metadata(call.head.fields)
    assert sent[1] in read_metadata(call.trailers)
    stream = client.stream(sent)
    stream.send(10)
    stream.call.close_sending()
    ended = await stream.end()
    assert ended.head is not None
    assert sent[0] in read_metadata(ended.head.fields)
    assert sent[1] in read_metadata(ended.trailers)


async def test_status_code_and_message(client: Client) -> None:
    call = await client.unary("UnaryCall", failing_request(2, "test status message"))
    assert (call.code, call.message, call.loss) == (StatusCode.UNKNOWN, "test status message", Loss.NONE)
    stream = client.stream()
    stream.send_status(2, "test status message")
    ended = await stream.end()
    assert (ended.code, ended.message) == (StatusCode.UNKNOWN, "test status message")


@pytest.mark.parametrize("code", range(1, 17))
async def test_each_status_code(client: Client, code: int) -> None:
    call = await client.unary("UnaryCall", failing_request(code, f"number {code}"))
    assert (call.code, call.message) == (StatusCode(code), f"number {code}")


async def test_special_status_message(client: Client) -> None:
    text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
    call = await client.unary("UnaryCall", failing_request(2, text))
    assert (call.code, call.message) == (StatusCode.UNKNOWN, text)


async def test_status_details(client: Client) -> None:
    call = await client.unary("UnaryCall", failing_request(9, "with details"), [("x-test-details", "1")])
    assert call.code is StatusCode.FAILED_PRECONDITION
    details = dict(read_metadata(call.trailers))["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    assert b"with details" in details


async def test_unimplemented_method(client: Client) -> None:
    call = await client.unary("UnimplementedCall", message("Empty")())
    assert call.code is StatusCode.UNIMPLEMENTED


async def test_unimplemented_service(client: Client) -> None:
    call = await client.unary("UnaryCall", message("Empty")(), service="grpc.testing.UnimplementedService")
    assert call.code is StatusCode.UNIMPLEMENTED


async def test_large_trailers(client: Client) -> None:
    size = 40_000
    call = await client.unary("UnaryCall", simple_request(), [("x-test-big-trailer", str(size))])
    assert call.code is StatusCode.OK
    assert len(dict(read_metadata(call.trailers))["x-test-big"]) == size


async def test_an_answer_beyond_the_limit_ends_its_call_alone(peer: Peer) -> None:
    client = Client(peer, ChannelOptions(connection=ConnectionOptions(max_message_bytes=100_000)))
    try:
        large, small = await asyncio.gather(
            client.unary("UnaryCall", simple_request(300_000)),
            client.unary("UnaryCall", simple_request(1_000)),
        )
        assert (large.code, large.is_too_large) == (StatusCode.RESOURCE_EXHAUSTED, True)
        assert len(body_of(small)) == 1_000
    finally:
        await client.channel.close()


async def test_a_message_beyond_the_servers_limit_is_refused_by_the_server(client: Client) -> None:
    call = await client.unary("UnaryCall", simple_request(0, 5 * 2**20))
    assert call.code in {StatusCode.RESOURCE_EXHAUSTED, StatusCode.OUT_OF_RANGE}
    assert (await client.unary("EmptyCall", message("Empty")())).code is StatusCode.OK
