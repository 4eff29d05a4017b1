"""The peers do what `tests.grpc_client.peers` says, as gRPC's own client sees it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from tests.grpc_client import peers
from tests.grpc_client.peers import Peer, certificates
from tests.grpc_client.peers.messages import message

ENOUGH_S = 60.0  # ends a test that would hang
MIB = 1 << 20
CLIENT_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),  # tonic refuses the one that gRPC makes from a socket's path
]
UNCOMPRESSED_STREAMS = {"node", "rust"}
TOO_LARGE = {"rust": grpc.StatusCode.OUT_OF_RANGE}  # the others answer RESOURCE_EXHAUSTED
SETTINGS, GOAWAY, MAX_CONCURRENT_STREAMS = 4, 7, 3  # RFC 9113
FRAME_HEADER_BYTES = 9


@pytest.fixture(scope="module", params=peers.PARAMETERS)
def language(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    peers.require(found)
    return found


@pytest.fixture(scope="module")
def peer(language: str) -> Iterator[Peer]:
    """A server without options, for tests that do not end it."""
    with peers.start(language) as running:
        yield running


class Caller:
    """Calls the methods of a peer's service."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel  # an aio.Channel; its stubs ask for arguments that gRPC does not need

    def _codec(self, request: str, response: str) -> dict[str, Any]:
        return {
            "request_serializer": message(request).SerializeToString,
            "response_deserializer": message(response).FromString,
        }

    def empty(self, metadata: Mapping[str, str | bytes], method: str = "EmptyCall") -> Any:
        call = self._channel.unary_unary(
            f"/grpc.testing.TestService/{method}", **self._codec("Empty", "Empty")
        )
        return call(message("Empty")(), metadata=tuple(metadata.items()), timeout=ENOUGH_S)

    def unary(self, request: Mapping[str, Any], metadata: Mapping[str, str | bytes] | None = None) -> Any:
        call = self._channel.unary_unary(
            "/grpc.testing.TestService/UnaryCall", **self._codec("SimpleRequest", "SimpleResponse")
        )
        sent = message("SimpleRequest")(**request)
        return call(sent, metadata=tuple((metadata or {}).items()), timeout=ENOUGH_S)

    def output(self, request: Mapping[str, Any]) -> Any:
        call = self._channel.unary_stream(
            "/grpc.testing.TestService/StreamingOutputCall",
            **self._codec("StreamingOutputCallRequest", "StreamingOutputCallResponse"),
        )
        return call(message("StreamingOutputCallRequest")(**request), timeout=ENOUGH_S)

    def duplex(self, metadata: Mapping[str, str | bytes] | None = None) -> Any:
        call = self._channel.stream_stream(
            "/grpc.testing.TestService/FullDuplexCall",
            **self._codec("StreamingOutputCallRequest", "StreamingOutputCallResponse"),
        )
        return call(metadata=tuple((metadata or {}).items()), timeout=ENOUGH_S)

    def bench(self, request: bytes) -> Any:
        return self._channel.unary_unary("/switchyard.bench.Echo/Call")(request, timeout=ENOUGH_S)


@contextlib.asynccontextmanager
async def calling(address: str, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[Caller]:
    """A caller on a connection of its own."""
    channel = (
        aio.insecure_channel(address, options=CLIENT_OPTIONS)
        if credentials is None
        else aio.secure_channel(address, credentials, options=CLIENT_OPTIONS)
    )
    async with channel:
        yield Caller(channel)


def wanting(*sizes: int, **fields: Any) -> dict[str, Any]:
    """A request of a stream for responses of these sizes."""
    return {"response_parameters": [{"size": size} for size in sizes], **fields}


def streamed(request: Mapping[str, Any]) -> Any:
    return message("StreamingOutputCallRequest")(**request)


async def failure(call: Any) -> Any:
    """The error that a call ends with."""
    with pytest.raises(aio.AioRpcError) as raised:
        await call
    return raised.value


# -- the service ---------------------------------------------------------------------------------


async def test_a_unary_call_answers_with_as_many_zeros_as_it_asks_for(peer: Peer) -> None:
    async with calling(peer.address) as caller:
        assert (await caller.unary({"response_size": 0})).payload.body == b""
        assert (await caller.unary({"response_size": 5 * MIB})).payload.body == bytes(5 * MIB)
        response = await caller.unary({"response_size": 3, "payload": {"body": b"x" * MIB}})
        assert response.payload.body == bytes(3)


async def test_a_wanted_status_ends_a_call_with_its_code_and_message(peer: Peer) -> None:
    wanted = {"code": 9, "message": "nicht so, \u00e4h \u2603\n"}
    async with calling(peer.address) as caller:
        error = await failure(caller.unary({"response_status": wanted}))
        assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, wanted["message"])
        assert "grpc-status-details-bin" not in dict(error.trailing_metadata())

        call = caller.duplex()
        await call.write(streamed(wanting(1, response_status=wanted)))
        assert (await call.read()).payload.body == bytes(1)
        error = await failure(call.read())
        assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, wanted["message"])


