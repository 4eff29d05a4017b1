"""Streams to what may be a load balancer: those that are used are replaced in turn; no message notices."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable

import grpc
import pytest

from app.dispatch.push.metadata import SenderRole
from app.dispatch.push.stream import client
from tests.dispatch.push.grpc_servers import ENOUGH_S, ReceiverAddress
from tests.dispatch.push.stream_servers import (
    ReceiverStream,
    RecordingSender,
    hold,
    rows,
    start_stream_server,
    streaming,
    take_everything,
)

pytestmark = pytest.mark.each_transport

OK, CANCELLED, UNAVAILABLE = 0, 1, 14
AGE_S = 0.2
STREAMS = 3


class Opened:
    """A script for every stream, by the number of the stream; it counts those that are open.

    Attributes:
        refused: The numbers of the streams that are refused.
        peers: Where each stream came from.
        messages: How many messages each stream got, by its number, once it has ended.
    """

    def __init__(self) -> None:
        self.count = self.now = 0
        self.refused: set[int] = set()
        self.code = grpc.StatusCode.UNIMPLEMENTED
        self.peers: list[str] = []
        self.messages: Counter[int] = Counter()

    async def __call__(self, stream: ReceiverStream) -> None:
        number = self.count
        self.count += 1
        self.now += 1
        self.peers.append(stream.context.peer())
        try:
            await self.serve(number, stream)
        finally:
            self.now -= 1
            self.messages[number] = sum(
                len(batch.messages) for request in stream.requests for batch in request.batches
            )

    async def serve(self, number: int, stream: ReceiverStream) -> None:
        if number in self.refused:
            await stream.context.abort(self.code, "not here")
        await take_everything(stream)


async def flow_until(sender: RecordingSender, condition: Callable[[], bool]) -> None:
    """Sends a few messages at a time, while the condition is not met."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():
            sender.send(rows(7))
            await asyncio.sleep(0.005)
    await sender.all_reported()


def all_codes(sender: RecordingSender) -> set[int]:
    return {code for number in range(len(sender.batches)) for code in sender.codes(number)}


async def test_streams_that_are_used_are_replaced_in_turn_and_no_message_notices() -> None:
    opened = Opened()
    async with streaming(opened, streams=STREAMS, max_age_s=AGE_S) as sender:
        await sender.connected()
        await flow_until(sender, lambda: opened.count >= 4 * STREAMS)
        assert all_codes(sender) == {OK}
        assert sender.lost == []
        await sender.until(lambda: opened.now <= STREAMS + 1)
        assert len({*opened.peers}) == len(opened.peers), "each has a connection of its own"


async def test_all_streams_carry_messages_although_one_would_do() -> None:
    opened = Opened()
    async with streaming(opened, streams=STREAMS) as sender:
        sender.target.connect()
        await sender.until(lambda: opened.count == STREAMS and sender.target.credit >= STREAMS * 4096)
        for _ in range(60):
            sender.send(rows(1))
            await sender.all_reported()
    await sender.until(lambda: opened.now == 0)
    assert min(opened.messages[number] for number in range(STREAMS)) > 5


async def test_a_successor_without_room_succeeds_and_the_next_one_follows() -> None:
    class GivesNoCredit(Opened):
        async def serve(self, number: int, stream: ReceiverStream) -> None:
            if number != STREAMS:
                await take_everything(stream)
                return
            await stream.request()
            await stream.say(accept={"max_request_bytes": 1000})
            await hold(stream)

    opened = GivesNoCredit()
    async with streaming(opened, streams=STREAMS, max_age_s=AGE_S) as sender:
        await sender.connected()
        await flow_until(sender, lambda: opened.count >= 3 * STREAMS)
        assert all_codes(sender) == {OK}


async def test_streams_without_messages_stay() -> None:
    opened = Opened()
    async with streaming(opened, streams=STREAMS, max_age_s=AGE_S) as sender:
        sender.target.connect()
        await sender.until(lambda: opened.count == STREAMS and sender.target.is_up)
        await asyncio.sleep(5 * AGE_S)
        assert opened.count == STREAMS


async def test_while_no_successor_is_accepted_the_former_streams_carry_all() -> None:
    opened = Opened()
    opened.refused = set(range(STREAMS, 3 * STREAMS))
    async with streaming(opened, streams=STREAMS, max_age_s=AGE_S) as sender:
        sender.target.connect()
        await sender.until(lambda: opened.count == STREAMS and opened.now == STREAMS)
        await flow_until(sender, lambda: opened.count > 3 * STREAMS + 1)
        assert all_codes(sender) == {OK}
        assert sender.lost == []
        assert sender.target.supported is True


