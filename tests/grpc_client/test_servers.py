"""Calls to several servers: they are shared by load, and a server that is lost gets none until it is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from app.grpc_client.address import Address
from app.grpc_client.calls import UnaryCall
from app.grpc_client.channel import Channel, ChannelOptions
from app.grpc_client.resolver import Target
from app.grpc_client.servers import Servers
from app.grpc_client.status import StatusCode
from tests.grpc_client.servers import TIMEOUT_S, until

PATH = "/test.Service/Call"


class CountingServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Answers each call after `pause_s`."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.count = 0
        self.port = 0
        self._pause_s = pause_s
        self._server: aio.Server | None = None

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, _: bytes, __: Any) -> bytes:
        self.count += 1
        await asyncio.sleep(self._pause_s)
        return b""

    async def start(self) -> None:
        self._server = aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None


@contextlib.asynccontextmanager
async def calling(*servers: CountingServer, connects_ahead: bool = True) -> AsyncIterator[Servers]:
    """Channels to the servers, which run meanwhile."""
    for server in servers:
        await server.start()
    target = Target.parse(",".join(f"127.0.0.1:{server.port}" for server in servers))
    options = ChannelOptions(authority=target.authority)
    channels = Servers(target, lambda place: Channel(place, options), connects_ahead=connects_ahead)
    try:
        yield channels
    finally:
        await channels.close()
        for server in servers:
            await server.stop()


async def call(channels: Servers) -> UnaryCall:
    ended: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
    channel = channels.pick()
    channel.unary(channel.method(PATH), b"", (), TIMEOUT_S, ended.set_result)
    return await ended


async def calls(channels: Servers, count: int, at_once: int) -> list[StatusCode | None]:
    """The statuses of `count` calls, `at_once` of which are under way."""
    numbers, codes = iter(range(count)), list[StatusCode | None]()

    async def caller() -> None:
        for _ in numbers:
            codes.append((await call(channels)).code)

    await asyncio.gather(*(caller() for _ in range(at_once)))
    return codes


async def test_calls_are_shared_evenly() -> None:
    servers = [CountingServer() for _ in range(3)]
    async with calling(*servers) as channels:
        codes = await calls(channels, 600, at_once=20)
        assert codes == [StatusCode.OK] * 600
        assert min(server.count for server in servers) > 100


async def test_a_slow_server_gets_fewer_calls() -> None:
    slow, fast = CountingServer(pause_s=0.2), CountingServer()
    async with calling(slow, fast) as channels:
        await calls(channels, 500, at_once=10)
        assert slow.count < fast.count / 4


async def test_a_lost_server_gets_no_calls_until_it_is_back() -> None:
    servers = [CountingServer() for _ in range(3)]
    async with calling(*servers) as channels:
        await calls(channels, 300, at_once=10)
        assert all(server.count for server in servers)
        await servers[0].stop()
        lost = servers[0].count
        assert await calls(channels, 300, at_once=10) == [StatusCode.OK] * 300
        assert servers[0].count == lost
        await servers[0].start()
        async with asyncio.timeout(TIMEOUT_S):
            while servers[0].count == lost:
                await call(channels)


async def test_without_any_server_calls_fail_and_recover() -> None:
    servers = [CountingServer() for _ in range(2)]
    async with calling(*servers) as channels:
        await calls(channels, 20, at_once=2)
        for server in servers:
            await server.stop()
        assert (await call(channels)).code is StatusCode.UNAVAILABLE
        await servers[1].start()
        async with asyncio.timeout(TIMEOUT_S):
            while (await call(channels)).code is not StatusCode.OK:  # noqa: ASYNC110 - a backoff ends
                await asyncio.sleep(0.02)


async def test_each_server_has_a_connection_before_a_call_wants_one() -> None:
    servers = [CountingServer() for _ in range(3)]
    async with calling(*servers) as channels:
        channels.pick()
        await until(lambda: all(channel.is_connected for channel in {channels.pick() for _ in range(20)}))


async def test_a_server_that_leaves_ends_its_calls_first() -> None:
    servers = [CountingServer(pause_s=0.3), CountingServer(pause_s=0.3)]
    async with calling(*servers) as channels:
        under_way = [asyncio.ensure_future(call(channels)) for _ in range(20)]
        await until(lambda: sum(server.count for server in servers) == 20)
        stays, comes = servers[1].port, servers[1].port + 1
        channels.follow((Address("127.0.0.1", stays), Address("127.0.0.1", comes)))
        assert [(await one).code for one in under_way] == [StatusCode.OK] * 20
        before = servers[0].count
        assert await calls(channels, 20, at_once=4) == [StatusCode.OK] * 20
        assert servers[0].count == before
