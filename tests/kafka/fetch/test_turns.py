"""Turns, memory and a failing sink, with more to fetch than may be held."""

from __future__ import annotations

import asyncio
from typing import Any

from app.kafka.client.cluster import ClusterClient
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
from app.kafka.fetch.service import FetchService
from tests.kafka.conftest import ENOUGH_S, Start, create, producing

KIB = 1024


async def fill(bootstrap: str, topic: str, partitions: int, records: int, size: int) -> None:
    """`records` of `size` bytes into each partition, each in a batch of its own."""
    async with producing(bootstrap, max_batch_size=size, linger_ms=0) as producer:
        for number in range(records):
            sent = [
                await producer.send(topic, f"{number}".encode().ljust(size), partition=partition)
                for partition in range(partitions)
            ]
            await asyncio.gather(*sent)


async def test_no_partition_waits_until_the_others_are_exhausted(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    partitions, records = 6, 60
    await create(client, topic_name, partitions)
    await fill(bootstrap, topic_name, partitions, records, 4 * KIB)
    pump = await start(32 * KIB)  # a response holds but a part of one partition's backlog
    for partition in range(partitions):
        pump.service.add(partition, topic_name, partition, 0)

    await pump.until(lambda: all(pump.count(partition) for partition in range(partitions)))
    assert max(map(pump.count, range(partitions))) < records

    await pump.until(lambda: sum(map(len, pump.records.values())) == partitions * records)


async def test_data_that_the_sink_refused_is_fetched_again_and_holds_no_memory(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name, 2)
    await fill(bootstrap, topic_name, 2, 5, 100)
    budget, taken, failures = ByteBudget(64 * KIB), {0: [0], 1: [0]}, 3
    done = asyncio.Event()

    async def sink(item: Any) -> None:
        nonlocal failures
        if isinstance(item, FetchedBatches):
            if item.key == 0 and failures:
                failures -= 1
                raise RuntimeError("no room")
            taken[item.key] += [item.start_offset, item.next_offset]
            item.release()
        if all(ends[-1] == 5 for ends in taken.values()):
            done.set()

    service = FetchService(client, sink, budget)
    await service.start()
    for partition in (0, 1):
        service.add(partition, topic_name, partition, 0)
    async with asyncio.timeout(ENOUGH_S):
        await done.wait()
    await service.stop()

    for ends in taken.values():  # each range begins where the one before it ended
        assert ends[:-1:2] == ends[1::2]
    assert budget.used_bytes == 0
