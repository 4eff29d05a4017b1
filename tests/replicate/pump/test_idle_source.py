"""A replica with nothing to copy still knows its destination: it emits idle offset syncs, and its successors
search only behind its last floor.
"""

from __future__ import annotations

from typing import Any

import pytest

from app.replicate.destination.handover import ReplicaHandover
from app.replicate.pump import partition as pump_module
from tests.kafka.conftest import delete_before, producing
from tests.replicate.rig import ReplicaRig, rows
from tests.replicate.source_topics import start_copying, write

OFTEN: dict[str, Any] = {"checkpoint": {"every": "200ms"}}


def saved_note(rig: ReplicaRig) -> ReplicaHandover:
    return ReplicaHandover.from_bytes(rig.saved[0][1])


async def others_write(rig: ReplicaRig, topic: str, count: int) -> None:
    """Writes to the destination, as other routes do."""
    async with producing(rig.target.spec.bootstrap[0]) as other:
        for n in range(count):
            await other.send(topic, b"another's %d" % n, partition=0)


async def test_a_replica_that_restarts_at_rest_emits_idle_offset_syncs_and_raises_its_floor(
    rig: ReplicaRig, topic_name: str
) -> None:
    """The fault: it met its destination only with the next record, and then read all others' writes."""
    pump = await start_copying(rig, topic_name, 100)
    await rig.until(lambda: rig.saved[0][0].base == 100)
    rig.kill(pump)
    await others_write(rig, topic_name, 50)
    pump = await rig.start_pump(topic_name, **OFTEN)
    await rig.until(lambda: (0, 100, 150) in rig.barriers)
    assert pump.session.lane is None, "nothing was to be appended"
    await rig.until(lambda: saved_note(rig).floor == 150)
    rig.kill(pump)
    await others_write(rig, topic_name, 20)
    pump = await rig.start_pump(topic_name, **OFTEN)
    await rig.until(lambda: saved_note(rig).floor == 170)
    await write(rig, topic_name, 30, "later")
    await rig.copied([pump])
    here, there = await rows(rig.source, topic_name), await rows(rig.target, topic_name)
    assert there[:100] + there[170:] == here
    await rig.until(lambda: rig.barriers[-1] == (0, 130, 200))
    assert rig.incidents == []


async def test_unsaved_copies_of_a_former_owner_are_matched_before_an_offset_sync(
    rig: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(rig, topic_name, 100)
    await rig.until(lambda: rig.saved[0][0].base == 100)
    rig.saves = False
    await write(rig, topic_name, 60, "unsaved")
    await rig.copied([pump])
    rig.kill(pump)
    rig.barriers.clear()
    rig.saves = True
    pump = await rig.start_pump(topic_name, **OFTEN)
    await rig.until(lambda: (0, 160, 160) in rig.barriers)
    assert rig.barriers[0] == (0, 160, 160), "none before all copies were found"
    assert pump.session.lane is None
    assert len(await rows(rig.target, topic_name)) == 160
    await rig.until(lambda: (saved_note(rig).floor, saved_note(rig).passed) == (160, 0))


async def test_a_paused_replica_raises_its_floor_over_what_others_write_meanwhile(
    rig: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the floor stayed where the pause began, so a successor read all that others had written
    since."""
    monkeypatch.setattr(pump_module, "IDLE_FLOOR_INTERVAL_S", 0.2)
    pump = await start_copying(rig, topic_name, 100)
    pump.pause(True)
    await write(rig, topic_name, 30, "waits")
    await rig.until(lambda: pump.high_watermark == 130)
    await others_write(rig, topic_name, 50)
    await rig.until(lambda: saved_note(rig).floor == 150)
    lane = pump.session.lane
    assert (saved_note(rig).base, lane is not None and lane.floor) == (100, 150)
    rig.kill(pump)
    await others_write(rig, topic_name, 20)
    pump = await rig.start_pump(topic_name)
    await rig.copied([pump])
    here, there = await rows(rig.source, topic_name), await rows(rig.target, topic_name)
    assert there[:100] + there[170:] == here
    assert rig.incidents == []


async def test_unsaved_copies_are_not_repeated_where_the_destination_has_lost_what_was_before_them(
    rig: ReplicaRig, topic_name: str
) -> None:
    """Retention deleted the saved position from the destination, but none of the copies behind it."""
    pump = await start_copying(rig, topic_name, 100)
    await rig.until(lambda: saved_note(rig).floor == 100)
    rig.saves = False
    await others_write(rig, topic_name, 40)
    await write(rig, topic_name, 60, "unsaved")
    await rig.copied([pump])
    rig.kill(pump)
    await delete_before(rig.target, topic_name, 120)
    rig.saves = True
    pump = await rig.start_pump(topic_name)
    await write(rig, topic_name, 10, "later")
    await rig.copied([pump])
    here, there = await rows(rig.source, topic_name), await rows(rig.target, topic_name)
    assert there[20:] == here[100:], "the others' 20, then the copies, once each"
    assert rig.incidents == []