async def test_details_of_a_wanted_status_are_a_google_rpc_status(peer: Peer) -> None:
    wanted = {"code": 8, "message": "full"}
    async with calling(peer.address) as caller:
        error = await failure(caller.unary({"response_status": wanted}, {"x-test-details": "1"}))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    found = message("DetailedStatus").FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (found.code, found.message) == (8, "full")
    (detail,) = found.details
    assert detail.type_url == "type.googleapis.com/grpc.testing.EchoStatus"
    assert message("EchoStatus").FromString(detail.value) == message("EchoStatus")(**wanted)


@pytest.mark.parametrize("code", [0, 5])
async def test_metadata_comes_back_whether_a_call_fails_or_not(peer: Peer, code: int) -> None:
    sent: dict[str, str | bytes] = {
        "x-grpc-test-echo-initial": "first",
        "x-grpc-test-echo-trailing-bin": b"\x00\xff last",
        "x-test-big-trailer": "3000",
    }
    async with calling(peer.address) as caller:
        unary = caller.unary({"response_status": {"code": code}}, sent)
        duplex = caller.duplex(sent)
        await duplex.write(streamed(wanting(1, response_status={"code": code})))
        await duplex.done_writing()
        with contextlib.suppress(aio.AioRpcError):
            assert [response.payload.body async for response in duplex] == [bytes(1)]
        for call in (unary, duplex):
            assert (await call.code()).value[0] == code
            assert dict(await call.initial_metadata())["x-grpc-test-echo-initial"] == "first"
            trailing = dict(await call.trailing_metadata())
            assert trailing["x-grpc-test-echo-trailing-bin"] == b"\x00\xff last"
            assert trailing["x-test-big"] == "x" * 3000


async def test_an_empty_call_returns_no_metadata(peer: Peer) -> None:
    async with calling(peer.address) as caller:
        call = caller.empty({"x-grpc-test-echo-initial": "first", "x-test-big-trailer": "10"})
        assert await call == message("Empty")()
        assert "x-grpc-test-echo-initial" not in dict(await call.initial_metadata())
        assert "x-test-big" not in dict(await call.trailing_metadata())


async def test_the_method_that_nobody_implements_is_unimplemented(peer: Peer) -> None:
    async with calling(peer.address) as caller:
        error = await failure(caller.empty({}, "UnimplementedCall"))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_stream_has_a_response_for_each_wish_in_order(peer: Peer) -> None:
    async with calling(peer.address) as caller:
        sizes = [31_415, 0, 2_653, 58_979]
        assert [len(response.payload.body) async for response in caller.output(wanting(*sizes))] == sizes

        call = caller.duplex()
        for size in sizes:
            wish = {"size": size, "interval_us": 1_000}
            await call.write(streamed({"response_parameters": [wish, {"size": 1}]}))
            assert [len((await call.read()).payload.body) for _ in range(2)] == [size, 1]
        await call.done_writing()
        assert await call.read() is aio.EOF  # type: ignore[attr-defined]
        assert await call.code() is grpc.StatusCode.OK


