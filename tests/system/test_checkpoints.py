"""Offset syncs pass from the checkpoints topic through the agent into the table, also over a kill."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.controllog import codec
from app.controllog.topics import ControlTopics
from app.dev.demo.stage import DemoStage
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, BarrierItem, NeedItem, OffsetMapLine, PinnedOffsets
from app.offsets.sync.offset_sync_sender import BarrierSender
from tests.system.as_worker import producing_as_worker, seals_of

pytestmark = pytest.mark.system

LINES = 20
ENOUGH_S = 150.0


def items(*barriers: tuple[int, int], epoch: int = 1) -> list[BarrierItem]:
    """The same syncs for many lines."""
    return [
        BarrierItem(
            "east-to-west", "orders", partition, epoch, 0, LogId("c", "s"), LogId("d", "t"), "t", partition,
            [Barrier(*barrier) for barrier in barriers],
        )
        for partition in range(LINES)
    ]  # fmt: skip


NEEDS = PinnedOffsets([12], [20])


async def send_syncs(
    bootstrap: str, topics: ControlTopics, *batches: list[BarrierItem], needs: bool = False
) -> None:
    seal = await seals_of(bootstrap, topics.region)
    sender = BarrierSender(topics, {"bootstrap_servers": bootstrap}, "w", seal)
    await sender.start()
    try:
        if needs:
            need_items = [
                NeedItem("east-to-west", "orders", at, LogId("d", "t"), NEEDS) for at in range(LINES + 1)
            ]
            await asyncio.gather(*await sender.ask(need_items))
        for batch in batches:
            await asyncio.gather(*await sender.send(batch))
    finally:
        await sender.stop()


async def wait_all_lines(bootstrap: str, topics: ControlTopics, last: Barrier) -> dict[str, OffsetMapLine]:
    """Reads the table's changelog until every line ends with `last`; returns the lines by key."""
    found: dict[str, OffsetMapLine] = {}
    changelog = topics.changelog("checkpoints", topics.checkpoints.partitions)
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([TopicPartition(changelog.name, p) for p in range(changelog.partitions)])
        async with asyncio.timeout(ENOUGH_S):
            while sum(line.barriers[-1] == last for line in found.values()) < LINES:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found |= {record.key.decode(): codec.checkpoint_line(record.value) for record in records}
    return found


@pytest.mark.deep(minutes=0.6)
async def test_each_offset_sync_reaches_the_table_once_despite_repetitions_and_a_killed_worker(
    stage: DemoStage,
) -> None:
    bootstrap, topics = stage.yard.bootstrap("east-regional"), ControlTopics(stage.region)
    worker = stage.worker()
    async with producing_as_worker(bootstrap, stage.region) as producer:
        for partition in range(topics.checkpoints.partitions):
            await producer.send_and_wait(topics.checkpoints.name, b"no event", partition=partition)
    await send_syncs(bootstrap, topics, items((0, 0)))
    await send_syncs(bootstrap, topics, items((0, 0), (10, 12)), needs=True)
    found = await wait_all_lines(bootstrap, topics, Barrier(10, 12))
    assert sorted(found) == sorted(f"east-to-west/orders/{partition}" for partition in range(LINES))
    worker.kill()
    stage.worker()
    await send_syncs(
        bootstrap,
        topics,
        items((0, 0)),
        items((20, 25), epoch=2),
        items((15, 16), (30, 31)),
        items((40, 50), epoch=2),
    )
    found = await wait_all_lines(bootstrap, topics, Barrier(40, 50))
    assert {line.target_partition for line in found.values()} == set(range(LINES))
    for line in found.values():
        assert line.epoch == 2
        assert line.barriers == [Barrier(0, 0), Barrier(10, 12), Barrier(20, 25), Barrier(40, 50)]
        assert line.needs == NEEDS, "pinned offsets stay while no consumer has reported progress"
