"""The source topics of tests: topics on both sides, records of all kinds, compacted logs."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from app.kafka.client.cluster import ClusterClient
from app.kafka.producers.history import walk
from app.kafka.records.batch import RecordBatch
from app.replicate.pump.partition import ReplicaPump
from tests.kafka.conftest import create, producing
from tests.kafka.second_broker import delete
from tests.replicate.rig import ReplicaRig, Row, rows


async def create_on_both_sides(rig: ReplicaRig, topic: str, **config: str) -> None:
    """Creates the topic on both sides."""
    await create(rig.source, topic, 1, **config)
    await create(rig.target, topic, 1, **config)


async def write(rig: ReplicaRig, topic: str, count: int, name: str = "v", **options: Any) -> None:
    """Writes numbered records with keys, headers, tombstones and unordered timestamps."""
    (bootstrap,) = rig.source.spec.bootstrap
    async with producing(bootstrap, **{"max_batch_size": 2_000, **options}) as producer:
        sent = [
            await producer.send(
                topic,
                None if n % 7 == 3 else f"{name} {n}".encode() * (n % 5),
                key=f"{n % 3}".encode() if n % 5 or n % 7 == 3 else None,
                partition=0,
                timestamp_ms=1_600_000_000_000 + 37 * (n % 11),
                headers=[("n", b"%d" % n), ("n", None), ("", b"")][: n % 4],
            )
            for n in range(count)
        ]
        await asyncio.gather(*sent)


async def start_copying(rig: ReplicaRig, topic: str, count: int = 100, **options: Any) -> ReplicaPump:
    """Starts a replica of a new topic that has copied `count` records."""
    await create_on_both_sides(rig, topic)
    await write(rig, topic, count, **options)
    pump = await rig.start_pump(topic)
    await rig.copied([pump])
    return pump


async def recreate(client: ClusterClient, topic: str) -> None:
    """Deletes the topic, and creates it again."""
    await delete(client, topic)
    while topic in await client.topics():  # noqa: ASYNC110 - the broker's
        await asyncio.sleep(0.05)
    await create(client, topic, 1)


async def assert_same(rig: ReplicaRig, topic: str) -> int:
    """Checks that the copy equals the source, record by record; returns their number."""
    here, there = await rows(rig.source, topic), await rows(rig.target, topic)
    assert there == here
    return len(here)


def compacted_batches(found: Sequence[Row], start: int, stays: Callable[[int], bool]) -> bytes:
    """Batches of the records from `start` on as compaction leaves them: some records, at their offsets."""
    data = b""
    for base in range(start, len(found), 20):
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
        left = [n for n in range(base, min(base + 20, len(found))) if stays(n)]
        for n in left:
            timestamp, key, value, headers = found[n]
            builder.append(n - base, timestamp, key, value, list(headers))
        if left:
            data += struct.pack(">q", base) + bytes(builder.build())[8:]
    return data


async def batches_of(client: ClusterClient, topic: str, start: int) -> list[tuple[bytes, int]]:
    """The log's batches from an offset on, each with its number of records."""
    found: list[tuple[bytes, int]] = []

    def take(batch: RecordBatch) -> bool:
        found.append((bytes(batch.data), batch.header.record_count))
        return False

    await walk(client, topic, 0, start, take)
    return found
