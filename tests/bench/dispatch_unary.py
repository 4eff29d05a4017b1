"""Messages/s from one partition through one worker to a receiver in Go by unary calls, and CPU a message.

Ours is the whole path: fetched from a real broker, tracked, pushed, acknowledged, with snapshots and commits.
The peers send as many messages at once, with the same metadata, to the same receiver:

| peer              | what it does                                                                   |
|-------------------|--------------------------------------------------------------------------------|
| grpc.aio          | only makes the calls, by uvloop and without Kafka                              |
| parallel-consumer | Confluent Parallel Consumer: record, call by grpc-java's async stub, commit    |
| share-groups      | consumers of a share group: records, calls by the same stub, acknowledgements  |

All sides run by turns, each for the same time, and medians count. CPU is that of the side's own process. The
case `long` has no peer: messages come at 1,000/s, each takes the receiver 1 s, and the backlog must not grow.
In the case `endpoints` three receivers behind one address take what one takes alone, three times.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.dev.demo.stage import DemoStage, Process
from app.dev.yard import Yard
from app.dev.yard.lock_file import KAFKA_VERSION
from tests.bench.parallel_consumer import VERSION
from tests.bench.run import MIN_ROUNDS, Progress
from tests.bench.unary import grpc_aio, java_peers, ours, receiver, scaling, sustained
from tests.bench.unary.cases import BROKER, CASES, CREDENTIALS, MEASURED_S, Case, Measured
from tests.bench.unary.java_peers import JavaPeer
from tests.bench.unary.rounds import Rounds, by_turns, medians
from tests.bench.unary.topic import fill
from tests.grpc_client.peers.certificates import Certificates, make

EXAMPLES = """\
examples:
  python -m tests.bench dispatch-unary
  python -m tests.bench dispatch-unary --case instant --peers grpc.aio share-groups
  python -m tests.bench dispatch-unary --case endpoints
  python -m tests.bench dispatch-unary --case long --long-seconds 300