async def test_a_sleeping_call_holds_no_other_call_up(peer: Peer) -> None:
    async with calling(peer.address) as caller:
        long = caller.unary({}, {"x-test-sleep-ms": "3600000"})
        # One after the other these would take several minutes.
        calls = [caller.unary({"response_size": 1}, {"x-test-sleep-ms": "200"}) for _ in range(2_000)]
        async with asyncio.timeout(ENOUGH_S):
            responses = await asyncio.gather(*calls)
        assert all(response.payload.body == bytes(1) for response in responses)
        assert not long.done()
        long.cancel()


async def test_the_service_for_benchmarks_answers_with_an_empty_message(peer: Peer) -> None:
    async with calling(peer.address) as caller:
        for request in (b"", b"\xff no message of protobuf", bytes(MIB)):
            assert await caller.bench(request) == b""


# -- compression ---------------------------------------------------------------------------------


class Relay:
    """Passes connections to a port, and counts the bytes that come from there."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.received_bytes = 0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, server_writer]
        await asyncio.gather(self._pass(reader, server_writer, 0), self._pass(server_reader, writer, 1))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: int) -> None:
        with contextlib.suppress(ConnectionError):
            while read := await reader.read(1 << 16):
                self.received_bytes += counted * len(read)
                writer.write(read)
        writer.close()

    async def close(self) -> None:
        """Ends the connections: gRPC keeps those of calls that a test still refers to."""
        for writer in self._writers:
            writer.transport.abort()
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def relaying(peer: Peer) -> AsyncIterator[tuple[Relay, Caller]]:
    relay = Relay(peer.port)
    server = await asyncio.start_server(relay.connect, "127.0.0.1")
    try:
        async with calling(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as caller:
            yield relay, caller
    finally:
        server.close()
        await relay.close()


@pytest.mark.parametrize("is_wanted", [False, True])
async def test_a_unary_response_is_compressed_if_the_request_says_so(peer: Peer, is_wanted: bool) -> None:
    async with relaying(peer) as (relay, caller):
        request = {"response_size": MIB, "response_compressed": {"value": is_wanted}}
        assert (await caller.unary(request)).payload.body == bytes(MIB)
    is_compressed = is_wanted and peer.language != "node"
    assert (relay.received_bytes < MIB / 10) == is_compressed


@pytest.mark.parametrize("is_wanted", [False, True])
async def test_responses_of_a_stream_are_compressed_if_the_request_says_so(
    peer: Peer, is_wanted: bool
) -> None:
    wish = {"size": MIB, "compressed": {"value": is_wanted}}
    is_compressed = is_wanted and peer.language not in UNCOMPRESSED_STREAMS
    async with relaying(peer) as (relay, caller):
        async for response in caller.output({"response_parameters": [wish]}):
            assert response.payload.body == bytes(MIB)
        assert (relay.received_bytes < MIB / 10) == is_compressed
        before_bytes = relay.received_bytes
        call = caller.duplex()
        await call.write(streamed({"response_parameters": [wish, wish]}))
        assert [(await call.read()).payload.body for _ in range(2)] == [bytes(MIB)] * 2
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        assert (relay.received_bytes - before_bytes < MIB / 10) == is_compressed


# -- options and ends ----------------------------------------------------------------------------


class RawConnection:
    """An HTTP/2 connection that shows the server's frames, and makes no call."""

    def __init__(self, peer: Peer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", peer.port), timeout=ENOUGH_S)
        empty_settings = bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings)
        self._file = self._socket.makefile("rb")

    def read_until(self, kind: int) -> bytes:
        """The payload of the next frame of this kind."""
        while header := self._file.read(FRAME_HEADER_BYTES):
            payload = self._file.read(int.from_bytes(header[:3]))
            if header[3] == kind:
                return payload
        raise AssertionError(f"the connection ended before a frame of type {kind}")

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def connected(peer: Peer) -> contextlib.closing[RawConnection]:
    return contextlib.closing(RawConnection(peer))


def settings_of(payload: bytes) -> dict[int, int]:
    return {
        int.from_bytes(payload[at : at + 2]): int.from_bytes(payload[at + 2 : at + 6])
        for at in range(0, len(payload), 6)
    }


