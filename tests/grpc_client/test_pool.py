"""Several channels to one address: calls are shared by load, and connections in use do not grow old."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from app.grpc_client.address import Address
from app.grpc_client.calls import UnaryCall
from app.grpc_client.channel import Channel
from app.grpc_client.pool import Pool
from app.grpc_client.status import StatusCode
from tests.grpc_client.servers import TIMEOUT_S, until

PATH = "/test.Service/Call"
COUNT = 3


class PeerCounter(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Answers each call after `pause_s`, and counts the calls of each connection."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.calls: Counter[str] = Counter()
        self._pause_s = pause_s

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, _: bytes, context: Any) -> bytes:
        self.calls[context.peer()] += 1
        await asyncio.sleep(self._pause_s)
        return b""


@contextlib.asynccontextmanager
async def calling(peers: PeerCounter, max_age_s: float = 0.0) -> AsyncIterator[Pool]:
    server = aio.server()
    server.add_generic_rpc_handlers((peers,))
    address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    pool = Pool(lambda: Channel(address), COUNT, max_age_s)
    try:
        yield pool
    finally:
        await pool.close()
        await server.stop(0)


async def call(pool: Pool) -> StatusCode | None:
    ended: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
    channel = pool.pick()
    channel.unary(channel.method(PATH), b"", (), TIMEOUT_S, ended.set_result)
    return (await ended).code


async def calls(pool: Pool, count: int, at_once: int) -> list[StatusCode | None]:
    """The statuses of `count` calls, `at_once` of which are under way."""
    numbers, codes = iter(range(count)), list[StatusCode | None]()

    async def caller() -> None:
        for _ in numbers:
            codes.append(await call(pool))

    await asyncio.gather(*(caller() for _ in range(at_once)))
    return codes


async def test_calls_are_shared_evenly() -> None:
    peers = PeerCounter()
    async with calling(peers) as pool:
        assert await calls(pool, 600, at_once=20) == [StatusCode.OK] * 600
        assert len(peers.calls) == COUNT
        assert min(peers.calls.values()) > 100


async def test_connections_in_use_are_renewed_and_no_call_notices() -> None:
    peers = PeerCounter(pause_s=0.01)
    async with calling(peers, max_age_s=0.1) as pool:
        codes: Counter[StatusCode | None] = Counter()
        while len(peers.calls) < 4 * COUNT:
            codes.update(await calls(pool, 100, at_once=10))
        assert set(codes) == {StatusCode.OK}
        assert peers.calls.total() == codes.total(), "no call was made twice"


async def test_a_connection_without_calls_is_kept() -> None:
    peers = PeerCounter()
    async with calling(peers, max_age_s=0.02) as pool:
        await calls(pool, 100, at_once=10)
        await until(lambda: not pool._used)  # each has been renewed since its last call
        before = dict(peers.calls)
        renewed: list[Channel] = []
        for channel in pool._channels:
            channel.renew = lambda one=channel: renewed.append(one)  # type: ignore[misc, method-assign]
        await asyncio.sleep(0.1)
        assert renewed == []
        assert await call(pool) is StatusCode.OK
        assert peers.calls.total() == sum(before.values()) + 1
