"""Workers that do the same at the same time, measured second by second.

Other load on a machine changes its speed by a third within minutes, also from run to run. Two workers side by
side see the same load, and a run has dozens of seconds. Their ratios show differences of a few hundredths,
which runs by turns do not.
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
    """A worker, and its count of processed records."""

    worker: Process
    done: Callable[[], int]

    def reaches(self, count: int) -> None:
        """Waits until the worker has processed this many. Raises StageError after STALL_S without any."""
        wait_until(
            lambda: self.done() >= count,
            STALL_S,
            lambda: f"{self.done()} of {count} records:\n{self.worker.tail()}",
        )


class Slice(NamedTuple):
    """One worker's work in an interval."""

    records: int
    seconds: float
    cpu_s: float

    def since(self, before: Slice) -> Slice:
        """The difference to an earlier slice."""
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
    """The median of a ratio over seconds, with bounds.

    The bounds contain the true ratio 19 of 20 times if seconds were independent, which they are not quite.
    """

    value: float
    low: float
    high: float


def measure(sides: Mapping[str, Side], low: int, high: int) -> list[Second]:
    """Measures from when each has processed `low` records until one has processed `high`.

    Raises:
        StageError: A worker stands still.
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


def ratio(seconds: list[Second], figure: Callable[[Slice], float], name: str, peer: str) -> Ratio:
    """The ratio of `name` to `peer`, by the figure `of` of a slice; needs at least one second."""
    found = sorted(figure(second[name]) / figure(second[peer]) for second in seconds)
    off = 0.98 * math.sqrt(len(found))  # ranks that a median lies between, whatever the distribution
    middle = (len(found) - 1) / 2
    ranks = max(0, math.floor(middle - off)), min(len(found) - 1, math.ceil(middle + off))
    return Ratio(median(found), found[ranks[0]], found[ranks[1]])


def total_of(seconds: list[Second], name: str) -> Slice:
    """All slices of a worker together."""
    records, times, cpu = zip(*(second[name] for second in seconds), strict=True)
    return Slice(sum(records), sum(times), sum(cpu))


def _look(sides: Mapping[str, Side], trees: Mapping[str, psutil.Process]) -> dict[str, Slice]:
    """The totals of each worker now."""
    return {name: Slice(side.done(), time.monotonic(), cpu_s(trees[name])) for name, side in sides.items()}
