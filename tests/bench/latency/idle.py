"""The CPU of a worker without messages, beside that of a plain aiokafka consumer.

Both read the same partitions, and are measured in the same seconds: other load hits both.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psutil

from app.dev.demo.stage import DemoStage, Process, StageError, http, wait_until
from app.dev.demo.traffic import create_topic
from tests.bench.copying.watch import cpu_s
from tests.bench.latency import sides
from tests.bench.latency.histogram import Histogram

TOPIC, PARTITIONS = "idle", 100
START_S, SETTLE_S, MEASURED_S = 60.0, 15.0, 30.0


def measure(stage: DemoStage, worker: Process, work: Path) -> dict[str, Any]:
    """The row. Raises StageError: a side does not start, or ends."""
    asyncio.run(create_topic(stage.yard.bootstrap(sides.CLUSTER), TOPIC, PARTITIONS))
    latencies = Histogram(work / TOPIC)
    with (
        sides.unary(stage, worker, TOPIC, latencies),
        sides.aiokafka(stage, TOPIC, latencies) as consumer,
    ):
        wait_until(lambda: _reads_all(worker), START_S, worker.tail)
        time.sleep(SETTLE_S)
        ours, theirs = _percent(worker, consumer)
    return {
        "bench": f"dispatch-latency, idle, {PARTITIONS} partitions",
        "value": round(ours, 2), "unit": "% of a core", "peer": "plain aiokafka consumer",
        "peer_value": round(theirs, 2), "ratio": round(ours / theirs, 2) if theirs else None,
    }  # fmt: skip


def _reads_all(worker: Process) -> bool:
    partitions = f"{worker.url}/api/v1/workloads/{TOPIC}/{TOPIC}/partitions"
    return all(http("GET", f"{partitions}/{number}/tracker")[0] == 200 for number in range(PARTITIONS))


def _percent(*measured: Process) -> list[float]:
    """How much of a core each process uses, in the same MEASURED_S."""
    processes = [psutil.Process(process.popen.pid) for process in measured]
    began_s, before_s = time.monotonic(), [cpu_s(process) for process in processes]
    time.sleep(MEASURED_S)
    took_s, after_s = time.monotonic() - began_s, [cpu_s(process) for process in processes]
    for process in measured:
        if not process.running:
            raise StageError(f"{process.name} ended:\n{process.tail()}")
    return [(after - before) * 100 / took_s for before, after in zip(before_s, after_s, strict=True)]
