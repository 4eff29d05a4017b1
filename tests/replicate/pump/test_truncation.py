"""Truncated logs are reported with offsets, and other records are never taken for the lost ones.

The tests truncate the log of a stopped broker, like a broker that has lost the end of its disk.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.dev.yard import Yard
from app.kafka.fetch.deliveries import LogGap
from app.kafka.records.batch import iter_batches
from app.replicate.destination.handover import ReplicaHandover
from app.replicate.pump.status import copying_status
from tests.kafka.conftest import create, pumping
from tests.replicate.rig import ReplicaRig, replica_rig, rows
from tests.replicate.source_topics import create_on_both_sides, write

HOME, AWAY = "east-regional", "east-aggregate"
OFTEN: dict[str, Any] = {"checkpoint": {"every": "200ms"}}


def cut_off(yard: Yard, cluster: str, topic: str, keep: int) -> int:
    """Keeps the first batches of partition 0, with `keep` records or more; returns the new end."""
    folder: Path = yard._broker(cluster).data_dir / f"{topic}-0"
    segment = folder / f"{0:020}.log"
    end = size = 0
    for batch in iter_batches(segment.read_bytes()):
        if end >= keep:
            break
        end, size = batch.header.next_offset, size + len(batch.data)
    with segment.open("r+b") as log:
        log.truncate(size)
    for pattern in ("*.index", "*.timeindex", "*.snapshot"):
        for file in folder.glob(pattern):
            file.unlink()
    return end


async def until_led(rig: ReplicaRig, topic: str) -> None:
    """Waits until both clusters answer for the topic again."""
    for client in (rig.source, rig.target):
        await client.client.force_metadata_update()
        await client.end_offsets([(topic, 0)])


@pytest.mark.deep(minutes=1.2)
@pytest.mark.usefixtures("unjoined")
async def test_truncated_sources_and_destinations_are_reported_and_copying_continues_where_they_part(
    killable_yard: Yard, topic_name: str
) -> None:
    """The source has grown beyond the position again, so only leader epochs show that its records differ."""
    yard = killable_yard
    watched = f"{topic_name}-watched"
    async with replica_rig(yard.bootstrap(HOME), yard.bootstrap(AWAY)) as rig:
        await create_on_both_sides(rig, topic_name)
        await create(rig.source, watched, 1)
        await write(rig, watched, 100, max_batch_size=300)
        await write(rig, topic_name, 100, max_batch_size=300)
        pump = await rig.start_pump(topic_name)
        await rig.copied([pump])
        await rig.until(lambda: rig.saved[0][0].base == 100)
        rig.kill(pump)
        before = await rows(rig.source, topic_name)
        async with pumping(rig.source) as watching:  # fetches meanwhile
            watching.service.add("w", watched, 0, 0)
            await watching.until(lambda: watching.count("w") == 100)
            await asyncio.to_thread(yard.kill, HOME)
            await asyncio.to_thread(yard.kill, AWAY)
            diverges_at, end = (cut_off(yard, at, topic_name, 60) for at in (HOME, AWAY))
            watched_end = cut_off(yard, HOME, watched, 30)
            for cluster in (HOME, AWAY):
                await asyncio.to_thread(yard.start, cluster)
            await watching.until(lambda: any(isinstance(one, LogGap) for one in watching.reports))
            (gap,) = [one for one in watching.reports if isinstance(one, LogGap)]
            assert (gap.start, gap.end, gap.is_truncation) == (100, watched_end, True)
        await until_led(rig, topic_name)
        await write(rig, topic_name, 120, "other")
        assert (await rig.source.end_offsets([(topic_name, 0)]))[topic_name, 0] > 100

        pump = await rig.start_pump(topic_name, **OFTEN)
        await rig.until(lambda: pump.reset is not None and "destination-truncated" in rig.kinds())
        assert pump.reset is not None
        assert (pump.reset.start, pump.reset.end) == (100, diverges_at)
        assert pump.reset.truncated_in > 0
        (message,) = [text for kind, text in rig.incidents if kind == "destination-truncated"]
        assert f"lost offsets [{end}, 100)" in message
        assert pump.base == 100, "no record of the other log was taken for a later one"
        await rig.until(lambda: pump.high_watermark > 100)
        assert pump.ledger.read_epoch < pump.reset.truncated_in, "a successor does not count it as read"
        ((former_epoch, _),) = pump.ledger.epochs
        assert former_epoch == pump.ledger.read_epoch
        await rig.until(lambda: ReplicaHandover.from_bytes(rig.saved[0][1]).losses == 1)
        assert ReplicaHandover.from_bytes(rig.saved[0][1]).floor == end

        # as the job manager does it: a new lineage where the logs part
        rig.freeze(pump)
        pump.close()
        rig.put_base(pump.reset.end)
        pump = await rig.start_pump(topic_name, lineage=1, source_epoch=pump.reset.truncated_in)
        await rig.copied([pump])
        after = await rows(rig.source, topic_name)
        assert after[:diverges_at] == before[:diverges_at]
        assert await rows(rig.target, topic_name) == before[:end] + after[diverges_at:]
        await rig.until(lambda: rig.saved[0][0].base == pump.base)
        note = ReplicaHandover.from_bytes(rig.saved[0][1])
        assert (note.lineage, note.losses) == (1, 1)
        assert note.source_epoch == pump.session.source_epoch > 0
        assert [epoch > former_epoch for epoch, _ in note.epochs] == [False, True]
        assert note.epochs[-1].start_offset == diverges_at
        assert rig.kinds() == ["destination-truncated"]
        assert copying_status(pump).destination_losses == 1
