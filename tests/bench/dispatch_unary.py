"""Messages/s from one partition through one worker to a receiver, against bare grpc.aio calls to the same.

Ours is the whole path: fetched from a real broker, tracked, pushed, acknowledged, with snapshots and commits.
The peer only makes the calls, with the same metadata and as many in flight, which is the limit of gRPC in
Python. Two rows: an instant receiver with 200 in flight, a 50 ms receiver with 1,000 in flight.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import grpc
import uvloop

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import create_topic, messages, produce
from app.dev.yard import Yard
from app.dispatch.push.metadata import MetadataTemplate
from tests.bench.run import Pair, Progress, alternate

GROUP = "bench"
CLUSTER = "east-aggregate"
CASES = (
    ("instant receiver, 200 in flight", 0, 200, 20_000),
    ("50 ms receiver, 1,000 in flight", 50, 1_000, 20_000),
)
HEAD, TAIL = 0.1, 0.95  # measured between these shares: neither start nor end
RUN_S = 120.0


def run(progress: Progress) -> dict[str, Any]:
    """Both cases."""
    rows = []
    with Yard(regions=1) as yard, DemoStage(yard) as stage:
        worker = stage.worker()
        for name, latency_ms, in_flight, count in CASES:
            progress(name)
            pair = _case(stage, worker, latency_ms, in_flight, count, progress)
            rows.append({
                "bench": f"dispatch-unary, {name}", "value": round(pair.ours, 1), "unit": "messages/s",
                "peer": "bare grpc.aio calls", "peer_value": round(pair.peer, 1),
                "ratio": round(pair.ratio, 3),
            })  # fmt: skip
    first = {key: rows[0][key] for key in ("value", "unit", "peer", "peer_value", "ratio")}
    setup = {"broker": "one, same machine", "value bytes": 60, "partitions": 1, "receiver": "own process"}
    return {**first, "setup": setup, "rows": rows}


def _case(
    stage: DemoStage, worker: Process, latency_ms: int, in_flight: int, count: int, progress: Progress
) -> Pair:
    topics = [f"unary-{uuid.uuid4().hex[:8]}" for _ in range(3)]
    extra = ("--instant", "--latency-ms", str(latency_ms))
    receiver = stage.receiver(GROUP, *topics, "peer", extra=extra)
    left = iter(topics)
    try:
        return alternate(
            lambda: _ours(stage, worker, receiver, next(left), in_flight, count),
            lambda: uvloop.run(_peer(receiver.address, in_flight, count)),
            progress=progress,
        )
    finally:
        receiver.terminate()


def _ours(
    stage: DemoStage, worker: Process, receiver: Process, topic: str, in_flight: int, count: int
) -> float:
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic, 1))
    asyncio.run(produce(bootstrap, topic, messages(count)))
    stage.deploy(worker, workload(GROUP, topic, CLUSTER, receiver.address, flow={"max_inflight": in_flight}))
    url = f"{worker.url}/api/v1/workloads/{GROUP}/{topic}/partitions/0/tracker"
    marks: list[tuple[float, int]] = []

    def done() -> bool:
        status, body = http("GET", url)
        if status == 200:
            marks.append((time.monotonic(), body["base"]))
        return bool(marks) and marks[-1][1] >= count * TAIL

    wait_until(done, RUN_S, worker.tail, 0.05)
    http("DELETE", f"{worker.url}/api/v1/workloads/{GROUP}/{topic}")
    begin = next(mark for mark in marks if mark[1] >= count * HEAD)
    end = marks[-1]
    return (end[1] - begin[1]) / (end[0] - begin[0])


async def _peer(address: str, in_flight: int, count: int) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/kafka.consumerproxy.{GROUP}/peer", None, None)
        template = MetadataTemplate("peer", GROUP, 0)
        bodies = [message.value() for message in messages(count)]
        at = iter(range(count))

        async def caller() -> None:
            for offset in at:
                await call(
                    bodies[offset], metadata=template.build(offset, b"key", [("source", b"demo")], 0, 0, 1)
                )

        await call(b"", metadata=template.build(0, None, [], 0, 0, 1))
        started_s = time.monotonic()
        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return count / (time.monotonic() - started_s)
