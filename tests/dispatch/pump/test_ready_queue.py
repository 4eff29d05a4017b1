"""Order is kept if the definition asks for it, also through failures. No message is early."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

import pytest

from switchyard.receiver import Message, Retry, Stash
from tests.dispatch.pump.rig import dispatch_rig, numbers

CONTRACTS = ["unary", "stream"]
TIERS = [{"delay": "20ms", "attempts": 2}]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_message_that_times_out_gets_a_longer_timeout_until_it_is_delivered(contract: str) -> None:
    async def slowly(_: Message) -> None:
        await asyncio.sleep(0.6)  # longer than the receiver's own timeout ever grows: 8 times 50 ms

    spec: dict[str, Any] = {"target": {"contract": contract, "timeout": "50ms"}, "dlq": {"enabled": False}}
    async with dispatch_rig(slowly, **spec) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1))
        await rig.idle()

        assert pump.delivered == 1
        assert len(rig.seen) > 1


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize(("ordering", "at_once"), [("key", 10), ("partition", 1)])
async def test_ordered_messages_are_delivered_one_at_a_time_also_after_failures(
    contract: str, ordering: str, at_once: int
) -> None:
    out: dict[bytes, int] = defaultdict(int)
    done: dict[bytes, list[int]] = defaultdict(list)
    most = 0

    async def handle(message: Message) -> Any:
        nonlocal most
        key, number = message.key or b"", int(message.value)
        out[key] += 1
        most = max(most, sum(out.values()))
        assert out[key] == 1
        await asyncio.sleep(0.001)
        out[key] -= 1
        if number % 40 == 17 and message.attempt < 3:
            return Retry()
        if number % 100 == 33:
            return Stash("never")
        done[key].append(number)
        return None

    spec: dict[str, Any] = {"target": {"contract": contract}, "ordering": ordering, "retry": TIERS}
    async with dispatch_rig(handle, **spec) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(300, keys=10))
        await rig.idle()

    assert most <= at_once
    finished = sorted(number for numbers_ in done.values() for number in numbers_)
    assert finished == [number for number in range(300) if number % 100 != 33]
    assert all(per_key == sorted(per_key) for per_key in done.values())
    assert sorted(rig.copied.values("dlq")) == [b"133", b"233", b"33"]
    assert not rig.copied.values("retry_1")


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_messages_without_a_key_have_no_order_to_keep(contract: str) -> None:
    gate = asyncio.Event()

    async def wait(_: Message) -> None:
        await gate.wait()

    async with dispatch_rig(wait, target={"contract": contract}, ordering="key") as rig:
        rig.feed(rig.pump(), numbers(15))
        await rig.until(lambda: len(rig.seen) == 15)
        gate.set()
        await rig.idle()


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_no_message_is_delivered_before_the_workloads_delay(contract: str) -> None:
    early: list[int] = []
    fed_ms: list[int] = []

    def handle(message: Message) -> None:
        if now_ms() < fed_ms[message.offset // 50] + 300:
            early.append(message.offset)

    async with dispatch_rig(handle, target={"contract": contract}, delay="300ms") as rig:
        pump = rig.pump()
        for start in (0, 50):
            fed_ms.append(now_ms())
            rig.feed(pump, numbers(50, start))
            await asyncio.sleep(0.1)
        await rig.idle()

        assert not early
        assert len(rig.seen) == 100


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_message_with_not_before_is_delivered_at_that_time_and_holds_up_no_other(
    contract: str,
) -> None:
    came_ms: dict[bytes, int] = {}

    def handle(message: Message) -> None:
        came_ms[message.value] = now_ms()

    async with dispatch_rig(handle, target={"contract": contract}) as rig:
        pump = rig.pump()
        due_ms = now_ms() + 2_000
        rig.feed(pump, numbers(20), headers=[("not-before", str(due_ms).encode())])
        rig.feed(pump, numbers(20, 20))
        rig.feed(pump, numbers(5, 40), headers=[("not-before", b"tomorrow, perhaps")])
        await rig.until(lambda: len(came_ms) >= 25)
        before = [value for value, at_ms in came_ms.items() if at_ms < due_ms]
        await rig.idle()

        assert sorted(map(int, before)) == list(range(20, 45))
        assert all(came_ms[str(number).encode()] >= due_ms for number in range(20))


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_paused_partition_sends_nothing_and_the_others_flow(contract: str) -> None:
    async with dispatch_rig(lambda _: None, target={"contract": contract}) as rig:
        paused, other = rig.pump(0), rig.pump(1)
        paused.pause(True)
        rig.feed(paused, numbers(100))
        rig.feed(other, numbers(100, 100))
        await rig.until(lambda: other.tracker.base == 100)
        assert (paused.tracker.base, paused.state) == (0, "paused")
        assert all(int(message.value) >= 100 for message in rig.seen)
        paused.pause(False)
        await rig.idle()

        assert sorted(int(message.value) for message in rig.seen) == list(range(200))


async def test_a_message_held_for_an_absent_receiver_waits_while_its_partition_is_paused() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        await rig.receiver.stop(0)
        pump = rig.pump()
        rig.feed(pump, numbers(50))
        await rig.until(lambda: len(rig.queues.held) > 0 and not rig.queues.receiver.in_flight)
        pump.pause(True)
        await rig.start_receiver()
        other = rig.pump(1)
        rig.feed(other, numbers(10, 100))
        await rig.until(lambda: other.tracker.base == 10)
        assert all(int(message.value) >= 100 for message in rig.seen)
        pump.pause(False)
        await rig.idle()

        assert len(rig.seen) == 60
