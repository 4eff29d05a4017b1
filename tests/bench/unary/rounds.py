"""Several sides measured by turns, so that a noisy neighbour hits all of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from statistics import median

import psutil

from tests.bench.run import MIN_ROUNDS, Progress
from tests.bench.unary.cases import Measured

Rounds = dict[str, list[Measured]]


class Neighbours:
    """Processor time of all processes but this one and its descendants.

    The kernel's sum for the machine would be simpler, but a virtual machine may count by ticks and lose half.
    """

    def __init__(self) -> None:
        self._before = _neighbours()
        self._at_s = time.monotonic()

    def cores(self) -> float:
        """Cores that they have used since this object was made, without processes that ended meanwhile."""
        seconds = sum(
            used_s - self._before.get(process, 0.0)
            for process, used_s in _neighbours().items()
            if process in self._before
        )
        return seconds / (time.monotonic() - self._at_s)


def _neighbours() -> dict[tuple[int, float], float]:
    """Seconds of processor time, by process id and time of start."""
    own = psutil.Process(os.getpid())
    family = {own.pid, *(child.pid for child in own.children(recursive=True))}
    used: dict[tuple[int, float], float] = {}
    for process in psutil.process_iter():
        if process.pid in family:
            continue
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used[process.pid, process.create_time()] = times.user + times.system
    return used


def by_turns(sides: Mapping[str, Callable[[], Measured]], rounds: int, progress: Progress) -> Rounds:
    """Measures all sides `rounds` times; another side begins each round.

    Raises:
        ValueError: Fewer rounds than make a median.
    """
    if rounds < MIN_ROUNDS:
        raise ValueError(f"{rounds} rounds make no median; give at least {MIN_ROUNDS}")
    found: Rounds = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            neighbours = Neighbours()
            measured = sides[name]()
            found[name].append(measured)
            progress(
                f"round {number + 1} of {rounds}, {name}: {measured.per_second:,.0f} messages/s, "
                f"{measured.cpu_us:.1f} us of CPU a message, {measured.seconds:.1f} s; "
                f"other processes used {neighbours.cores():.2f} cores"
            )
    return found


def medians(measured: list[Measured]) -> Measured:
    """The median of each figure."""
    return Measured(
        median(one.per_second for one in measured),
        median(one.cpu_us for one in measured),
        median(one.seconds for one in measured),
    )
