"""A receiver's answers are bounded; an answer beyond the bound fails this receiver's message only."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from app.dispatch.push.answer_limits import ANSWER_WORDS, MAX_RANGES, MAX_UNARY_BYTES, RANGES_AT_ONCE
from app.dispatch.push.stream.encoder import OutBatch
from app.kernel.grpc_status import OK, RESOURCE_EXHAUSTED, UNAVAILABLE
from switchyard.receiver.outcomes import MOST_OTHERS, StreamOutcomes
from switchyard.receiver.verdicts import Retry, Skip, Stash
from switchyard.v1.receiver_pb2 import DeliverResponse
from tests.dispatch.push.grpc_servers import ENOUGH_S, serving
from tests.dispatch.push.stream_servers import ReceiverStream, hold, rows, streaming, take_everything

pytestmark = pytest.mark.each_transport

MIB = 1024 * 1024


async def test_an_answer_beyond_the_limit_fails_its_call_and_no_other() -> None:
    async def answer(value: bytes, _: Any) -> bytes:
        return bytes(MAX_UNARY_BYTES + 1) if value == b"much" else b"." * MAX_UNARY_BYTES

    async with serving(answer) as call:
        much, little = await asyncio.gather(call(b"much"), call(b"little"))

    assert (much.code, much.answer_too_large, much.too_large) == (RESOURCE_EXHAUSTED, True, False)
    assert (little.code, little.answer_too_large) == (OK, False)


async def test_a_status_beyond_the_limit_fails_its_call_and_no_other() -> None:
    waiting, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def answer(value: bytes, context: Any) -> bytes:
        waiting.release()
        await go_on.wait()
        if value == b"much":
            await context.abort(grpc.StatusCode.INTERNAL, "x" * 70_000)
        return b""

    async with serving(answer) as call, asyncio.timeout(ENOUGH_S):
        under_way = [call.begin(b"little")[1] for _ in range(50)]
        much = call.begin(b"much")[1]
        for _ in range(51):
            await waiting.acquire()
        go_on.set()
        refused = await much
        assert (refused.code, refused.answer_too_large, refused.too_large) == (
            RESOURCE_EXHAUSTED,
            True,
            False,
        )
        assert [(await one).code for one in under_way] == [OK] * 50


async def test_a_response_with_too_many_bytes_ends_its_stream_and_no_other() -> None:
    async def say_much(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(1)
        await stream.say(results={"stashed": [{"deliveries": {"end": 1}, "reason": "." * 5 * MIB}]})
        await hold(stream)

    async with streaming(say_much) as sender, streaming(take_everything) as other:
        sender.send(rows(1))
        other.send(rows(100))
        await sender.all_reported()
        await other.all_reported()
        await sender.until(lambda: sender.lost)
        assert sender.codes() == [UNAVAILABLE]
        assert [(lost.code, lost.answer_too_large) for lost in sender.lost] == [(UNAVAILABLE, True)]
        assert other.codes() == [OK] * 100
        assert not other.lost


async def test_a_response_with_too_many_ranges_ends_its_stream_before_any_range_is_read() -> None:
    async def say_much(stream: ReceiverStream) -> None:
        await stream.accept(100)
        await stream.messages(1)
        await stream.say(results={"acknowledged": [{"end": 1}] + [{}] * MAX_RANGES})
        await hold(stream)

    async with streaming(say_much) as sender:
        sender.send(rows(1))
        await sender.all_reported()
        await sender.until(lambda: sender.lost)
        assert sender.codes() == [UNAVAILABLE]
        assert str(MAX_RANGES + 1) in sender.lost[0].details
        assert sender.lost[0].answer_too_large
        assert sender.lost[0].details.startswith(ANSWER_WORDS)


async def test_other_tasks_run_while_the_ranges_of_a_response_are_read() -> None:
    count = 20_000

    async def say_each(stream: ReceiverStream) -> None:
        await stream.accept(count)
        await stream.messages(count)
        await stream.say(
            results={"acknowledged": [{"start": number, "end": number + 1} for number in range(count)]}
        )
        await hold(stream)

    turns: set[int] = set()
    turn = 0

    def note_turns(batch: OutBatch) -> None:
        on_results = batch.on_results

        def note_turn(start: int, end: int, result: Any) -> None:
            turns.add(turn)
            on_results(start, end, result)

        batch.on_results = note_turn

    async def take_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with streaming(say_each) as sender:
        await sender.connected()
        while sender.expected < count:
            note_turns(sender.send(rows(1_000)))
        taking = asyncio.create_task(take_turns())
        await sender.all_reported()
        taking.cancel()
    assert len(turns) >= count // RANGES_AT_ONCE, "all in one turn before"


def test_the_sdks_responses_are_bounded_and_contain_all_results() -> None:
    outcomes = StreamOutcomes()
    for number in range(2 * MOST_OTHERS + 1):
        outcomes.add(3 * number, Stash("\U0001f4a3" * 600))
        outcomes.add(3 * number + 1, Retry(1.0))
        outcomes.add(3 * number + 2, Skip())
    offsets: set[int] = set()
    while outcomes.count:
        response = DeliverResponse()
        outcomes.take_into(response)
        assert 0 < response.ByteSize() <= 2.5 * MIB
        results = response.results
        offsets |= {one.deliveries.start for one in results.stashed}
        offsets |= {one.deliveries.start for one in results.retried}
        offsets |= {one.start for one in results.skipped}
    assert offsets == set(range(3 * (2 * MOST_OTHERS + 1)))
