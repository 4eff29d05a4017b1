"""A destination of three brokers, two of which must be in sync; its leaders are killed in turn."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.dev.yard import Yard
from app.kafka.client.topic_configs import alter
from app.replicate.pump.status import job_status
from tests.kafka.conftest import create
from tests.kafka.second_broker import FIRST, SECOND, THIRD, create_on, delete, second_broker
from tests.replicate.pump.test_min_in_sync import AWAY, HOME, IN_SYNC, without_elr
from tests.replicate.rig import replica_rig
from tests.replicate.source_topics import assert_same, write

NODES = (SECOND, THIRD, FIRST)  # in this order they lead, and are killed


@pytest.mark.deep(minutes=1.7)
@pytest.mark.usefixtures("unjoined")
async def test_a_copy_whose_leaders_are_killed_in_turn_has_every_record_once_and_in_order(
    killable_yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    yard, at = killable_yard, (topic_name, 0)
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(replica_rig(yard.bootstrap(HOME), yard.bootstrap(AWAY)))
        await without_elr(yard)
        away = rig.target
        others = {
            node: await stack.enter_async_context(second_broker(yard, AWAY, tmp_path / str(node), away, node))
            for node in (SECOND, THIRD)
        }
        second = others[SECOND]
        await create(rig.source, topic_name)
        await create_on(away, {at: NODES})
        stack.push_async_callback(delete, away, topic_name)
        await second.until_in_sync({at: NODES})
        assert await alter(away, {topic_name: {IN_SYNC: "2"}}) == {}

        written, is_over = 0, False

        async def write_for_ever() -> None:
            nonlocal written
            while not is_over:
                await write(rig, topic_name, 100, f"{written}", max_batch_size=300)
                written += 100

        writing = asyncio.create_task(write_for_ever())
        pump = await rig.start_pump(topic_name, verify="all")
        for turn, node in enumerate(NODES):
            order = NODES[turn:] + NODES[:turn]
            await second.assign({at: order})
            await second.elect({at: order})
            copied = pump.base
            await rig.until(lambda copied=copied: pump.base > copied)  # type: ignore[misc]
            if node == FIRST:  # the controller goes with it, so no other broker can lead
                await asyncio.to_thread(yard.kill, AWAY)
                await asyncio.to_thread(yard.start, AWAY)
            else:
                await others[node].kill()
                await second.until_led_by(order[1], [at])
            copied = pump.base
            await rig.until(lambda copied=copied: pump.base > copied)  # type: ignore[misc]
            if node != FIRST:
                await others[node].start()
            await second.until_in_sync({at: order})
        is_over = True
        await writing
        await rig.copied([pump])
        assert await assert_same(rig, topic_name) == written == job_status(pump).delivered
        verifier = pump.runtime.verifier
        await rig.until(lambda: not verifier.waiting)
        assert verifier.compared[pump.job] + verifier.uncompared[pump.job] == written
        assert verifier.differing.total() == 0
        assert not {"replica-resumed-unsure", "copy-differs", "destination-truncated"} & set(rig.kinds())
