"""The cost of audits to the workers that copy and deliver: audited against unaudited, side by side.

| row                     | measured                         | what is counted meanwhile              |
|-------------------------|----------------------------------|----------------------------------------|
| replication, its copies | a route copies a filled topic    | the copy                               |
| replication, both ends  | the same                         | source and copy                        |
| dispatch, consumer      | a workload, instant, by a stream | what the group finishes                |
| dispatch, also a tier   | the same                         | that, and the topic                    |

Each row has two workers, each in a control plane of its own on the same brokers. They are audited by turns,
as no two processes are equally fast. In a round both copy, or deliver, the same topic from its beginning, at
the same time. Each second is measured from the share `LOW` of the topic on (`tests.bench.slices`). Each row
has records a second, and beside it the worker's CPU seconds per million records. `between` has approximate
bounds of the true ratio, as seconds in a row are not independent.

The bench measures the steady state, not the start. By then an audit has caught up with records that were
copied or delivered before its jobs started, and counts new records as they arrive. A plan is made once the
route or the workload has begun, so that the audit has to follow. `behind` is the share of records without a
report at the end: a few seconds' worth. Plans are deleted with the round. The consumer's plan has the same
name in all rounds; its jobs know by it that they have counted the topic itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any

from app.dev.demo.stage import DemoStage, Process, StageError, http, route, wait_until
from app.dev.yard import Yard
from app.kafka.client.cluster import LATEST, ClusterClient, ClusterSpec
from tests.bench import slices
from tests.bench.copying import topic as copied
from tests.bench.copying.sides import COPIES, SOURCE
from tests.bench.run import Progress
from tests.bench.slices import Second, Side
from tests.bench.streams.ours import CLUSTER, Case, Receivers, trackers
from tests.bench.streams.topic import fill

SHAPE = copied.Shape(200, "none", 16 * 1024, 10_000_000)
CASE = Case(0, 10_000, 10_000, "none", 4_800_000)
PARTITIONS, TOPIC = 4, "audited"
ROUNDS = 6
STARTED, LOW, HIGH = 0.01, 0.2, 0.95
COUNTED_S = 120.0
AT_REST = "at-rest"
PLAIN = "unaudited"

Workers = dict[str, tuple[DemoStage, Process]]  # by what they do in a round
Round = tuple[list[Second], float]  # and what was behind
MEASURED: dict[str, Callable[[slices.Slice], float]] = {
    "records/s": lambda one: one.rate,
    "CPU s/million": lambda one: one.cpu,
}


def run(progress: Progress) -> dict[str, Any]:
    """Every row."""
    with Yard(regions=1) as yard:
        rows = [*copying(yard, progress), *delivering(yard, progress)]
    first = rows.pop(0)
    setup = {
        "brokers": "one for each cluster, same machine, shared", "copied": f"{SHAPE.count} of {SHAPE.title}",
        "delivered": f"{CASE.count} messages of 200 bytes, instant handler, stream", "partitions": PARTITIONS,
        "rounds": ROUNDS, "seconds": first["seconds"],
        "measured": f"from {LOW:.0%} to {HIGH:.0%} of the records",
    }  # fmt: skip
    return {**{key: first[key] for key in first if key != "bench"}, "setup": setup, "rows": rows}


def copying(yard: Yard, progress: Progress) -> list[dict[str, Any]]:
    """Replication."""
    progress(f"filling a topic: {SHAPE.count:,} of {SHAPE.title}")
    asyncio.run(copied.fill(yard.bootstrap(SOURCE), SHAPE))
    audits = {"its copies": (COPIES,), "both ends": (SOURCE, COPIES)}
    return [
        row for name, clusters in audits.items() for row in copying_beside(yard, name, clusters, progress)
    ]


def copying_beside(
    yard: Yard, audited: str, clusters: Sequence[str], progress: Progress
) -> list[dict[str, Any]]:
    """A worker whose audit counts in these clusters, and one without an audit."""
    with workers(yard, f"copy{len(clusters)}") as both, ends(yard.bootstrap(COPIES)) as end:

        def one(number: int) -> Round:
            fleet = turns(both, audited, number)
            with ExitStack() as stack:
                sides, copies = {}, {}
                for name, (stage, worker) in fleet.items():
                    copies[name] = copy = f"{stage.region}-{number}.{SHAPE.topic}"
                    stack.callback(asyncio.run, copied.drop(yard.bootstrap(COPIES), copy))
                    stack.enter_context(routed(stage, worker, copy))
                    sides[name] = Side(worker, end(copy))
                wait_first_records(sides, SHAPE.count)
                topics = [SHAPE.topic, re.escape(copies[audited])]
                counting = stack.enter_context(plan(*fleet[audited], topics, clusters, f"audit{number}"))
                seconds = measured(sides, SHAPE.count)
                late = unreported_records(fleet[audited][1], counting) / (SHAPE.count * len(clusters))
                for side in sides.values():
                    side.reaches(SHAPE.count)
                return seconds, late

        return rounds("replication", audited, one, progress)


def delivering(yard: Yard, progress: Progress) -> list[dict[str, Any]]:
    """Dispatch."""
    progress(f"filling a topic: {CASE.count:,} messages")
    asyncio.run(fill(yard.bootstrap(CLUSTER), TOPIC, PARTITIONS, CASE.count))
    return [
        row
        for number, name in enumerate(("consumer", "also a tier"))
        for row in delivering_beside(yard, f"push{number}", name, progress, is_tier=bool(number))
    ]


def delivering_beside(
    yard: Yard, kind: str, audited: str, progress: Progress, *, is_tier: bool
) -> list[dict[str, Any]]:
    """A worker whose audit counts the messages that its group finished, and one without an audit. With
    `is_tier` the audit counts the topic, too; without it the topic is counted beforehand."""
    with workers(yard, kind) as both, ExitStack() as stack:
        receivers = Receivers(both[0][0], TOPIC, CASE, 2 * ROUNDS)
        stack.callback(receivers.close)
        if not is_tier:
            for stage, worker in both:
                with plan(stage, worker, [TOPIC], [CLUSTER], AT_REST):
                    count = partial(counted, worker, AT_REST)
                    wait_until(lambda count=count: count() >= CASE.count, COUNTED_S, worker.tail)

        def one(number: int) -> Round:
            fleet = turns(both, audited, number)
            with ExitStack() as stack:
                if not is_tier:
                    stack.enter_context(plan(*fleet[audited], [TOPIC], [CLUSTER], AT_REST))
                sides, urls = {}, {}
                for at, (name, (stage, worker)) in enumerate(fleet.items(), 2 * number):
                    group = receivers.groups[at]
                    stage.deploy(worker, CASE.definition(group, TOPIC, receivers.address))
                    urls[name] = f"{worker.url}/api/v1/workloads/{group}/{TOPIC}"
                    stack.callback(http, "DELETE", urls[name])
                    sides[name] = Side(worker, partial(receivers.cells.__getitem__, at))
                wait_first_records(sides, CASE.count)
                late = 0.0
                if is_tier:
                    name = stack.enter_context(plan(*fleet[audited], [TOPIC], [CLUSTER], f"audit{number}"))
                seconds = measured(sides, CASE.count)
                if is_tier:
                    late = unreported_records(fleet[audited][1], name) / CASE.count
                for name, url in urls.items():
                    Side(fleet[name][1], partial(acknowledged, url)).reaches(CASE.count)
                return seconds, late

        return rounds("dispatch", audited, one, progress)


# -- rounds ------------------------------------------------------------------------------------------


def rounds(what: str, audited: str, one: Callable[[int], Round], progress: Progress) -> list[dict[str, Any]]:
    """Runs all rounds; returns their rows."""
    seconds: list[Second] = []
    late: list[float] = []
    for number in range(ROUNDS):
        found, behind_ = one(number)
        seconds += found
        late.append(behind_)
        figures = ", ".join(
            f"{unit} {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
            for unit, of in MEASURED.items()
            for ratio in [slices.ratio(seconds, of, audited, PLAIN)]
        )
        progress(
            f"{what}, {audited}, round {number + 1} of {ROUNDS}, {len(seconds)} seconds so far: {figures}"
        )
    return [row(what, audited, unit, seconds, median(late)) for unit in MEASURED]


def row(what: str, audited: str, unit: str, seconds: list[Second], late: float) -> dict[str, Any]:
    """A row of one figure of `MEASURED`."""
    of = MEASURED[unit]
    found = slices.ratio(seconds, of, audited, PLAIN)
    return {
        "bench": f"audit-overhead, {what}, {audited}",
        "value": round(of(slices.total_of(seconds, audited)), 3),
        "unit": unit, "peer": PLAIN, "peer_value": round(of(slices.total_of(seconds, PLAIN)), 3),
        "ratio": round(found.value, 4), "between": [round(found.low, 4), round(found.high, 4)],
        "seconds": len(seconds), "behind": round(late, 3),
    }  # fmt: skip


def wait_first_records(sides: dict[str, Side], count: int) -> None:
    """Waits until each worker has processed a few records."""
    for side in sides.values():
        side.reaches(int(count * STARTED))


def measured(sides: dict[str, Side], count: int) -> list[Second]:
    """Second by second."""
    return slices.measure(sides, int(count * LOW), int(count * HIGH))


def acknowledged(url: str) -> int:
    """Messages of the workload that may be committed."""
    return trackers(url)[0]


# -- what runs ---------------------------------------------------------------------------------------


@contextmanager
def workers(yard: Yard, kind: str) -> Iterator[list[tuple[DemoStage, Process]]]:
    """Two workers in separate control planes."""
    with ExitStack() as stack:
        stages = [stack.enter_context(DemoStage(yard, region=f"{kind}{name}")) for name in "ab"]
        yield [(stage, stage.worker()) for stage in stages]


def turns(both: list[tuple[DemoStage, Process]], audited: str, number: int) -> Workers:
    """The worker and plan of each side in a round."""
    return {PLAIN: both[number % 2], audited: both[1 - number % 2]}


@contextmanager
def routed(stage: DemoStage, worker: Process, copy: str) -> Iterator[None]:
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
    """Returns a function that reads the end of a topic over all partitions, 0 while there is no topic."""
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
    stage: DemoStage,
    worker: Process,
    topics: list[str],
    clusters: Sequence[str],
    name: str = "audit",
) -> Iterator[str]:
    """A plan that counts from the topics' beginning, unless it existed before; its jobs have ended at the
    end."""
    # By headers: `audit-count` has the cost of reading all records' timestamps.
    spec = {"topics": topics, "clusters": [*clusters], "disorder": "5s"}
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
    """The plan's jobs, from the worker's API."""
    status, body = http("GET", f"{worker.url}/api/v1/assignments?limit=1000")
    items = body["items"] if status == 200 else []
    return [item for item in items if item["job"].startswith(f"audit:{name}//") and item["worker"]]


def counted(worker: Process, name: str) -> int:
    """Counted records of the topic; -1 when that is unknown or the plan has no jobs."""
    status, body = http("GET", f"{worker.url}/api/v1/audit/plans/{name}")
    if status != 200 or body["jobs"] < PARTITIONS:
        return -1
    status, body = http("GET", f"{worker.url}/api/v1/audit/windows?limit=1000&topic={TOPIC}")
    return sum(row["count"] for row in body["items"] if row["tier"] == "aggregate") if status == 200 else -1


def unreported_records(worker: Process, name: str) -> int:
    """Records in the logs of a plan that no acknowledged report has."""
    status, body = http("GET", f"{worker.url}/api/v1/audit/plans/{name}")
    if status != 200:
        raise StageError(f"plan {name}: {status}: {body!r}")
    return int(body["lag_messages"])
