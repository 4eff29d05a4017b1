"""The peers in Java: Confluent Parallel Consumer and Kafka's share groups, with grpc-java's async stub.

| peer              | its consumers                   | Kafka's client   | its calls                    |
|-------------------|---------------------------------|------------------|------------------------------|
| Parallel Consumer | by the reactor module, no order | what it asks for | a Mono of each call's future |
| share groups      | one or more, explicit acks      | that of the yard | all of a poll at once        |

The settings are the quickest of those tried with the case `instant`. One channel was better than two, and G1
as good as ParallelGC. Parallel Consumer took 5,000 records a poll (with 500 it was a tenth slower), and its
default scheduler cost more CPU than an immediate one. `share.acquire.mode=record_limit` changed nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from app.dev.yard.jars import JarSet
from app.dev.yard.java import find_java
from tests.bench.parallel_consumer import SETTINGS, VERSION
from tests.bench.parallel_consumer.java_process import JavaProcess, compiled
from tests.bench.peer_jars import fetched
from tests.bench.unary.cases import MEASURED_S, METHOD, Case, Measured
from tests.grpc_client.peers.build import GRPC_JAVA, JAVA_COORDINATES

SOURCES = Path(__file__).parent / "java"
SHARED = (SOURCES / "Calls.java", SOURCES / "Window.java", SETTINGS)
REACTOR = f"parallel-consumer-reactor-{VERSION}"
REACTOR_COORDINATES = (
    f"io.confluent.parallelconsumer:parallel-consumer-reactor:{VERSION}",
    "org.slf4j:slf4j-nop:2.0.13",  # without it, logging costs more than the work
)
JVM = ("-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
WARM_UP_RUNS = 3  # a compiler on busy cores needs half a minute; a new case needs one run


class JavaPeer:
    """A peer's running process."""

    def __init__(self, process: JavaProcess, has_poll_settings: bool = False) -> None:
        self._process = process
        self._has_poll_settings = has_poll_settings
        self._runs = 0

    def warm_up(self, run: Callable[[], Measured]) -> None:
        """Runs at least once, and as often as a new process needs."""
        run()
        while self._runs < WARM_UP_RUNS:
            run()

    def measure(self, case: Case, topic: str, group: str, address: str) -> Measured:
        """One run. Raises RuntimeError: it failed; the message has the end of the log."""
        self._runs += 1
        times_ms = (int(case.warm_up_s * 1000), int(MEASURED_S * 1000))
        words: tuple[object, ...] = (address, topic, group, case.in_flight, *times_ms, case.last)
        if self._has_poll_settings:
            words += (case.share_consumers, case.share_records)
        return Measured(*self._process.ask(*words))


@contextlib.contextmanager
def parallel_consumer(bootstrap: str, work: Path) -> Iterator[JavaPeer]:
    """Fetches, compiles, runs and ends Parallel Consumer. Raises FetchError, RuntimeError."""
    jars = fetched(REACTOR, REACTOR_COORDINATES)
    with _started("ParallelConsumerPeer", jars, bootstrap, work) as process:
        yield JavaPeer(process)


@contextlib.contextmanager
def share_groups(bootstrap: str, work: Path) -> Iterator[JavaPeer]:
    """Compiles, runs and ends the consumers of share groups. Raises FetchError, RuntimeError."""
    kafka = JarSet.load()
    kafka.ensure()
    jars = [Path(name) for name in kafka.classpath.split(os.pathsep)]
    with _started("ShareGroupPeer", jars, bootstrap, work) as process:
        yield JavaPeer(process, has_poll_settings=True)


@contextlib.contextmanager
def _started(main: str, jars: list[Path], bootstrap: str, work: Path) -> Iterator[JavaProcess]:
    java = find_java()
    grpc_jars = fetched(f"grpc-java-{GRPC_JAVA}", JAVA_COORDINATES)  # first: its Guava is the newer one
    path = compiled(java, [*SHARED, SOURCES / f"{main}.java"], [*grpc_jars, *jars], work / main)
    arguments = [*JVM, "-cp", path, main, bootstrap, METHOD.removeprefix("/")]
    with JavaProcess.started(java, arguments, work / f"{main}.log") as process:
        yield process
