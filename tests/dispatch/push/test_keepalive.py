"""A receiver that is gone without a word is found by the keepalive of the definition, by both transports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.dispatch.definition import Keepalive, Workload
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.endpoint import Place
from app.dispatch.scheduler.clients import TargetClients
from app.kernel.grpc_status import UNAVAILABLE
from tests.dispatch.pump.rig import definition
from tests.dispatch.push.grpc_servers import ENOUGH_S, NOTHING_SHARED, CallMetadata, start_server
from tests.dispatch.push.stream_servers import ReceiverStream, start_stream_server

SOON_S = 0.3  # a definition must allow more
CALL_S = ENOUGH_S / 2  # what ends a call if nothing else does

pytestmark = pytest.mark.parametrize("transport", ["http2", "grpc"])


class Cable:
    """A way to a server that can be cut: nothing passes it then, and neither end notices."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self.port = 0

    def cut(self) -> None:
        self._is_whole.clear()

    def join(self) -> None:
        self._is_whole.set()

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pass_on(reader, requests), self._pass_on(answers, writer))

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await self._is_whole.wait()
                target.write(data)
        target.close()


@contextlib.asynccontextmanager
async def cable_to(port: int) -> AsyncIterator[Cable]:
    cable = Cable(port)
    server = await asyncio.start_server(cable.lead, "127.0.0.1", 0)
    cable.port = server.sockets[0].getsockname()[1]
    try:
        yield cable
    finally:
        server.close()
        cable.join()  # what waits in it ends


def workload_at(
    port: int, transport: str, contract: str, timeout_s: float = SOON_S
) -> tuple[Workload, Place]:
    """A workload whose keepalive is shorter than definitions may have."""
    address = f"127.0.0.1:{port}"
    made = definition(address, target={"transport": transport, "contract": contract, "connections": 1})
    keepalive = Keepalive.model_construct(time=SOON_S, timeout=timeout_s)
    target = made.spec.target.model_copy(update={"keepalive": keepalive})
    spec = made.spec.model_copy(update={"target": target})
    return made.model_copy(update={"spec": spec}), Place(address, address, is_alone=True)


async def test_a_call_to_a_receiver_that_is_gone_ends_before_its_deadline(transport: str) -> None:
    has_it, ended = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def hang(_: bytes, __: Any) -> bytes:
        has_it.set()
        await asyncio.sleep(3_600)
        return b""

    server, port = await start_server(hang)
    async with cable_to(port) as cable, asyncio.timeout(ENOUGH_S):
        client = TargetClients("w1").unary(*workload_at(cable.port, transport, "unary"))
        client.call(b"v", CallMetadata(NOTHING_SHARED, []), CALL_S, ended.set_result)
        await has_it.wait()
        cable.cut()
        result = await ended
        assert result.code == UNAVAILABLE
        await client.close()
    await server.stop(None)


async def test_a_call_that_only_takes_long_is_not_given_up(transport: str) -> None:
    async def answer_late(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(5 * SOON_S)
        return b""

    ended = asyncio.get_running_loop().create_future()
    server, port = await start_server(answer_late)
    async with cable_to(port) as cable, asyncio.timeout(ENOUGH_S):
        client = TargetClients("w1").unary(*workload_at(cable.port, transport, "unary", ENOUGH_S))
        client.call(b"v", CallMetadata(NOTHING_SHARED, []), CALL_S, ended.set_result)
        assert (await ended).code == 0
        await client.close()
    await server.stop(None)


async def test_an_idle_stream_to_a_receiver_that_is_gone_ends(transport: str) -> None:
    async def script(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await asyncio.sleep(3_600)

    server, port = await start_stream_server(script)
    lost: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
    async with cable_to(port) as cable, asyncio.timeout(ENOUGH_S):
        workload, place = workload_at(cable.port, transport, "stream", 10 * SOON_S)
        client = TargetClients("w1").stream(
            workload, place, lambda: None, lambda result, _: None if lost.done() else lost.set_result(result)
        )
        while not client.room:
            client.connect()
            await asyncio.sleep(0.01)
        cable.cut()
        assert (await lost).code == UNAVAILABLE
        await client.close()
    await server.stop(None)


async def test_a_receiver_that_allows_few_pings_gets_fewer_and_no_call_is_to_blame(
    transport: str,
) -> None:
    """The server has gRPC's default: more than two pings in five minutes end a connection."""

    async def take_long(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(
            (12 if transport == "http2" else 40) * SOON_S
        )  # grpcio pings once a second at most
        return b""

    server, port = await start_server(take_long, ping_strikes=2)
    client = TargetClients("w1").unary(*workload_at(port, transport, "unary", ENOUGH_S))
    lost: list[CallResult] = []
    async with asyncio.timeout(ENOUGH_S):
        while transport == "http2" or len(lost) < 2:  # each of grpcio's channels has to learn it
            ended: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
            client.call(b"v", CallMetadata(NOTHING_SHARED, []), CALL_S, ended.set_result)
            if not (await ended).code:
                break
            lost.append(ended.result())
    assert lost
    assert {(result.code, result.is_planned_end) for result in lost} == {(UNAVAILABLE, True)}
    await client.close()
    await server.stop(None)
