"""What audits cost the worker that copies and delivers: audited against unaudited, the same worker, by turns.

| row                     | measured                         | what is counted meanwhile              |
|-------------------------|----------------------------------|----------------------------------------|
| replication, its copies | a route copies a filled topic    | the copy, by jobs that fetch it        |
| replication, both ends  | the same                         | source and copy, by jobs of their own  |
| dispatch, consumer      | a workload, instant, by a stream | what the group finishes                |
| dispatch, also a tier   | the same                         | that, and the topic, by jobs of its own|

Each row is of records a second between a tenth and nine tenths of the run, and beside it of the worker's CPU
seconds per million records meanwhile: on a busy machine these are what can be compared. Audited runs have a
plan of their own each, which is deleted afterwards.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import psutil

from app.demo.stage import Process, Stage, http, wait_until
from app.yard import Yard
from tests.bench.copying.sides import COPIES, SOURCE, Sides
from tests.bench.copying.topic import Shape
from tests.bench.copying.topic import fill as fill_source
from tests.bench.copying.watch import cpu_s
from tests.bench.run import MIN_ROUNDS, Progress, alternate
from tests.bench.streams.ours import CLUSTER, HEAD, TAIL, Case, Receivers, reaches, trackers
from tests.bench.streams.topic import fill as fill_topic

SHAPE = Shape(200, "none", 16 * 1024, 2_000_000)
CASE = Case(0, 10_000, 10_000, "none", 500_000)
FILLED, PARTITIONS, TOPIC = 600_000, 4, "audited"
ROUNDS = 4
COUNTED_S = 120.0
_numbers: Iterator[int] = itertools.count()

Figures = tuple[float, float]  # records/s, CPU s per million


def run(progress: Progress) -> dict[str, Any]:
    """Every row."""
    with Yard(regions=1) as yard, Stage(yard) as stage:
        worker = stage.worker()
        rows = [*copying(stage, worker, progress), *delivering(stage, worker, progress)]
    first = rows.pop(0)
    setup = {
        "brokers": "one for each cluster, same machine, shared", "copied": SHAPE.title,
        "delivered": f"{CASE.count} messages of 200 bytes, instant handler, stream", "partitions": PARTITIONS,
    }  # fmt: skip
    return {**{key: first[key] for key in first if key != "bench"}, "setup": setup, "rows": rows}


def copying(stage: Stage, worker: Process, progress: Progress) -> Iterator[dict[str, Any]]:
    """Replication."""
    progress(f"filling a topic: {SHAPE.title}")
    asyncio.run(fill_source(stage.yard.bootstrap(SOURCE), SHAPE))
    sides: Any = Sides(stage, worker, None, "")  # type: ignore[arg-type]  # there is no peer in Java
    topics = [SHAPE.topic, f"ours[0-9]+\\.{SHAPE.topic}"]

    def plain() -> Figures:
        figures = sides.ours(SHAPE)
        return figures.records_per_s, figures.cpu_s_per_million

    def audited(clusters: list[str]) -> Callable[[], Figures]:
        def measured() -> Figures:
            with plan(stage, worker, topics, clusters):
                return plain()

        return measured

    for title, clusters in (("its copies", [COPIES]), ("both ends", [SOURCE, COPIES])):
        yield from compared(f"replication, {title}", audited(clusters), plain, progress)


def delivering(stage: Stage, worker: Process, progress: Progress) -> Iterator[dict[str, Any]]:
    """Dispatch."""
    progress(f"filling {TOPIC}")
    asyncio.run(fill_topic(stage.yard.bootstrap(CLUSTER), TOPIC, PARTITIONS, FILLED))
    for title, is_counted_before in (("consumer", True), ("also a tier", False)):
        receivers = Receivers(stage, TOPIC, CASE, 2 * ROUNDS)
        runs = itertools.count()

        def plain(receivers: Receivers = receivers, runs: Iterator[int] = runs) -> Figures:
            return delivered(stage, worker, receivers, next(runs))

        def audited(
            plain: Callable[[], Figures] = plain, is_counted_before: bool = is_counted_before
        ) -> Figures:
            # By the same name its jobs know that they have counted the topic.
            with plan(stage, worker, [TOPIC], [CLUSTER], "at-rest" if is_counted_before else "") as name:
                if is_counted_before:
                    wait_until(lambda: counted(worker, name) >= FILLED, COUNTED_S, worker.tail)
                return plain()

        try:
            yield from compared(f"dispatch, {title}", audited, plain, progress)
        finally:
            receivers.close()


def delivered(stage: Stage, worker: Process, receivers: Receivers, run: int) -> Figures:
    """As `tests.bench.streams.ours.rate`, with the worker's CPU."""
    group, cells, tree = receivers.groups[run], receivers.cells, psutil.Process(worker.popen.pid)
    low, high = int(CASE.count * HEAD), int(CASE.count * TAIL)
    stage.deploy(worker, CASE.definition(group, receivers.topic, receivers.address))
    begin, cpu_before = reaches(low, lambda: cells[run], worker), cpu_s(tree)
    end, cpu_after = reaches(high, lambda: cells[run], worker), cpu_s(tree)
    url = f"{worker.url}/api/v1/workloads/{group}/{receivers.topic}"
    wait_until(lambda: trackers(url)[0] >= high, COUNTED_S, worker.tail)
    http("DELETE", url)
    done = end[1] - begin[1]
    return done / (end[0] - begin[0]), (cpu_after - cpu_before) / done * 1_000_000


