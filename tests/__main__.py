"""All tests, in hardly more time than those with brokers take: `python -m tests`, or `make test`.

Tests with brokers wait most of the time. Many that need none (marker `beside`, given in conftest) run in a
process of their own meanwhile, at a priority that leaves the machine to the others, whose brokers must not be
late. What they print comes after what the others printed, and the exit code is 0 only if both were.
`PYTEST_ADDOPTS` reaches both. For some of the tests `pytest PATH` does as ever.

Ctrl-C and SIGTERM end both; brokers are taken down first.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO

import pytest

PYTEST = (sys.executable, "-m", "pytest")
NICENESS = 15
TIMEOUT_S = 1200  # of one test beside: it may get little of the machine for as long as the others need it
STOP_S = 10.0


def lower(pid: int) -> None:
    """The session of this process comes after all others, where the kernel shares time out by session.

    There (autogroups of Linux) niceness counts within a session only, and each broker is one of its own.
    """
    with contextlib.suppress(OSError):  # another system, or a kernel that does not
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))


@contextlib.contextmanager
def beside(output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The tests that need no broker, started; ended with the block."""
    color = "yes" if sys.stdout.isatty() else "no"
    command = (
        "nice",
        "-n",
        str(NICENESS),
        *PYTEST,
        "-m",
        "beside",
        f"--timeout={TIMEOUT_S}",
        f"--color={color}",
    )
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )
    lower(process.pid)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def others() -> int:
    """The exit code of all other tests; waits for their end whatever happens, since brokers are theirs."""
    process = subprocess.Popen((*PYTEST, "-m", "not beside"))

    def told_to_end(number: int, frame: FrameType | None) -> None:
        process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, told_to_end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for them too, and then they end
    return process.wait()


def main() -> int:
    """The exit code of pytest, of whoever's is not 0."""
    with tempfile.TemporaryFile() as output, beside(output) as process:
        code = others()
        if code == pytest.ExitCode.INTERRUPTED:
            return code
        code_beside = process.wait()
        output.seek(0)
        sys.stdout.write("\nThe tests beside them, which need no brokers:\n")
        sys.stdout.flush()
        sys.stdout.buffer.write(output.read())
        sys.stdout.write(f"\npytest ended with {code}, and beside it with {code_beside}.\n")
        return code or code_beside


if __name__ == "__main__":
    sys.exit(main())
