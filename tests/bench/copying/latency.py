"""From the producer at the source to a consumer of the copy, at 10,000 records/s."""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from statistics import quantiles

from aiokafka import AIOKafkaConsumer, TopicPartition

from app.dev.demo.stage import DemoStage, Process, StageError
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from tests.bench.copying.feed import STAMP_BYTES
from tests.bench.copying.topic import PARTITIONS
from tests.bench.copying.watch import wait_partitions

PER_SECOND = 10_000
WARM_S, MEASURED_S = 10, 15  # a Java compiles what it runs often
PATIENCE_S = 90.0
NS_PER_MS = 1_000_000


def latency_ms(
    stage: DemoStage, source: str, copies: str, topic: str, copy: str, copier: Process
) -> tuple[float, float]:
    """p50 and p99 in ms of a running copier; the topic is empty, the copy there or coming.

    Args:
        source, copies: bootstrap addresses.

    Raises:
        StageError: not every record came.
    """
    return asyncio.run(_measure(stage, source, copies, topic, copy, copier))


async def _measure(
    stage: DemoStage, source: str, copies: str, topic: str, copy: str, copier: Process
) -> tuple[float, float]:
    client = ClusterClient(ClusterSpec("copies", (copies,)))
    await client.start()
    try:
        await wait_partitions(client, copy, PARTITIONS, copier)
    finally:
        await client.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=copies, auto_offset_reset="earliest")
    await consumer.start()
    seconds = WARM_S + MEASURED_S
    command = [sys.executable, "-m", "tests.bench.copying.feed", source, topic]
    command += [str(PARTITIONS), str(PER_SECOND), str(seconds)]
    feeder = stage.start(f"feeder-{len(stage.processes)}", command)
    took = array("q")
    wanted = PER_SECOND * seconds
    try:
        consumer.assign([TopicPartition(copy, partition) for partition in range(PARTITIONS)])
        deadline_s = time.monotonic() + seconds + PATIENCE_S
        while len(took) < wanted:
            if time.monotonic() > deadline_s or not copier.running:
                raise StageError(f"{len(took)} of {wanted} records came:\n{copier.tail()}\n{feeder.tail()}")
            found = await consumer.getmany(timeout_ms=200)
            now_ns = time.time_ns()
            for records in found.values():
                took.extend(now_ns - int.from_bytes(r.value[:STAMP_BYTES], "big") for r in records)
    finally:
        await consumer.stop()
    cuts = quantiles(took[PER_SECOND * WARM_S :], n=100)
    return cuts[49] / NS_PER_MS, cuts[98] / NS_PER_MS
