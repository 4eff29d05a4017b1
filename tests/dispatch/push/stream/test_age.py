"""Streams of a limited age: each begins again on another connection, and no message notices."""

from __future__ import annotations

import asyncio

from app.dispatch.push.stream.client import Streams
from tests.dispatch.push.stream_servers import ReceiverStream, rows, streaming, take_everything

OK = 0
STREAMS, BATCH = 3, 10


async def test_each_stream_moves_to_another_connection_and_every_message_has_one_result() -> None:
    peers: list[str] = []

    async def note(stream: ReceiverStream) -> None:
        peers.append(stream.context.peer())
        await take_everything(stream)

    async with streaming(note, streams=Streams(STREAMS, 0.1)) as sender:
        await sender.connected()
        while len(set(peers)) < 5 * STREAMS:
            sender.send(rows(BATCH))
            await asyncio.sleep(0.001)
        await sender.all_reported()
        assert all(sender.codes(number) == [OK] * BATCH for number in range(len(sender.batches)))
        assert sender.lost == []


async def test_a_stream_that_rests_ends_only_when_its_messages_are_answered() -> None:
    begun, may_answer = [], asyncio.Event()

    async def answer_later(stream: ReceiverStream) -> None:
        begun.append(stream)
        await stream.accept(1_000)
        await stream.messages(BATCH)
        await may_answer.wait()
        await stream.say(results={"acknowledged": [{"start": 0, "end": BATCH}]})
        await stream.request()

    async with streaming(answer_later, streams=Streams(1, 0.05)) as sender:
        await sender.connected()
        sender.send(rows(BATCH))
        await sender.until(lambda: begun and not sender.target.room)
        assert len(begun) == 1
        assert not sender.reported
        may_answer.set()
        await sender.all_reported()
        assert sender.codes() == [OK] * BATCH
        await sender.until(lambda: len(begun) == 2 and sender.target.room)
        assert sender.lost == []
