"""A successor emits the end of its predecessor's lane, so that other regions know the predecessor's last
copies. If the end is not certain, it emits nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from app.kafka.producers.ids import ProducerId
from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.fencing import LogId
from app.kernel.ranges import Snapshot
from app.offsets.model.offset_map import Barrier, BarrierItem, LineSource, OffsetMapLine, after
from app.offsets.model.source_frontier import PassOver, SourceFinished
from app.replicate.destination.handover import STEP, ReplicaHandover
from app.replicate.pump.partition import ReplicaPump
from tests.kafka.append.test_appender import written
from tests.replicate.rig import ReplicaRig, rows
from tests.replicate.source_topics import batches_of, compacted_batches, create_on_both_sides, write

SELDOM: dict[str, Any] = {"records": 10**6, "every": "1h"}  # barriers at a lane's beginning only


class Left(NamedTuple):
    """The state that an owner left: its note, and the number of its offset syncs."""

    note: ReplicaHandover
    emitted_count: int


async def copied(rig: ReplicaRig, topic: str, pump: ReplicaPump, count: int, name: str) -> None:
    base = pump.base
    await write(rig, topic, count, name)
    await rig.until(lambda: pump.base == base + count)


async def start_owner(rig: ReplicaRig, topic: str, *, saved: int, unsaved: int) -> tuple[ReplicaPump, Left]:
    """An owner that has copied `saved` records that the table knows of, and `unsaved` others; the table takes
    nothing more."""
    await create_on_both_sides(rig, topic)
    pump = await rig.start_pump(topic, checkpoint=SELDOM)
    await copied(rig, topic, pump, saved, "saved")
    await rig.until(lambda: pump.snapshot_version == pump.version)
    rig.saves = False
    if unsaved:
        await copied(rig, topic, pump, unsaved, "unsaved")
    note = ReplicaHandover.from_bytes(rig.saved[0][1])
    assert (note.base, rig.barriers[-1][1]) == (saved, 0), "no offset sync was emitted since it began"
    return pump, Left(note, len(rig.stamped))


async def kill_owner(rig: ReplicaRig, topic: str, *, saved: int, unsaved: int) -> Left:
    """The state that such an owner left when it was killed; the table takes its successor's state."""
    pump, left = await start_owner(rig, topic, saved=saved, unsaved=unsaved)
    rig.kill(pump)
    rig.saves = True
    return left


async def batches_of_producer(
    rig: ReplicaRig, topic: str, note: ReplicaHandover, epoch: int = 0
) -> list[tuple[int, int, int]]:
    """Start and end of the batches of an epoch, and the first sequence number of each."""
    found, _ = await written(rig.target, topic, note.producer_id, 0)
    return [
        (header.base_offset, header.next_offset, header.base_sequence)
        for header in found
        if header.producer_epoch == epoch
    ]


def closings(rig: ReplicaRig, left: Left) -> list[Barrier]:
    """The offset syncs about the former owner's lane since then."""
    return [
        one
        for one in rig.stamped[left.emitted_count :]
        if one.stamp is not None and one.stamp.producer_id == left.note.producer_id and one.stamp.epoch < STEP
    ]


def saved_line(rig: ReplicaRig) -> OffsetMapLine:
    """The line as the table has it."""
    found: OffsetMapLine | None = None
    for one in rig.stamped:
        item = BarrierItem("r", "t", 0, 1, 0, LogId("s", "t"), LogId("d", "t"), "t", 0, [one])
        found = after(found, item) or found
    assert found is not None
    return found


async def assert_all_passed_over(rig: ReplicaRig, topic: str, note: ReplicaHandover, end: int) -> None:
    """Checks that a group that has finished the source below `end` in another copy gets none of the former
    owner's copies."""
    known = saved_line(rig)
    over = PassOver({"s": SourceFinished(Snapshot(end), (known,))}, [LineSource("s", known)], 0)
    found = await batches_of_producer(rig, topic, note)
    assert found
    for start, stop, sequence in found:
        assert over.ranges(start, stop, note.producer_id, 0, sequence) == [(start, stop)]


async def test_the_last_copies_of_a_killed_owner_are_known_by_its_successors_first_offset_sync(
    rig: ReplicaRig, topic_name: str
) -> None:
    left = await kill_owner(rig, topic_name, saved=200, unsaved=150)
    await write(rig, topic_name, 100, "later", max_batch_size=100_000)
    successor = await rig.start_pump(topic_name, checkpoint=SELDOM)
    await rig.copied([successor])
    (closing,) = closings(rig, left)
    lane = successor.session.lane
    assert lane is not None
    assert (closing.source_end, closing.target_end) == (350, 350)
    assert closing.stamp == ProducerStamp(left.note.producer_id, 0, 350)
    at = rig.stamped.index(closing)
    assert rig.stamped[at + 1 : at + 2] == [Barrier(350, 350, 0, ProducerStamp(*lane.producer, 0))]
    await assert_all_passed_over(rig, topic_name, left.note, 350)


async def test_if_the_former_owner_ended_within_a_batch_both_lanes_are_known_to_the_record(
    rig: ReplicaRig, topic_name: str
) -> None:
    """The successor fetches as one batch what the former owner had fetched in two."""
    left = await kill_owner(rig, topic_name, saved=100, unsaved=60)
    await write(rig, topic_name, 40, "later")
    successor = await rig.start_pump(topic_name, checkpoint=SELDOM)
    await rig.copied([successor])
    lane = successor.session.lane
    assert lane is not None
    (closing,) = closings(rig, left)
    opening = rig.stamped[rig.stamped.index(closing) + 1]
    assert (closing.source_end, opening.source_end, opening.target_end) == (160, 160, 160)
    assert opening.stamp == ProducerStamp(*lane.producer, 0)
    (start, end, _), *_ = await batches_of_producer(rig, topic_name, left.note, lane.producer.epoch)
    assert (start, end) == (160, 200)
    await assert_all_passed_over(rig, topic_name, left.note, 160)


