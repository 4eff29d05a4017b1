"""Megabytes by which a worker's memory grows at full stream rate, after its first ten seconds.

New groups read one topic from its beginning, one after the other, while the bench samples the resident memory
of the worker's process every second. Leaks of a message, a run or a workload therefore add up. The peer is
the memory at the mark, so the ratio is the share by which it grew. `SWITCHYARD_BENCH_SECONDS` sets the
duration, 60 by default.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import psutil

from app.dev.demo.stage import DemoStage, Process, StageError, http
from app.dev.yard import Yard
from tests.bench.run import Progress
from tests.bench.streams.ours import CLUSTER, Case, Receivers
from tests.bench.streams.topic import VALUE_BYTES, fill

SECONDS_VARIABLE = "SWITCHYARD_BENCH_SECONDS"
DEFAULT_S = 60
WARM_S = 10
NEAR_S = 5  # seconds of a median: one garbage collection is no growth
PARTITIONS = 4
CASE = Case(0, 10_000, 10_000, "none", 1_000_000)
READS_A_SECOND = 1  # of the topic, more than possible: a group is prepared for each
STALL_S = 30.0
MB = 1_000_000


def run(progress: Progress) -> dict[str, Any]:
    """Runs the bench."""
    seconds = max(WARM_S + 2 * NEAR_S, int(os.environ.get(SECONDS_VARIABLE, DEFAULT_S)))
    with Yard(regions=1) as yard, DemoStage(yard) as stage:
        worker = stage.worker()
        progress("filling the topic")
        asyncio.run(fill(yard.bootstrap(CLUSTER), "filled", PARTITIONS, CASE.count))
        receivers = Receivers(stage, "filled", CASE, seconds * READS_A_SECOND)
        sizes, handled = _measure(stage, worker, receivers, seconds, progress)
    begin, end = median(sizes[WARM_S : WARM_S + NEAR_S]), median(sizes[-NEAR_S:])
    return {
        "value": round((end - begin) / MB, 1),
        "unit": "MB of growth",
        "peer": f"the same worker's MB after {WARM_S} s",
        "peer_value": round(begin / MB, 1),
        "ratio": round((end - begin) / begin, 4),
        "setup": {
            "seconds": seconds, "messages": handled, "messages/s": round(handled / seconds),
            "largest MB": round(max(sizes) / MB, 1), "value bytes": VALUE_BYTES, "partitions": PARTITIONS,
        },
    }  # fmt: skip


def _measure(
    stage: DemoStage, worker: Process, receivers: Receivers, seconds: int, progress: Progress
) -> tuple[list[int], int]:
    """Resident bytes of the worker at every second, and the number of messages handled in this time."""
    process = psutil.Process(worker.popen.pid)
    sizes: list[int] = []
    groups = iter(enumerate(receivers.groups))
    read = _next_read(stage, worker, receivers, groups)
    started_s = moved_s = time.monotonic()
    handled = before = 0
    while len(sizes) < seconds:
        time.sleep(max(0.0, started_s + len(sizes) + 1 - time.monotonic()))
        sizes.append(process.memory_info().rss)
        if len(sizes) % WARM_S == 0:
            progress(f"{len(sizes)} s: {sizes[-1] / MB:.1f} MB, {sum(receivers.cells):,} messages")
        handled = sum(receivers.cells)
        if handled != before:
            before, moved_s = handled, time.monotonic()
        elif time.monotonic() - moved_s > STALL_S:
            raise StageError(f"nothing was handled for {STALL_S:.0f} s:\n{worker.tail()}")
        if read() >= CASE.count:
            read = _next_read(stage, worker, receivers, groups)
    return sizes, handled


def _next_read(stage: DemoStage, worker: Process, receivers: Receivers, groups: Any) -> Callable[[], int]:
    """Deploys the next group's workload, without the former one; returns how far it is."""
    index, group = next(groups)
    base = f"{worker.url}/api/v1/workloads"
    if index:
        http("DELETE", f"{base}/{receivers.groups[index - 1]}/{receivers.topic}")
    stage.deploy(worker, CASE.definition(group, receivers.topic, receivers.address))
    return lambda: receivers.cells[index]
