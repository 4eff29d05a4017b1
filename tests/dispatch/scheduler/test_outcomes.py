"""Every message ends once: acknowledged, or safe in another topic; by calls and by streams alike."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from app.dispatch.definition import CONNECTIONS
from app.dispatch.model.outcome import Action, DeliveryDecision
from switchyard.receiver import Message, Retry, Skip, Stash
from tests.dispatch.pump.rig import ENOUGH_S, DispatchRig, dispatch_rig, numbers

CONTRACTS = ["unary", "stream"]
TIERS = [{"delay": "1h", "attempts": 1}]


def as_the_value_says(message: Message) -> Any:
    """Most are taken; some are not."""
    number = int(message.value or b"0")
    match number % 50:
        case 7:
            return Retry()
        case 8:
            return Stash("never")
        case 9:
            return Skip()
    return None


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_each_message_ends_as_its_receiver_says_and_the_offset_moves_over_all(contract: str) -> None:
    async with dispatch_rig(as_the_value_says, target={"contract": contract}, retry=TIERS) as rig:
        pumps = [rig.pump(partition) for partition in range(3)]
        for partition, pump in enumerate(pumps):
            rig.feed(pump, numbers(1_000, 1_000 * partition))
        await rig.idle()

        wanted = [str(number).encode() for number in range(3_000)]
        assert Counter(wanted) == rig.values()
        assert sorted(rig.copied.values("retry_1")) == sorted(wanted[7::50])
        assert sorted(rig.copied.values("dlq")) == sorted(wanted[8::50])
        assert rig.runtime.receivers.in_flight == 0
        assert rig.budget.used_bytes == 0
        assert sum(pump.delivered for pump in pumps) == 3_000 - 2 * 60


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_receiver_that_goes_and_comes_back_misses_nothing_and_nothing_leaves_the_topic(
    contract: str,
) -> None:
    attempts: Counter[int] = Counter()

    async def slowly(message: Message) -> None:
        attempts[message.attempt] += 1
        await asyncio.sleep(0.002)

    async with dispatch_rig(slowly, target={"contract": contract}, flow={"max_inflight": 50}) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(2_000))
        await rig.until(lambda: len(rig.seen) > 300)
        await rig.receiver.stop(0)
        await asyncio.sleep(0.5)
        assert rig.main.in_flight <= 50
        await rig.start_receiver()
        await rig.idle()

        assert set(rig.values()) == {str(number).encode() for number in range(2_000)}
        assert not rig.copied.records
        # Those that it had when it stopped come again; as the first attempt if it had said that it was going.
        assert set(attempts) <= {1, 2}
        assert attempts[2] <= CONNECTIONS * 50


@pytest.mark.parametrize("lapses", [False, True])
async def test_a_copy_that_cannot_be_made_now_delays_no_release_of_the_job(lapses: bool) -> None:
    started_rigs: list[DispatchRig] = []

    def never(_: Message) -> Stash:
        if lapses:
            started_rigs[0].lease.expires_at_s = float("-inf")
        return Stash("never")

    async with dispatch_rig(never) as rig:
        started_rigs.append(rig)
        rig.copied.refuse = not lapses
        pump = rig.pump()
        rig.feed(pump, numbers(1))
        await rig.until(lambda: bool(pump.copying))
        assert await pump.drain(ENOUGH_S)
        assert not pump.copying
        assert pump.tracker.base == 0, "its next owner delivers it again"


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_copy_that_is_not_taken_holds_its_message_back_and_no_other(contract: str) -> None:
    async with dispatch_rig(as_the_value_says, target={"contract": contract}) as rig:
        pump = rig.pump()
        rig.copied.refuse = True
        rig.feed(pump, numbers(40))
        await rig.until(lambda: len(rig.seen) >= 40 and rig.runtime.receivers.in_flight == 0)
        await asyncio.sleep(0.05)
        assert pump.tracker.base == 7  # offset 7 waits for its next attempt, 8 for the DLQ
        rig.copied.refuse = False
        await rig.idle()

        assert set(rig.copied.values("dlq")) == {b"7", b"8"}


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("action", [Action.ACK, Action.DLQ])
async def test_a_message_can_be_concluded_wherever_it_is(contract: str, action: Action) -> None:
    release = asyncio.Event()

    async def wait(message: Message) -> Any:
        if message.value == b"1":
            return Retry()  # waits for its next attempt
        await release.wait()
        return None

    spec: dict[str, Any] = {"target": {"contract": contract}, "flow": {"max_inflight": 4}}
    async with dispatch_rig(wait, **spec) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(10))
        await rig.until(lambda: 1 in pump._queue.waiting and pump.in_flight == 4)
        decision = DeliveryDecision(action, None, 0.0, "an operator says so")

        for offset in (0, 1, 9):  # in flight, waiting, not sent yet
            assert pump.finish_by_operator(offset, decision)
        await rig.until(lambda: all(pump.tracker.is_finished(offset) for offset in (0, 1, 9)))
        assert not pump.finish_by_operator(0, decision)
        assert not pump.finish_by_operator(77, decision)
        release.set()
        await rig.idle()

        assert b"9" not in rig.values()
        assert set(rig.copied.values("dlq")) == ({b"0", b"1", b"9"} if action is Action.DLQ else set())
        assert pump.delivered == 7  # a skip is no delivery


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_pump_that_drains_ends_with_nothing_in_flight_and_a_closed_one_finishes_nothing(
    contract: str,
) -> None:
    gate = asyncio.Semaphore(0)

    async def wait(_: Message) -> None:
        await gate.acquire()

    async with dispatch_rig(wait, target={"contract": contract}, flow={"max_inflight": 20}) as rig:
        pump, other = rig.pump(0), rig.pump(1)
        rig.feed(pump, numbers(200))
        rig.feed(other, numbers(200, 200))
        await rig.until(lambda: pump.in_flight + other.in_flight == 20)
        draining = asyncio.create_task(pump.drain(60))
        await asyncio.sleep(0.05)
        sent = pump.in_flight
        other.close()
        for _ in range(20):
            gate.release()
        assert await draining

        assert pump.tracker.base == pump.delivered == sent
        assert (other.tracker.base, other.delivered) == (0, 0)


async def test_a_draining_pump_does_not_wait_for_messages_without_credit() -> None:
    gate = asyncio.Event()

    async def wait(_: Message) -> None:
        await gate.wait()

    rows = [(None, b"." * 100_000) for _ in range(20)]
    async with dispatch_rig(wait, limits={"window_bytes": 350_000}, target={"contract": "stream"}) as rig:
        pump = rig.pump()
        rig.feed(pump, rows)
        await rig.until(lambda: len(rig.seen) == 3)
        assert pump.in_flight == 20
        pump.stop_intake()
        await rig.until(lambda: pump.in_flight == 3)
        gate.set()
        assert await pump.drain(ENOUGH_S)

        assert pump.tracker.base == pump.delivered == len(rig.seen) == 3
