"""How long processes were ready to run and had no core, so that tests can subtract the load of the
machine."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path

from app.dev.demo.background_thread import Background

SAMPLE_S = 0.05


class WaitSampler(Background):
    """Samples the main threads of processes while it is entered; waits count as 0 where the kernel reports
    none.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        super().__init__()
        self._files = {pid: Path(f"/proc/{pid}/task/{pid}/schedstat") for pid in pids}
        self._at_ms: list[float] = []
        self._waited_ms: dict[int, list[float]] = {pid: [] for pid in self._files}

    def work(self) -> None:
        while not self.ended.wait(SAMPLE_S):
            for pid, file in self._files.items():
                before = self._waited_ms[pid]
                try:  # time on a core, time without one, how often
                    before.append(int(file.read_text().split()[1]) / 1e6)
                except OSError:
                    before.append(before[-1] if before else 0.0)
            self._at_ms.append(time.time_ns() / 1e6)

    def waited(self, pid: int, from_ms: float, to_ms: float) -> float:
        """Milliseconds without a core between the samples around these times."""
        known = self._waited_ms[pid]
        first = max(0, bisect_right(self._at_ms, from_ms) - 1)
        last = min(len(self._at_ms) - 1, bisect_left(self._at_ms, to_ms))
        return known[last] - known[first] if last > first else 0.0
