"""p99 ms from append to handler at 1,000 messages/s, against a plain aiokafka consumer of the same topic.

The topic's timestamps are the broker's (LogAppendTime), so that both sides count from the append; all
processes share one clock. The consumer does nothing with a message but look at the time.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from statistics import median, quantiles
from typing import Any

from aiokafka import AIOKafkaConsumer

from app.dev.demo.stage import DemoStage, Process, wait_until, workload
from app.dev.demo.traffic import create_topic, messages, produce
from app.dev.yard import Yard
from tests.bench.run import Progress, alternate

GROUP = "bench"
CLUSTER = "east-aggregate"
PER_SECOND, COUNT, WARM = 1_000, 8_000, 1_000


def run(progress: Progress) -> dict[str, Any]:
    """Three rounds each."""
    halves: dict[str, list[float]] = {"ours": [], "peer": []}
    with Yard(regions=1) as yard, DemoStage(yard) as stage:
        worker = stage.worker()
        bootstrap = yard.bootstrap(CLUSTER)
        pair = alternate(
            lambda: _keep(halves["ours"], _ours(stage, worker, bootstrap)),
            lambda: _keep(halves["peer"], asyncio.run(_peer(bootstrap))),
            progress=progress,
        )
    row = {"bench": "dispatch-latency, p50", "value": median(halves["ours"]), "unit": "ms",
           "peer": "a plain aiokafka consumer", "peer_value": median(halves["peer"])}  # fmt: skip
    row["ratio"] = row["value"] / row["peer_value"] if row["peer_value"] else None
    return {
        "value": pair.ours, "unit": "ms", "peer": "a plain aiokafka consumer", "peer_value": pair.peer,
        "setup": {"messages/s": PER_SECOND, "messages": COUNT, "partitions": 4, "clock": "1 ms steps"},
        "rows": [row],
    }  # fmt: skip


def _keep(medians: list[float], latencies: list[int]) -> float:
    """Notes the p50 and returns the p99."""
    medians.append(median(latencies))
    return quantiles(latencies, n=100)[98]


def _topic(bootstrap: str) -> str:
    name = f"latency-{uuid.uuid4().hex[:8]}"
    asyncio.run(create_topic(bootstrap, name, 4, message_timestamp_type="LogAppendTime"))
    return name


def _good(prefix: str) -> Any:
    return (message for message in messages(COUNT * 2, prefix) if message.behaviour == "ok")


def _ours(stage: DemoStage, worker: Process, bootstrap: str) -> list[int]:
    topic = _topic(bootstrap)
    receiver = stage.receiver(GROUP, topic)
    stage.deploy(worker, workload(GROUP, topic, CLUSTER, receiver.address))
    time.sleep(2.0)
    sent = [message for message, _ in zip(_good(topic), range(COUNT), strict=False)]
    asyncio.run(produce(bootstrap, topic, sent, per_second=PER_SECOND))
    wanted = {message.id for message in sent}

    def deliveries() -> list[dict[str, Any]]:
        return [d for d in stage.deliveries() if d["topic"] == topic]

    wait_until(lambda: wanted <= {d["id"] for d in deliveries()}, 30, worker.tail)
    receiver.terminate()
    return [d["at_ms"] - d["timestamp_ms"] for d in deliveries()][WARM:]


async def _peer(bootstrap: str) -> list[int]:
    topic = await asyncio.to_thread(_topic, bootstrap)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    latencies: list[int] = []

    async def consume() -> None:
        async for record in consumer:
            latencies.append(time.time_ns() // 1_000_000 - record.timestamp)
            if len(latencies) >= COUNT:
                return

    sent = [message for message, _ in zip(_good(topic), range(COUNT), strict=False)]
    # The producer has a process's loop of its own, as the other side's has.
    producing = asyncio.to_thread(lambda: asyncio.run(produce(bootstrap, topic, sent, per_second=PER_SECOND)))
    try:
        await asyncio.gather(consume(), producing)
    finally:
        await consumer.stop()
    return latencies[WARM:]
