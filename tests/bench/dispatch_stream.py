"""Messages/s acknowledged one by one through one worker over a stream, against Confluent Parallel Consumer.

Ours is the whole path: a worker fetches from a real broker, tracks, pushes to a receiver in a process of its
own, and commits. The peer's handler runs in the peer's process, without a second process or a network. Both
read the same filled topic from its beginning, with a new group each time. Messages are counted in the
handler, between a tenth and nine tenths of the run. Ours must besides acknowledge every message and deliver
it once.

| case    | handler                        | handlers at once | in flight (the peer loads as it likes)    |
|---------|--------------------------------|------------------|-------------------------------------------|
| instant | counts                         | 1; peer 200      | 10,000                                    |
| 10 ms   | sleeps so long on average      | 200              | 1,000; by key 400                         |
| 50 ms   | sleeps                         | 1,000            | 5,000; by key 2,000                       |

By key, a message that waits in the receiver blocks its key's next message. Just enough messages are therefore
in flight to keep the handlers busy, with a tracker of 50,000.

The last rows compare with our own throughput: the share that remains when one message in a thousand is
stashed and one is never answered.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.dev.demo.stage import DemoStage, Process
from app.dev.yard import Yard
from tests.bench.parallel_consumer import VERSION, Peer, build
from tests.bench.run import MIN_ROUNDS, Pair, Progress, alternate
from tests.bench.streams.ours import CLUSTER, Case, Receivers, rate
from tests.bench.streams.topic import KEYS, VALUE_BYTES, fill

PEER = f"Confluent Parallel Consumer {VERSION}"
ORDERS = {"none": "UNORDERED", "key": "KEY"}
FILLED = 1_200_000
INSTANT = Case(0, 10_000, 10_000, "none", 1_000_000)
SHORT = Case(10, 1_000, 200, "none", 150_000)
LONG = Case(50, 5_000, 1_000, "none", 150_000)
PEER_INSTANT, PEER_INSTANT_COUNT = 200, 400_000  # its quickest of 16, 200 and 1,000 threads
FAULTY_CAPACITY = 200_000  # a second's messages behind a stuck one: it is freed before the tracker is full
KEYED_CAPACITY, KEYED_IN_FLIGHT = 50_000, {INSTANT: 10_000, SHORT: 400, LONG: 2_000}
PARTITIONS = 4
HEADLINE = "10 ms, none, 4 partitions"


def run(progress: Progress) -> dict[str, Any]:
    """Every case with 4 partitions, those without an order with 1, and the faults."""
    with (
        tempfile.TemporaryDirectory() as name,
        Yard(regions=1) as yard,
        DemoStage(yard) as stage,
    ):
        progress("fetching and compiling the peer")
        java, class_path = build(Path(name))
        worker = stage.worker()
        rows = {}
        for partitions in (PARTITIONS, 1):
            topic = f"filled-{partitions}"
            progress(f"filling {topic}")
            bootstrap = yard.bootstrap(CLUSTER)
            asyncio.run(fill(bootstrap, topic, partitions, FILLED))
            with Peer.started(java, class_path, bootstrap, topic, Path(name)) as peer:
                for title, case in _cases(partitions):
                    progress(title)
                    rows[title] = _row(title, PEER, _against_peer(stage, worker, topic, case, peer, progress))
        for title, case in _faulty():
            progress(title)
            pair = _against_clean(stage, worker, f"filled-{PARTITIONS}", case, progress)
            rows[title] = _row(title, "the same without faults", pair)
    first = rows.pop(HEADLINE)
    setup = {
        "broker": "one, same machine", "value bytes": VALUE_BYTES, "keys": KEYS, "partitions": PARTITIONS,
        "receiver": "one process, uvloop", "handler": HEADLINE, "handlers at once": SHORT.handlers,
        "in flight": SHORT.in_flight, "peer": "in-process handler, a thread each, commits asynchronously",
    }  # fmt: skip
    return {**{key: first[key] for key in first if key != "bench"}, "setup": setup, "rows": [*rows.values()]}


def _cases(partitions: int) -> Iterator[tuple[str, Case]]:
    for order in ORDERS if partitions > 1 else ("none",):
        for name, case in (("instant", INSTANT), ("10 ms", SHORT), ("50 ms", LONG)):
            title = f"{name}, {order}, {partitions} partition{'s' if partitions > 1 else ''}"
            if order == "key":
                in_flight = KEYED_IN_FLIGHT[case]
                yield title, replace(case, ordering=order, in_flight=in_flight, capacity=KEYED_CAPACITY)
            else:
                yield title, case


def _faulty() -> Iterator[tuple[str, Case]]:
    for name, case in (("instant", INSTANT), ("10 ms", SHORT)):
        stuck_at = case.count // PARTITIONS // 3
        title = f"{name}, a poison pill in a thousand and one message stuck for ever"
        yield title, replace(case, stuck_at=stuck_at, capacity=FAULTY_CAPACITY)


def _row(title: str, peer: str, pair: Pair) -> dict[str, Any]:
    return {
        "bench": f"dispatch-stream, {title}", "value": round(pair.ours, 1), "unit": "messages/s",
        "peer": peer, "peer_value": round(pair.peer, 1), "ratio": round(pair.ratio, 3),
    }  # fmt: skip


def _against_peer(
    stage: DemoStage, worker: Process, topic: str, case: Case, peer: Peer, progress: Progress
) -> Pair:
    receivers = Receivers(stage, topic, case, MIN_ROUNDS)
    ours, theirs = itertools.count(), itertools.count()
    threads, count = case.handlers, case.count
    if not case.latency_ms:
        threads, count = PEER_INSTANT, PEER_INSTANT_COUNT
    order = ORDERS[case.ordering]
    groups = f"peer-{receivers.groups[0]}"
    try:
        return alternate(
            lambda: rate(worker, stage, receivers, next(ours)),
            lambda: peer.run(order, case.latency_ms, threads, f"{groups}-{next(theirs)}", count),
            progress=progress,
        )
    finally:
        receivers.close()


def _against_clean(stage: DemoStage, worker: Process, topic: str, case: Case, progress: Progress) -> Pair:
    faulty = Receivers(stage, topic, case, MIN_ROUNDS)
    clean = Receivers(stage, topic, replace(case, stuck_at=None), MIN_ROUNDS)
    ours, theirs = itertools.count(), itertools.count()
    try:
        return alternate(
            lambda: rate(worker, stage, faulty, next(ours)),
            lambda: rate(worker, stage, clean, next(theirs)),
            progress=progress,
        )
    finally:
        faulty.close()
        clean.close()
