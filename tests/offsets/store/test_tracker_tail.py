"""The tail of a region's tracker topic provides positions that its table lacks, and no others."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.controllog import codec
from app.controllog.topics import ControlTopics
from app.dev.yard import Yard
from app.kernel.fencing import SnapshotItem, Snapshots, Takeover, TrackerEvent
from app.kernel.ranges import Snapshot
from app.offsets.store import tracker_tail as module
from app.offsets.store.records import ENDS, TRACKERS
from app.offsets.store.tables import NotRead
from app.offsets.sync import remote_progress as carry_module
from tests.offsets.clusters import HERE
from tests.offsets.sync.test_remote_progress import LOST, OTHER, Carrying, a_note, a_record, carrying

OLD_S = 2 * module.MARGIN_MS / 1000  # events of this age are before the end that is read


def saved(rig: Carrying, base: int, *, worker: str = "w", epoch: int = 3) -> Snapshots:
    item = SnapshotItem(str(rig.job()), epoch, Snapshot(base).to_bytes(), 0, LOST, a_note(base))
    return Snapshots(worker=worker, at_ms=base, items=[SnapshotItem("replicate:r:t:0", 3, b""), item])


def takeover(rig: Carrying, epoch: int, worker: str) -> Takeover:
    return Takeover(job=str(rig.job()), epoch=epoch, worker=worker, nonce="n", at_ms=1)


async def send_events(
    rig: Carrying, *events: TrackerEvent | bytes, ago_s: float = 0.0, region: str = ""
) -> None:
    """Writes events to the copy of a region's tracker topic."""
    topic = ControlTopics(region or rig.other).trackers.name
    values = [event if isinstance(event, bytes) else codec.encode(event) for event in events]
    await rig.regions.values(HERE, topic, 0, *values, timestamp_ms=int((time.time() - ago_s) * 1000))


async def make(rig: Carrying, region: str = "") -> None:
    await rig.regions.make(HERE, ControlTopics(region or rig.other).trackers.name)


async def base(rig: Carrying, region: str = "") -> int:
    await rig.carrier.read(30.0)
    found = await rig.carrier.positions(rig.workload, region or rig.other)
    assert set(found) <= {str(rig.job())}
    return next((record.base for record in found.values()), -1)


async def test_positions_missing_in_the_table_come_from_its_events_and_zombies_are_refused(
    yard: Yard, tmp_path: Path, topic_name: str
) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        await rig.trackers(rig.other, a_record(110))
        assert await base(rig) == 110, "the table alone counts if the events are not copied here"
        await make(rig)
        await send_events(rig, saved(rig, 105), ago_s=OLD_S)
        await send_events(rig, saved(rig, 120), b"no event", saved(rig, 130))
        assert await base(rig) == 130
        found = await rig.carried()
        assert (found.next_offset, found.why) == (20, "")
        assert found.over is not None
        assert found.over.ranges(20, 60, OTHER, 0, 0) == [(20, 45)], "all of its copy below 130 is finished"
        await send_events(rig, saved(rig, 150, worker="z", epoch=2), takeover(rig, 4, "x"), saved(rig, 160))
        assert await base(rig) == 130, "saves of deposed owners do not count"
        await send_events(rig, saved(rig, 140, worker="x", epoch=4))
        assert await base(rig) == 140
        # Another process continues from here.
        await rig.regions.tables.close()
        await send_events(rig, saved(rig, 141, worker="x", epoch=4))
        assert await base(rig) == 141
        origin = await rig.regions.tables.ask(lambda store: store.origin(ENDS, rig.other))
        assert origin is not None
        assert origin.next_offsets == {0: 9, 1: 0}
        # The table arrives, further than the copied events; an older record is no step back.
        await rig.trackers(rig.other, replace(a_record(145, at_ms=200), epoch=4, worker="x"))
        assert await base(rig) == 145
        await send_events(rig, saved(rig, 142, worker="x", epoch=4))
        assert await base(rig) == 145


