"""What audits cost the workers that copy and deliver: audited against unaudited, a second each by turns.

| row                     | measured                         | what is counted meanwhile              |
|-------------------------|----------------------------------|----------------------------------------|
| replication, its copies | a route copies a filled topic    | the copy                               |
| replication, both ends  | the same                         | source and copy                        |
| dispatch, consumer      | a workload, instant, by a stream | what the group finishes                |
| dispatch, also a tier   | the same                         | that, and the topic                    |

Each kind has a worker of its own, in a control plane of its own on the same brokers. In a round all copy, or
deliver, the same topic anew; from the share `LOW` of it on they are measured by turns (`tests.bench.slices`).
Each row is of records a second, and beside it of the worker's CPU seconds per million records meanwhile.
`between`: where the true ratio lies, 19 of 20 times.

What lasts is measured, not the start: by then an audit that began with the run has caught up with what was
copied or delivered before its jobs were there, and counts what comes as it comes. A plan is made when the
route or the workload has begun, that it has to follow that and not the other way round. `behind` is the share
of the records that no report told yet at the end: of a few seconds. Plans are deleted with the round, but for
the consumer's: by the same name its jobs know that they have counted the topic itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any

from app.demo.stage import Process, Stage, StageError, http, route, wait_until
from app.kafka.clusters import LATEST, ClusterClient, ClusterSpec
from app.yard import Yard
from tests.bench import slices
from tests.bench.copying import topic as copied
from tests.bench.copying.sides import COPIES, SOURCE
from tests.bench.run import Progress
from tests.bench.slices import Cycle, Side
from tests.bench.streams.ours import CLUSTER, Case, Receivers, trackers
from tests.bench.streams.topic import fill

SHAPE = copied.Shape(200, "none", 16 * 1024, 10_000_000)
CASE = Case(0, 10_000, 10_000, "none", 4_800_000)
PARTITIONS, TOPIC = 4, "audited"
ROUNDS = 5
BEGUN, LOW, HIGH = 0.01, 0.2, 0.95
COUNTED_S = 120.0
PLAIN = "unaudited"

Workers = dict[str, tuple[Stage, Process]]
Round = tuple[list[Cycle], dict[str, float]]  # and what was behind


def run(progress: Progress) -> dict[str, Any]:
    """Every row."""
    with Yard(regions=1) as yard:
        rows = [*copying(yard, progress), *delivering(yard, progress)]
    first = rows.pop(0)
    setup = {
        "brokers": "one for each cluster, same machine, shared", "copied": f"{SHAPE.count} of {SHAPE.title}",
        "delivered": f"{CASE.count} messages of 200 bytes, instant handler, stream", "partitions": PARTITIONS,
        "rounds": ROUNDS, "slices of a second each": first["slices"],
        "measured": f"from {LOW:.0%} to {HIGH:.0%} of the records",
    }  # fmt: skip
    return {**{key: first[key] for key in first if key != "bench"}, "setup": setup, "rows": rows}


def copying(yard: Yard, progress: Progress) -> list[dict[str, Any]]:
    """Replication."""
    progress(f"filling a topic: {SHAPE.count:,} of {SHAPE.title}")
    asyncio.run(copied.fill(yard.bootstrap(SOURCE), SHAPE))
    audits = {PLAIN: (), "its copies": (COPIES,), "both ends": (SOURCE, COPIES)}
    with workers(yard, "copy", list(audits)) as fleet, ends(yard.bootstrap(COPIES)) as end:

        def one(number: int) -> Round:
            with ExitStack() as stack:
                sides, copies = {}, {}
                for at, (name, (stage, worker)) in enumerate(fleet.items()):
                    copies[name] = copy = f"copy{at}-{number}.{SHAPE.topic}"
                    stack.callback(asyncio.run, copied.drop(yard.bootstrap(COPIES), copy))
                    stack.enter_context(routed(stage, worker, copy))
                    sides[name] = Side(worker, end(copy))
                begun(sides, SHAPE.count)
                plans = {}
                for name, clusters in audits.items():
                    if clusters:
                        counting = plan(
                            *fleet[name], [SHAPE.topic, re.escape(copies[name])], clusters, f"audit{number}"
                        )
                        plans[name] = stack.enter_context(counting)
                cycles = measured(sides, SHAPE.count)
                shares = {name: SHAPE.count * len(audits[name]) for name in plans}
                late = {name: behind(fleet[name][1], plan) / shares[name] for name, plan in plans.items()}
                reached(sides, SHAPE.count)
                return cycles, late

        return rounds("replication", list(audits)[1:], one, progress)


def delivering(yard: Yard, progress: Progress) -> list[dict[str, Any]]:
    """Dispatch."""
    progress(f"filling a topic: {CASE.count:,} messages")
    asyncio.run(fill(yard.bootstrap(CLUSTER), TOPIC, PARTITIONS, CASE.count))
    names = [PLAIN, "consumer", "also a tier"]
    with workers(yard, "push", names) as fleet, ExitStack() as stack:
        receivers = Receivers(fleet[PLAIN][0], TOPIC, CASE, len(names) * ROUNDS)
        stack.callback(receivers.close)
        stage, counter = fleet["consumer"]
        rests = stack.enter_context(plan(stage, counter, [TOPIC], [CLUSTER], "at-rest"))
        wait_until(lambda: counted(counter, rests) >= CASE.count, COUNTED_S, counter.tail)

        def one(number: int) -> Round:
            with ExitStack() as stack:
                sides, urls = {}, {}
                for at, (name, (stage, worker)) in enumerate(fleet.items(), number * len(names)):
                    group = receivers.groups[at]
                    stage.deploy(worker, CASE.definition(group, TOPIC, receivers.address))
                    urls[name] = f"{worker.url}/api/v1/workloads/{group}/{TOPIC}"
                    stack.callback(http, "DELETE", urls[name])
                    sides[name] = Side(worker, partial(receivers.cells.__getitem__, at))
                begun(sides, CASE.count)
                tier = stack.enter_context(plan(*fleet["also a tier"], [TOPIC], [CLUSTER], f"audit{number}"))
                cycles = measured(sides, CASE.count)
                late = {"also a tier": behind(fleet["also a tier"][1], tier) / CASE.count, "consumer": 0.0}
                for name, url in urls.items():
                    Side(fleet[name][1], partial(acknowledged, url)).reaches(CASE.count)
                return cycles, late

        return rounds("dispatch", names[1:], one, progress)


# -- rounds ------------------------------------------------------------------------------------------


def rounds(
    what: str, audited: list[str], one: Callable[[int], Round], progress: Progress
) -> list[dict[str, Any]]:
    """All of them, and the rows that they come to."""
    cycles: list[Cycle] = []
    late: dict[str, list[float]] = {name: [] for name in audited}
    for number in range(ROUNDS):
        found, behind_ = one(number)
        cycles += found
        for name, share in behind_.items():
            late[name].append(share)
        told = ", ".join(
            f"{name} {slices.ratio(cycles, lambda slice_: slice_.rate, name, PLAIN).value:.3f}"
            for name in audited
        )
        progress(f"{what}, round {number + 1} of {ROUNDS}, {len(cycles)} slices each so far: {told}")
    return [
        row(f"{what}, {name}{suffix}", unit, cycles, of, name, median(late[name]))
        for name in audited
        for suffix, unit, of in (
            ("", "records/s", lambda one: one.rate),
            (", CPU", "CPU s/million", lambda one: one.cpu),
        )
    ]


def row(
    title: str, unit: str, cycles: list[Cycle], of: Callable[[slices.Slice], float], name: str, late: float
) -> dict[str, Any]:
    """A row of what `of` says of a slice."""
    found = slices.ratio(cycles, of, name, PLAIN)
    return {
        "bench": f"audit-overhead, {title}", "value": round(of(slices.whole(cycles, name)), 3), "unit": unit,
        "peer": PLAIN, "peer_value": round(of(slices.whole(cycles, PLAIN)), 3),
        "ratio": round(found.value, 4), "between": [round(found.low, 4), round(found.high, 4)],
        "slices": len(cycles), "behind": round(late, 3),
    }  # fmt: skip


def begun(sides: dict[str, Side], count: int) -> None:
    """Waits until each has done something."""
    for side in sides.values():
        side.reaches(int(count * BEGUN))


def measured(sides: dict[str, Side], count: int) -> list[Cycle]:
    """Slices by turns."""
    return slices.measure(sides, int(count * LOW), int(count * HIGH))


def reached(sides: dict[str, Side], count: int) -> None:
    """Waits until each has done all."""
    for side in sides.values():
        side.reaches(count)
        if side.done() > count:
            raise StageError(f"{side.worker.name} made {side.done()} of {count} records")


def acknowledged(url: str) -> int:
    """Messages of the workload that may be committed."""
    return trackers(url)[0]


# -- what runs ---------------------------------------------------------------------------------------


@contextmanager
def workers(yard: Yard, kind: str, names: list[str]) -> Iterator[Workers]:
    """A worker each, none of which knows of the others."""
    with ExitStack() as stack:
        stages = {
            name: stack.enter_context(Stage(yard, region=f"{kind}{at}")) for at, name in enumerate(names)
        }
        yield {name: (stage, stage.worker()) for name, stage in stages.items()}


@contextmanager
def routed(stage: Stage, worker: Process, copy: str) -> Iterator[None]:
    """A route copies the topic into this one."""
    name = copy.partition(".")[0]
    rename = {"names": {SHAPE.topic: copy}}
    stage.deploy(worker, route(name, SOURCE, COPIES, SHAPE.topic, rename=rename))
    try:
        yield
    finally:
        http("DELETE", f"{worker.url}/api/v1/routes/{name}")


@contextmanager
def ends(bootstrap: str) -> Iterator[Callable[[str], Callable[[], int]]]:
    """Asks for the end of a topic, over all partitions; 0 while there is none."""
    with asyncio.Runner() as runner:
        client = ClusterClient(ClusterSpec("copies", (bootstrap,)))
        runner.run(client.start())

        def end(topic: str) -> int:
            if runner.run(client.partitions(topic)) != copied.PARTITIONS:
                return 0
            at = [(topic, partition) for partition in range(copied.PARTITIONS)]
            return sum(runner.run(client.offsets(at, LATEST)).values())

        try:
            yield lambda topic: lambda: end(topic)
        finally:
            runner.run(client.stop())


@contextmanager
def plan(
    stage: Stage,
    worker: Process,
    topics: list[str],
    clusters: tuple[str, ...] | list[str],
    name: str = "audit",
) -> Iterator[str]:
    """A plan that counts from the topics' beginning, unless it was there before; its jobs have ended at the
    end."""
    spec = {"topics": topics, "clusters": [*clusters]}
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
