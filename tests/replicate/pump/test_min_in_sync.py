"""A destination whose leader has too few replicas in sync."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from app.dev.yard import Yard
from app.kafka.client.cluster import LATEST
from app.kafka.client.topic_configs import alter
from app.kafka.producers.history import _log_end
from app.replicate.pump.partition import ReplicaPump
from app.replicate.pump.status import job_status
from tests.kafka.conftest import create, producing
from tests.kafka.second_broker import FIRST, SECOND, SecondBroker, create_on, delete, second_broker
from tests.replicate.rig import ReplicaRig, replica_rig
from tests.replicate.source_topics import assert_same, rows, write

HOME, AWAY = "east-regional", "east-aggregate"
IN_SYNC = "min.insync.replicas"
OTHERS = b"another producer's"


async def without_elr(yard: Yard) -> None:
    """Disables eligible leader replicas.

    Kafka 4.2's controller keeps a trace of an eligible leader if `min.insync.replicas` is lowered. It then
    refuses to forget the broker once the topic is deleted ("existed in isrMembers, but not in the topics
    map")."""
    feature = ["downgrade", "--feature", "eligible.leader.replicas.version=0"]
    command = yard.tool(
        "org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", yard.bootstrap(AWAY), *feature
    )
    tool = await asyncio.create_subprocess_exec(*command)
    assert await tool.wait() == 0


@asynccontextmanager
async def in_doubt(
    yard: Yard, topic: str, folder: Path
) -> AsyncIterator[tuple[ReplicaRig, SecondBroker, ReplicaPump]]:
    """A replica that has copied 50 records to two brokers; 50 more are refused, because one replica in sync
    is too few."""
    async with AsyncExitStack() as stack:
        rig = await stack.enter_async_context(replica_rig(yard.bootstrap(HOME), yard.bootstrap(AWAY)))
        await without_elr(yard)
        away = rig.target
        second = await stack.enter_async_context(second_broker(yard, AWAY, folder, away))
        await create(rig.source, topic)
        await create_on(away, {(topic, 0): [FIRST, SECOND]})
        stack.push_async_callback(delete, away, topic)
        await second.until_in_sync({(topic, 0): [FIRST, SECOND]})
        assert await alter(away, {topic: {IN_SYNC: "2"}}) == {}
        await write(rig, topic, 50)
        pump = await rig.start_pump(topic)
        await rig.copied([pump])
        pump.pause(True)  # the leader takes them only while it does not know that it is alone
        await write(rig, topic, 50, "too few")
        await rig.until(lambda: pump.intake.expected == 100)
        await second.kill()
        pump.pause(False)
        await rig.until(lambda: "1 of 2 replicas are in sync" in job_status(pump).trouble)
        yield rig, second, pump


@pytest.mark.deep(minutes=0.7)
async def test_a_destination_with_too_few_replicas_is_reported_and_nothing_is_lost_skipped_or_doubled(
    killable_yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    async with in_doubt(killable_yard, topic_name, tmp_path) as (rig, second, former):
        status = job_status(former)
        assert (status.state, status.committed, status.in_flight) == ("flowing", 50, 50)
        assert f"{topic_name}-0 in {rig.target.name}: 1 of 2 replicas" in status.trouble
        assert "min.insync.replicas is 2. Nothing is appended, since records in [50, 100)" in status.trouble
        assert "restart brokers with its replicas" in status.trouble
        assert status.oldest_ms > 0
        assert "append-trouble" in rig.kinds()

        rig.kill(former)  # nor is it otherwise with the next owner
        pump = await rig.start_pump(topic_name)
        await write(rig, topic_name, 50, "still")
        await rig.until(lambda: "restart brokers with its replicas" in job_status(pump).trouble)
        assert pump.base == 50

        await second.start()
        await rig.copied([pump])
        assert await assert_same(rig, topic_name) == 150
        assert job_status(pump).trouble == ""
        assert "replica-resumed-unsure" not in rig.kinds()


@pytest.mark.deep(minutes=1.5)
@pytest.mark.parametrize("remedy", ["reassign", "restart", "write"])
async def test_a_lowered_setting_is_not_enough_and_each_remedy_lets_copying_continue(
    killable_yard: Yard, topic_name: str, tmp_path: Path, remedy: str
) -> None:
    async with in_doubt(killable_yard, topic_name, tmp_path) as (rig, second, former):
        pump, away, at = former, rig.target, (topic_name, 0)
        assert await away.offsets([at], LATEST) == {at: 50}
        assert await _log_end(away, FIRST, *at) > 50, "the leader has records above the high watermark"
        assert await alter(away, {topic_name: {IN_SYNC: "1"}}) == {}
        if remedy != "reassign":
            rig.kill(former)
            pump = await rig.start_pump(topic_name)
        await write(rig, topic_name, 50, "still")
        await rig.until(lambda: f"{IN_SYNC} is 1. " in job_status(pump).trouble)
        assert (pump.base, await away.offsets([at], LATEST)) == (50, {at: 50}), "it waits"
        assert "kafka-reassign-partitions.sh" in job_status(pump).trouble

        if remedy == "reassign":
            await second.assign({at: [FIRST]})
        elif remedy == "restart":
            await asyncio.to_thread(killable_yard.kill, AWAY)
            await asyncio.to_thread(killable_yard.start, AWAY)
        else:
            async with producing(killable_yard.bootstrap(AWAY)) as other:
                await other.send_and_wait(topic_name, OTHERS, partition=0)
        await rig.copied([pump])
        copied = [row for row in await rows(away, topic_name) if row[2] != OTHERS]
        assert copied == await rows(rig.source, topic_name)
        assert len(copied) == 150
        assert job_status(pump).trouble == ""
        assert "replica-resumed-unsure" not in rig.kinds()
