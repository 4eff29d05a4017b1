"""Latencies that several processes count in one file: cells of 8 bytes, one for each step of 50 us.

The last cell has everything from a second on. Each process that has the file open sees counts at once.
"""

from __future__ import annotations

import time
from itertools import accumulate
from pathlib import Path

from tests.bench.processes.shared_numbers import shared_numbers

STEP_NS = 50_000
CELLS = 20_001  # also in Java and in Go


class Histogram:
    """The counts in a file, which is made if there is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cells = shared_numbers(path, CELLS)

    def note(self, timestamp_ms: int) -> None:
        """Counts a message that was appended at this time, and is handled now."""
        step = (time.time_ns() - timestamp_ms * 1_000_000) // STEP_NS
        self._cells[min(max(step, 0), CELLS - 1)] += 1

    def clear(self) -> None:
        """Forgets all counts."""
        for index in range(CELLS):
            self._cells[index] = 0

    @property
    def count(self) -> int:
        return sum(self._cells)

    def quantile_ms(self, share: float) -> float:
        """The latency that this share of the messages did not exceed, to the end of its step.

        Raises:
            ValueError: A message took longer than a second, or none was counted.
        """
        if self._cells[CELLS - 1]:
            raise ValueError(f"{self._cells[CELLS - 1]} messages took longer than a second")
        if not (count := self.count):
            raise ValueError("no message was counted")
        steps = (step for step, reached in enumerate(accumulate(self._cells)) if reached >= share * count)
        return (next(steps) + 1) * STEP_NS / 1e6
