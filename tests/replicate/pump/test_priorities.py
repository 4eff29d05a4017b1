"""Routes of several priorities on one worker, each with a backlog, between real brokers."""

from __future__ import annotations

import asyncio

import pytest

from app.replicate.model import route_priority
from tests.kafka.conftest import create, producing
from tests.replicate.rig import ReplicaRig, rows

LOW = range(1, 5)
RECORDS, SIZE = 1_000, 16 * 1024  # a partition


@pytest.mark.deep(minutes=0.4)
@pytest.mark.parametrize("others", ["low", "high"])
async def test_a_route_of_high_priority_is_not_slowed_by_others_that_work_off_a_backlog(
    rig: ReplicaRig, topic_name: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_priority, "LEAST_BYTES_S", SIZE)  # enough for a slow machine
    for client in (rig.source, rig.target):
        await create(client, topic_name, 1 + len(LOW))
    async with producing(rig.source.spec.bootstrap[0], max_batch_size=256 * 1024) as producer:
        sent = [
            await producer.send(topic_name, b"%d" % n * (SIZE // 4), partition=partition)
            for n in range(1000, 1000 + RECORDS)
            for partition in (0, *LOW)
        ]
        await asyncio.gather(*sent)
    first = await rig.start_pump(topic_name, 0, limits={"priority": "high"})
    rest = [await rig.start_pump(topic_name, partition, limits={"priority": others}) for partition in LOW]
    for pump in (first, *rest):
        pump.pause(True)
    await rig.until(lambda: all(pump.session.is_ready for pump in (first, *rest)))
    before = sum(pump.base for pump in rest)
    for pump in (first, *rest):
        pump.pause(False)
    await rig.until(lambda: first.base == RECORDS)
    meanwhile = sum(pump.base for pump in rest) - before
    print(f"while {RECORDS} records went at high priority, {meanwhile} went at {others}")  # noqa: T201
    if others == "low":
        assert meanwhile < RECORDS / 2
    else:
        assert meanwhile > RECORDS, "without priorities each gets the same"
    await rig.copied(rest)
    for partition in (0, *LOW):
        assert await rows(rig.target, topic_name, partition) == await rows(rig.source, topic_name, partition)
