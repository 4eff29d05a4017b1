"""One receiver, and three behind one address: each can take 1,000 messages/s, and their sum must scale."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from app.dev.demo.stage import DemoStage, Process
from tests.bench.run import Progress
from tests.bench.unary import receiver
from tests.bench.unary.cases import MEASURED_S
from tests.bench.unary.ours import CLUSTER, Run, between
from tests.bench.unary.topic import fill

ENDPOINTS = 3
DELAY_MS, AT_ONCE, IN_FLIGHT, VALUE_BYTES = 20, 20, 200, 200
TOPIC, MESSAGES = "unary-endpoints", 60_000
WARM_UP_S, POLL_S = 3.0, 1.0


class Scaled(NamedTuple):
    """Messages/s of a run, and the largest share of an endpoint at any look."""

    per_second: float
    largest_share: float


def measure(stage: DemoStage, worker: Process, rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """The rows. Raises StageError: it does not start or end."""
    asyncio.run(fill(stage.yard.bootstrap(CLUSTER), TOPIC, MESSAGES, VALUE_BYTES))
    receivers = [receiver.started(stage, DELAY_MS, at_once=AT_ONCE) for _ in range(ENDPOINTS)]
    try:
        found = {1: list[Scaled](), ENDPOINTS: list[Scaled]()}
        for number in range(rounds):
            for count, measured in found.items():
                measured.append(_run(stage, worker, f"endpoints-{count}-{number}", receivers[:count]))
                progress(f"round {number + 1} of {rounds}, {count} endpoints: {measured[-1]}")
    finally:
        for one in receivers:
            one.terminate()
    alone, together = (median(one.per_second for one in of_count) for of_count in found.values())
    name = f"dispatch-unary, {ENDPOINTS} endpoints that take {1_000 * AT_ONCE // DELAY_MS:,} messages/s each"
    return [
        {
            "bench": name, "value": round(together, 1), "unit": "messages/s", "peer": "one of them",
            "peer_value": round(alone, 1), "ratio": round(together / alone, 3),
        },
        {
            "bench": f"{name}, largest share of one",
            "value": round(max(one.largest_share for one in found[ENDPOINTS]), 3),
            "unit": "of the messages", "peer": "equal shares", "peer_value": round(1 / ENDPOINTS, 3),
        },
    ]  # fmt: skip


def _run(stage: DemoStage, worker: Process, group: str, receivers: Sequence[Process]) -> Scaled:
    address = ",".join(one.address for one in receivers)
    run = Run(stage, worker, TOPIC, group, IN_FLIGHT, address)
    run.wait_started()
    time.sleep(WARM_UP_S)
    begin = end = run.mark()
    largest = 0.0
    while end.at_s - begin.at_s < MEASURED_S:
        time.sleep(POLL_S)
        end = run.mark()
        largest = max(largest, *run.shares())
    run.end()
    return Scaled(between(begin, end).per_second, largest)
