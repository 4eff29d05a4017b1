"""Behind a former owner, killed or awake, every record is copied once and in order."""

from __future__ import annotations

import asyncio

import pytest

from app.kafka.append.errors import AppendError, ProducerFenced
from app.kernel.ranges import Snapshot
from app.replicate.destination.handover import STEP, ReplicaHandover
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
    stand: ReplicaRig, topic_name: str
) -> None:
    """Owners are killed repeatedly, at any point, and the saved state is older than the last writes."""
    await create_on_both_sides(stand, topic_name)
    total = 0
    for turn in range(6):
        await write(stand, topic_name, 500, f"turn {turn}", compression_type=[None, "lz4"][turn % 2])
        total += 500
        stand.saves = True
        pump = await stand.start_pump(topic_name)
        start = pump.base
        await stand.until(lambda pump=pump: pump.session.is_ready)  # type: ignore[misc]
        stand.saves = False  # from here on the table lies behind
        await stand.until(lambda pump=pump, s=start, t=turn: pump.base > s + 80 * t)  # type: ignore[misc]
        stand.kill(pump)
    stand.saves = True
    pump = await stand.start_pump(topic_name)
    await stand.copied([pump])
    assert await assert_same(stand, topic_name) == total
    assert stand.incidents == []


async def test_a_former_owner_that_wakes_is_fenced_by_its_successor(
    stand: ReplicaRig, topic_name: str
) -> None:
    """uReplicator's writers interleaved after a move. Here the former owner appends, and the broker refuses
    it."""
    zombie = await start_copying(stand, topic_name, 300)
    stand.freeze(zombie)
    successor = await stand.start_pump(topic_name)
    await write(stand, topic_name, 300, "later")
    await stand.copied([successor])
    lane = zombie.session.lane
    assert lane is not None
    future = await lane.append(*batch_of(b"of a zombie"))
    with pytest.raises(ProducerFenced, match="newer epoch"):
        async with asyncio.timeout(ENOUGH_S):
            await future
    zombie.close()
    await write(stand, topic_name, 50, "after")
    await stand.copied([successor])
    assert await assert_same(stand, topic_name) == 650
    assert stand.incidents == []


