"""The yard's processes: found in the process table, and ended reliably.

A broker has two marks on its command line, its yard's folder and its cluster's name. So the folder alone
finds the brokers, even if the process that started them is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

POLL_INTERVAL_S = 0.05


def marks(home: Path, cluster: str) -> list[str]:
    """Java options that mark a broker as `cluster` of the yard in `home`."""
    return [f"-Dswitchyard.yard={home}", f"-Dswitchyard.cluster={cluster}"]


def own_module(name: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command and environment that run a module of this project in any working directory.

    `-P` keeps Python from importing a package `app` of that directory.
    """
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return [sys.executable, "-P", "-m", name, *arguments], {**os.environ, "PYTHONPATH": path}


def running(home: Path) -> dict[str, psutil.Process]:
    """The live brokers of the yard in `home`, by cluster."""
    yard_mark, cluster_mark = marks(home, "")
    found: dict[str, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments = process.cmdline()  # empty for a zombie
            if yard_mark in arguments:
                names = [a.removeprefix(cluster_mark) for a in arguments if a.startswith(cluster_mark)]
                found.update(dict.fromkeys(names, process))
    return found


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Sends a signal; a process that has ended is fine (psutil recognizes a reused pid)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def wait_stopped(process: psutil.Process, timeout_s: float) -> None:
    """Waits until a SIGSTOP has taken effect: on a busy machine threads run on for a while. A process that
    has ended is fine."""
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)


def wait_gone(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Waits until all have ended and returns those that have not; a zombie counts as ended."""
    deadline = time.monotonic() + timeout_s
    left = list(_alive(processes))
    while left and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
        left = list(_alive(left))
    return left


def _alive(processes: Iterable[psutil.Process]) -> Iterator[psutil.Process]:
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            # A child is a zombie until it is waited for, and looks like one while its threads, which hold its
            # ports, still end.
            if os.waitpid(process.pid, os.WNOHANG) == (0, 0):
                yield process
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def kill_all(home: Path, timeout_s: float) -> None:
    """Kills (-9) every broker of the yard in `home`, also those that start meanwhile."""
    deadline = time.monotonic() + timeout_s
    while (found := list(running(home).values())) and time.monotonic() < deadline:
        for process in found:
            send(process, signal.SIGKILL)
        wait_gone(found, max(0.0, deadline - time.monotonic()))
