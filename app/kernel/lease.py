"""A worker's right to act, by time: what it may do alone, it may do only while its lease holds.

Rule: the lease counts from the moment a heartbeat was *sent* that the control cluster later acknowledged,
and only once the control log was read to the end that it had after that: a worker that lay still knows what
was given to others meanwhile before it acts again. Once it has lapsed it takes two heartbeats: whoever leads
has heard the first when the log is read behind the second. The leader counts a worker dead only after it has
seen no heartbeat for `dead_after_s`, which is longer, and counts from the moment the heartbeat *arrived*.
Both count durations on their own monotonic clock, so that skewed clocks do not matter: the worker stops
first, always. A process that was paused (SIGSTOP, a long GC of its host) finds its lease expired when it
wakes.

A second promise is kept here too: after kill -9 only what was in flight and one snapshot interval of
acknowledgements is delivered again. While the control cluster is slow to take snapshots, no new call is
started, so that what is acknowledged but not saved stays bounded in time: a snapshot interval and
`MAX_LATE_S`.
"""

from __future__ import annotations

MAX_LATE_S = 0.4  # a snapshot takes milliseconds to write; this long only when the cluster is in trouble


class Lease:
    """Holds until `duration_s` after the last acknowledged heartbeat was sent."""

    __slots__ = ("duration_s", "expires_at_s", "save_by_s")

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self.expires_at_s = float("-inf")
        self.save_by_s = float("-inf")

    def renewed(self, sent_at_s: float) -> None:
        """A heartbeat sent at `sent_at_s` (monotonic seconds) was acknowledged, and the log read since."""
        self.expires_at_s = max(self.expires_at_s, sent_at_s + self.duration_s)

    def holds(self, now_s: float) -> bool:
        """Whether the worker may act at `now_s` (monotonic seconds)."""
        return now_s < self.expires_at_s

    def lapsed(self, now_s: float) -> bool:
        """Whether it was held once, and is not any more."""
        return float("-inf") < self.expires_at_s <= now_s

    def saved(self, at_s: float, interval_s: float) -> None:
        """What was acknowledged before `at_s` (monotonic seconds) is in snapshots that were taken; the next
        ones are due `interval_s` later."""
        self.save_by_s = max(self.save_by_s, at_s + interval_s + MAX_LATE_S)

    def may_push(self, now_s: float) -> bool:
        """Whether a call may be started at `now_s`."""
        return now_s < self.expires_at_s and now_s < self.save_by_s
