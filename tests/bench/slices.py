"""Workers that do the same, each alone for a second by turns: the others are stopped meanwhile (SIGSTOP).

What shares a machine changes its speed by a third within minutes, and within one run against the next. Two
slices side by side see the same machine, and there are dozens of them: their ratios tell a hundredth apart,
which whole runs by turns do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import psutil

from app.demo.stage import Process, StageError, wait_until
from tests.bench.copying.watch import cpu_s

SETTLE_S, SLICE_S = 0.3, 1.0  # what waited while it was stopped is not measured
POLL_S = 0.02
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
    """What one did in a turn."""

    records: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Records a second."""
        return max(1, self.records) / self.seconds

    @property
    def cpu(self) -> float:
        """CPU seconds per million records."""
        return self.cpu_s / max(1, self.records) * 1_000_000


Cycle = Mapping[str, Slice]


class Ratio(NamedTuple):
    """The median of a ratio over cycles, and between what the true one lies (19 of 20 times)."""

    value: float
    low: float
    high: float


def measure(sides: Mapping[str, Side], low: int, high: int) -> list[Cycle]:
    """All go on until each has done `low` records; then slices by turns, who begins changes, until one has
    done `high`. All go on again at the end.

    Raises:
        StageError: one ended, or stands still.
    """
    trees = {name: psutil.Process(side.worker.popen.pid) for name, side in sides.items()}
    cycles: list[Cycle] = []
    with resumed(trees):
        for side in sides.values():  # stopped while they wait for each other they would lose their leases
            side.reaches(low)
        for tree in trees.values():
            _stop(tree)
        names = list(sides)
        while True:
            first = len(cycles) % len(names)
            cycle = {name: _slice(sides[name], trees[name]) for name in names[first:] + names[:first]}
            if any(side.done() >= high for side in sides.values()):
                return cycles
            if not any(slice_.records for slice_ in cycle.values()):
                raise StageError("\n".join(f"{name} stands:\n{sides[name].worker.tail()}" for name in names))
            cycles.append(cycle)


def ratio(cycles: list[Cycle], of: Callable[[Slice], float], name: str, peer: str) -> Ratio:
    """Of `name` to `peer`, of what `of` says of a slice; at least one cycle."""
    found = sorted(of(cycle[name]) / of(cycle[peer]) for cycle in cycles)
    off = int(0.98 * math.sqrt(len(found)))  # ranks that a median lies between, whatever the distribution
    middle = (len(found) - 1) / 2
    ranks = max(0, math.floor(middle - off)), min(len(found) - 1, math.ceil(middle + off))
    return Ratio(median(found), found[ranks[0]], found[ranks[1]])


def whole(cycles: list[Cycle], name: str) -> Slice:
    """All slices of one."""
    records, seconds, cpu = zip(*(cycle[name] for cycle in cycles), strict=True)
    return Slice(sum(records), sum(seconds), sum(cpu))


@contextmanager
def resumed(trees: Mapping[str, psutil.Process]) -> Iterator[None]:
    """Nothing stays stopped, however it ends."""
    try:
        yield
    finally:
        for tree in trees.values():
            _go_on(tree)


def _stop(tree: psutil.Process) -> None:
    for one in (tree, *tree.children(recursive=True)):
        one.suspend()


def _go_on(tree: psutil.Process) -> None:
    for one in (tree, *tree.children(recursive=True)):
        one.resume()


def _slice(side: Side, tree: psutil.Process) -> Slice:
    """It alone, for a moment."""
    _go_on(tree)
    time.sleep(SETTLE_S)
    before, begun_s, cpu_before = side.done(), time.monotonic(), cpu_s(tree)
    time.sleep(SLICE_S)
    after, ended_s, cpu_after = side.done(), time.monotonic(), cpu_s(tree)
    _stop(tree)
    return Slice(after - before, ended_s - begun_s, cpu_after - cpu_before)
