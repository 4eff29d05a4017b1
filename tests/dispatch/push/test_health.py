"""A receiver's health is known in time, whatever runs at the address."""

from __future__ import annotations

import asyncio

import pytest
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from app.dispatch.definition import CONNECTIONS
from app.dispatch.model.throughput_diagnosis import HOLDING
from app.dispatch.push.health import ReceiverHealth
from app.dispatch.push.http2_transport import Http2HealthClient
from switchyard.receiver import Receiver
from tests.dispatch.push.grpc_servers import ENOUGH_S, accept, check_health, server_at, start_server
from tests.dispatch.push.load_balancer import balancing


async def start_health(status: str) -> tuple[aio.Server, int]:
    """A server that answers every check with this status, and its port."""
    server = aio.server()
    servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    await servicer.set("", health_pb2.HealthCheckResponse.ServingStatus.Value(status))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def test_a_receiver_of_the_sdk_is_serving_and_knows_no_other_service() -> None:
    receiver = Receiver()
    address = f"127.0.0.1:{await receiver.start()}"

    assert await check_health(address, timeout_s=ENOUGH_S) is ReceiverHealth.SERVING
    assert await check_health(address, "other.Service", timeout_s=ENOUGH_S) is ReceiverHealth.UNIMPLEMENTED
    await receiver.stop(0)
    assert await check_health(address, timeout_s=ENOUGH_S) is ReceiverHealth.UNREACHABLE


@pytest.mark.parametrize(
    ("status", "expected"),
    [("NOT_SERVING", ReceiverHealth.NOT_SERVING), ("UNKNOWN", ReceiverHealth.UNKNOWN),
     ("SERVICE_UNKNOWN", ReceiverHealth.SERVICE_UNKNOWN)],
)  # fmt: skip
async def test_an_answer_other_than_serving_holds_messages_and_keeps_its_name(
    status: str, expected: ReceiverHealth
) -> None:
    server, port = await start_health(status)
    assert await check_health(f"127.0.0.1:{port}", timeout_s=ENOUGH_S) is expected
    assert expected.holds
    assert expected in HOLDING, "describe has words for it"
    await server.stop(None)


async def test_a_receiver_without_the_health_service_is_unimplemented() -> None:
    server, port = await start_server(accept)
    assert await check_health(f"127.0.0.1:{port}", timeout_s=ENOUGH_S) is ReceiverHealth.UNIMPLEMENTED
    await server.stop(None)


async def test_a_receiver_that_does_not_answer_is_unreachable_in_time() -> None:
    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await asyncio.start_server(say_nothing, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(ENOUGH_S):
        assert await check_health(f"127.0.0.1:{port}", timeout_s=0.3) is ReceiverHealth.UNREACHABLE
    server.close()


async def test_an_instance_behind_a_load_balancer_that_does_not_serve_holds_up_no_other() -> None:
    servers = [await start_health(status) for status in ("NOT_SERVING", "SERVING")]
    receivers = [f"127.0.0.1:{port}" for _, port in servers]
    async with balancing(lambda: receivers) as balancer:
        client = Http2HealthClient(server_at(f"127.0.0.1:{balancer.port}"))
        for _ in range(5):
            assert await client.check(timeout_s=ENOUGH_S) is ReceiverHealth.SERVING
        receivers[1:] = []
        await servers[1][0].stop(None)
        assert await client.check(timeout_s=ENOUGH_S) is ReceiverHealth.NOT_SERVING
        await client.close()
    await servers[0][0].stop(None)


async def test_a_dead_instance_does_not_hide_one_that_does_not_serve() -> None:
    server, port = await start_health("NOT_SERVING")
    receivers = [f"127.0.0.1:{port}"]
    led: list[str] = []

    def lead() -> list[str]:
        led.append(receivers[len(led) % len(receivers)])
        return led[-1:]

    async with balancing(lead) as balancer:
        client = Http2HealthClient(server_at(f"127.0.0.1:{balancer.port}"))
        assert await client.check(timeout_s=ENOUGH_S) is ReceiverHealth.NOT_SERVING
        assert len(led) == CONNECTIONS
        for count in range(1, 4):
            assert await client.check(timeout_s=ENOUGH_S) is ReceiverHealth.NOT_SERVING
            assert len(led) == CONNECTIONS + count
        receivers.append("127.0.0.1:1")
        for _ in range(6):
            assert await client.check(timeout_s=ENOUGH_S) is ReceiverHealth.NOT_SERVING
        receivers.pop(0)
        assert await client.check(timeout_s=ENOUGH_S) is ReceiverHealth.UNREACHABLE
        await client.close()
    await server.stop(None)