@contextmanager
def plan(
    stage: Stage, worker: Process, topics: list[str], clusters: list[str], named: str = ""
) -> Iterator[str]:
    """A plan that counts from the topics' beginning, unless it was there before; its jobs have ended at the
    end."""
    name = named or f"audit{next(_numbers)}"
    spec = {"topics": topics, "clusters": clusters}
    stage.deploy(
        worker,
        {"apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": name}, "spec": spec},
    )
    try:
        yield name
    finally:
        http("DELETE", f"{worker.url}/api/v1/audit/plans/{name}")
        wait_until(lambda: not jobs(worker, name), COUNTED_S, worker.tail)


def jobs(worker: Process, name: str) -> list[dict[str, Any]]:
    """Those of a plan, as the worker tells them."""
    status, body = http("GET", f"{worker.url}/api/v1/assignments?limit=1000")
    items = body["items"] if status == 200 else []
    return [item for item in items if item["job"].startswith(f"audit:{name}//") and item["worker"]]


def counted(worker: Process, name: str) -> int:
    """Records of the topic that were counted; -1: it is not known, or the plan's jobs are not there."""
    status, body = http("GET", f"{worker.url}/api/v1/audit/plans/{name}")
    if status != 200 or body["jobs"] < PARTITIONS:
        return -1
    status, body = http("GET", f"{worker.url}/api/v1/audit/windows?limit=1000&topic={TOPIC}")
    return sum(row["count"] for row in body["items"] if row["tier"] == "aggregate") if status == 200 else -1


def compared(
    title: str, audited: Callable[[], Figures], plain: Callable[[], Figures], progress: Progress
) -> Iterator[dict[str, Any]]:
    """Rows of the throughput, and of CPU; rounds by turns."""
    progress(title)
    both: tuple[list[Figures], list[Figures]] = [], []

    def one(kept: list[Figures], measured: Callable[[], Figures]) -> float:
        kept.append(measured())
        return kept[-1][0]

    pair = alternate(
        lambda: one(both[0], audited), lambda: one(both[1], plain), max(ROUNDS, MIN_ROUNDS), progress
    )
    ratios = sorted(ours / peer for ours, peer in pair.rounds)
    yield {
        "bench": f"audit-overhead, {title}", "value": round(pair.ours), "unit": "records/s",
        "peer": "unaudited", "peer_value": round(pair.peer), "ratio": round(median(ratios), 4),
    }  # fmt: skip
    ours, peer = (median(cpu for _, cpu in side) for side in both)
    yield {
        "bench": f"audit-overhead, {title}, CPU", "value": round(ours, 3), "unit": "CPU s/million",
        "peer": "unaudited", "peer_value": round(peer, 3), "ratio": round(ours / peer, 4),
    }  # fmt: skip
