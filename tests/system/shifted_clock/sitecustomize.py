"""In a worker's process: its wall clock differs from this machine's by what a file says, at each moment.

The file (its name is in `VARIABLE`) holds seconds as a float of eight bytes, which others may change.

gRPC computes a deadline by Python's clock, and waits for it by that of its C core, which has this machine's.
On a host whose clock is wrong both are one: so gRPC's Python has this machine's clock here, too.
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
    """From now on the workers that were started with this file are so far ahead."""
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(_SECONDS.pack(seconds))


if VARIABLE in os.environ:
    _shift(Path(os.environ[VARIABLE]))
