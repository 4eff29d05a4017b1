"""Behind a former owner, killed or awake: every record once, and in order."""

from __future__ import annotations

import asyncio

import pytest

from app.kafka.append.errors import AppendError, ProducerFenced
from app.kernel.ranges import Snapshot
from app.replicate.destination.handover import STEP, ReplicaHandover
from tests.kafka.append.test_appender import batch_of
from tests.kafka.conftest import ENOUGH_S
from tests.replicate.rig import ReplicaRig, rows
from tests.replicate.source_topics import batches_of, both, compacted, copying, made_anew, same, write


async def test_what_a_killed_owner_had_under_way_is_copied_once_and_in_order_by_its_successor(
    stand: ReplicaRig, topic_name: str
) -> None:
    """Killed again and again, anywhere; what was saved lies behind what was written."""
    await both(stand, topic_name)
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
    assert await same(stand, topic_name) == total
    assert stand.incidents == []


async def test_a_former_owner_that_wakes_is_shut_out_by_its_successor(
    stand: ReplicaRig, topic_name: str
) -> None:
    """uReplicator's writers interleaved after a move: here the former one appends, and nothing gets in."""
    zombie = await copying(stand, topic_name, 300)
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
    assert await same(stand, topic_name) == 650
    assert stand.incidents == []


async def test_what_a_zombie_got_in_before_its_successor_appended_is_not_copied_again(
    stand: ReplicaRig, topic_name: str
) -> None:
    await both(stand, topic_name)
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
    assert await same(stand, topic_name) == 400
    assert stand.incidents == []


async def test_a_compacted_source_is_copied_behind_a_killed_owner_although_records_have_gone_from_it(
    stand: ReplicaRig, topic_name: str
) -> None:
    """The former owner copied all; then half of what lies behind the saved position is compacted away."""
    await both(stand, topic_name)
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
    data = compacted(await rows(stand.source, topic_name), base, lambda n: n % 3 != 1 and not 350 <= n < 370)
    stand.feed(pump, data, base, 400)
    await stand.until(lambda: pump.base >= 400)
    assert await rows(stand.target, topic_name) == before
    assert stand.incidents == []


async def test_a_drained_replica_saves_all_it_sent_and_its_successor_goes_on_behind_it(
    stand: ReplicaRig, topic_name: str
) -> None:
    await both(stand, topic_name)
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
    assert await same(stand, topic_name) == 3_000
    assert pump.status().delivered + successor.status().delivered == 3_000, "none was copied twice"


async def test_without_a_note_copying_goes_on_from_the_position(stand: ReplicaRig, topic_name: str) -> None:
    """And never from the end: uReplicator reset to latest where a checkpoint was missing."""
    await both(stand, topic_name)
    await write(stand, topic_name, 100)
    stand.saved[0] = Snapshot(40), b"no note"
    pump = await stand.start_pump(topic_name)
    await stand.copied([pump])
    assert stand.kinds() == ["note-corrupt", "replica-resumed-unsure"]
    assert await rows(stand.target, topic_name) == (await rows(stand.source, topic_name))[40:]


async def test_where_records_may_be_twice_no_later_owner_tells_a_barrier_either(
    stand: ReplicaRig, topic_name: str
) -> None:
    await both(stand, topic_name)
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


async def test_a_destination_that_was_made_anew_is_told_and_copying_goes_on_where_it_stood(
    stand: ReplicaRig, topic_name: str
) -> None:
    pump = await copying(stand, topic_name)
    await stand.until(lambda: stand.saved[0][0].base == 100)
    stand.kill(pump)
    await made_anew(stand.target, topic_name)
    await write(stand, topic_name, 50, "new")
    pump = await stand.start_pump(topic_name)
    await stand.copied([pump])
    assert stand.kinds() == ["destination-begun-anew"]
    assert pump.copying().destination_losses == 1
    await stand.until(lambda: ReplicaHandover.from_bytes(stand.saved[0][1]).losses == 1)
    assert await rows(stand.target, topic_name) == (await rows(stand.source, topic_name))[100:]


async def test_a_former_owner_whose_lane_took_many_epochs_is_shut_out_all_the_same(
    stand: ReplicaRig, topic_name: str
) -> None:
    """The note kept the epoch that the lane began with; successors left it 16 more, and no further one."""
    zombie = await copying(stand, topic_name, 100)
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
    assert await same(stand, topic_name) == 200
    assert stand.incidents == []
