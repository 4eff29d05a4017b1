"""Workers that do the same at the same time, looked at second by second.

What shares a machine changes its speed by a third within minutes, and within one run against the next. Two
that run side by side see the same machine, and there are dozens of seconds: their ratios tell a few
hundredths apart, which runs by turns do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import psutil

from app.dev.demo.stage import Process, StageError, wait_until
from tests.bench.copying.watch import cpu_s

SLICE_S = 1.0
STALL_S = 180.0


@dataclass(frozen=True, slots=True)
class Side:
    """A worker, and how many records it has done so far."""

    worker: Process
    done: Callable[[], int]

    def reaches(self, count: int) -> None:
        """Waits until it has done so many. Raises StageError when that takes STALL_S."""
        wait_until(
            lambda: self.done() >= count,
            STALL_S,
            lambda: f"{self.done()} of {count} records:\n{self.worker.tail()}",
        )


class Slice(NamedTuple):
    """What one did in a while."""

    records: int
    seconds: float
    cpu_s: float

    def since(self, before: Slice) -> Slice:
        """What came after."""
        return Slice(self.records - before.records, self.seconds - before.seconds, self.cpu_s - before.cpu_s)

    @property
    def rate(self) -> float:
        """Records a second."""
        return max(1, self.records) / self.seconds

    @property
    def cpu(self) -> float:
        """CPU seconds per million records."""
        return self.cpu_s / max(1, self.records) * 1_000_000


Second = Mapping[str, Slice]  # what each did in it


class Ratio(NamedTuple):
    """The median of a ratio over seconds, and about between what the true one lies: 19 of 20 times, were each
    second independent of the one before, which it is not quite."""

    value: float
    low: float
    high: float


def measure(sides: Mapping[str, Side], low: int, high: int) -> list[Second]:
    """From when each has done `low` records until one has done `high`.

    Raises:
        StageError: one stands still.
    """
    trees = {name: psutil.Process(side.worker.popen.pid) for name, side in sides.items()}
    for side in sides.values():
        side.reaches(low)

    before = _look(sides, trees)
    seconds: list[Second] = []
    while True:
        time.sleep(SLICE_S)
        after = _look(sides, trees)
        if any(one.records >= high for one in after.values()):
            return seconds
        seconds.append({name: after[name].since(before[name]) for name in sides})
        if len(seconds) > STALL_S and not any(one.records for one in seconds[-1].values()):
            reports = (f"{name} stands:\n{side.worker.tail()}" for name, side in sides.items())
            raise StageError("\n".join(reports))
        before = after


def ratio(seconds: list[Second], of: Callable[[Slice], float], name: str, peer: str) -> Ratio:
    """Of `name` to `peer`, of what `of` says of a slice; of one second at least."""
    found = sorted(of(second[name]) / of(second[peer]) for second in seconds)
    off = 0.98 * math.sqrt(len(found))  # ranks that a median lies between, whatever the distribution
    middle = (len(found) - 1) / 2
    ranks = max(0, math.floor(middle - off)), min(len(found) - 1, math.ceil(middle + off))
    return Ratio(median(found), found[ranks[0]], found[ranks[1]])


def whole(seconds: list[Second], name: str) -> Slice:
    """All of one."""
    records, times, cpu = zip(*(second[name] for second in seconds), strict=True)
    return Slice(sum(records), sum(times), sum(cpu))


def _look(sides: Mapping[str, Side], trees: Mapping[str, psutil.Process]) -> dict[str, Slice]:
    """All that each has done."""
    return {name: Slice(side.done(), time.monotonic(), cpu_s(trees[name])) for name, side in sides.items()}
