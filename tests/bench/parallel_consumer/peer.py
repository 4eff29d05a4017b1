"""Fetches Confluent Parallel Consumer, compiles a harness against it, and runs the one of `dispatch-stream`.

The jars are those that its own description asks for (its Kafka client among them), kept in the folder of
everything that Switchyard fetches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from app.dev.yard.java import Java, find_java
from tests.bench.parallel_consumer.java_process import JavaProcess, compiled
from tests.bench.peer_jars import fetched

VERSION = "0.5.3.3"
COORDINATES = (
    f"io.confluent.parallelconsumer:parallel-consumer-core:{VERSION}",
    "org.slf4j:slf4j-nop:2.0.13",  # without it, logging costs more than the work
)
SOURCE, SETTINGS = (Path(__file__).with_name(name) for name in ("Peer.java", "Settings.java"))
HEAP = "-Xmx2g"


def build(work: Path, source: Path = SOURCE) -> tuple[Java, str]:
    """Java, and the class path with the source's classes and `Settings` in it; `work` receives the classes.

    Raises:
        FetchError: The jars cannot be fetched.
        RuntimeError: The source does not compile, with the compiler's words.
    """
    java = find_java()
    jars = fetched(f"parallel-consumer-{VERSION}", COORDINATES)
    return java, compiled(java, [source, SETTINGS], jars, work / "classes")


class Peer:
    """The running peer."""

    def __init__(self, process: JavaProcess) -> None:
        self._process = process

    def run(self, order: str, latency_ms: int, concurrency: int, group: str, count: int) -> float:
        """Messages a second.

        Args:
            order: Either UNORDERED or KEY.
            latency_ms: How long the handler sleeps.
            concurrency: Handlers at once.
            group: The consumer group, a new one each time.
            count: The number of messages.

        Raises:
            RuntimeError: It ended; the message has the end of its log.
        """
        (per_second,) = self._process.ask(order, latency_ms, concurrency, group, count)
        return per_second

    @classmethod
    @contextlib.contextmanager
    def started(cls, java: Java, class_path: str, bootstrap: str, topic: str, work: Path) -> Iterator[Peer]:
        """Runs it for the topic, and ends it."""
        arguments = [HEAP, "-cp", class_path, "Peer", bootstrap, topic]
        with JavaProcess.started(java, arguments, work / "peer.log") as process:
            yield cls(process)
