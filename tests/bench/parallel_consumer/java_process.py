"""A peer in Java: compiled when it runs, and asked by lines.

Rules
1. `javac` compiles when it is there; else Eclipse's compiler, a jar that is fetched and needs a JRE only.
2. A run is a line of words on standard input, and its figures are a line on standard output. One process
   serves all runs, so that its code is compiled and warm.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.dev.yard.java import Java
from tests.bench.peer_jars import fetched

ECJ = "3.41.0"
RELEASE = "17"
COMPILE_TIMEOUT_S = 120.0
STOP_S = 10.0
LOG_TAIL_CHARACTERS = 4_000


def compiled(java: Java, sources: Sequence[Path], jars: Sequence[Path], classes: Path) -> str:
    """The class path with the sources' classes in it; the folder `classes` receives them.

    Raises:
        FetchError: There is no compiler, and none can be fetched.
        RuntimeError: The sources do not compile, with the compiler's words.
    """
    classes.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(str(jar) for jar in jars)
    javac = shutil.which("javac")
    if javac:
        command = [javac, "--release", RELEASE]
    else:
        (ecj,) = fetched(f"ecj-{ECJ}", [f"org.eclipse.jdt:ecj:{ECJ}"])
        command = [str(java.executable), "-jar", str(ecj), "-source", RELEASE, "-target", RELEASE, "-nowarn"]
    command += ["-proc:none", "-cp", path, "-d", str(classes), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        names = ", ".join(source.name for source in sources)
        raise RuntimeError(f"{names}: this does not compile:\n{done.stdout}{done.stderr}")
    return os.pathsep.join([str(classes), path])


class JavaProcess:
    """The running peer; runs are given to it one after the other (rule 2)."""

    def __init__(self, popen: subprocess.Popen[str], log: Path) -> None:
        self._popen = popen
        self._log = log

    def ask(self, *words: object) -> list[float]:
        """The figures of a run.

        Raises:
            RuntimeError: The process ended; the message has the end of its log.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(" ".join(map(str, words)) + "\n")
            self._popen.stdin.flush()
        answer = self._popen.stdout.readline()
        if not answer:
            tail = self._log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
            raise RuntimeError(f"the peer ended with {self._popen.wait(STOP_S)}:\n{tail}")
        return [float(figure) for figure in answer.split()]

    @classmethod
    @contextlib.contextmanager
    def started(cls, java: Java, arguments: Sequence[str], log: Path) -> Iterator[JavaProcess]:
        """Runs Java with the arguments, and ends it."""
        with log.open("ab") as errors:
            popen = subprocess.Popen(
                [str(java.executable), *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        try:
            yield cls(popen, log)
        finally:
            popen.kill()
            popen.communicate(timeout=STOP_S)
