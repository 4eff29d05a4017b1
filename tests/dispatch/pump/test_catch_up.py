"""New messages flow beside a backlog; the committed offset stays true, and no message is lost or repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.kernel.limit_shares import ALL
from app.kernel.tracker import Tracker
from switchyard.receiver import Message
from tests.dispatch.pump.rig import dispatch_rig, numbers

CONTRACTS = ["unary", "stream"]
CATCH_UP = {"lag": 1_000, "rate": 500}


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_new_messages_are_delivered_at_once_and_the_backlog_completely(contract: str) -> None:
    spec: dict[str, Any] = {
        "target": {"contract": contract, "timeout": "10m"},
        "catchUp": CATCH_UP,
        "flow": {"max_inflight": 50},
    }
    gate, last = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        if int(message.value) < 100:
            await gate.wait()  # the backlog's first hundred are slow
        elif int(message.value) == 299:
            await (
                last.wait()
            )  # however slow the machine, the backlog does not end before the latest have come

    async with dispatch_rig(handle, **spec) as rig:
        rig.runtime.apply_share(ALL)
        backlog = rig.pump()
        rig.feed(backlog, numbers(300))
        await rig.until(lambda: backlog.in_flight == 50)
        main = rig.split(backlog, 600)
        rig.feed(backlog, numbers(450, 300))  # reaches beyond the split: that part is the main pump's
        rig.feed(main, numbers(400, 600))
        gate.set()
        await rig.until(lambda: main.tracker.base == 1_000)
        assert main.base == backlog.tracker.base < 600
        snapshot = main.snapshot()
        heir = Tracker(main.base, 10_000, snapshot)
        shown = [offset for start, end in heir.fetched(heir.end, 1_000) for offset in range(start, end)]
        assert shown == [offset for offset in range(600) if not backlog.tracker.is_finished(offset)]

        last.set()
        await rig.until(lambda: main.base == 1_000)
        assert backlog.has_ended
        assert main.snapshot().base == 1_000
        assert rig.values() == dict.fromkeys((str(number).encode() for number in range(1_000)), 1)
        assert rig.budget.used_bytes == 0


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_drained_split_pump_leaves_a_snapshot_that_repeats_and_loses_no_message(
    contract: str,
) -> None:
    async with dispatch_rig(lambda _: None, target={"contract": contract}, catchUp=CATCH_UP) as rig:
        rig.runtime.apply_share(ALL)
        backlog = rig.pump()
        rig.feed(backlog, numbers(400))
        main = rig.split(backlog, 400)
        rig.feed(main, numbers(200, 400))
        await rig.until(lambda: main.tracker.base == 600)
        assert await main.drain(60)
        delivered = {int(message.value) for message in rig.seen}
        heir = Tracker(main.base, 10_000, main.snapshot())
        shown = {offset for start, end in heir.fetched(heir.end, 600) for offset in range(start, end)}

        assert shown | delivered == set(range(600))
        assert not shown & delivered
