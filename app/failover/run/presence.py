"""Whether a worker knows that its region has gone on without a break: since others may have taken over what a
region did while it lay still as a whole. Pure; no wall clock counts, and no other worker's clock.

Rules
1. A worker has a name that is never used twice. It takes a new one when it has had no touch with the control
   log for `OUT_OF_TOUCH_S`, by its own monotonic clock: whoever has a name was there as long as it has it.
2. A pulse (`app.controllog.events.RegionPulse`) names the workers that its leader hears. One that says that
   the region goes on, and names this worker as it is called now, proves that it has gone on: whoever wrote it
   knew so then, and since then this worker has been there itself. That holds however late it comes.
3. Who has no such proof does not know, and if it leads, it says that the region has just returned. So a
   region does of which none is left that its pulses have named. (A leader may be lost before it has named the
   worker that leads next, and that is taken for the same. It names who is new at once.)
4. A pulse that names nobody is of an older version, which leads while a region is upgraded. It proves the
   same if it came after this worker, called as it is now, had read the log to its end. (So would one that its
   producer has kept through an outage: that is the price of an upgrade during one.)
"""

from __future__ import annotations

from collections.abc import Callable

from app.controllog.events import RegionPulse

OUT_OF_TOUCH_S = 15.0  # a control cluster that was away for less stops nothing once it is back


class Presence:
    """One worker's. `in_touch_s`: all that stood in the control log then has been read here (monotonic
    seconds, -inf before the first time)."""

    __slots__ = ("_count", "_in_touch_s", "_named_s", "_proved", "_stood", "_worker")

    def __init__(self, worker: str, in_touch_s: Callable[[], float]) -> None:
        self._worker = worker
        self._in_touch_s = in_touch_s
        self._count = 0
        self._named_s = float("-inf")
        self._proved = ""
        self._stood = "", 0  # a name, and of which time the pulse was that stood there at its first touch

    @property
    def name(self) -> str:
        """What the worker is called now."""
        return f"{self._worker}/{self._count}"

    def update(self, now_s: float) -> None:
        """Rule 1; before every heartbeat that may renew the lease, and before every pulse."""
        if now_s - self._in_touch_s() > OUT_OF_TOUCH_S:
            self._count += 1
            self._named_s = now_s

    def knows(self, last: RegionPulse) -> bool:
        """Whether it is proved that the region goes on, by its last pulse or by one before (rule 2)."""
        if not last.returned_ms and (self.name in last.workers or self._came_since(last)):
            self._proved = self.name
        return self._proved == self.name

    def _came_since(self, last: RegionPulse) -> bool:
        """Rule 4."""
        if last.workers or self._in_touch_s() <= self._named_s:
            return False
        if self._stood[0] != self.name:
            self._stood = self.name, last.at_ms
        return last.at_ms != self._stood[1]
