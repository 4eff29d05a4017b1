"""Messages in a stream's book that may not be sent are given back unchanged, and block no other."""

from __future__ import annotations

import asyncio

import pytest

from app.dispatch.push.stream.results import UNSENT
from app.kernel.grpc_status import DEADLINE_EXCEEDED, OK
from tests.dispatch.push.grpc_servers import ENOUGH_S
from tests.dispatch.push.stream_servers import ReceiverStream, hold, rows, streaming

pytestmark = pytest.mark.each_transport

MUCH = {"deliveries": 1_000, "bytes": 1 << 40}


@pytest.mark.parametrize("window", [{"deliveries": 3}, {"deliveries": 1_000, "size": 10_000}])
async def test_credit_that_comes_while_may_send_is_false_sends_no_message(window: dict[str, int]) -> None:
    go_on = asyncio.Event()
    first: list[int] = []

    async def script(stream: ReceiverStream) -> None:
        await stream.accept(**window)
        first.extend(await stream.messages(3))
        await go_on.wait()
        await stream.say(results={"acknowledged": [{"start": 0, "end": 3}]}, credit=MUCH)
        assert await stream.messages(2) == [100, 101]
        await stream.say(results={"acknowledged": [{"start": 3, "end": 5}]})
        await hold(stream)

    async with streaming(script) as sender:
        await sender.connected()
        sender.send(rows(3, b"." * 2_500))
        sender.send(rows(3, b"." * 2_500))
        sender.send(rows(2, b"." * 2_500))
        await sender.until(lambda: len(first) == 3)
        sender.target.may_send = lambda: False
        go_on.set()
        await sender.all_reported()
        assert sender.codes() == [OK] * 3
        assert [key for key, result in sender.results.items() if result is UNSENT] == [
            (1, 0), (1, 1), (1, 2), (2, 0), (2, 1),
        ]  # fmt: skip

        sender.target.may_send = lambda: True
        assert sender.target.room > 0
        later = rows(2)
        for row in later:
            row.offset += 100
        sender.send(later)
        await sender.all_reported()
        assert sender.codes(3) == [OK] * 2
    assert not sender.lost


async def test_a_message_that_may_not_be_sent_comes_back_unsent_and_does_not_time_out() -> None:
    async def give_little(stream: ReceiverStream) -> None:
        await stream.accept(1)
        await hold(stream)

    async with streaming(give_little, timeout_s=0.3) as sender:
        sender.send(rows(3))
        await sender.until(lambda: sender.target.in_flight)
        sender.target.may_send = lambda: False
        await sender.all_reported()

        assert sender.codes()[0] == DEADLINE_EXCEEDED
        assert [sender.results[0, index] for index in (1, 2)] == [UNSENT] * 2


async def take_one_and_five(stream: ReceiverStream) -> None:
    """Takes 10 kB: one message stays in flight, and the five behind it are acknowledged."""
    await stream.accept(1_000, 10_000)
    assert await stream.messages(1) == [0]
    assert await stream.messages(5) == list(range(5))
    await stream.say(results={"acknowledged": [{"start": 1, "end": 6}]})


async def test_a_large_message_that_is_given_back_blocks_none_behind_it() -> None:
    async def script(stream: ReceiverStream) -> None:
        await take_one_and_five(stream)
        assert await stream.messages(5) == list(range(5))
        await stream.say(results={"acknowledged": [{"start": 6, "end": 11}]})
        await hold(stream)

    async with streaming(script) as sender:
        await sender.connected()
        sender.send(rows(1, b"." * 5_000))  # stays in flight
        large = sender.send(rows(2, b"." * 8_000))
        sender.send(rows(5))
        await sender.until(lambda: sender.target.in_flight == 1 and not sender.target.room)
        sender.target.cancel_unsent(large)
        async with asyncio.timeout(ENOUGH_S):
            await sender.until(lambda: sender.codes(2) == [OK] * 5)
        assert [sender.results[1, index] for index in range(2)] == [UNSENT] * 2

        assert sender.target.room > 0
        sender.send(rows(5))
        await sender.until(lambda: sender.codes(3) == [OK] * 5)
        assert sender.target.in_flight == 1


async def test_a_large_message_that_waited_for_too_long_leaves_room_behind() -> None:
    async def script(stream: ReceiverStream) -> None:
        await take_one_and_five(stream)
        await hold(stream)

    async with streaming(script) as sender:
        await sender.connected()
        sender.send(rows(1, b"." * 5_000))  # stays in flight
        sender.target.timeout_s = 0.3
        sender.send(rows(1, b"." * 8_000))
        await sender.until(lambda: sender.codes(1) != [-1])

        assert sender.target.room > 0
        sender.target.timeout_s = ENOUGH_S
        sender.send(rows(5))
        await sender.until(lambda: sender.codes(2) == [OK] * 5)


async def test_messages_that_waited_for_credit_and_went_together_leave_room_behind() -> None:
    go_on = asyncio.Event()

    async def script(stream: ReceiverStream) -> None:
        await stream.accept(1_000, 10_000)
        assert await stream.messages(1) == [0]
        await go_on.wait()
        await stream.say(
            results={"acknowledged": [{"start": 0, "end": 1}]}, credit={"deliveries": 1_000, "bytes": 40_000}
        )
        assert await stream.messages(2) == [1, 2]
        await stream.say(results={"acknowledged": [{"start": 1, "end": 3}]}, credit=MUCH)
        await hold(stream)

    async with streaming(script) as sender:
        await sender.connected()
        sender.send(rows(3, b"." * 8_000))
        await sender.until(lambda: sender.target.in_flight == 1 and not sender.target.room)
        go_on.set()
        await sender.all_reported()
        assert sender.target.room == 997