"""
OURS = "ours"
LONG, ENDPOINTS = "long", "endpoints"
GRPC_AIO, PARALLEL_CONSUMER, SHARE_GROUPS = "grpc.aio", "parallel-consumer", "share-groups"
PEERS = {
    GRPC_AIO: "bare grpc.aio calls",
    PARALLEL_CONSUMER: f"Confluent Parallel Consumer {VERSION}, grpc-java",
    SHARE_GROUPS: f"share groups of Kafka {KAFKA_VERSION}, grpc-java",
}
STARTS: Mapping[str, Callable[[str, Path], contextlib.AbstractContextManager[JavaPeer]]] = {
    PARALLEL_CONSUMER: java_peers.parallel_consumer,
    SHARE_GROUPS: java_peers.share_groups,
}


def add_arguments(parser: ArgumentParser) -> None:
    """Cases, peers, rounds, and the length of the long case."""
    parser.add_argument("--case", choices=[*CASES, ENDPOINTS, LONG], help="only this one (default: all)")
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER",
        help=f"of: {', '.join(PEERS)} (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        type=int,
        default=MIN_ROUNDS,
        metavar="N",
        help="of every case; medians count (default: 3)",
    )
    parser.add_argument(
        "--long-seconds", type=float, default=0.0, metavar="S",
        help=f"duration of the case `{LONG}` (default: 0, which leaves it out)",
    )  # fmt: skip


def run(progress: Progress, options: Namespace) -> dict[str, Any]:
    """All cases, or one.

    Raises:
        ValueError: The long case has no duration.
    """
    if options.case == LONG and not options.long_seconds:
        raise ValueError(f"--case {LONG} needs --long-seconds, such as 300")
    names = [name for name in CASES if options.case in {None, name}]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as work,
        Yard(regions=1, settings=BROKER) as yard,
        DemoStage(yard) as stage,
    ):
        certificates = make(Path(work))
        entry = {"name": CREDENTIALS, "ca": str(certificates.authority)}
        stage.settings["receivers"] = {"credentials": [entry]}
        worker = stage.worker()
        with contextlib.ExitStack() as stack:
            java = {}
            for peer in options.peers if names else ():
                if peer in STARTS:
                    progress(f"starting {peer}")
                    java[peer] = stack.enter_context(STARTS[peer](yard.bootstrap(ours.CLUSTER), Path(work)))
            for name in names:
                tls = certificates if CASES[name].is_secure else None
                bench = CaseBench(stage, worker, name, CASES[name], java, tls)
                rows += _rows(CASES[name], bench.run(options.peers, options.rounds, progress))
        if options.case in {None, ENDPOINTS}:
            rows += scaling.measure(stage, worker, options.rounds, progress)
        if options.long_seconds and options.case in {None, LONG}:
            rows += sustained.measure(stage, worker, options.long_seconds, progress)
    setup = {
        "broker": "one, same machine", "partitions": 1, "receiver": "one process in Go",
        "seconds": MEASURED_S, "rounds": options.rounds,
    }  # fmt: skip
    first = {key: rows[0][key] for key in ("value", "unit", "peer", "peer_value")}
    return {**first, "setup": setup, "rows": rows}


class CaseBench:
    """One case: its topic, its receiver, and a new group for every run."""

    def __init__(
        self, stage: DemoStage, worker: Process, name: str, case: Case, java: Mapping[str, JavaPeer],
        tls: Certificates | None,
    ) -> None:  # fmt: skip
        self._stage = stage
        self._worker = worker
        self._case = case
        self._java = java
        self._tls = tls
        self._topic = f"unary-{name}"
        self._numbers = itertools.count()

    def run(self, peers: Sequence[str], rounds: int, progress: Progress) -> Rounds:
        """All sides by turns. The processes in Java have unmeasured runs before, for their compiler."""
        progress(f"{self._case.title}: filling the topic")
        bootstrap = self._stage.yard.bootstrap(ours.CLUSTER)
        asyncio.run(fill(bootstrap, self._topic, self._case.messages, self._case.value_bytes))
        go = receiver.started(self._stage, self._case.delay_ms, tls=self._tls)
        try:
            for name, peer in self._java.items():
                progress(f"warming up {name}")
                peer.warm_up(partial(self._by_java, peer, go.address))
            sides = {name: self._side(name, go.address) for name in (OURS, *peers)}
            return by_turns(sides, rounds, progress)
        finally:
            go.terminate()

    def _side(self, name: str, address: str) -> Callable[[], Measured]:
        if name == OURS:
            return lambda: ours.measure(
                self._stage, self._worker, self._case, self._topic, self._group(), address
            )
        if name == GRPC_AIO:
            authority = None if self._tls is None else self._tls.authority.read_bytes()
            return lambda: grpc_aio.measure(self._case, address, authority)
        return lambda: self._by_java(self._java[name], address)

    def _by_java(self, peer: JavaPeer, address: str) -> Measured:
        if self._tls is not None:
            address = f"{address},{self._tls.authority}"
        return peer.measure(self._case, self._topic, self._group(), address)

    def _group(self) -> str:
        return f"{self._topic}-{next(self._numbers)}"


def _rows(case: Case, found: Rounds) -> list[dict[str, Any]]:
    """Messages/s and CPU, of ours against each peer; `rounds` has all figures of both sides."""
    rows = []
    own = medians(found[OURS])
    for name, measured in found.items():
        if name == OURS:
            continue
        theirs = medians(measured)
        for what, unit, figure in (
            ("", "messages/s", "per_second"),
            (", CPU", "us/message", "cpu_us"),
        ):
            value, peer_value = getattr(own, figure), getattr(theirs, figure)
            rows.append({
                "bench": f"dispatch-unary, {case.title}, {name}{what}",
                "value": round(value, 1), "unit": unit, "peer": PEERS[name],
                "peer_value": round(peer_value, 1), "ratio": round(value / peer_value, 3),
                "rounds": [
                    [round(getattr(one, figure), 1) for one in pair]
                    for pair in zip(found[OURS], measured, strict=True)
                ],
            })  # fmt: skip
    return rows
