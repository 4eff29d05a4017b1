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


def saved_note(stand: ReplicaRig) -> ReplicaHandover:
    return ReplicaHandover.from_bytes(stand.saved[0][1])


async def others_write(stand: ReplicaRig, topic: str, count: int) -> None:
    """Writes to the destination, as other routes do."""
    async with producing(stand.target.spec.bootstrap[0]) as other:
        for n in range(count):
            await other.send(topic, b"another's %d" % n, partition=0)


async def test_a_replica_that_restarts_at_rest_emits_idle_offset_syncs_and_raises_its_floor(
    stand: ReplicaRig, topic_name: str
) -> None:
    """The fault: it met its destination only with the next record, and then read all others' writes."""
    pump = await start_copying(stand, topic_name, 100)
    await stand.until(lambda: stand.saved[0][0].base == 100)
    stand.kill(pump)
    await others_write(stand, topic_name, 50)
    pump = await stand.start_pump(topic_name, **OFTEN)
    await stand.until(lambda: (0, 100, 150) in stand.barriers)
    assert pump.session.lane is None, "nothing was to be appended"
    await stand.until(lambda: saved_note(stand).floor == 150)
    stand.kill(pump)
    await others_write(stand, topic_name, 20)
    pump = await stand.start_pump(topic_name, **OFTEN)
    await stand.until(lambda: saved_note(stand).floor == 170)
    await write(stand, topic_name, 30, "later")
    await stand.copied([pump])
    here, there = await rows(stand.source, topic_name), await rows(stand.target, topic_name)
    assert there[:100] + there[170:] == here
    await stand.until(lambda: stand.barriers[-1] == (0, 130, 200))
    assert stand.incidents == []


async def test_unsaved_copies_of_a_former_owner_are_matched_before_an_offset_sync(
    stand: ReplicaRig, topic_name: str
) -> None:
    pump = await start_copying(stand, topic_name, 100)
    await stand.until(lambda: stand.saved[0][0].base == 100)
    stand.saves = False
    await write(stand, topic_name, 60, "unsaved")
    await stand.copied([pump])
    stand.kill(pump)
    stand.barriers.clear()
    stand.saves = True
    pump = await stand.start_pump(topic_name, **OFTEN)
    await stand.until(lambda: (0, 160, 160) in stand.barriers)
    assert stand.barriers[0] == (0, 160, 160), "none before all copies were found"
    assert pump.session.lane is None
    assert len(await rows(stand.target, topic_name)) == 160
    await stand.until(lambda: (saved_note(stand).floor, saved_note(stand).passed) == (160, 0))


async def test_a_paused_replica_raises_its_floor_over_what_others_write_meanwhile(
    stand: ReplicaRig, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the floor stayed where the pause began, so a successor read all that others had written
    since."""
    monkeypatch.setattr(pump_module, "IDLE_FLOOR_INTERVAL_S", 0.2)
    pump = await start_copying(stand, topic_name, 100)
    pump.pause(True)
    await write(stand, topic_name, 30, "waits")
    await stand.until(lambda: pump.high_watermark == 130)
    await others_write(stand, topic_name, 50)
    await stand.until(lambda: saved_note(stand).floor == 150)
    lane = pump.session.lane
    assert (saved_note(stand).base, lane is not None and lane.floor) == (100, 150)
    stand.kill(pump)
    await others_write(stand, topic_name, 20)
    pump = await stand.start_pump(topic_name)
    await stand.copied([pump])
    here, there = await rows(stand.source, topic_name), await rows(stand.target, topic_name)
    assert there[:100] + there[170:] == here
    assert stand.incidents == []


async def test_unsaved_copies_are_not_repeated_where_the_destination_has_lost_what_was_before_them(
    stand: ReplicaRig, topic_name: str
) -> None:
    """Retention deleted the saved position from the destination, but none of the copies behind it."""
    pump = await start_copying(stand, topic_name, 100)
    await stand.until(lambda: saved_note(stand).floor == 100)
    stand.saves = False
    await others_write(stand, topic_name, 40)
    await write(stand, topic_name, 60, "unsaved")
    await stand.copied([pump])
    stand.kill(pump)
    await delete_before(stand.target, topic_name, 120)
    stand.saves = True
    pump = await stand.start_pump(topic_name)
    await write(stand, topic_name, 10, "later")
    await stand.copied([pump])
    here, there = await rows(stand.source, topic_name), await rows(stand.target, topic_name)
    assert there[20:] == here[100:], "the others' 20, then the copies, once each"
    assert stand.incidents == []
