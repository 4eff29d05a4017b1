"""A receiver that is gone without a word is found by the keepalive of the definition, by both transports."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from app.dispatch.definition import Keepalive, Workload
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.endpoint import Place
from app.dispatch.scheduler.clients import TargetClients
from app.kernel.grpc_status import UNAVAILABLE
from tests.dispatch.pump.rig import definition
from tests.dispatch.push.grpc_servers import ENOUGH_S, NOTHING_SHARED, CallMetadata, start_server
from tests.dispatch.push.load_balancer import LoadBalancer, balancing
from tests.dispatch.push.stream_servers import ReceiverStream, start_stream_server

SOON_S = 0.3  # a definition must allow more
CALL_S = ENOUGH_S / 2  # what ends a call if nothing else does

pytestmark = pytest.mark.parametrize("transport", ["http2", "grpc"])


def relay_to(port: int) -> AbstractAsyncContextManager[LoadBalancer]:
    return balancing(lambda: [f"127.0.0.1:{port}"])


def workload_at(
    port: int, transport: str, contract: str, timeout_s: float = SOON_S
) -> tuple[Workload, Place]:
    """A workload whose keepalive is shorter than definitions may have."""
    address = f"127.0.0.1:{port}"
    made = definition(address, target={"transport": transport, "contract": contract, "connections": 1})
    keepalive = Keepalive.model_construct(time=SOON_S, timeout=timeout_s)
    target = made.spec.target.model_copy(update={"keepalive": keepalive})
    spec = made.spec.model_copy(update={"target": target})
    return made.model_copy(update={"spec": spec}), Place(address, address, total=1)


async def test_a_call_to_a_receiver_that_is_gone_ends_before_its_deadline(transport: str) -> None:
    has_it, ended = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def hang(_: bytes, __: Any) -> bytes:
        has_it.set()
        await asyncio.sleep(3_600)
        return b""

    server, port = await start_server(hang)
    async with relay_to(port) as relay, asyncio.timeout(ENOUGH_S):
        client = TargetClients("w1").unary(*workload_at(relay.port, transport, "unary"))
        client.call(b"v", CallMetadata(NOTHING_SHARED, []), CALL_S, ended.set_result)
        await has_it.wait()
        relay.freeze()
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
    async with relay_to(port) as relay, asyncio.timeout(ENOUGH_S):
        client = TargetClients("w1").unary(*workload_at(relay.port, transport, "unary", ENOUGH_S))
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
    async with relay_to(port) as relay, asyncio.timeout(ENOUGH_S):
        workload, place = workload_at(relay.port, transport, "stream", 10 * SOON_S)
        client = TargetClients("w1").stream(
            workload, place, lambda: None, lambda result, _: None if lost.done() else lost.set_result(result)
        )
        while not client.room:
            client.connect()
            await asyncio.sleep(0.01)
        relay.freeze()
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
