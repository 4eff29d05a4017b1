"""Real gRPC servers on loopback, whose handlers a test writes, and calls that are awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from app.push.unary import CallHandle, CallResult, UnaryTarget

METHOD = "/kafka.consumerproxy.billing/orders"
ENOUGH_S = 20.0  # ends a test that would hang; nothing is measured with it

Behaviour = Callable[[bytes, Any], Awaitable[bytes]]
Pairs = Sequence[tuple[str, str | bytes]]


class _Generic(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self, behaviour: Behaviour) -> None:
        self._handler = grpc.unary_unary_rpc_method_handler(behaviour)

    def service(self, details: Any) -> Any:
        return self._handler if details.method == METHOD else None


async def start_server(behaviour: Behaviour, port: int = 0) -> tuple[aio.Server, int]:
    """A server with nothing between the bytes and `behaviour`, and its port."""
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_metadata_size", 1 << 20),  # gRPC refuses what is above 8 kB at random
        ("grpc.absolute_max_metadata_size", 1 << 20),
        ("grpc.server.max_pending_requests", 1 << 20),  # gRPC turns bursts of more than 1,000 calls away
        ("grpc.server.max_pending_requests_hard_limit", 1 << 20),
    ]
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((_Generic(behaviour),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, bound


@contextlib.asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[Caller]:
    """A caller of a server that does as `behaviour` says."""
    server, port = await start_server(behaviour)
    target = UnaryTarget(f"127.0.0.1:{port}", METHOD)
    try:
        yield Caller(target)
    finally:
        await target.close()
        await server.stop(None)


class Caller:
    """Awaits what the target answers, and counts how often it does."""

    def __init__(self, target: UnaryTarget) -> None:
        self.target = target
        self.answers = 0

    def begin(
        self, value: bytes | None = b"", metadata: Pairs = (), timeout_s: float = ENOUGH_S
    ) -> tuple[CallHandle | None, asyncio.Future[CallResult]]:
        """Starts a call; its handle, and its result to come."""
        result: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()

        def done(answer: CallResult) -> None:
            self.answers += 1
            result.set_result(answer)  # raises when called twice

        return self.target.call(value, metadata, timeout_s, done), result

    async def __call__(
        self, value: bytes | None = b"", metadata: Pairs = (), timeout_s: float = ENOUGH_S
    ) -> CallResult:
        """One call to its end."""
        async with asyncio.timeout(ENOUGH_S):
            return await self.begin(value, metadata, timeout_s)[1]


async def accept(value: bytes, context: Any) -> bytes:
    """The receiver that takes everything."""
    return b""