async def test_records_that_a_zombie_wrote_before_its_successor_appended_are_not_copied_again(
    stand: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(stand, topic_name)
    await write(stand, topic_name, 150)
    zombie = await stand.start_pump(topic_name)
    await stand.until(lambda: zombie.base > 0)
    stand.saves = False
    await write(stand, topic_name, 150, "unsaved")
    await stand.until(lambda: zombie.base >= 300)
    stand.freeze(zombie)
    assert stand.saved[0][0].base < 300
    successor = await stand.start_pump(topic_name)  # cannot save, so that it appends nothing yet
    await write(stand, topic_name, 100, "more")
    await stand.until(lambda: successor.session.lane is not None)
    lane = zombie.session.lane
    assert lane is not None
    batches = await batches_of(stand.source, topic_name, 300)
    for data, count in batches[: len(batches) // 2]:
        await (await lane.append(data, count))
    stand.saves = True
    await stand.copied([successor])
    zombie.close()
    assert await assert_same(stand, topic_name) == 400
    assert stand.incidents == []


async def test_a_compacted_source_is_copied_behind_a_killed_owner_although_records_have_gone_from_it(
    stand: ReplicaRig, topic_name: str
) -> None:
    """The former owner copied everything; then half of the records behind the saved position are compacted
    away."""
    await create_on_both_sides(stand, topic_name)
    await write(stand, topic_name, 200)
    pump = await stand.start_pump(topic_name)
    await stand.until(lambda: pump.base > 0)
    stand.saves = False
    await write(stand, topic_name, 200, "unsaved")
    await stand.until(lambda: pump.base >= 400)
    stand.kill(pump)
    before = await rows(stand.target, topic_name)
    base = stand.saved[0][0].base
    assert base < 400
    stand.saves = True
    pump = await stand.start_pump(topic_name, fetches=False)
    data = compacted_batches(
        await rows(stand.source, topic_name), base, lambda n: n % 3 != 1 and not 350 <= n < 370
    )
    stand.feed(pump, data, base, 400)
    await stand.until(lambda: pump.base >= 400)
    assert await rows(stand.target, topic_name) == before
    assert stand.incidents == []


async def test_a_drained_replica_saves_all_it_sent_and_its_successor_continues_behind_it(
    stand: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(stand, topic_name)
    await write(stand, topic_name, 3_000)
    pump = await stand.start_pump(topic_name)
    await stand.until(lambda: pump.base > 0)
    assert await pump.drain(ENOUGH_S)
    assert not pump.is_busy
    stand.save(pump)
    assert stand.saved[0][0].base == pump.base
    stand.kill(pump)
    successor = await stand.start_pump(topic_name)
    await stand.copied([successor])
    assert await assert_same(stand, topic_name) == 3_000
    assert pump.status().delivered + successor.status().delivered == 3_000, "no record was copied twice"


async def test_without_a_note_copying_continues_at_the_position(stand: ReplicaRig, topic_name: str) -> None:
    """uReplicator moved to the end if a checkpoint was missing."""
    await create_on_both_sides(stand, topic_name)
    await write(stand, topic_name, 100)
    stand.saved[0] = Snapshot(40), b"no note"
    pump = await stand.start_pump(topic_name)
    await stand.copied([pump])
    assert stand.kinds() == ["note-corrupt", "replica-resumed-unsure"]
    assert await rows(stand.target, topic_name) == (await rows(stand.source, topic_name))[40:]


async def test_no_later_owner_emits_an_offset_sync_where_records_may_be_twice(
    stand: ReplicaRig, topic_name: str
) -> None:
    await create_on_both_sides(stand, topic_name)
    await write(stand, topic_name, 100)
    stand.saved[0] = Snapshot(40), b"no note"
    often = {"records": 10, "every": "200ms"}
    first = await stand.start_pump(topic_name, checkpoint=often)
    first.pause(True)
    await stand.until(lambda: "replica-resumed-unsure" in stand.kinds() and first.session.is_ready)
    stand.kill(first)
    second = await stand.start_pump(topic_name, checkpoint=often)
    await stand.copied([second])
    await stand.until(lambda: stand.barriers)
    assert {source_end for _, source_end, _ in stand.barriers} == {100}


async def test_a_recreated_destination_is_reported_and_copying_continues_at_its_position(
    stand: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(stand, topic_name)
    await stand.until(lambda: stand.saved[0][0].base == 100)
    stand.kill(pump)
    await recreate(stand.target, topic_name)
    await write(stand, topic_name, 50, "new")
    pump = await stand.start_pump(topic_name)
    await stand.copied([pump])
    assert stand.kinds() == ["destination-begun-anew"]
    assert pump.copying().destination_losses == 1
    await stand.until(lambda: ReplicaHandover.from_bytes(stand.saved[0][1]).losses == 1)
    assert await rows(stand.target, topic_name) == (await rows(stand.source, topic_name))[100:]


async def test_a_former_owner_whose_lane_took_many_epochs_is_fenced_too(
    stand: ReplicaRig, topic_name: str
) -> None:
    """The fault: the note kept the lane's first epoch, and successors left it only 16 more."""
    zombie = await start_copying(stand, topic_name, 100)
    lane = zombie.session.lane
    assert lane is not None
    for _ in range(3 * STEP):
        assert lane._bump(AppendError("no epoch left"))
    await stand.until(
        lambda: ReplicaHandover.from_bytes(stand.saved[0][1]).epoch == lane.producer.epoch > 2 * STEP
    )
    await write(stand, topic_name, 50, "under the last of them")
    await stand.copied([zombie])
    stand.freeze(zombie)
    successor = await stand.start_pump(topic_name)
    await write(stand, topic_name, 50, "later")
    await stand.copied([successor])
    future = await lane.append(*batch_of(b"of a zombie"))
    with pytest.raises(ProducerFenced):
        async with asyncio.timeout(ENOUGH_S):
            await future
    zombie.close()
    assert await assert_same(stand, topic_name) == 200
    assert stand.incidents == []
