"""Messages of many targets: what waits for one is bounded and held, and a zone may have a fallback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.dispatch.model.head_of_line import BLOCKED_AFTER_S
from app.dispatch.pump.intake import HELD_LEAST_BYTES
from app.dispatch.scheduler.isolation_router import MOST_WAITING
from switchyard.receiver import Message
from tests.dispatch.pump.rig import DispatchRig, Handler, dispatch_rig, numbers

ZONE = [("zone", b"b")]
KIB = 1024


def zoned(*targets: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"zone": "zone", "targets": list(targets), **more}


def rows(count: int, size: int) -> list[tuple[None, bytes]]:
    return [(None, bytes(size))] * count


async def zones(rig: DispatchRig, *names: str) -> list[tuple[dict[str, Any], list[Message], Any]]:
    """A receiver for each zone: its target, what it sees, itself."""
    made = [await rig.another_receiver(lambda _: None) for _ in names]
    return [
        ({"zone": name, "address": address}, seen, receiver)
        for name, (address, seen, receiver) in zip(names, made, strict=True)
    ]


async def zone_away(
    rig: DispatchRig, at_fallback: Handler, after: str, **spec: Any
) -> tuple[list[Message], str]:
    """Zone b's target is away, and its messages go to zone c `after` that: what c sees, and its address."""
    ((away, _, receiver),) = await zones(rig, "b")
    address, seen, _ = await rig.another_receiver(at_fallback)
    await receiver.stop(0)
    await rig.runtime.close()
    fallback = {"zone": "c", "address": address}
    rig.run(isolation=zoned({**away, "fallback": "c"}, fallback, fallbackAfter=after), **spec)
    return seen, address


@pytest.mark.deep(minutes=0.2)
async def test_few_messages_wait_for_a_slow_target_however_large_the_tracker() -> None:
    gate = asyncio.Event()

    async def wait(_: Message) -> None:
        await gate.wait()

    async with dispatch_rig(wait) as rig:
        ((target, _, _),) = await zones(rig, "b")
        await rig.runtime.close()
        rig.run(target={"timeout": "1h"}, isolation=zoned(target), flow={"max_inflight": 10})
        pump = rig.pump()
        rig.feed(pump, numbers(9_000))
        await rig.until(lambda: pump.in_flight == 10)
        await asyncio.sleep(0.3)
        assert len(rig.queues.held) <= MOST_WAITING
        gate.set()
        await rig.idle()
        assert len(rig.seen) == 9_000


async def test_messages_for_a_zone_that_is_away_count_in_the_budget_and_none_is_dead_lettered() -> None:
    async with dispatch_rig(lambda _: None, limits={"budget": 1024 * KIB}) as rig:
        ((target, seen, receiver),) = await zones(rig, "b")
        port = int(target["address"].rpartition(":")[2])
        await receiver.stop(0)
        await rig.runtime.close()
        rig.run(isolation=zoned(target))
        pumps = [rig.pump(partition) for partition in range(3)]
        for pump in pumps:
            rig.feed(pump, rows(2_000, KIB), headers=ZONE)
        held = rig.budget
        await rig.until(lambda: held.holds_much)
        await asyncio.sleep(0.5)
        assert held.held_bytes <= held.capacity_bytes // 2 + len(pumps) * (HELD_LEAST_BYTES + 256 * 2 * KIB)
        assert held.held_bytes >= sum(pump.tracker.unfinished for pump in pumps) * KIB * 0.8
        assert not rig.copied.records

        again = rig._receiver(seen, lambda _: None, port)
        await again.start()
        await rig.idle()
        assert len(seen) == 6_000
        assert (held.held_bytes, rig.copied.records) == (0, [])
        await again.stop(0)


async def test_production_flows_on_beside_a_zone_that_is_away() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        ((target, _, receiver),) = await zones(rig, "b")
        await receiver.stop(0)
        await rig.runtime.close()
        rig.run(isolation=zoned(target))
        pump = rig.pump()
        for number in range(10):
            rig.feed(pump, numbers(100, 100 * number), headers=ZONE)
            rig.feed(pump, numbers(100, 10_000 + 100 * number))
        await rig.until(lambda: len(rig.seen) == 1_000)
        assert not rig.copied.records


