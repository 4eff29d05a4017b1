"""Fetches Confluent Parallel Consumer, compiles `Peer.java` against it, and runs that.

Rules
1. The jars are those that its own description asks for (its Kafka client among them), kept in the
   folder of everything that Switchyard fetches.
2. `javac` compiles when it is there; else Eclipse's compiler, which is a jar and needs a JRE only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from app.dev.yard.java import Java, find_java
from tests.bench.peer_jars import fetched

VERSION = "0.5.3.3"
ECJ = "3.41.0"
COORDINATES = (
    f"io.confluent.parallelconsumer:parallel-consumer-core:{VERSION}",
    f"org.eclipse.jdt:ecj:{ECJ}",
    "org.slf4j:slf4j-nop:2.0.13",  # without it, logging costs more than the work
)
SOURCE = Path(__file__).with_name("Peer.java")
RELEASE = "17"
HEAP = "-Xmx2g"
COMPILE_TIMEOUT_S = 120.0
STOP_S = 10.0


def build(work: Path) -> tuple[Java, str]:
    """Java, and the class path with `Peer` in it; `work` receives the classes.

    Raises:
        FetchError: The jars cannot be fetched.
        RuntimeError: The source does not compile, with the compiler's words.
    """
    java = find_java()
    jars = fetched(f"parallel-consumer-{VERSION}", COORDINATES)
    classes = work / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(str(jar) for jar in jars)
    javac = shutil.which("javac")
    if javac:
        command = [javac, "--release", RELEASE]
    else:
        ecj = next(jar for jar in jars if jar.name.startswith("ecj-"))
        command = [str(java.executable), "-jar", str(ecj), "-source", RELEASE, "-target", RELEASE, "-nowarn"]
    command += ["-proc:none", "-cp", path, "-d", str(classes), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{SOURCE.name} does not compile:\n{done.stdout}{done.stderr}")
    return java, os.pathsep.join([str(classes), path])


class Peer:
    """The running peer; runs are given to it one after the other."""

    def __init__(self, popen: subprocess.Popen[str], log: Path) -> None:
        self._popen = popen
        self._log = log

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
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(f"{order} {latency_ms} {concurrency} {group} {count}\n")
            self._popen.stdin.flush()
        answer = self._popen.stdout.readline()
        if not answer:
            tail = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the peer ended with {self._popen.wait(STOP_S)}:\n{tail}")
        return float(answer)

    @classmethod
    @contextlib.contextmanager
    def started(cls, java: Java, class_path: str, bootstrap: str, topic: str, work: Path) -> Iterator[Peer]:
        """Runs it for the topic, and ends it."""
        log = work / "peer.log"
        with log.open("ab") as errors:
            popen = subprocess.Popen(
                [str(java.executable), HEAP, "-cp", class_path, "Peer", bootstrap, topic],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        try:
            yield cls(popen, log)
        finally:
            popen.kill()
            popen.communicate(timeout=STOP_S)