async def test_the_lane_of_an_owner_that_saved_all_without_an_offset_sync_is_closed_before_more_is_copied(
    rig: ReplicaRig, topic_name: str
) -> None:
    left = await kill_owner(rig, topic_name, saved=200, unsaved=0)
    assert left.note.stamp == ProducerStamp(left.note.producer_id, 0, 200)
    successor = await rig.start_pump(topic_name, checkpoint=SELDOM)
    await rig.until(lambda: closings(rig, left))
    assert successor.session.lane is None
    (closing,) = closings(rig, left)
    assert closing == Barrier(200, 200, 0, left.note.stamp)
    await assert_all_passed_over(rig, topic_name, left.note, 200)


async def test_a_successor_that_is_killed_before_its_barrier_comes_through_leaves_it_to_its_own(
    rig: ReplicaRig, topic_name: str
) -> None:
    """The first successor had matched all copies and saved that, but its offset sync was lost."""
    left = await kill_owner(rig, topic_name, saved=100, unsaved=100)
    first = await rig.start_pump(topic_name, checkpoint=SELDOM)
    await rig.until(lambda: first.base == 200 and first.snapshot_version == first.version)
    rig.kill(first)
    note = ReplicaHandover.from_bytes(rig.saved[0][1])
    assert (note.base, note.floor, note.passed) == (200, 100, 100)
    assert closings(rig, left)
    del rig.stamped[left.emitted_count :]
    await write(rig, topic_name, 50, "later")
    second = await rig.start_pump(topic_name, checkpoint=SELDOM)
    await rig.copied([second])
    assert closings(rig, left) == [Barrier(200, 200, 0, ProducerStamp(left.note.producer_id, 0, 200))]
    await assert_all_passed_over(rig, topic_name, left.note, 200)


async def test_late_batches_of_the_former_owner_close_its_lane_again(
    rig: ReplicaRig, topic_name: str
) -> None:
    zombie, left = await start_owner(rig, topic_name, saved=150, unsaved=150)
    rig.freeze(zombie)
    successor = await rig.start_pump(
        topic_name, checkpoint=SELDOM
    )  # cannot save, so that it appends nothing yet
    await write(rig, topic_name, 100, "more")
    await rig.until(lambda: successor.session.lane is not None)
    assert [one.source_end for one in closings(rig, left)] == [300]
    lane = zombie.session.lane
    assert lane is not None
    late = 0
    batches = await batches_of(rig.source, topic_name, 300)
    for data, count in batches[: len(batches) // 2]:
        await (await lane.append(data, count))
        late += count
    assert late
    rig.saves = True
    await rig.copied([successor])
    zombie.close()
    expected = [
        Barrier(end, end, 0, ProducerStamp(left.note.producer_id, 0, end)) for end in (300, 300 + late)
    ]
    assert closings(rig, left) == expected
    await assert_all_passed_over(rig, topic_name, left.note, 300 + late)
    assert rig.incidents == []


async def assert_nothing_emitted(rig: ReplicaRig, left: Left, successor: ReplicaPump, end: int) -> None:
    """Checks that the successor copies, and emits nothing about the former owner's lane."""
    await rig.until(lambda: successor.base >= end)
    assert closings(rig, left) == []


async def test_no_lane_is_closed_whose_source_records_have_gone(rig: ReplicaRig, topic_name: str) -> None:
    left = await kill_owner(rig, topic_name, saved=100, unsaved=200)
    successor = await rig.start_pump(topic_name, fetches=False, checkpoint=SELDOM)
    data = compacted_batches(await rows(rig.source, topic_name), 100, lambda n: n % 3 != 1 or n == 299)
    rig.feed(successor, data, 100, 300)
    await assert_nothing_emitted(rig, left, successor, 300)


async def test_no_lane_is_closed_whose_copies_are_of_another_source(rig: ReplicaRig, topic_name: str) -> None:
    left = await kill_owner(rig, topic_name, saved=100, unsaved=50)
    producer = ProducerId(left.note.producer_id, left.note.epoch + 1)
    lane = await rig.appender.lane(topic_name, 0, producer)
    ((data, count), *_) = await batches_of(rig.source, topic_name, 0)
    await (await lane.append(data, count))  # as if the source had lost them since
    lane.close()
    await write(rig, topic_name, 50, "later")
    successor = await rig.start_pump(topic_name, checkpoint=SELDOM)
    await assert_nothing_emitted(rig, left, successor, 200)
    assert rig.kinds() == ["replica-resumed-unsure"]


async def test_no_lane_is_closed_whose_sequence_numbers_are_not_known(
    rig: ReplicaRig, topic_name: str
) -> None:
    """The former owner's note was written before notes had stamps."""
    left = await kill_owner(rig, topic_name, saved=100, unsaved=50)
    snapshot, data = rig.saved[0]
    assert left.note.stamp is not None
    rig.saved[0] = snapshot, data.replace(b"[%d,%d,%d]" % left.note.stamp, b"null")
    await write(rig, topic_name, 50, "later")
    successor = await rig.start_pump(topic_name, checkpoint=SELDOM)
    await assert_nothing_emitted(rig, left, successor, 200)
    assert rig.incidents == []