async def test_a_tail_above_the_table_counts_only_for_takeovers_within_it(
    yard: Yard, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        await rig.trackers(rig.other, a_record(110))
        await make(rig)
        await send_events(rig, saved(rig, 120))  # the first event: earlier ones are not known
        assert await base(rig) == 110
        await send_events(rig, takeover(rig, 4, "x"), saved(rig, 130), saved(rig, 140, worker="x", epoch=4))
        assert await base(rig) == 140
        # The same holds for a topic that is longer than the part that is read.
        monkeypatch.setattr(module, "MAX_EVENTS", 2)
        await rig.trackers(rig.third, a_record(110))
        await make(rig, rig.third)
        await send_events(rig, saved(rig, 111), ago_s=OLD_S, region=rig.third)
        await send_events(rig, *(saved(rig, at) for at in (112, 113, 114)), region=rig.third)
        assert await base(rig, rig.third) == 110
        origin = await rig.regions.tables.ask(lambda store: store.origin(ENDS, rig.third))
        assert origin is not None
        # Once the table's copy is past the tail's start, the tail counts, whichever is read first.
        monkeypatch.setattr(module, "MARGIN_MS", 0)
        await rig.trackers(rig.third, a_record(113))
        assert await base(rig, rig.third) == 114, "the table has all earlier events"
        await send_events(rig, saved(rig, 120), region=rig.third)
        assert await base(rig, rig.third) == 120


@pytest.mark.parametrize("first", [TRACKERS, ENDS])
async def test_a_table_and_its_tail_may_be_read_in_either_order(
    yard: Yard, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        await rig.trackers(rig.other, a_record(110))
        await make(rig)
        await send_events(rig, saved(rig, 111))
        assert await base(rig) == 110, "its owner may have been deposed before"
        monkeypatch.setattr(module, "MARGIN_MS", 0)
        await rig.trackers(rig.other, a_record(113))
        await send_events(rig, saved(rig, 120))
        for table in (first, *({TRACKERS, ENDS} - {first})):
            await rig.regions.tables.read(30.0, (table,), {rig.other})
        assert await base(rig) == 120


async def test_a_tail_far_behind_begins_again_after_its_table(
    yard: Yard, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        await rig.trackers(rig.other, a_record(110))
        await make(rig)
        await send_events(rig, saved(rig, 105), ago_s=OLD_S)
        assert await base(rig) == 110
        # No reading happens for a long time. The region is lost, and its table does not grow.
        monkeypatch.setattr(module, "MAX_EVENTS", 2)
        monkeypatch.setattr(module, "MARGIN_MS", 0)
        await send_events(rig, *(saved(rig, at) for at in range(111, 118)))
        await rig.trackers(rig.other, a_record(117))
        await send_events(rig, saved(rig, 120))
        follow, end_was_there = rig.regions.tables._follow, asyncio.Event()

        async def table_is_slow(region: str, table: str, *words: Any, **more: Any) -> Any:
            if (region, table) == (rig.other, TRACKERS):
                await end_was_there.wait()
            found = await follow(region, table, *words, **more)
            if (region, table) == (rig.other, ENDS):
                end_was_there.set()
            return found

        monkeypatch.setattr(rig.regions.tables, "_follow", table_is_slow)
        assert await base(rig) == 120
        assert end_was_there.is_set()


async def test_a_recreated_topic_is_read_again(yard: Yard, tmp_path: Path, topic_name: str) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        await rig.trackers(rig.other, a_record(110))
        for at in (120, 115):
            await make(rig)
            await send_events(rig, saved(rig, 100), ago_s=OLD_S)
            await send_events(rig, saved(rig, at))
            assert await base(rig) == at
        await rig.regions.delete(HERE, ControlTopics(rig.other).trackers.name)
        assert await base(rig) == 115, "positions that were read stay"


async def test_a_patient_caller_waits_until_positions_can_be_read(
    yard: Yard, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(yard, tmp_path, topic_name) as rig:
        await rig.trackers(rig.other, a_record(130))
        read, left = rig.regions.tables.read, 3

        async def failing(*words: Any) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                raise NotRead("the control cluster is slow")
            return await read(*words)

        monkeypatch.setattr(rig.regions.tables, "read", failing)
        monkeypatch.setattr(carry_module, "MAP_RETRY_INTERVAL_S", 0.01)
        found = await rig.carrier.imported_progress(rig.job(), rig.workload, 30.0)
        assert (found.next_offset, found.why) == (20, "")
        left = 10**9
        found = await rig.carrier.imported_progress(rig.job(), rig.workload, 0.1)
        assert found.next_offset == 20, "then the former reading counts"
        assert found.why.endswith("; check that the control cluster answers")