def test_a_server_without_options_sets_no_low_limit_of_calls(peer: Peer) -> None:
    with connected(peer) as connection:
        assert settings_of(connection.read_until(SETTINGS)).get(MAX_CONCURRENT_STREAMS, 1 << 31) > 1 << 30


def test_a_limit_of_calls_is_in_the_servers_settings(language: str) -> None:
    with peers.start(language, "--max-concurrent-streams", "7") as peer, connected(peer) as connection:
        assert settings_of(connection.read_until(SETTINGS))[MAX_CONCURRENT_STREAMS] == 7


async def test_a_request_above_the_largest_is_refused_and_one_below_it_is_not(
    language: str, peer: Peer
) -> None:
    request = {"payload": {"body": bytes(5 * MIB)}}
    async with calling(peer.address) as caller:
        error = await failure(caller.unary(request))
        assert error.code() is TOO_LARGE.get(language, grpc.StatusCode.RESOURCE_EXHAUSTED)
    with peers.start(language, "--max-message", str(6 * MIB)) as generous:
        async with calling(generous.address) as caller:
            assert (await caller.unary(request)).payload.body == b""


def test_an_old_connection_gets_a_goaway(language: str) -> None:
    with peers.start(language, "--max-connection-age-ms", "1000") as peer, connected(peer) as connection:
        assert len(connection.read_until(GOAWAY)) >= 8


async def test_a_call_fails_when_the_grace_of_its_connection_is_over(language: str) -> None:
    options = ("--max-connection-age-ms", "1000", "--max-connection-age-grace-ms", "100")
    with peers.start(language, *options) as peer:
        async with calling(peer.address) as caller:
            call = caller.duplex()
            await call.write(streamed(wanting(1)))
            assert (await call.read()).payload.body == bytes(1)
            error = await failure(call.read())
            assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_server_on_a_unix_socket_answers(language: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket must be short
        path = Path(folder) / "s"
        with peers.start(language, "--unix", str(path)) as peer:
            assert (peer.address, peer.port) == (f"unix:{path}", 0)
            async with calling(peer.address) as caller:
                assert (await caller.unary({"response_size": 2})).payload.body == bytes(2)
            assert peer.stop() == 0


async def test_a_server_with_tls_shows_its_certificate(language: str, tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    with peers.start(language, *made.server_options) as peer:
        trusting = grpc.ssl_channel_credentials(made.authority.read_bytes())
        async with calling(peer.address, trusting) as caller:
            assert (await caller.unary({"response_size": 2})).payload.body == bytes(2)
        async with calling(peer.address) as caller:
            assert (await failure(caller.unary({}))).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_with_an_authority_refuses_clients_without_a_certificate(
    language: str, tmp_path: Path
) -> None:
    made = certificates.make(tmp_path)
    authority = made.authority.read_bytes()
    known = grpc.ssl_channel_credentials(authority, made.client_key.read_bytes(), made.client.read_bytes())
    with peers.start(language, *made.mutual_options) as peer:
        async with calling(peer.address, known) as caller:
            assert (await caller.unary({"response_size": 2})).payload.body == bytes(2)
        async with calling(peer.address, grpc.ssl_channel_credentials(authority)) as caller:
            assert (await failure(caller.unary({}))).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_terminated_server_lets_calls_end(language: str) -> None:
    with peers.start(language) as peer:
        async with calling(peer.address) as caller:
            call = caller.duplex()
            await call.write(streamed(wanting(1)))
            assert (await call.read()).payload.body == bytes(1)
            with connected(peer) as connection:
                connection.read_until(SETTINGS)
                peer.terminate()
                assert len(await asyncio.to_thread(connection.read_until, GOAWAY)) >= 8
            await call.write(streamed(wanting(2)))
            assert (await call.read()).payload.body == bytes(2)
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        assert await asyncio.to_thread(peer.wait) == 0


def test_a_server_ends_with_its_standard_input(language: str) -> None:
    with peers.start(language) as peer:
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        assert peer.wait() == 0


def test_a_server_that_cannot_start_is_reported(language: str) -> None:
    with (
        pytest.raises(peers.StartFailed, match="ended with"),
        peers.start(language, "--no-such-option"),
    ):
        pass
