"""Says whether a worker knows that its region has run without a break. Pure.

A region that lay still as a whole may have lost its roles to other regions meanwhile. No wall clock counts
here, and no clock of another worker.

Rules
1. A worker never uses a name twice. It takes a new name after `OUT_OF_TOUCH_S` without the control log, by
   its own monotonic clock. So a worker was present for as long as it has its name.
2. A pulse (`app.controllog.events.RegionPulse`) names the workers that the leader hears, and says whether the
   region has just returned. A pulse that says no, and has this worker's name, proves that the region has run
   without a break. Its writer knew so, and this worker has been present since. It counts however late it
   arrives.
3. A worker without this proof does not know. As the leader, it then says that the region has just returned.
   So a region says this when it has lost every worker that its pulses named. (A leader may be lost before it
   has named the next leader, and the region says it too. So a leader names new workers at once.)
4. A pulse that names no workers is from a leader of an older version, during an upgrade. It is a proof if it
   arrived after this worker had read the log to its end under its name. (An old producer that kept a pulse
   through an outage would make a false proof: only an upgrade during an outage has this risk.)
"""

from __future__ import annotations

from collections.abc import Callable

from app.controllog.events import RegionPulse

OUT_OF_TOUCH_S = 15.0  # a shorter outage of the control cluster stops nothing


class Presence:
    """The presence of one worker.

    `in_touch_s`: the time (monotonic seconds) of which all records in the control log have been read; -inf:
    none yet.
    """

    __slots__ = ("_count", "_first_pulse", "_in_touch_s", "_named_s", "_proved", "_worker")

    def __init__(self, worker: str, in_touch_s: Callable[[], float]) -> None:
        self._worker = worker
        self._in_touch_s = in_touch_s
        self._count = 0
        self._named_s = float("-inf")
        self._proved = ""
        self._first_pulse = "", 0  # the name, and the time of the last pulse when the log was first read

    @property
    def name(self) -> str:
        """The worker's name now (rule 1)."""
        return f"{self._worker}/{self._count}"

    def update(self, now_s: float) -> None:
        """Applies rule 1. Called before every heartbeat that may renew the lease, and before every pulse."""
        if now_s - self._in_touch_s() > OUT_OF_TOUCH_S:
            self._count += 1
            self._named_s = now_s

    def knows(self, last: RegionPulse) -> bool:
        """Whether the last pulse, or an earlier one, proves that the region ran without a break (rule 2)."""
        if not last.returned_ms and (self.name in last.workers or self._arrived_since(last)):
            self._proved = self.name
        return self._proved == self.name

    def _arrived_since(self, last: RegionPulse) -> bool:
        """Rule 4: whether the pulse arrived after the log was read to its end."""
        if last.workers or self._in_touch_s() <= self._named_s:
            return False
        if self._first_pulse[0] != self.name:
            self._first_pulse = self.name, last.at_ms
        return last.at_ms != self._first_pulse[1]
