"""Sizes beyond a limit are reported as such; a receiver that restarts is found again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.dispatch.push.call_result import CallResult
from switchyard.receiver import Message, Receiver, Skip
from switchyard.receiver.server import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES
from tests.dispatch.push.conftest import CallTo
from tests.dispatch.push.grpc_servers import ENOUGH_S, METHOD, CountingCaller, accept, serving, unary_target

pytestmark = pytest.mark.each_transport

RESOURCE_EXHAUSTED, UNAVAILABLE, CANCELLED = 8, 14, 1


@pytest.fixture
async def sdk(call_to: CallTo) -> CountingCaller:
    """A caller of an SDK receiver that acknowledges everything."""
    receiver = Receiver()
    receiver.on(topic="orders", group="billing")(lambda message: None)
    return await call_to(receiver)


async def test_a_body_beyond_the_receivers_limit_is_too_large_and_the_next_one_is_fine(
    sdk: CountingCaller,
) -> None:
    sizes = (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1, 20 * 1024 * 1024)
    largest, larger, huge = [await sdk(bytes(size)) for size in sizes]

    assert (largest.code, largest.too_large) == (0, False)
    for result in (larger, huge):
        assert (result.code, result.too_large, result.local_error) == (RESOURCE_EXHAUSTED, True, None)
    assert (await sdk(b"small")).code == 0


@pytest.mark.parametrize("size", [9_000, 15_000, 60_000, 1024 * 1024])
async def test_headers_as_large_as_kafka_takes_them_arrive_every_time(sdk: CountingCaller, size: int) -> None:
    codes = [(await sdk(b"", [("kafka-header-x-bin", b"\xff" * size)])).code for _ in range(5)]

    assert codes == [0] * 5


async def test_headers_beyond_the_receivers_limit_are_too_large(sdk: CountingCaller) -> None:
    result = await sdk(b"", [("kafka-header-x-bin", bytes(MAX_METADATA_BYTES))])

    assert (result.code, result.too_large) == (RESOURCE_EXHAUSTED, True)


@pytest.mark.parametrize(("mebibytes", "code"), [(5, 0), (9, RESOURCE_EXHAUSTED)])
async def test_an_answer_of_any_sane_size_acknowledges_and_none_is_the_messages_fault(
    mebibytes: int, code: int
) -> None:
    async def talk(_: bytes, __: Any) -> bytes:
        return bytes(mebibytes * 1024 * 1024)

    async with serving(talk) as call:
        result = await call()

    assert (result.code, result.too_large) == (code, False)


async def test_a_burst_of_calls_is_not_turned_away(sdk: CountingCaller) -> None:
    calls = [sdk.begin(b"", timeout_s=60)[1] for _ in range(3000)]

    assert {(await call).code for call in calls} == {0}
    assert sdk.answers == 3000


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "dns:///does-not-exist.invalid:443", "unix:/does/not/exist"]
)
async def test_a_call_to_an_address_without_a_receiver_is_unavailable(address: str) -> None:
    caller = CountingCaller(unary_target(address, METHOD))

    assert (await caller(timeout_s=ENOUGH_S)).code == UNAVAILABLE
    await caller.target.close()


async def test_a_receiver_far_away_that_is_slow_to_greet_is_reached() -> None:
    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.5)
        inside = await asyncio.open_connection("127.0.0.1", inner.place.port)
        await asyncio.gather(pipe(reader, inside[1]), pipe(inside[0], writer))

    async with serving(accept) as inner:
        way = await asyncio.start_server(connected, "127.0.0.1")
        call = CountingCaller(unary_target(f"127.0.0.1:{way.sockets[0].getsockname()[1]}", METHOD))

        assert (await call()).code == 0

        await call.target.close()
        way.close()


async def test_a_receiver_that_stops_and_comes_back_is_found_again_by_all_channels() -> None:
    async with serving(accept) as call:
        assert [(await call()).code for _ in range(4)] == [0] * 4

        await call.place.end()
        assert (await call()).code == UNAVAILABLE
        await asyncio.sleep(3)  # gRPC's default backoff has grown by then
        await call.place.begin(accept)

        async with asyncio.timeout(ENOUGH_S):
            answered = 0
            while answered < 4:  # one after the other on each channel
                answered = answered + 1 if (await call()).code == 0 else 0


async def test_calls_in_flight_at_a_dying_receiver_end_once_as_unavailable() -> None:
    waiting = asyncio.Semaphore(0)

    async def wait(_: bytes, __: Any) -> bytes:
        waiting.release()
        await asyncio.sleep(ENOUGH_S)
        return b""

    async with serving(wait) as call:
        calls = [call.begin()[1] for _ in range(50)]
        for _ in calls:
            await waiting.acquire()
        await call.place.end()

        results: list[CallResult] = await asyncio.gather(*calls)
        assert {result.code for result in results} <= {UNAVAILABLE, CANCELLED}
        assert call.answers == 50


async def test_closing_ends_each_call_in_flight_once_as_canceled() -> None:
    waiting = asyncio.Semaphore(0)

    async def wait(_: bytes, __: Any) -> bytes:
        waiting.release()
        await asyncio.sleep(ENOUGH_S)
        return b""

    async with serving(wait) as call, asyncio.timeout(ENOUGH_S):
        calls = [call.begin()[1] for _ in range(20)]
        for _ in calls:
            await waiting.acquire()
        await call.target.close()
        assert [(await result).code for result in calls] == [CANCELLED] * 20
        assert call.answers == 20


async def test_a_call_on_a_closed_target_is_not_taken(transport: str) -> None:
    async with serving(accept) as call:
        assert (await call()).code == 0
        await call.target.close()
        result = await call()
        if transport == "http2":
            assert (result.code, result.local_error) == (CANCELLED, None)
        else:
            assert result.local_error is not None


async def test_a_receiver_that_stops_finishes_the_calls_that_it_has_started(call_to: CallTo) -> None:
    receiver, began, go = Receiver(), asyncio.Event(), asyncio.Event()

    @receiver.on(topic="orders", group="billing")
    async def wait(_: Message) -> Skip:
        began.set()
        await go.wait()
        return Skip()

    call = await call_to(receiver)
    _, result = call.begin()
    async with asyncio.timeout(ENOUGH_S):
        await began.wait()
        stopping = asyncio.create_task(receiver.stop(ENOUGH_S))
        await asyncio.sleep(0.1)
        assert not result.done()
        go.set()
        assert (await result).action == "Skip"
        await stopping
