"""A message that kills its receiver, or is never taken, is given up; an outage costs no message anything."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from aiokafka import ConsumerRecord

from app.dispatch.model.crash_suspicion import SUSPECT_AFTER, CrashSuspicion
from app.dispatch.model.outcome import Action, DeliveryDecision
from app.dispatch.pump.delivery import Delivery
from app.dispatch.pump.partition import DispatchPump
from app.dispatch.push.call_result import CallResult
from app.dispatch.scheduler.receiver_queues import ReceiverQueues
from app.kernel.grpc_status import UNAVAILABLE
from tests.dispatch.pump.rig import DispatchRig, Row, definition, dispatch_rig, numbers
from tests.dispatch.push.grpc_servers import start_server
from tests.dispatch.scheduler.crashing_receiver import rig_with_crashing_receiver, until

LIMIT_S = 60.0  # ends a test that would hang; nothing is measured with it


def some_killers(count: int, *at: int) -> list[Row]:
    """Rows of numbers; those at the given offsets kill the receiver."""
    return [(None, b"kill %d" % i if i in at else b"%d" % i) for i in range(count)]


def look(rig: DispatchRig) -> None:
    """Checks the heads of all pumps, as the worker's timer does."""
    for pump in rig.pumps:
        pump.free_head(time.monotonic())


@pytest.mark.parametrize(
    ("contract", "capacity"),
    [
        ("unary", 100),
        pytest.param("stream", 10_000, marks=pytest.mark.deep(minutes=0.2)),
        pytest.param("stream", 100, marks=pytest.mark.deep(minutes=0.2)),
    ],
)
async def test_a_message_that_kills_its_receiver_is_given_up_and_all_others_are_delivered(
    contract: str, capacity: int
) -> None:
    async with rig_with_crashing_receiver(contract, headOfLine={"after": "1m"}) as (rig, receiver):
        pump = rig.pump(capacity=capacity)
        rig.feed(pump, some_killers(400, 5, 70))
        await until(lambda: pump.tracker.base == 400, lambda: look(rig), LIMIT_S)

        assert sorted(rig.copied.values("dlq")) == [b"kill 5", b"kill 70"]
        assert pump.delivered == 398
        # Seven for each killer by the rules; on a slow machine also some that are blamed on none.
        assert receiver.deaths <= 40
        for *_, headers in rig.copied.records:
            reason = headers["switchyard-reason"] or b""
            assert b"times while it had this message" in reason or b"head of line" in reason


def waits_for_its_turn(pump: DispatchPump) -> None:
    """Asserts that a message that is not at the receiver is never moved as the head."""
    assert pump.free_head(time.monotonic() + pump.head.detector.limits.patience_s) is None
    assert "not with the receiver" in pump.head.detector.why_not


async def test_a_suspect_that_waits_for_its_turn_is_not_moved_away_as_the_head() -> None:
    answer = asyncio.Event()

    async def handle(value: bytes, context: Any) -> bytes:
        if value == b"0":
            await answer.wait()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return b""

    server, port = await start_server(handle)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run(target={"contract": "unary"}, headOfLine={"patience": "1m"})
        pump = rig.pump(capacity=10)  # no acknowledgement frees its head, however slow the machine
        rig.feed(pump, numbers(10))
        await rig.until(lambda: pump.delivered == 9)
        head, queues = pump.open[0], rig.queues
        head.suspicion = CrashSuspicion()
        head.suspicion.deaths = SUSPECT_AFTER
        queues.suspects_out.add(Delivery(pump, head.record, None))  # another is out
        answer.set()
        while head not in queues.suspects:
            waits_for_its_turn(pump)
            await asyncio.sleep(0.01)
        waits_for_its_turn(pump)

        queues.suspects_out.clear()
        verdict = pump.free_head(time.monotonic() + pump.head.detector.limits.patience_s)
        assert verdict is not None
        assert verdict.offset == 0
        await rig.until(lambda: pump.tracker.base == 10)
    await server.stop(None)


async def test_the_last_of_several_suspects_at_a_former_receiver_is_not_blamed_as_if_it_were_alone() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump, queues = rig.pump(), rig.queues
        delivery = Delivery(pump, ConsumerRecord("t", 0, 0, 0, 0, None, b"", 0, None, 0, ()), None)
        delivery.attempts, delivery.receiver = 1, queues.receiver
        suspicion = delivery.suspicion = CrashSuspicion()
        suspicion.deaths = SUSPECT_AFTER
        delivery.endpoint = rig.endpoint
        queues.receiver.sent(rig.endpoint, pump, 1)
        queues.suspects_out.add(delivery)
        queues.suspects_sent, queues.receiver.taken = 2, 1

        rig.runtime.change(definition("127.0.0.1:1"), None)
        rig.runtime.answered(delivery, CallResult(UNAVAILABLE, "Socket closed"))
        assert (suspicion.deaths, suspicion.blamed) == (SUSPECT_AFTER + 1, 0)
        assert not rig.runtime.receivers.old


