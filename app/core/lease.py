"""A worker's right to act, by time: what it may do alone, it may do only while its lease holds.

Rule: the lease counts from the moment a heartbeat was *sent* that the control cluster later
acknowledged. The leader counts a worker dead only after it has seen no heartbeat for `dead_after_s`,
which is longer, and counts from the moment the heartbeat *arrived*. Both count durations on their own
monotonic clock, so that skewed clocks do not matter: the worker stops first, always. A process that
was paused (SIGSTOP, a long GC of its host) finds its lease expired when it wakes.
"""

from __future__ import annotations


class Lease:
    """Holds until `duration_s` after the last acknowledged heartbeat was sent."""

    __slots__ = ("duration_s", "expires_at_s")

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self.expires_at_s = float("-inf")

    def renewed(self, sent_at_s: float) -> None:
        """A heartbeat sent at `sent_at_s` (monotonic seconds) was acknowledged."""
        self.expires_at_s = max(self.expires_at_s, sent_at_s + self.duration_s)

    def holds(self, now_s: float) -> bool:
        """Whether the worker may act at `now_s` (monotonic seconds)."""
        return now_s < self.expires_at_s
