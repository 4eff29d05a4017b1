"""The sides of the bench: each reads a topic from its beginning and counts latencies in the histogram's file.

| side              | where a message counts as handled                                              |
|-------------------|--------------------------------------------------------------------------------|
| unary             | a gRPC server in Go, which a worker calls for each message                     |
| stream            | a receiver of our SDK in Python, to which a worker has a stream                |
| aiokafka          | the loop of a plain consumer in a group, in its own process                    |
| parallel-consumer | the handler of Confluent Parallel Consumer, in its own process                 |
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from app.dev.demo.stage import DemoStage, Process, http, workload
from tests.bench.latency.histogram import Histogram
from tests.bench.parallel_consumer import build
from tests.bench.parallel_consumer.java_process import JavaProcess
from tests.bench.processes.receiver_address import address_of
from tests.bench.unary import receiver as go_receiver
from tests.bench.unary.cases import METHOD

CLUSTER = "east-aggregate"
SOURCE = Path(__file__).with_name("LatencyPeer.java")
HEAP = "-Xmx1g"


def unary(
    stage: DemoStage, worker: Process, topic: str, latencies: Histogram
) -> contextlib.AbstractContextManager[None]:
    """Unary calls to the server in Go."""
    receiver = go_receiver.started(stage, 0, latencies.path)
    return _ours(stage, worker, topic, receiver, {"address": receiver.address, "method": METHOD})


def stream(
    stage: DemoStage, worker: Process, topic: str, latencies: Histogram
) -> contextlib.AbstractContextManager[None]:
    """A stream to the receiver of our SDK."""
    command = [sys.executable, "-m", "tests.bench.latency.receiver", "--topic", topic, "--group", topic]
    receiver = stage.start(f"receiver-{topic}", [*command, "--latencies", str(latencies.path)])
    return _ours(stage, worker, topic, receiver, {"address": address_of(receiver), "contract": "stream"})


@contextlib.contextmanager
def _ours(
    stage: DemoStage, worker: Process, topic: str, receiver: Process, target: dict[str, str]
) -> Iterator[None]:
    address = target.pop("address")
    stage.deploy(worker, workload(topic, topic, CLUSTER, address, target=target))
    try:
        yield
    finally:
        http("DELETE", f"{worker.url}/api/v1/workloads/{topic}/{topic}")
        receiver.terminate()


@contextlib.contextmanager
def aiokafka(stage: DemoStage, topic: str, latencies: Histogram) -> Iterator[Process]:
    """A plain consumer, and its process."""
    command = [sys.executable, "-m", "tests.bench.latency.consumer", "--topic", topic]
    command += ["--bootstrap", stage.yard.bootstrap(CLUSTER), "--latencies", str(latencies.path)]
    consumer = stage.start(f"consumer-{topic}", command)
    try:
        yield consumer
    finally:
        consumer.terminate()


class ParallelConsumer:
    """The peer's process."""

    def __init__(self, process: JavaProcess) -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def started(cls, bootstrap: str, work: Path) -> Iterator[ParallelConsumer]:
        """Compiles, runs and ends it. Raises FetchError, RuntimeError."""
        java, path = build(work, SOURCE)
        arguments = [HEAP, "-cp", path, "LatencyPeer", bootstrap]
        with JavaProcess.started(java, arguments, work / "peer.log") as process:
            yield cls(process)

    @contextlib.contextmanager
    def reading(self, topic: str, latencies: Histogram) -> Iterator[None]:
        """Reads the topic. Raises RuntimeError: it ended."""
        self._process.ask("start", topic, topic, latencies.path)
        try:
            yield
        finally:
            self._process.ask("stop")
