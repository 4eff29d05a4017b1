"""Jobs in processes of their own, to be killed."""

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
    """A job in processes of its own, all of which are gone afterwards."""
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "spark", *arguments, *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # Java ends with the one who started it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(condition: Callable[[], bool], process: subprocess.Popen[str], what: str) -> None:
    """Waits for it; the job must not end before."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, f"the job ended before {what}"
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.05)