async def test_a_stream_that_is_refused_rests_while_others_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_MIN_S", 0.3)
    opened = Opened()
    opened.refused = {*range(1, 4)}
    async with streaming(opened, streams=2) as sender:
        await sender.connected()
        started_s = time.monotonic()
        await flow_until(sender, lambda: opened.count == 5 and opened.now == 2)
        assert time.monotonic() - started_s > 0.6, "it was refused three times"
        assert (sender.target.supported, sender.away) == (True, 0)


async def test_streams_that_are_all_refused_are_opened_again_over_other_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "RETRY_MIN_S", 0.1)
    opened = Opened()
    opened.refused = {*range(STREAMS)}
    async with streaming(opened, streams=STREAMS) as sender:
        sender.target.connect()
        await sender.until(lambda: sender.target.supported is False)
        await sender.until(lambda: sender.target.supported and opened.now == STREAMS)
        assert sender.away == 1
        assert len({*opened.peers}) == len(opened.peers)


async def test_what_one_stream_has_learned_about_sizes_all_know() -> None:
    class TakesLess(Opened):
        async def serve(self, number: int, stream: ReceiverStream) -> None:
            """Says that it takes more than it does."""
            await stream.accept(1 << 40)
            done = 0
            while (request := await stream.request()) is not None:
                if request.ByteSize() > 10_000:
                    await stream.context.abort(
                        grpc.StatusCode.RESOURCE_EXHAUSTED,
                        f"Received message larger than max ({request.ByteSize()} vs. 10000)",
                    )
                count = sum(len(batch.messages) for batch in request.batches)
                done += count
                if count:
                    await stream.say(results={"acknowledged": [{"start": done - count, "end": done}]})

    opened = TakesLess()
    async with streaming(opened, streams=STREAMS, max_age_s=AGE_S) as sender:
        await sender.connected()
        large: list[int] = []

        def send_large() -> bool:
            large.append(len(sender.batches))
            sender.send(rows(1, b"v" * 20_000))
            return opened.count > 4 * STREAMS

        sender.send(rows(1, b"v" * 20_000))
        await sender.all_reported()
        await flow_until(sender, send_large)
        assert len(sender.lost) == 1
        assert all(sender.results[number, 0].too_large for number in large)


async def test_a_slow_message_keeps_its_stream_and_holds_up_no_other_message() -> None:
    may_answer = asyncio.Event()
    slow: list[ReceiverStream] = []

    class SlowOnce(Opened):
        drained_early = False

        async def serve(self, number: int, stream: ReceiverStream) -> None:
            """Acknowledges everything, but the very first message only when it may."""
            await stream.accept(1 << 40)
            done, answering = 0, None
            while (request := await stream.request()) is not None and not request.drain:
                first, done = done, done + sum(len(batch.messages) for batch in request.batches)
                if not slow:
                    slow.append(stream)
                    answering, first = asyncio.ensure_future(answer(stream)), 1
                await stream.say(results={"acknowledged": [{"start": first, "end": done}]})
            if answering is not None:
                self.drained_early = not answering.done()

    async def answer(stream: ReceiverStream) -> None:
        await may_answer.wait()
        await stream.say(results={"acknowledged": [{"start": 0, "end": 1}]})

    opened = SlowOnce()
    async with streaming(opened, streams=2, max_age_s=AGE_S) as sender:
        await sender.connected()
        sender.send(rows(7))
        await sender.until(lambda: len(sender.reported) == 6)
        seen = opened.count
        sender.expected -= 1
        await flow_until(sender, lambda: opened.count > seen)
        sender.expected += 1
        await asyncio.sleep(3 * AGE_S)
        assert sender.codes().count(-1) == 1
        may_answer.set()
        await sender.all_reported()
        await sender.until(lambda: opened.now == 2)
        assert not opened.drained_early
        assert all_codes(sender) == {OK}
        assert sender.lost == []


async def test_a_former_stream_that_is_lost_reports_its_messages_as_lost() -> None:
    lost = asyncio.Event()

    class DiesWhenReplaced(Opened):
        async def serve(self, number: int, stream: ReceiverStream) -> None:
            if number:
                await take_everything(stream)
                return
            await stream.accept(1 << 40)
            await stream.messages(5)
            await lost.wait()
            await stream.context.abort(grpc.StatusCode.INTERNAL, "died")

    opened = DiesWhenReplaced()
    async with streaming(opened, streams=1, max_age_s=AGE_S) as sender:
        await sender.connected()
        sender.send(rows(5))
        async with asyncio.timeout(ENOUGH_S):
            while not sender.reported:  # the successor is not up yet
                sender.send(rows(3))
                await asyncio.sleep(0.02)
        lost.set()
        await sender.all_reported()
        assert sender.away == 0
        assert sender.codes(0) == [UNAVAILABLE] * 5
        assert sender.codes(len(sender.batches) - 1) == [OK] * 3
        assert len(sender.lost) == 1
        assert sender.target.is_up


