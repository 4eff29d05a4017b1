"""Behind a former owner, killed or awake, every record is copied once and in order."""

from __future__ import annotations

import asyncio

import pytest

from app.kafka.append.errors import AppendError, ProducerFenced
from app.kernel.ranges import Snapshot
from app.replicate.destination.handover import STEP, ReplicaHandover
from app.replicate.pump.status import copying_status, job_status
from tests.kafka.append.test_appender import batch_of
from tests.kafka.conftest import ENOUGH_S
from tests.replicate.rig import ReplicaRig, rows
from tests.replicate.source_topics import (
    assert_same,
    batches_of,
    compacted_batches,
    create_on_both_sides,
    recreate,
    start_copying,
    write,
)


async def test_the_batches_in_flight_of_a_killed_owner_are_copied_once_and_in_order_by_its_successor(
    rig: ReplicaRig, topic_name: str
) -> None:
    """Owners are killed repeatedly, at any point, and the saved state is older than the last writes."""
    await create_on_both_sides(rig, topic_name)
    total = 0
    for turn in range(6):
        await write(rig, topic_name, 500, f"turn {turn}", compression_type=[None, "lz4"][turn % 2])
        total += 500
        rig.saves = True
        pump = await rig.start_pump(topic_name)
        start = pump.base
        await rig.until(lambda pump=pump: pump.session.is_ready)  # type: ignore[misc]
        rig.saves = False  # from here on the table lies behind
        await rig.until(lambda pump=pump, s=start, t=turn: pump.base > s + 80 * t)  # type: ignore[misc]
        rig.kill(pump)
    rig.saves = True
    pump = await rig.start_pump(topic_name)
    await rig.copied([pump])
    assert await assert_same(rig, topic_name) == total
    assert rig.incidents == []


async def test_a_former_owner_that_wakes_is_fenced_by_its_successor(rig: ReplicaRig, topic_name: str) -> None:
    """uReplicator's writers interleaved after a move. Here the former owner appends, and the broker refuses
    it."""
    zombie = await start_copying(rig, topic_name, 300)
    rig.freeze(zombie)
    successor = await rig.start_pump(topic_name)
    await write(rig, topic_name, 300, "later")
    await rig.copied([successor])
    lane = zombie.session.lane
    assert lane is not None
    future = await lane.append(*batch_of(b"of a zombie"))
    with pytest.raises(ProducerFenced, match="newer epoch"):
        async with asyncio.timeout(ENOUGH_S):
            await future
    zombie.close()
    await write(rig, topic_name, 50, "after")
    await rig.copied([successor])
    assert await assert_same(rig, topic_name) == 650
    assert rig.incidents == []


async def test_records_that_a_zombie_wrote_before_its_successor_appended_are_not_copied_again(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 150)
    zombie = await rig.start_pump(topic_name)
    await rig.until(lambda: zombie.base > 0)
    rig.saves = False
    await write(rig, topic_name, 150, "unsaved")
    await rig.until(lambda: zombie.base >= 300)
    rig.freeze(zombie)
    assert rig.saved[0][0].base < 300
    successor = await rig.start_pump(topic_name)  # cannot save, so that it appends nothing yet
    await write(rig, topic_name, 100, "more")
    await rig.until(lambda: successor.session.lane is not None)
    lane = zombie.session.lane
    assert lane is not None
    batches = await batches_of(rig.source, topic_name, 300)
    for data, count in batches[: len(batches) // 2]:
        await (await lane.append(data, count))
    rig.saves = True
    await rig.copied([successor])
    zombie.close()
    assert await assert_same(rig, topic_name) == 400
    assert rig.incidents == []


async def test_a_compacted_source_is_copied_behind_a_killed_owner_although_records_have_gone_from_it(
    rig: ReplicaRig, topic_name: str
) -> None:
    """The former owner copied everything; then half of the records behind the saved position are compacted
    away."""
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 200)
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: pump.base > 0)
    rig.saves = False
    await write(rig, topic_name, 200, "unsaved")
    await rig.until(lambda: pump.base >= 400)
    rig.kill(pump)
    before = await rows(rig.target, topic_name)
    base = rig.saved[0][0].base
    assert base < 400
    rig.saves = True
    pump = await rig.start_pump(topic_name, fetches=False)
    data = compacted_batches(
        await rows(rig.source, topic_name), base, lambda n: n % 3 != 1 and not 350 <= n < 370
    )
    rig.feed(pump, data, base, 400)
    await rig.until(lambda: pump.base >= 400)
    assert await rows(rig.target, topic_name) == before
    assert rig.incidents == []


