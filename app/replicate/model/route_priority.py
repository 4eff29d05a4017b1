"""Decides which of a worker's routes send first.

    high    ████████████████   a route with a backlog holds back those of lower priorities. They get shares of
    normal  ████               what it moves, 16 : 4 : 1, and at least `LEAST_BYTES_S`
    low     █

Rules
1. A replica `presses` while it copies a backlog: until it copies a batch that is no part of one, or nothing
   for `PRIORITY_HOLD_S`. A replica that has caught up, stands still, is paused or is held back by its own
   limits does not press. Others use the capacity that it leaves.
2. Bytes of a lower priority are then sent on credit. Credit grows with every byte of the highest priority
   that presses, and with time, so no priority starves. At most `SAVED_BYTES` of credit are kept.
3. Shares belong to a priority on a worker, not to a route. So a hundred routes of low priority weigh as much
   as one.

Deficit round robin (Shreedhar and Varghese, 1995) needs one place that hands out a known capacity. Here the
capacity (brokers, network, this process) is not known, so the bytes of the highest priority are the measure.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

Priority = Literal["low", "normal", "high"]

WEIGHTS: dict[Priority, int] = {"low": 1, "normal": 4, "high": 16}
LOWER: dict[Priority, tuple[Priority, ...]] = {"low": (), "normal": ("low",), "high": ("normal", "low")}
HIGHER: dict[Priority, tuple[Priority, ...]] = {"low": ("normal", "high"), "normal": ("high",), "high": ()}
LEAST_BYTES_S = 1024 * 1024
SAVED_BYTES = 1024 * 1024
PRIORITY_HOLD_S = 3.0
MIN_WAIT_S, MAX_WAIT_S = 0.02, 0.25  # until the next attempt


class RoutePriorities:
    __slots__ = ("_at_s", "_credit_bytes", "_pressing")

    def __init__(self) -> None:
        # For each priority, until when each replica presses; the most recent are last.
        self._pressing: dict[Priority, dict[Hashable, float]] = {priority: {} for priority in WEIGHTS}
        self._credit_bytes = dict.fromkeys(WEIGHTS, 0.0)
        self._at_s = dict.fromkeys(WEIGHTS, float("-inf"))

    def yields(self, priority: Priority, now_s: float) -> bool:
        for higher in HIGHER[priority]:
            pressing = self._pressing[higher]
            if pressing and now_s < next(reversed(pressing.values())):
                return True
        return False

    def wait_s(self, priority: Priority, now_s: float) -> float:
        """Seconds until the next call may succeed; 0: a batch may be sent now."""
        if not self.yields(priority, now_s):
            return 0.0
        self._earn(priority, min(PRIORITY_HOLD_S, now_s - self._at_s[priority]) * LEAST_BYTES_S)
        self._at_s[priority] = now_s
        owed_bytes = -self._credit_bytes[priority]
        return 0.0 if owed_bytes <= 0 else min(MAX_WAIT_S, max(MIN_WAIT_S, owed_bytes / LEAST_BYTES_S))

    def spend(
        self, priority: Priority, replica: Hashable, now_s: float, size_bytes: int, *, presses: bool
    ) -> None:
        """Accounts for a batch that a replica sends. `presses`: see rule 1."""
        self._forget(now_s)
        pressing = self._pressing[priority]
        pressing.pop(replica, None)
        if presses:
            pressing[replica] = now_s + PRIORITY_HOLD_S
        if self.yields(priority, now_s):
            self._credit_bytes[priority] -= size_bytes
        elif presses:
            for lower in LOWER[priority]:
                self._earn(lower, size_bytes * WEIGHTS[lower] / WEIGHTS[priority])

    def _forget(self, now_s: float) -> None:
        """Drops replicas that press no more; they may never send again."""
        for pressing in self._pressing.values():
            while pressing and pressing[first := next(iter(pressing))] <= now_s:
                del pressing[first]

    def _earn(self, priority: Priority, count: float) -> None:
        self._credit_bytes[priority] = min(SAVED_BYTES, self._credit_bytes[priority] + count)
