"""Runs the tests in three processes of pytest at once: `python -m tests`, or `make test`.

    python -m tests                        all tests that are not deep
    python -m tests --deep 3/8             the third eighth of the deep tests
    python -m tests --deep 1/1             all deep tests
    python -m tests tests/system -k audit  paths and options go to pytest

Tests with brokers wait most of the time, so three processes share the machine. Each has the tests
of a marker, which conftest gives:

- `second`: tests of whole workers, of containers and of some folders, on a yard of their own.
- `beside`: tests that need no broker. They run at a low priority, so that they do not delay brokers.
- all other tests, on another yard. This process prints at once, the other two when they end.

A test that is marked `second_try` and failed runs once more, alone, after all other tests. The last lines
list it, because it must still be mended. Tests that count messages never have that marker.

The exit code is 0 when every test passed at its first or second try. Ctrl-C and SIGTERM end all processes,
after brokers and containers are taken down.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import pytest

from app.dev.yard.broker import AUTOMATIC_PORTS
from tests.conftest import (
    FAILURES_VARIABLE,
    PART_VARIABLE,
    PORTS_VARIABLE,
    PROCESS_VARIABLE,
    PROFILE_VARIABLE,
    parse_part,
)

PYTEST = (sys.executable, "-m", "pytest")
NICENESS = 15
TIMEOUT_S = 1200  # of one test of `beside`: the other processes may leave it little time
STOP_TIMEOUT_S = 120.0  # brokers and containers are taken down
MAX_SECOND_TRIES = 5  # more failures than this are not by chance
NOTHING_RAN = int(pytest.ExitCode.NO_TESTS_COLLECTED)
FAILED = int(pytest.ExitCode.TESTS_FAILED)


class TestProcess:
    """A process of pytest with the tests of a marker, on ports of its own.

    Its output waits in `output`; it is printed at once if `output` is None.
    """

    __test__ = False

    def __init__(
        self, title: str, marker: str, ports: range, env: dict[str, str], output: IO[bytes] | None
    ) -> None:
        self.title = title
        self._env = {**env, PORTS_VARIABLE: f"{ports.start}-{ports.stop}"}
        self._command: list[str] = [*PYTEST, "-m", marker]
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._is_interrupted = False

    def start(self, arguments: Sequence[str]) -> None:
        """Starts it with the terminal, or in a session that Ctrl-C does not reach."""
        command = [*self._command, *arguments]
        if self._output is None:
            self._process = subprocess.Popen(command, env=self._env)
            return
        command.append(f"--color={'yes' if sys.stdout.isatty() else 'no'}")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=self._env,
            start_new_session=True,
        )

    def start_low(self, arguments: Sequence[str]) -> None:
        """Starts it at the lowest priority.

        With Linux' autogroups a process' niceness counts only in its session, so it sets the session's, too.
        """
        self._command = ["nice", "-n", str(NICENESS), *self._command, f"--timeout={TIMEOUT_S}"]
        self.start(arguments)
        assert self._process is not None
        with contextlib.suppress(OSError):  # not Linux, or a kernel without autogroups
            Path(f"/proc/{self._process.pid}/autogroup").write_text(str(NICENESS))

    def wait(self) -> int:
        """Waits for its end and prints its output; its exit code."""
        assert self._process is not None
        code = self._process.wait()
        if self._output is not None:
            sys.stdout.write(f"\n{self.title}:\n")
            sys.stdout.flush()
            self._output.seek(0)
            sys.stdout.buffer.write(self._output.read())
            sys.stdout.flush()
        return code

    def interrupt(self, *, by_terminal: bool = False) -> None:
        """Sends Ctrl-C, unless the terminal did: its fixtures take brokers and containers down.

        It is sent only once, because a second Ctrl-C would stop the fixtures.
        """
        if self._process is not None and not self._is_interrupted:
            self._is_interrupted = True
            if not by_terminal:
                self._process.send_signal(signal.SIGINT)  # no effect after its end

    def end(self) -> None:
        """Waits until the interrupted process ends, or kills it with its brokers."""
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def run_together(arguments: Sequence[str], env: dict[str, str], suite: str) -> list[int]:
    """Runs the tests of a suite (a marker expression). Three exit codes, or the one of an interrupt."""
    with tempfile.TemporaryFile() as second, tempfile.TemporaryFile() as beside:
        third = len(AUTOMATIC_PORTS) // 3
        ports = [AUTOMATIC_PORTS[n * third : (n + 1) * third] for n in range(3)]

        def make(title: str, kind: str, n: int, output: IO[bytes] | None) -> TestProcess:
            marker = kind if kind != "first" else "not beside and not second"
            return TestProcess(
                title, f"{marker} and {suite}", ports[n], env | {PROCESS_VARIABLE: kind}, output
            )

        main = make("Tests with brokers", "first", 0, None)
        middle = make("Tests of whole workers, containers and more", "second", 1, second)
        low = make("Tests without brokers", "beside", 2, beside)
        processes = (main, middle, low)

        def interrupt(number: int, frame: FrameType | None) -> None:
            for process in processes:
                process.interrupt(by_terminal=number == signal.SIGINT and process is main)

        signal.signal(signal.SIGTERM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
        codes: list[int] = []
        try:
            for process in processes:
                (process.start_low if process is low else process.start)(arguments)
            for process in processes:
                codes.append(process.wait())
                if codes[-1] in {pytest.ExitCode.INTERRUPTED, -signal.SIGINT}:
                    return codes[-1:]
        finally:
            for process in processes:
                process.interrupt()
            for process in processes:
                process.end()
    sys.stdout.write("\n")
    for process, code in zip(processes, codes, strict=True):
        sys.stdout.write(f"{process.title}: pytest ended with {code}.\n")
    return codes


def run_second_tries(failures: Path, env: dict[str, str]) -> bool:
    """Runs the failed tests once more, alone. False if one may not have a second try or fails again."""
    failed = [json.loads(line) for line in failures.read_text().splitlines()]
    names = sorted({one["test"] for one in failed})
    if not all(one["may_try_again"] for one in failed) or not 0 < len(names) <= MAX_SECOND_TRIES:
        return False
    failures.write_text("")
    sys.stdout.write("\nSecond tries, alone:\n")
    sys.stdout.flush()
    if subprocess.run([*PYTEST, *names], env=env, check=False).returncode:
        return False
    for name in names:
        sys.stdout.write(f"RERUN {name} passed at its second try: mend it\n")
    return True


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deep", metavar="PART/PARTS", type=parse_part, help="deep tests instead: 3/8, 1/1")
    known, others = parser.parse_known_args(arguments)
    began_s, suite = time.monotonic(), "not deep"
    with tempfile.NamedTemporaryFile() as failures:
        env = {**os.environ, FAILURES_VARIABLE: failures.name}
        env.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # without .pyc files a hundred processes would compile the application
        if known.deep:
            suite = "in_part"
            env[PART_VARIABLE] = "{}/{}".format(*known.deep)
            env.setdefault(PROFILE_VARIABLE, "ci")
        codes = run_together(others, env, suite)
        if others or known.deep:  # one process may have all of the tests
            codes = [code for code in codes if code != NOTHING_RAN] or [NOTHING_RAN]
        code = next((code for code in codes if code), 0)
        if code == FAILED and set(codes) <= {0, FAILED} and run_second_tries(Path(failures.name), env):
            code = 0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes, cpu_minutes = (time.monotonic() - began_s) / 60, (used.ru_utime + used.ru_stime) / 60
    sys.stdout.write(f"{minutes:.1f} minutes, {cpu_minutes:.1f} CPU minutes without brokers.\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
