"""All tests, in much less time than one after the other: `python -m tests`, or `make test`.

Tests with brokers wait most of the time, so three processes of pytest share the machine, each with the tests
of a marker, which conftest gives:

- `whole`: tests of whole workers and of containers, on a yard of their own.
- `beside`: those that need no broker, at a priority that leaves the machine to the others, whose brokers must
  not be late.
- all others, on another yard. What these print is seen at once, the other two's after it.

The exit code is 0 only if it is each one's. `PYTEST_ADDOPTS` and arguments reach all three, as in
`python -m tests tests/system tests/kernel`. For some of the tests `pytest PATH` does as ever.

Ctrl-C and SIGTERM end all; brokers and containers are taken down first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import pytest

from app.dev.yard.broker import AUTOMATIC_PORTS
from tests.conftest import PORTS_VARIABLE

PYTEST = (sys.executable, "-m", "pytest")
NICENESS = 15
TIMEOUT_S = 1200  # of one test beside: it may get little of the machine for as long as the others need it
STOP_S = 120.0  # brokers are taken down, and containers
NOTHING_RAN = int(pytest.ExitCode.NO_TESTS_COLLECTED)


class Front:
    """A process of pytest with the tests of a marker, which start whatever they start on ports of its own.

    Its output waits, or is seen at once where None.
    """

    def __init__(self, marker: str, told: str, ports: range, output: IO[bytes] | None) -> None:
        self.told = told
        self._env = {**os.environ, PORTS_VARIABLE: f"{ports.start}-{ports.stop}"}
        self._command: list[str] = [*PYTEST, "-m", marker]
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._is_interrupted = False

    def start(self, arguments: Sequence[str]) -> None:
        """Starts it: with the terminal, or in a session that no Ctrl-C reaches."""
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
        """The same, after all others: where the kernel shares time out by session, this one comes last.

        There (autogroups of Linux) niceness counts within a session only, and each broker is one of its own.
        """
        self._command = ["nice", "-n", str(NICENESS), *self._command, f"--timeout={TIMEOUT_S}"]
        self.start(arguments)
        assert self._process is not None
        with contextlib.suppress(OSError):  # another system, or a kernel that does not
            Path(f"/proc/{self._process.pid}/autogroup").write_text(str(NICENESS))

    def wait(self) -> int:
        """Its exit code, once it has ended; what it wrote is shown now."""
        assert self._process is not None
        code = self._process.wait()
        if self._output is not None:
            sys.stdout.write(f"\n{self.told}:\n")
            sys.stdout.flush()
            self._output.seek(0)
            sys.stdout.buffer.write(self._output.read())
            sys.stdout.flush()
        return code

    def interrupt(self, is_told: bool = False) -> None:
        """Ctrl-C: its fixtures end, and with them brokers and containers. `is_told`: the terminal did it.

        Once only: a second one would end the ending.
        """
        if self._process is not None and not self._is_interrupted:
            self._is_interrupted = True
            if not is_told:
                self._process.send_signal(signal.SIGINT)  # nothing, once it has ended

    def end(self) -> None:
        """Interrupted, it ends in time or is killed; brokers end with it then as well."""
        if self._process is not None:
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def main(arguments: Sequence[str]) -> int:
    """The exit code of pytest, of the first whose is not 0."""
    with tempfile.TemporaryFile() as whole, tempfile.TemporaryFile() as beside:
        third = len(AUTOMATIC_PORTS) // 3
        some, others, rest = (AUTOMATIC_PORTS[n * third : (n + 1) * third] for n in range(3))
        first = Front("not beside and not whole", "The tests with brokers", some, None)
        second = Front("whole", "The tests of whole workers and of containers", others, whole)
        low = Front("beside", "The tests beside them, which need no brokers", rest, beside)
        fronts = (first, second, low)

        def told_to_end(number: int, frame: FrameType | None) -> None:
            for front in fronts:
                front.interrupt(is_told=number == signal.SIGINT and front is first)

        signal.signal(signal.SIGTERM, told_to_end)
        signal.signal(signal.SIGINT, told_to_end)
        codes: list[int] = []
        try:
            first.start(arguments)
            second.start(arguments)
            low.start_low(arguments)
            for front in fronts:
                codes.append(front.wait())
                if codes[-1] in {pytest.ExitCode.INTERRUPTED, -signal.SIGINT}:
                    return codes[-1]
        finally:
            for front in fronts:
                front.interrupt()
            for front in fronts:
                front.end()
    sys.stdout.write("\n")
    for front, code in zip(fronts, codes, strict=True):
        sys.stdout.write(f"{front.told}: pytest ended with {code}.\n")
    if arguments and 0 in codes:  # of what was asked for, there may be tests of one kind only
        codes = [code for code in codes if code != NOTHING_RAN]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