@pytest.mark.parametrize("pause_s", [0.0, 0.1, 0.22, 0.3])
async def test_closing_during_a_replacement_ends_every_message_once(pause_s: float) -> None:
    class Holds(Opened):
        async def serve(self, number: int, stream: ReceiverStream) -> None:
            await stream.accept(50)
            await hold(stream)

    opened = Holds()
    async with streaming(opened, streams=2, max_age_s=AGE_S) as sender:
        await sender.connected()
        for _ in range(10):
            sender.send(rows(10))
        await asyncio.sleep(pause_s)
        sender.send(rows(10))
        await sender.target.close()
        await sender.all_reported()
        assert all_codes(sender) == {CANCELLED}
        await sender.until(lambda: opened.now == 0)
        seen = opened.count
        await asyncio.sleep(3 * AGE_S)
        assert opened.count == seen


@pytest.mark.parametrize("pause_s", [0.0, 0.22])
async def test_nothing_is_left_of_a_target_that_was_closed(pause_s: float) -> None:
    place = ReceiverAddress(start_stream_server)
    await place.begin(take_everything)
    sender = RecordingSender(place.port, place, streams=2, max_age_s=AGE_S)
    await sender.connected()
    sender.send(rows(10))
    await sender.all_reported()
    await asyncio.sleep(pause_s)
    await sender.target.close()
    await asyncio.sleep(0)
    target = weakref.ref(sender.target)
    del sender
    gc.collect()
    assert target() is None
    await place.end()


async def test_streams_that_are_lost_one_after_another_are_never_all_away() -> None:
    dies = [asyncio.Event(), asyncio.Event()]

    class DiesWhenTold(Opened):
        async def serve(self, number: int, stream: ReceiverStream) -> None:
            if number >= len(dies):
                await take_everything(stream)
                return
            await stream.accept(1 << 40)
            await dies[number].wait()
            await stream.context.abort(grpc.StatusCode.INTERNAL, "died")

    opened = DiesWhenTold()
    async with streaming(opened, streams=2) as sender:
        sender.target.connect()
        await sender.until(lambda: sender.target.credit == 2 * 4096)
        for number, event in enumerate(dies):
            event.set()
            await sender.until(lambda number=number: len(sender.lost) == number + 1)
            sender.target.connect()
            await sender.until(lambda number=number: opened.count == number + 3)
            await sender.until(lambda: sender.target.credit == 2 * 4096)
        assert sender.away == 0


async def test_a_former_stream_is_ended_by_its_receiver_and_not_cut_off() -> None:
    class EndsSlowly(Opened):
        cut_off = 0

        async def serve(self, number: int, stream: ReceiverStream) -> None:
            await take_everything(stream)
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                self.cut_off += 1
                raise

    opened = EndsSlowly()
    async with streaming(opened, streams=2, max_age_s=AGE_S) as sender:
        await sender.connected()
        await flow_until(sender, lambda: opened.count > 6)
        assert opened.cut_off == 0


async def test_slow_messages_of_several_former_streams_hear_of_the_role_and_can_be_given_up() -> None:
    class Holds(Opened):
        roles = 0

        async def serve(self, number: int, stream: ReceiverStream) -> None:
            await stream.accept(1 << 40)
            while (request := await stream.request()) is not None:
                self.roles += request.HasField("role")

    opened = Holds()
    async with streaming(opened, streams=2, max_age_s=AGE_S) as sender:
        sender.target.connect()
        await sender.until(lambda: sender.target.credit >= 2 * 4096)
        sender.send(rows(4))
        async with asyncio.timeout(ENOUGH_S):
            while opened.now < 4:  # none answers: two former ones are beside two new ones
                sender.send(rows(1))
                await asyncio.sleep(0.02)
        await asyncio.sleep(3 * AGE_S)
        assert opened.count == 4, "there are as many former ones as there may be"
        assert sender.target.in_flight == sender.expected
        sender.target.announce_role(SenderRole("east", True, 7))
        await sender.until(lambda: opened.roles == 4)
        for batch in sender.batches:
            sender.target.cancel(batch, 0, len(batch.records))
        await sender.all_reported()
        assert all_codes(sender) == {CANCELLED}
        sender.target.may_send = lambda: False
        await sender.until(lambda: opened.now == 2)
        await asyncio.sleep(3 * AGE_S)
        assert opened.count == 4, "what may not send needs no successor"