@pytest.mark.deep(minutes=0.1)
async def test_many_that_were_lost_beside_a_killer_are_acquitted_many_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together: list[int] = []
    at_first = ReceiverQueues.suspect_answered

    def answered(queues: ReceiverQueues, delivery: Delivery, code: int) -> None:
        together.append(len(queues.suspects_out))
        at_first(queues, delivery, code)

    monkeypatch.setattr(ReceiverQueues, "suspect_answered", answered)
    async with rig_with_crashing_receiver("stream", flow={"max_inflight": 1_000}) as (rig, receiver):
        pump = rig.pump()
        rows = some_killers(2_000, 5)  # and with it some that are surely lost when it kills
        rig.feed(pump, [(None, b"slow %d" % i) if i < 60 and i != 5 else row for i, row in enumerate(rows)])
        await until(lambda: pump.tracker.base == 2_000, lambda: look(rig), LIMIT_S)

        assert rig.copied.values("dlq") == [b"kill 5"]
        assert pump.delivered == 1_999
        assert max(together) > 1
        assert receiver.deaths <= 8


async def test_a_killer_that_all_wait_behind_in_strict_order_is_given_up() -> None:
    async with rig_with_crashing_receiver("unary", ordering="partition") as (rig, _):
        pump = rig.pump()
        rig.feed(pump, some_killers(10, 3))
        await until(lambda: pump.tracker.base == 10, lambda: look(rig), LIMIT_S)

        assert rig.copied.values("dlq") == [b"kill 3"]


async def test_a_killer_goes_to_the_retry_topic_first_when_there_is_one() -> None:
    async with rig_with_crashing_receiver("unary", retry=[{"delay": "1h", "attempts": 1}]) as (rig, _):
        pump = rig.pump()
        rig.feed(pump, some_killers(50, 3))
        await until(lambda: pump.tracker.base == 50, lambda: look(rig), LIMIT_S)

        assert (rig.copied.values("retry_1"), rig.copied.values("dlq")) == ([b"kill 3"], [])


@pytest.mark.deep(minutes=0.1)
async def test_a_receiver_that_dies_of_every_message_has_no_topic_flushed_into_the_dlq() -> None:
    async with rig_with_crashing_receiver("unary") as (rig, receiver):
        pump = rig.pump()
        rig.feed(pump, some_killers(100, *range(100)))
        await until(lambda: receiver.deaths >= 6, lambda: look(rig), LIMIT_S)

        assert not rig.copied.records
        assert pump.tracker.base == 0


@pytest.mark.deep(minutes=0.1)
@pytest.mark.parametrize("refused", [{5}, {3, 5, 40}])
async def test_messages_that_are_always_answered_unavailable_do_not_stop_the_others(
    refused: set[int],
) -> None:
    async def handle(value: bytes, context: Any) -> bytes:
        if int(value) in refused:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "never")
        return b""

    server, port = await start_server(handle)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run(target={"contract": "unary"}, headOfLine={"after": "4s"})
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(401))
        await until(lambda: pump.tracker.base == 401, lambda: look(rig), LIMIT_S)

        assert {int(value or b"") for value in rig.copied.values("dlq")} == refused
        assert pump.delivered == 401 - len(refused)
    await server.stop(None)


async def test_a_receiver_that_answers_unavailable_to_all_for_a_while_loses_nothing() -> None:
    """It begins in the middle of a full tracker, with messages of all kinds in flight."""
    away, seen = False, 0

    async def handle(_: bytes, context: Any) -> bytes:
        nonlocal seen
        seen += 1
        if away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return b""

    server, port = await start_server(handle)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run(target={"contract": "unary"}, headOfLine={"after": "5s"}, flow={"max_inflight": 20})
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(300))
        await rig.until(lambda: pump.delivered > 100)
        away, seen = True, 0
        rig.feed(pump, numbers(300, 300))
        await until(lambda: seen >= 30, lambda: look(rig), LIMIT_S)  # at most ten probes a second
        away = False
        await until(lambda: pump.tracker.base == 600, lambda: look(rig), LIMIT_S)

        assert [headers["switchyard-reason"] for *_, headers in rig.copied.records] == []
        assert pump.delivered == 600
    await server.stop(None)


async def test_a_held_message_goes_when_its_pump_in_turn_has_nothing_else_to_send() -> None:
    refusals = 3  # open the breaker

    async def handle(_: bytes, context: Any) -> bytes:
        nonlocal refusals
        if refusals:
            refusals -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return b""

    server, port = await start_server(handle)
    async with dispatch_rig(lambda _: None) as rig:
        rig.port = port
        rig.run(target={"contract": "unary"}, ordering="partition")
        pump = rig.pump()
        rig.feed(pump, numbers(2))
        await rig.until(lambda: not refusals and bool(rig.queues.held))
        rig.queues.probe_held = False  # a fresh message is the next probe, and there is none
        rig.runtime.offer(pump)
        await rig.until(lambda: pump.tracker.base == 2)
    await server.stop(None)


async def test_suspects_count_among_held_messages_and_an_operator_can_conclude_them() -> None:
    async with rig_with_crashing_receiver("unary") as (rig, receiver):
        pump = rig.pump()
        rig.feed(pump, some_killers(1, 0))
        await until(lambda: receiver.deaths >= 2, lambda: None, LIMIT_S)
        await rig.until(lambda: bool(rig.queues.suspects))
        assert rig.queues.status(time.monotonic()).held == 1
        assert pump.finish_by_operator(0, DeliveryDecision(Action.ACK, None, 0.0, "an operator says so"))
        await rig.until(lambda: pump.tracker.base == 1)
        assert pump.delivered == 0
