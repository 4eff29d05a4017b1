"""What audits cost the worker that copies and delivers: audited against unaudited, the same worker, by turns.

| row                     | measured                         | what is counted meanwhile              |
|-------------------------|----------------------------------|----------------------------------------|
| replication, its copies | a route copies a filled topic    | the copy                               |
| replication, both ends  | the same                         | source and copy                        |
| dispatch, consumer      | a workload, instant, by a stream | what the group finishes                |
| dispatch, also a tier   | the same                         | that, and the topic                    |

Each row is of records a second, and beside it of the worker's CPU seconds per million records meanwhile: on a
busy machine these are what can be compared. Ratios are medians of the rounds' own; in a round each kind of
run comes once, and who begins changes. `spread`: the lowest and the highest ratio of a round.

What lasts is measured, not the start: from `HEAD` of the records on, until nine tenths. By then an audit that
began with the run has caught up with what was copied or delivered before its jobs were there, and counts what
comes as it comes: its plan is made when the route or the workload has begun, that it has to follow that and
not the other way round. `behind` is the share of the records that no report told yet at the
end: of a few seconds. Audited runs have a plan of their own each, which is deleted afterwards, but for the
consumer's: by the same name its jobs know that they have counted the topic itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

import psutil

from app.demo.stage import Process, Stage, StageError, http, wait_until
from app.yard import Yard
from tests.bench.copying.sides import COPIES, SOURCE, Sides
from tests.bench.copying.topic import Shape
from tests.bench.copying.topic import fill as fill_source
from tests.bench.copying.watch import cpu_s
from tests.bench.run import Progress
from tests.bench.streams.ours import CLUSTER, TAIL, Case, Receivers, reaches, trackers
from tests.bench.streams.topic import fill as fill_topic

SHAPE = Shape(200, "none", 16 * 1024, 6_000_000)
CASE = Case(0, 10_000, 10_000, "none", 1_600_000)
FILLED, PARTITIONS, TOPIC = 1_700_000, 4, "audited"
ROUNDS = 6
HEAD = 0.4
FOLLOWS_AT = 0.02  # of what is delivered: then the plan is made
COUNTED_S = 120.0
_numbers: Iterator[int] = itertools.count()

Figures = tuple[float, float, float]  # records/s, CPU s per million, behind
Run = Callable[[], Figures]


def run(progress: Progress) -> dict[str, Any]:
    """Every row."""
    with Yard(regions=1) as yard, Stage(yard) as stage:
        worker = stage.worker()
        rows = [*copying(stage, worker, progress), *delivering(stage, worker, progress)]
    first = rows.pop(0)
    setup = {
        "brokers": "one for each cluster, same machine, shared", "copied": SHAPE.title,
        "delivered": f"{CASE.count} messages of 200 bytes, instant handler, stream", "partitions": PARTITIONS,
        "rounds": ROUNDS, "measured": f"from {HEAD:.0%} to {TAIL:.0%} of the records",
    }  # fmt: skip
    return {**{key: first[key] for key in first if key != "bench"}, "setup": setup, "rows": rows}


def copying(stage: Stage, worker: Process, progress: Progress) -> list[dict[str, Any]]:
    """Replication."""
    progress(f"filling a topic: {SHAPE.title}")
    asyncio.run(fill_source(stage.yard.bootstrap(SOURCE), SHAPE))
    sides: Any = Sides(stage, worker, None, "")  # type: ignore[arg-type]  # there is no peer in Java
    topics = [SHAPE.topic, f"ours[0-9]+\\.{SHAPE.topic}"]

    def copied(*clusters: str) -> Figures:
        late: list[int] = []

        @contextmanager
        def audited() -> Iterator[None]:
            with plan(stage, worker, topics, [*clusters]) as name:
                yield
                late.append(behind(worker, name))

        figures = sides.ours_beside(SHAPE, HEAD, audited if clusters else nullcontext)
        share = sum(late) / (SHAPE.count * max(1, len(clusters)))
        return figures.records_per_s, figures.cpu_s_per_million, share

    def audited(*clusters: str) -> Run:
        return lambda: copied(*clusters)

    runs = {"its copies": audited(COPIES), "both ends": audited(SOURCE, COPIES)}
    return by_turns("replication", copied, runs, progress)


def delivering(stage: Stage, worker: Process, progress: Progress) -> list[dict[str, Any]]:
    """Dispatch."""
    progress(f"filling {TOPIC}")
    asyncio.run(fill_topic(stage.yard.bootstrap(CLUSTER), TOPIC, PARTITIONS, FILLED))
    receivers = Receivers(stage, TOPIC, CASE, 3 * ROUNDS)
    numbers = itertools.count()

    def plain() -> Figures:
        return delivered(stage, worker, receivers, next(numbers))

    def consumer() -> Figures:
        with plan(stage, worker, [TOPIC], [CLUSTER], "at-rest") as name:
            wait_until(lambda: counted(worker, name) >= FILLED, COUNTED_S, worker.tail)
            return plain()

    def tier() -> Figures:
        return delivered(stage, worker, receivers, next(numbers), is_followed=True)

    try:
        return by_turns("dispatch", plain, {"consumer": consumer, "also a tier": tier}, progress)
    finally:
        receivers.close()


def delivered(
    stage: Stage, worker: Process, receivers: Receivers, run: int, *, is_followed: bool = False
) -> Figures:
    """As `tests.bench.streams.ours.rate`, with the worker's CPU; `is_followed`: by a plan that counts the
    topic meanwhile."""
    group, cells, tree = receivers.groups[run], receivers.cells, psutil.Process(worker.popen.pid)
    low, high = int(CASE.count * HEAD), int(CASE.count * TAIL)
    stage.deploy(worker, CASE.definition(group, receivers.topic, receivers.address))
    reaches(int(CASE.count * FOLLOWS_AT), lambda: cells[run], worker)
    with plan(stage, worker, [TOPIC], [CLUSTER]) if is_followed else nullcontext("") as name:
        begin, cpu_before = reaches(low, lambda: cells[run], worker), cpu_s(tree)
        end, cpu_after = reaches(high, lambda: cells[run], worker), cpu_s(tree)
        late = behind(worker, name) / FILLED if name else 0.0
        url = f"{worker.url}/api/v1/workloads/{group}/{receivers.topic}"
        wait_until(lambda: trackers(url)[0] >= high, COUNTED_S, worker.tail)
        http("DELETE", url)
    done = end[1] - begin[1]
    return done / (end[0] - begin[0]), (cpu_after - cpu_before) / done * 1_000_000, late


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


def behind(worker: Process, name: str) -> int:
    """Records that are in the logs of a plan, and in no report that was acknowledged."""
    status, body = http("GET", f"{worker.url}/api/v1/audit/plans/{name}")
    if status != 200:
        raise StageError(f"plan {name}: {status}: {body!r}")
    return int(body["lag_messages"])


def by_turns(what: str, plain: Run, audited: dict[str, Run], progress: Progress) -> list[dict[str, Any]]:
    """Runs of each kind by turns; rows of the throughput, and of CPU."""
    runs = {"unaudited": plain, **audited}
    found: dict[str, list[Figures]] = {title: [] for title in runs}
    for number in range(ROUNDS):
        first = number % len(runs)
        for title in [*runs, *runs][first : first + len(runs)]:
            found[title].append(runs[title]())
            rate, cpu, _ = found[title][-1]
            progress(
                f"{what}, round {number + 1} of {ROUNDS}, {title}: {rate:,.0f}/s, {cpu:.3f} CPU s/million"
            )
    return [
        row(f"{what}, {title}{suffix}", unit, column, found[title], found["unaudited"])
        for title in audited
        for suffix, unit, column in (("", "records/s", 0), (", CPU", "CPU s/million", 1))
    ]


def row(title: str, unit: str, column: int, ours: list[Figures], peers: list[Figures]) -> dict[str, Any]:
    """A row of a column of the figures."""
    ratios = sorted(one[column] / peer[column] for one, peer in zip(ours, peers, strict=True))
    return {
        "bench": f"audit-overhead, {title}", "value": round(median(one[column] for one in ours), 3),
        "unit": unit, "peer": "unaudited", "peer_value": round(median(one[column] for one in peers), 3),
        "ratio": round(median(ratios), 4), "spread": [round(ratios[0], 4), round(ratios[-1], 4)],
        "behind": round(median(one[2] for one in ours), 3),
    }  # fmt: skip