async def test_a_drained_replica_saves_all_it_sent_and_its_successor_continues_behind_it(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 3_000)
    pump = await rig.start_pump(topic_name)
    await rig.until(lambda: pump.base > 0)
    assert await pump.drain(ENOUGH_S)
    assert not pump.is_busy
    rig.save(pump)
    assert rig.saved[0][0].base == pump.base
    rig.kill(pump)
    successor = await rig.start_pump(topic_name)
    await rig.copied([successor])
    assert await assert_same(rig, topic_name) == 3_000
    assert job_status(pump).delivered + job_status(successor).delivered == 3_000, "no record was copied twice"


async def test_without_a_note_copying_continues_at_the_position(rig: ReplicaRig, topic_name: str) -> None:
    """uReplicator moved to the end if a checkpoint was missing."""
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 100)
    rig.saved[0] = Snapshot(40), b"no note"
    pump = await rig.start_pump(topic_name)
    await rig.copied([pump])
    assert rig.kinds() == ["note-corrupt", "replica-resumed-unsure"]
    assert await rows(rig.target, topic_name) == (await rows(rig.source, topic_name))[40:]


async def test_no_later_owner_emits_an_offset_sync_where_records_may_be_twice(
    rig: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(rig, topic_name)
    await write(rig, topic_name, 100)
    rig.saved[0] = Snapshot(40), b"no note"
    often = {"records": 10, "every": "200ms"}
    first = await rig.start_pump(topic_name, checkpoint=often)
    first.pause(True)
    await rig.until(lambda: "replica-resumed-unsure" in rig.kinds() and first.session.is_ready)
    rig.kill(first)
    second = await rig.start_pump(topic_name, checkpoint=often)
    await rig.copied([second])
    await rig.until(lambda: rig.barriers)
    assert {source_end for _, source_end, _ in rig.barriers} == {100}


async def test_a_recreated_destination_is_reported_and_copying_continues_at_its_position(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name)
    await rig.until(lambda: rig.saved[0][0].base == 100)
    rig.kill(pump)
    await recreate(rig.target, topic_name)
    await write(rig, topic_name, 50, "new")
    pump = await rig.start_pump(topic_name)
    await rig.copied([pump])
    assert rig.kinds() == ["destination-begun-anew"]
    assert copying_status(pump).destination_losses == 1
    await rig.until(lambda: ReplicaHandover.from_bytes(rig.saved[0][1]).losses == 1)
    assert await rows(rig.target, topic_name) == (await rows(rig.source, topic_name))[100:]


async def test_a_former_owner_whose_lane_took_many_epochs_is_fenced_too(
    rig: ReplicaRig, topic_name: str
) -> None:
    """The fault: the note kept the lane's first epoch, and successors left it only 16 more."""
    zombie = await start_copying(rig, topic_name, 100)
    lane = zombie.session.lane
    assert lane is not None
    for _ in range(3 * STEP):
        assert lane._bump(AppendError("no epoch left"))
    await rig.until(
        lambda: ReplicaHandover.from_bytes(rig.saved[0][1]).epoch == lane.producer.epoch > 2 * STEP
    )
    await write(rig, topic_name, 50, "under the last of them")
    await rig.copied([zombie])
    rig.freeze(zombie)
    successor = await rig.start_pump(topic_name)
    await write(rig, topic_name, 50, "later")
    await rig.copied([successor])
    future = await lane.append(*batch_of(b"of a zombie"))
    with pytest.raises(ProducerFenced):
        async with asyncio.timeout(ENOUGH_S):
            await future
    zombie.close()
    assert await assert_same(rig, topic_name) == 200
    assert rig.incidents == []
