"""Spark jobs in processes that a test can kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tests.spark.conftest import SETTINGS

WAIT_S = 300.0


@contextlib.contextmanager
def job(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a job in a process group, which is killed when the block ends."""
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "spark", *arguments, *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # the group is gone once Java and Python have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(condition: Callable[[], bool], process: subprocess.Popen[str], event: str) -> None:
    """Waits for the condition; fails if the job ends first or after `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, f"the job ended before {event}"
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {event}"
        time.sleep(0.05)
