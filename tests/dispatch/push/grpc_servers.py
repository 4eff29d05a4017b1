"""Real gRPC servers on loopback with handlers of the test's, and calls that can be awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from app.dispatch.definition import CONNECTION_AGE_S, CONNECTIONS
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.grpc_transport import GrpcHealthClient, GrpcServer, GrpcStreamChannel, GrpcUnaryTarget
from app.dispatch.push.health import HEALTH_CHECK_TIMEOUT_S, ReceiverHealth
from app.dispatch.push.http2_transport import (
    Http2HealthClient,
    Http2StreamChannel,
    Http2UnaryTarget,
    Server,
    proxy_to,
)
from app.dispatch.push.metadata import CallMetadata, MetadataTemplate, SharedMetadata, wire_fields
from app.dispatch.push.transport import CallHandle, StreamChannel, UnaryTarget
from app.grpc_client.address import Address
from app.grpc_client.metadata import read_metadata

METHOD = "/kafka.consumerproxy.billing/orders"
ENOUGH_S = 60.0  # ends a test that would hang; nothing is measured with it

Behaviour = Callable[[bytes, Any], Awaitable[bytes]]
Pairs = Sequence[tuple[str, str | bytes]]
NOTHING_SHARED = SharedMetadata(())
TRANSPORTS = ("http2", "grpc")
chosen = {"transport": "http2"}  # by the fixture `transport`


def metadata_of(template: MetadataTemplate, *arguments: Any) -> Pairs:
    """What `template.build` makes of the arguments, with what calls share, as a receiver reads it."""
    return read_metadata((*template.shared(()).fields, *template.build(*arguments)))


def unary_target(address: str, method: str = METHOD) -> UnaryTarget:
    """A client by the transport that the test is about."""
    if chosen["transport"] == "grpc":
        return GrpcUnaryTarget(GrpcServer(address), method)
    return Http2UnaryTarget(server_at(address), method)


def stream_channel(address: str, method: str) -> StreamChannel:
    """Streams by the transport that the test is about."""
    if chosen["transport"] == "grpc":
        return GrpcStreamChannel(GrpcServer(address), method)
    return Http2StreamChannel(server_at(address), method)


async def check_health(
    address: str, service: str = "", *, timeout_s: float = HEALTH_CHECK_TIMEOUT_S
) -> ReceiverHealth:
    """The health of `service` at `address`, asked for once by the transport that the test is about."""
    is_grpc = chosen["transport"] == "grpc"
    client = GrpcHealthClient(GrpcServer(address)) if is_grpc else Http2HealthClient(server_at(address))
    try:
        return await client.check(service, timeout_s)
    finally:
        await client.close()


def server_at(address: str) -> Server:
    """The server at this address, which may be a load balancer's."""
    place = Address.parse(address)
    return Server(place, place.authority, proxy_to(place), CONNECTIONS, CONNECTION_AGE_S)


class _Generic(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, method: str, handler: Any) -> None:
        self._method = method
        self._handler = handler

    def service(self, details: Any) -> Any:
        return self._handler if details.method == self._method else None


async def listen(
    method: str, handler: Any, port: int = 0, max_bytes: int = -1, ping_strikes: int = 0
) -> tuple[aio.Server, int]:
    """A server that passes raw bytes to gRPC's `handler` of one method, and its port. With `ping_strikes`,
    more than this many pings in five minutes end a connection."""
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.http2.max_ping_strikes", ping_strikes),
        ("grpc.max_metadata_size", 1 << 20),  # gRPC refuses metadata above 8 kB at random
        ("grpc.absolute_max_metadata_size", 1 << 20),
        ("grpc.server.max_pending_requests", 1 << 20),  # gRPC rejects bursts of more than 1,000 calls
        ("grpc.server.max_pending_requests_hard_limit", 1 << 20),
    ]
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((_Generic(method, handler),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


async def start_server(behaviour: Behaviour, port: int = 0, ping_strikes: int = 0) -> tuple[aio.Server, int]:
    """A server that runs `behaviour` for every call, and its port."""
    handler = grpc.unary_unary_rpc_method_handler(behaviour)
    return await listen(METHOD, handler, port, ping_strikes=ping_strikes)


class ReceiverAddress:
    """An address at which a receiver may stop and another one start."""

    def __init__(self, start: Callable[..., Awaitable[tuple[aio.Server, int]]], **options: Any) -> None:
        self._start = start
        self._options = options
        self._server: aio.Server | None = None
        self.port = 0

    async def begin(self, behaviour: Any) -> None:
        """Starts a receiver that runs `behaviour`, always at the same port."""
        self._server, self.port = await self._start(behaviour, self.port, **self._options)

    async def end(self) -> None:
        """Stops the receiver."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None


@contextlib.asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[CountingCaller]:
    """A caller of a server that runs `behaviour`."""
    place = ReceiverAddress(start_server)
    await place.begin(behaviour)
    caller = CountingCaller(unary_target(f"127.0.0.1:{place.port}"), place)
    try:
        yield caller
    finally:
        await caller.target.close()
        await place.end()


class CountingCaller:
    """Awaits the target's results, and counts them."""

    def __init__(self, target: UnaryTarget, place: ReceiverAddress | None = None) -> None:
        self.target = target
        self.place = place or ReceiverAddress(start_server)
        self.answers = 0

    def begin(
        self, value: bytes | None = b"", metadata: Pairs = (), timeout_s: float = ENOUGH_S
    ) -> tuple[CallHandle, asyncio.Future[CallResult]]:
        """Starts a call; returns its handle and its future result."""
        result: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()

        def done(answer: CallResult) -> None:
            self.answers += 1
            result.set_result(answer)  # raises when called twice

        own = CallMetadata(NOTHING_SHARED, list(wire_fields(metadata)))
        return self.target.call(value, own, timeout_s, done), result

    async def __call__(
        self, value: bytes | None = b"", metadata: Pairs = (), timeout_s: float = ENOUGH_S
    ) -> CallResult:
        """Makes one call and returns its result."""
        async with asyncio.timeout(ENOUGH_S):
            return await self.begin(value, metadata, timeout_s)[1]


async def accept(value: bytes, context: Any) -> bytes:
    """A receiver that acknowledges everything."""
    return b""
