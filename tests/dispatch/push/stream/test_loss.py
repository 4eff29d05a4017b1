"""Streams that end, by receivers that die, refuse or drain, or by closing: each message gets one result."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from app.dispatch.model.crash_suspicion import Loss
from tests.dispatch.push.grpc_servers import ENOUGH_S, accept, serving
from tests.dispatch.push.stream_servers import (
    ReceiverStream,
    RecordingSender,
    hold,
    rows,
    streaming,
    take_everything,
)

pytestmark = pytest.mark.each_transport

OK, CANCELLED, DEADLINE_EXCEEDED, UNIMPLEMENTED, UNAVAILABLE = 0, 1, 4, 12, 14


async def test_a_receiver_that_dies_ends_all_messages_in_flight_once_and_is_found_again_by_connect() -> None:
    waiting = asyncio.Event()

    async def take_half(stream: ReceiverStream) -> None:
        await stream.accept(1_000)
        await stream.messages(500)
        await stream.say(results={"acknowledged": [{"start": 0, "end": 200}, {"start": 300, "end": 301}]})
        waiting.set()
        await hold(stream)

    async with streaming(take_half) as sender:
        for _ in range(5):
            sender.send(rows(100))
        await sender.until(lambda: len(sender.reported) == 201)
        await sender.place.end()
        await sender.all_reported()
        codes = [code for number in range(5) for code in sender.codes(number)]
        assert codes == [OK] * 200 + [UNAVAILABLE] * 100 + [OK] + [UNAVAILABLE] * 199
        assert len(sender.lost) == 1
        assert sender.target.room == 0
        sender.send(rows(1))
        await sender.all_reported()
        assert sender.codes(5) == [UNAVAILABLE]

        await sender.place.begin(take_everything)
        async with asyncio.timeout(ENOUGH_S):
            while not sender.target.room:
                sender.target.connect()
                await asyncio.sleep(0.05)
        sender.send(rows(10))
        await sender.all_reported()
        assert sender.codes(6) == [OK] * 10
        assert sender.target.supported is True


async def test_messages_that_a_lost_receiver_never_got_are_reported_as_not_sent() -> None:
    async def take_some(stream: ReceiverStream) -> None:
        await stream.accept(10)
        await stream.messages(10)
        await hold(stream)

    async with streaming(take_some) as sender:
        await sender.connected()
        sender.send(rows(30))
        await sender.until(lambda: sender.target.in_flight == 10)
        await sender.place.end()
        await sender.all_reported()
        losses = [sender.results[0, index].loss for index in range(30)]

    assert not {None, Loss.UNREACHED} & set(losses[:10])
    assert losses[10:] == [Loss.UNREACHED] * 20


async def test_a_receiver_without_the_contract_is_unsupported_and_its_messages_end() -> None:
    async with serving(accept) as call:
        sender = RecordingSender(call.place.port)
        sender.send(rows(3))
        await sender.all_reported()
        await sender.target.close()

    assert sender.target.supported is False
    assert [result.code for result in sender.lost] == [UNIMPLEMENTED]
    assert sender.codes() == [UNAVAILABLE] * 3


REFUSALS = [("NOT_FOUND", 12), ("PERMISSION_DENIED", 7), ("RESOURCE_EXHAUSTED", 14), ("INTERNAL", 14)]


@pytest.mark.parametrize(("status", "code"), REFUSALS)
async def test_a_stream_that_is_refused_never_condemns_its_messages(status: str, code: int) -> None:
    async def refuse(stream: ReceiverStream) -> None:
        await stream.context.abort(grpc.StatusCode[status], "no")

    async with streaming(refuse) as sender:
        sender.send(rows(3))
        await sender.all_reported()

    assert sender.codes() == [code] * 3
    assert [result.code for result in sender.lost] == [grpc.StatusCode[status].value[0]]
    assert sender.target.supported is None


@pytest.mark.parametrize("ending", ["return", "abort", "garbage"])
async def test_however_a_stream_ends_early_its_messages_are_unavailable(ending: str) -> None:
    async def end(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(3)
        await stream.say(results={"acknowledged": [{"start": 1, "end": 2}]})
        if ending == "abort":
            await stream.context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        if ending == "garbage":
            await stream.context.write(b"\xff\xff\xff")
            await hold(stream)

    async with streaming(end) as sender:
        sender.send(rows(3))
        await sender.all_reported()

    assert sender.codes() == [UNAVAILABLE, OK, UNAVAILABLE]
    assert len(sender.lost) == 1


async def test_draining_gives_up_unsent_messages_and_waits_for_sent_ones() -> None:
    draining = asyncio.Event()

    async def answer_at_last(stream: ReceiverStream) -> None:
        await stream.accept(5)
        await stream.messages(5)
        while (request := await stream.request()) is not None and not request.drain:
            pass
        draining.set()
        await stream.say(results={"acknowledged": [{"start": 0, "end": 5}]})

    async with streaming(answer_at_last) as sender:
        sender.send(rows(8))
        await sender.until(lambda: sender.target.in_flight == 5)
        async with asyncio.timeout(ENOUGH_S):
            await sender.target.drain()
        assert draining.is_set()
        await sender.all_reported()
        assert sender.codes() == [OK] * 5 + [CANCELLED] * 3
        sender.send(rows(2))
        await sender.all_reported()
        assert sender.codes(1) == [CANCELLED] * 2
    assert not sender.lost


async def test_draining_does_not_wait_for_a_receiver_that_never_answers() -> None:
    async def be_silent(stream: ReceiverStream) -> None:
        await stream.accept(5)
        await hold(stream)

    async with streaming(be_silent, timeout_s=1.0) as sender:
        await sender.connected()
        sender.send(rows(3))
        await sender.until(lambda: sender.target.in_flight == 3)
        async with asyncio.timeout(ENOUGH_S / 2):
            await sender.target.drain()
        await sender.all_reported()

    assert sender.codes() == [DEADLINE_EXCEEDED] * 3


async def test_closing_ends_every_message_once_also_before_the_first_connection() -> None:
    async def accept_and_hold(stream: ReceiverStream) -> None:
        await stream.accept(5)
        await hold(stream)

    async with streaming(accept_and_hold) as sender:
        sender.send(rows(8))
        await sender.until(lambda: sender.target.in_flight == 5)
        await sender.target.close()
        await sender.all_reported()
        assert sender.codes() == [CANCELLED] * 8

    sender = RecordingSender(1)
    sender.send(rows(2))
    await sender.target.close()
    await sender.all_reported()
    assert sender.codes() == [CANCELLED] * 2


async def test_several_streams_share_the_load_and_one_that_dies_takes_only_its_own_with_it() -> None:
    opened: list[ReceiverStream] = []
    died: list[ReceiverStream] = []

    async def first_dies(stream: ReceiverStream) -> None:
        opened.append(stream)
        await stream.accept(1 << 40)
        done = 0
        while True:
            done += len(await stream.messages(10))
            if not died:
                died.append(stream)
                await stream.context.abort(grpc.StatusCode.INTERNAL, "died")
            await stream.say(results={"acknowledged": [{"start": 0, "end": done}]})

    async with streaming(first_dies, streams=2) as sender:
        sender.target.connect()
        await sender.until(lambda: len(opened) == 2 and sender.target.room)
        async with asyncio.timeout(ENOUGH_S):
            while not sender.lost:
                sender.send(rows(10))
                await asyncio.sleep(0.01)
        await sender.all_reported()
    lost = [number for number in range(len(sender.batches)) if UNAVAILABLE in sender.codes(number)]
    kept = [number for number in range(len(sender.batches)) if sender.codes(number) == [OK] * 10]
    assert lost
    assert len(lost) + len(kept) == len(sender.batches)


async def test_a_callback_that_raises_does_not_end_the_stream() -> None:
    raised: list[LookupError] = []

    def note(_: object, context: dict[str, Any]) -> None:
        # Other tests' objects, which are collected meanwhile, report here too.
        if isinstance(error := context.get("exception"), LookupError):
            raised.append(error)

    asyncio.get_running_loop().set_exception_handler(note)
    async with streaming(take_everything) as sender:
        batch = sender.send(rows(1))

        def burst(*_: object) -> None:
            raise LookupError("ours")

        batch.on_results = burst
        sender.expected = 0
        await sender.until(lambda: raised)
        sender.send(rows(1))
        await sender.until(lambda: sender.reported)

    assert str(raised[0]) == "ours"
    assert sender.codes(1) == [OK]