async def test_a_zone_that_is_away_for_some_time_has_its_messages_go_to_its_fallback_until_it_is_back() -> (
    None
):
    async with dispatch_rig(lambda _: None) as rig:
        (away, seen, receiver), (other, at_fallback, _) = await zones(rig, "b", "c")
        port = int(away["address"].rpartition(":")[2])
        await receiver.stop(0)
        await rig.runtime.close()
        rig.run(isolation=zoned({**away, "fallback": "c"}, other, fallbackAfter="300ms"))
        pump = rig.pump(capacity=200)
        rig.feed(pump, numbers(1_000), headers=ZONE)
        await rig.until(lambda: len(at_fallback) >= 900)
        assert not seen

        back = rig._receiver(seen, lambda _: None, port)
        await back.start()
        await rig.idle()
        rig.feed(pump, numbers(1, 1_000), headers=ZONE)  # a probe
        await rig.until(lambda: rig.targets[away["address"]].receiver.closed)
        await rig.idle()
        before = len(at_fallback)
        rig.feed(pump, numbers(300, 1_001), headers=ZONE)
        await rig.idle()
        assert len(at_fallback) == before
        assert sorted(int(one.value or b"") for one in [*seen, *at_fallback]) == list(range(1_301))
        assert not rig.copied.records
        await back.stop(0)


async def test_the_time_at_a_zone_that_is_away_does_not_count_against_a_message_at_its_fallback() -> None:
    gate = asyncio.Event()

    async def wait(message: Message) -> None:
        if message.value == b"0":
            await gate.wait()

    async with dispatch_rig(lambda _: None) as rig:
        at_fallback, _ = await zone_away(rig, wait, "1200ms")
        pump = rig.pump(capacity=200)
        rig.feed(pump, numbers(199), headers=ZONE)
        await rig.until(lambda: len(at_fallback) == 199 and pump.tracker.unfinished == 1)
        assert pump.free_head(rig.runtime.clock()) is None
        gate.set()
        await rig.idle()
        assert not rig.copied.records


async def test_a_message_that_waits_for_room_at_its_fallback_is_not_to_blame() -> None:
    gate = asyncio.Event()

    async def wait(_: Message) -> None:
        await gate.wait()

    async with dispatch_rig(lambda _: None) as rig:
        at_fallback, address = await zone_away(rig, wait, "300ms", flow={"max_inflight": 1})
        pump = rig.pump(capacity=200)
        rig.feed(pump, numbers(1), headers=ZONE)
        rig.feed(pump, numbers(1, 1), headers=[("zone", b"c")])  # hangs, and leaves no room
        rig.feed(pump, numbers(198, 2))
        await rig.until(lambda: pump.tracker.unfinished == 2 and rig.targets[address].held)
        await asyncio.sleep(BLOCKED_AFTER_S + 0.2)
        assert [message.value for message in at_fallback] == [b"1"]
        assert pump.free_head(rig.runtime.clock()) is None
        gate.set()
        await rig.idle()
        assert (len(at_fallback), rig.copied.records) == (2, [])


async def test_one_message_alone_goes_to_the_fallback_too() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        (away, seen, receiver), (other, at_fallback, _) = await zones(rig, "b", "c")
        await receiver.stop(0)
        await rig.runtime.close()
        rig.run(isolation=zoned({**away, "fallback": "c"}, other, fallbackAfter="100ms"))
        pump = rig.pump()
        rig.feed(pump, numbers(1), headers=ZONE)
        await rig.idle()
        assert (len(seen), len(at_fallback), rig.copied.records) == (0, 1, [])


async def test_a_zone_whose_fallback_is_away_too_waits() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        (one, _, first), (other, _, second) = await zones(rig, "b", "c")
        await first.stop(0)
        await second.stop(0)
        await rig.runtime.close()
        rig.run(isolation=zoned({**one, "fallback": "c"}, {**other, "fallback": "b"}, fallbackAfter="100ms"))
        pump = rig.pump()
        rig.feed(pump, numbers(100), headers=ZONE)
        rig.feed(pump, numbers(100, 100), headers=[("zone", b"c")])
        rig.feed(pump, numbers(100, 200))
        await rig.until(lambda: len(rig.seen) == 100)
        await asyncio.sleep(0.5)
        assert pump.tracker.unfinished == 200
        assert not rig.copied.records
