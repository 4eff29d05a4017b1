"""Which of a worker's routes go first.

    high    ████████████████   one that works off a backlog holds back those of lower priorities: of what it
    normal  ████               moves they get a share, 16 : 4 : 1, and `LEAST_BYTES_S` in any case
    low     █

Rules
1. A replica `presses` that copies a part of a backlog, until it copies what is none, or nothing for
   `PRIORITY_HOLD_S`. One that has caught up, stands still, is paused, or is held back by its own limits
   presses nobody: what it does not take is the others'.
2. Bytes of a lower priority then go on credit, which grows with every byte of the highest that presses, and
   with time: none is starved, whoever presses. Nothing is saved up beyond `SAVED_BYTES`.
3. Within a priority nobody is told apart: shares are of a worker, not of a route, so that a hundred routes
   of low priority weigh what one does.

Deficit round robin (Shreedhar and Varghese, 1995) does this where one place hands out what there is; here
nobody sees how much there is (brokers, network, this process), so what goes first is what is counted.
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
MIN_WAIT_S, MAX_WAIT_S = 0.02, 0.25  # looked at again


class RoutePriorities:
    """See the module."""

    __slots__ = ("_at_s", "_credit_bytes", "_pressing")

    def __init__(self) -> None:
        # Who presses, and until when, by priority: those that did last come last.
        self._pressing: dict[Priority, dict[Hashable, float]] = {priority: {} for priority in WEIGHTS}
        self._credit_bytes = dict.fromkeys(WEIGHTS, 0.0)
        self._at_s = dict.fromkeys(WEIGHTS, float("-inf"))

    def yields(self, priority: Priority, now_s: float) -> bool:
        """Whether a higher one presses."""
        for higher in HIGHER[priority]:
            pressing = self._pressing[higher]
            if pressing and now_s < next(reversed(pressing.values())):
                return True
        return False

    def wait_s(self, priority: Priority, now_s: float) -> float:
        """Seconds until it is worth asking again; 0 when a batch may go now."""
        if not self.yields(priority, now_s):
            return 0.0
        self._earn(priority, min(PRIORITY_HOLD_S, now_s - self._at_s[priority]) * LEAST_BYTES_S)
        self._at_s[priority] = now_s
        owed_bytes = -self._credit_bytes[priority]
        return 0.0 if owed_bytes <= 0 else min(MAX_WAIT_S, max(MIN_WAIT_S, owed_bytes / LEAST_BYTES_S))

    def spend(
        self, priority: Priority, who: Hashable, now_s: float, size_bytes: int, *, presses: bool
    ) -> None:
        """A batch of a replica goes. `presses`: see rule 1."""
        self._forget(now_s)
        pressing = self._pressing[priority]
        pressing.pop(who, None)
        if presses:
            pressing[who] = now_s + PRIORITY_HOLD_S
        if self.yields(priority, now_s):
            self._credit_bytes[priority] -= size_bytes
        elif presses:
            for lower in LOWER[priority]:
                self._earn(lower, size_bytes * WEIGHTS[lower] / WEIGHTS[priority])

    def _forget(self, now_s: float) -> None:
        """Those that press no more, as they copy nothing: they may never come back."""
        for pressing in self._pressing.values():
            while pressing and pressing[first := next(iter(pressing))] <= now_s:
                del pressing[first]

    def _earn(self, priority: Priority, count: float) -> None:
        self._credit_bytes[priority] = min(SAVED_BYTES, self._credit_bytes[priority] + count)
