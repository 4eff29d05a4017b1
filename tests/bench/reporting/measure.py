"""Runs one work in a process of its own and measures memory and processor time of all its processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import psutil

from tests.bench.reporting.files import Progress
from tests.bench.reporting.works import Work

LOOK_EVERY_S = 0.25
PROGRESS_EVERY_S = 30.0
TAIL = 4000
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """`cpu_s` is the processor time of all processes, their start included. `peak_mb` is their largest
    resident memory (Spark: driver, Java and Python workers; memory that forked workers share counts for
    each)."""

    seconds: float
    start_s: float
    cpu_s: float
    peak_mb: float
    answer: Any


def measure(work: Work, progress: Progress) -> Measured:
    """Runs the work once.

    Raises:
        RuntimeError: It failed; the message has the end of its output.
    """
    command = [sys.executable, "-m", "tests.bench.reporting.works", msgspec.json.encode(work).decode()]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=out, stderr=said)
        try:
            peak, cpu_s = _watch(process, work, progress)
        finally:
            if process.poll() is None:
                _end(process)
        out.seek(0)
        said.seek(0)
        if process.returncode:
            raise RuntimeError(
                f"{work.engine}, {work.work}: exit code {process.returncode}\n{said.read()[-TAIL:]}"
            )
        found = json.loads(out.read().splitlines()[-1])
    return Measured(found["seconds"], found["start_s"], cpu_s, peak / MB, found["answer"])


def _watch(process: subprocess.Popen[bytes], work: Work, progress: Progress) -> tuple[int, float]:
    """Samples until the process ends; returns the most bytes seen, and seconds of processors."""
    watched = psutil.Process(process.pid)
    peak, began_s, reported_s = 0, time.monotonic(), time.monotonic()
    spent_s: dict[int, float] = {}  # by process, as last seen: it may end before the others do
    while process.poll() is None:
        peak = max(peak, _look(watched, spent_s))
        now_s = time.monotonic()
        if now_s - reported_s >= PROGRESS_EVERY_S:
            reported_s = now_s
            progress(
                f"{work.engine}, {work.work}, {work.rows:,}: {now_s - began_s:.0f} s, {peak / MB:,.0f} MB"
            )
        time.sleep(LOOK_EVERY_S)
    return peak, sum(spent_s.values())


def _look(process: psutil.Process, spent_s: dict[int, float]) -> int:
    """The bytes of all processes now; notes the processor time of each."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += one.memory_info().rss
                times = one.cpu_times()
                spent_s[one.pid] = times.user + times.system
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    process.kill()
    process.wait()
