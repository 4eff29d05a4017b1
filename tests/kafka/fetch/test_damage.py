"""A flipped bit on a disk costs one batch and none of its neighbours."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.dev.yard import Yard
from app.kafka.fetch.decoder import RecordReader, UndecodableBatch
from tests.kafka.conftest import connected, create, fetched_until, producing
from tests.kafka.records.batches import LAST_DELTA_AT

BATCHES, RECORDS = 5, 10
CLUSTER = "east-aggregate"


async def test_flipped_bit_on_a_brokers_disk_costs_only_its_batch(
    killable_yard: Yard, topic_name: str
) -> None:
    offsets: list[int] = []
    bad: list[UndecodableBatch] = []
    ended = asyncio.Event()

    async def deliver(item: Any) -> None:
        reader = RecordReader(item)
        while not reader.exhausted:
            try:
                offsets.extend(record.offset for record in reader.read(1000))
            except UndecodableBatch as error:
                bad.append(error)
        item.release()
        if reader.next_offset == BATCHES * RECORDS:
            ended.set()

    bootstrap = killable_yard.bootstrap(CLUSTER)
    async with connected(bootstrap) as client:
        await create(client, topic_name)
        async with producing(bootstrap) as producer:
            for _ in range(BATCHES):
                batch, now_ms = producer.create_batch(), time.time_ns() // 1_000_000
                for _ in range(RECORDS):
                    batch.append(timestamp=now_ms, key=None, value=b"value", headers=[])
                await (await producer.send_batch(batch, topic_name, partition=0))
        (segment,) = (killable_yard.home / CLUSTER / "data" / f"{topic_name}-0").glob("*.log")
        batch_bytes = segment.stat().st_size // BATCHES
        with segment.open("r+b") as log:
            log.seek(2 * batch_bytes + LAST_DELTA_AT)
            log.write((25).to_bytes(4))  # 9 before: by this header it holds the next one's too
        await fetched_until(ended, client, deliver, topic_name)

    assert [(error.start, error.end, len(error.raw)) for error in bad] == [(20, 30, batch_bytes)]
    assert offsets == [*range(20), *range(30, 50)]
