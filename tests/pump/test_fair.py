"""Partitions of one workload share a receiver: what hangs in one starves no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pump.turns import SHARE, allowance
from app.push.receiver import Message
from tests.pump.stand import numbers, standing

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
    async with standing(handle, target={"contract": contract, "timeout": "1h"}, **spec) as stand:
        hung, sibling = stand.pump(0), stand.pump(1)
        stand.feed(hung, numbers(1_000))
        await stand.until(lambda: hung.in_flight > 0)
        for number in range(20):
            stand.feed(sibling, numbers(5, 10_000 + 5 * number))
            await stand.until(lambda fed=5 * number + 5: sibling.delivered == fed)  # type: ignore[misc]
        assert hung.delivered == 0


@given(st.integers(1, 2_000), st.integers(1, 50), st.integers(1, 600))
def test_no_more_than_the_limit_is_shared_out_and_one_alone_leaves_a_place_for_another(
    limit: int, pumps: int, most: int
) -> None:
    held = [0] * pumps
    while taken := [min(allowance(limit - sum(held), had), most) for had in held if limit > sum(held)]:
        if not any(taken):
            break
        held[taken.index(max(taken))] += max(taken)
    assert sum(held) <= limit
    assert sum(held) >= limit * SHARE // (SHARE + 1)
    if pumps == 1:
        assert limit - held[0] >= limit // (SHARE + 1) - 1
    assert limit == sum(held) or allowance(limit - sum(held), 0) >= 1
