"""Shifts the wall clock of a worker's process by the seconds that a file holds at each moment.

`VARIABLE` names the file, which holds a float of eight bytes; the test may change it while the worker runs.

gRPC computes a deadline by Python's clock and waits for it by the clock of its C core, which is the
machine's. On a host with a wrong clock both agree, so gRPC's Python code keeps the machine's clock here.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

VARIABLE = "SWITCHYARD_TEST_CLOCK"
_SECONDS = struct.Struct("d")


def _shift(file: Path) -> None:
    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)
    wall_s, wall_ns = time.time, time.time_ns

    def shift_s() -> float:
        return float(_SECONDS.unpack_from(shared)[0])

    def shifted_s() -> float:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return wall_s() if caller.partition(".")[0] == "grpc" else wall_s() + shift_s()

    time.time = shifted_s
    time.time_ns = lambda: wall_ns() + round(shift_s() * 1e9)


def set_clock(file: Path, seconds: float) -> None:
    """Sets how far ahead the clock of workers with this file is, from now on."""
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(_SECONDS.pack(seconds))


if VARIABLE in os.environ:
    _shift(Path(os.environ[VARIABLE]))
