"""Partitions of one workload share a receiver: what hangs in one starves no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dispatch.scheduler.fair_scheduler import FREE_ROOM_FACTOR, fair_allowance
from switchyard.receiver import Message
from tests.dispatch.pump.rig import dispatch_rig, numbers

ISOLATION = {"zone": "zone", "environment": "env"}


@pytest.mark.parametrize("isolation", [None, ISOLATION])
@pytest.mark.parametrize("inflight", [50, "adaptive"])
@pytest.mark.parametrize("contract", ["unary", "stream"])
async def test_a_partition_whose_messages_hang_leaves_room_for_its_sibling(
    contract: str, inflight: Any, isolation: Any
) -> None:
    async def handle(message: Message) -> None:
        if message.partition == 0:
            await asyncio.sleep(3_600)

    spec: dict[str, Any] = {"flow": {"max_inflight": inflight}}
    if isolation is not None:
        spec["isolation"] = {**isolation, "targets": []}
    async with dispatch_rig(handle, target={"contract": contract, "timeout": "1h"}, **spec) as rig:
        hung, sibling = rig.pump(0), rig.pump(1)
        rig.feed(hung, numbers(1_000))
        await rig.until(lambda: hung.in_flight > 0)
        for number in range(20):
            rig.feed(sibling, numbers(5, 10_000 + 5 * number))
            await rig.until(lambda fed=5 * number + 5: sibling.delivered == fed)  # type: ignore[misc]
        assert hung.delivered == 0


async def test_hanging_calls_at_one_receiver_take_nothing_from_the_partitions_share_of_another() -> None:
    async def hang(_: Message) -> None:
        await asyncio.sleep(3_600)

    async def hang_of_sibling(message: Message) -> None:
        if message.partition == 1:
            await asyncio.sleep(3_600)

    async with dispatch_rig(hang_of_sibling) as rig:
        address, staged, _ = await rig.another_receiver(hang)
        isolation = {**ISOLATION, "targets": [{"environment": "staging", "address": address}]}
        await rig.runtime.close()
        rig.run(target={"timeout": "1h"}, isolation=isolation, flow={"max_inflight": 50})
        pump, sibling = rig.pump(0), rig.pump(1)
        rig.feed(pump, numbers(60), headers=[("env", b"staging")])
        await rig.until(lambda: len(staged) >= 45)
        rig.feed(sibling, numbers(60))
        await rig.until(lambda: sibling.in_flight >= 45)
        for number in range(10):
            rig.feed(pump, numbers(5, 100 + 5 * number))
            await rig.until(lambda fed=5 * number + 5: pump.delivered == fed)  # type: ignore[misc]


@given(st.integers(1, 2_000), st.integers(1, 50), st.integers(1, 600))
def test_no_more_than_the_limit_is_shared_out_and_one_alone_leaves_a_place_for_another(
    limit: int, pumps: int, most: int
) -> None:
    held = [0] * pumps
    while taken := [min(fair_allowance(limit - sum(held), had), most) for had in held if limit > sum(held)]:
        if not any(taken):
            break
        held[taken.index(max(taken))] += max(taken)
    assert sum(held) <= limit
    assert sum(held) >= limit * FREE_ROOM_FACTOR // (FREE_ROOM_FACTOR + 1)
    if pumps == 1:
        assert limit - held[0] >= limit // (FREE_ROOM_FACTOR + 1) - 1
    assert limit == sum(held) or fair_allowance(limit - sum(held), 0) >= 1
