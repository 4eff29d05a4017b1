"""A worker's lease: it may act only while the control cluster has acknowledged its heartbeats.

- The lease runs from the *sending* of a heartbeat. It is renewed only after the heartbeat was acknowledged
  and the control log was then read to its end. So a worker that was suspended learns which of its jobs moved
  before it acts again.
- After a lapse the lease takes two heartbeats: when the worker reads the log after the second one, the leader
  has seen the first.
- The leader declares a worker dead after `dead_after_s` without a heartbeat, counted from its *arrival*, or
  at once when its last heartbeat says that it stopped, or its process has ended. `dead_after_s` is longer
  than the lease. Both sides measure durations on their own monotonic clocks, so the worker always stops
  first, however their clocks differ.
- A process that was paused (SIGSTOP, a suspended host) finds its lease expired when it resumes.

The lease also bounds repeats. After a kill -9, only messages in flight and one snapshot interval of
acknowledgements are delivered again. So while snapshots are late, no new call starts: unsaved
acknowledgements are at most a snapshot interval plus `MAX_LATE_S` old.
"""

from __future__ import annotations

MAX_LATE_S = 0.4  # a snapshot takes milliseconds to write unless the cluster has a problem


class Lease:
    """A right to act until `duration_s` after the last acknowledged heartbeat was sent."""

    __slots__ = ("duration_s", "expires_at_s", "save_by_s")

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self.expires_at_s = float("-inf")
        self.save_by_s = float("-inf")

    def renewed(self, sent_at_s: float) -> None:
        """Renews the lease: a heartbeat sent at `sent_at_s` (monotonic seconds) was acknowledged and the
        log read."""
        self.expires_at_s = max(self.expires_at_s, sent_at_s + self.duration_s)

    def holds(self, now_s: float) -> bool:
        """Whether the worker may act at `now_s` (monotonic seconds)."""
        return now_s < self.expires_at_s

    def lapsed(self, now_s: float) -> bool:
        """Whether the worker held the lease once and lost it."""
        return float("-inf") < self.expires_at_s <= now_s

    def saved(self, at_s: float, interval_s: float) -> None:
        """Snapshots cover all acknowledgements before `at_s` (monotonic seconds); the next are due
        `interval_s` later."""
        self.save_by_s = max(self.save_by_s, at_s + interval_s + MAX_LATE_S)

    def may_push(self, now_s: float) -> bool:
        """Whether a call may start at `now_s` (monotonic seconds)."""
        return now_s < self.expires_at_s and now_s < self.save_by_s
