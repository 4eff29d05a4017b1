"""The limits of a route: its rates over all workers, and its share of a worker's memory while paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from app.controllog.events import ALL, Assignment, Paused
from app.dev.yard import Yard
from app.kafka.fetch.deliveries import FetchKey
from tests.kafka.conftest import write as write_to
from tests.replicate.rig import ReplicaRig
from tests.replicate.source_topics import assert_same, create_on_both_sides, write
from tests.worker.runtime.replica_manager import HOME, ReplicaManagerRig, replica_manager_rig


@pytest.fixture
async def manager(yard: Yard, topic_name: str) -> AsyncIterator[ReplicaManagerRig]:
    async with replica_manager_rig(yard, topic_name) as made:
        yield made


@pytest.mark.usefixtures("unjoined")
async def test_bytes_a_second_are_held(rig: ReplicaRig, topic_name: str) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 200, max_batch_size=300)
    pump = await rig.start_pump(topic_name, limits={"bytes_per_second": 1})
    await rig.until(lambda: pump.base > 0 and pump.limited)
    assert (pump.ledger.appended, pump.base < 20) == (1, True), "the next goes in some minutes"
    slow = pump.runtime.definition
    limits = type(slow.spec.limits)()
    pump.runtime.change(slow.model_copy(update={"spec": slow.spec.model_copy(update={"limits": limits})}))
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == 200


async def test_rates_are_shared_with_other_workers_by_the_routes_jobs_there(
    manager: ReplicaManagerRig,
) -> None:
    def rates() -> tuple[float, float] | None:
        runtime = manager.jobs.kinds.replicate.routes.get("r")
        if runtime is None or runtime.messages is None or runtime.bytes is None:
            return None
        return runtime.messages.rate_per_s, runtime.bytes.rate_per_s

    manager.put(limits={"messages_per_second": 120.0, "bytes_per_second": 1_200_000})
    manager.assign()
    manager.log.view.next_offset += 1  # as it grows with every event
    await manager.until(lambda: rates() == (120.0, 1_200_000.0))
    for partition, held in ((1, (60.0, 600_000.0)), (2, (40.0, 400_000.0))):
        job = f"replicate:r:{manager.topic}:{partition}"
        manager.log.apply(Assignment(at_ms=0, job=job, worker="another", epoch=1, term=1, reason=""))
        manager.log.view.next_offset += 1
        await manager.until(partial(lambda wanted: rates() == wanted, held))
    manager.put(limits={"messages_per_second": 30.0})
    await manager.until(lambda: manager.jobs.kinds.replicate.routes["r"].bytes is None)
    bucket = manager.jobs.kinds.replicate.routes["r"].messages
    assert bucket is not None
    assert bucket.rate_per_s == 10.0


async def test_a_route_that_is_paused_takes_none_of_the_workers_memory(
    yard: Yard, manager: ReplicaManagerRig
) -> None:
    cluster = await manager.jobs._clusters.get(HOME)

    def paused(yes: bool) -> None:
        manager.log.apply(Paused(at_ms=0, key="r", partition=ALL, paused=yes, actor="test"))

    async def known(end: int) -> None:
        """The log's end is still known."""
        assert manager.pump is not None
        key = FetchKey(manager.job, manager.pump.epoch)
        await manager.until(lambda: cluster.fetch.high_watermark(key) == end)

    manager.put()
    paused(True)
    await write_to(yard.bootstrap(HOME), manager.topic, [b"x" * 10_000] * 50)
    manager.assign()  # it is paused from its beginning on
    await manager.until(lambda: manager.pump is not None)
    await known(50)
    assert cluster.fetch.budget.used_bytes == 0
    paused(False)
    pump = await manager.copied(50)

    paused(True)
    await manager.until(lambda: pump.paused)
    (part,) = cluster.fetch._partitions.values()
    await manager.until(lambda: not part.polling)
    await write_to(yard.bootstrap(HOME), manager.topic, [b"x" * 10_000] * 50)
    await known(100)
    await asyncio.sleep(0.3)
    assert (cluster.fetch.budget.used_bytes, pump.intake.expected) == (0, 50)
    paused(False)
    await manager.copied(100)
    assert manager.incidents == []
