"""Outlier detection: which endpoints of a receiver fail messages that the others take, or take far longer.

The balancer alone would send most messages to an endpoint that fails at once: it has the fewest in flight.

Source: Envoy's outlier detection (`failure_percentage`, `base_ejection_time`, `max_ejection_percent`). Envoy
has a fixed threshold; this one compares with the other endpoints, because a faulty message fails everywhere.

Rules (tests/dispatch/model/test_outlier_detection.py)
1. An endpoint fails if it failed `FAILED_SHARE` of its messages, and `FAILED_RATIO` times the share of the
   others together. It is slow if it takes `SLOW_RATIO` times as long as they do, and `SLOW_BY_S` longer.
2. The calls of the last one to two `WINDOW_S` count. Both sides need `MIN_CALLS`, because a share of fewer
   calls is noise.
3. At most half of the endpoints that are not away are ejected at a time, so that the rest can bear the load.
4. A probe that is not answered holds its message up for the timeout. So an endpoint that is ejected, or whose
   breaker opens while others take messages, pauses: it gets no probe for `PAUSE_S`. A pause that follows soon
   is that much longer, up to `MAX_PAUSE_S`.
5. The pause of an endpoint that was not ejected ends when it answers a health check. If a probe then times
   out, it pauses again, and for the whole time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.kernel.rates import RateWindow

INTERVAL_S = 1.0
WINDOW_S = 5.0
MIN_CALLS = 20
FAILED_SHARE = 0.2
FAILED_RATIO = 4.0
SLOW_RATIO = 5.0
SLOW_BY_S = 0.01
PAUSE_S = 10.0
MAX_PAUSE_S = 60.0


class CallCounts(NamedTuple):
    """One endpoint's lately: `calls` messages were answered, and `failed` of them not taken. `latency_s` is
    the sum of the times to their answers."""

    calls: int
    failed: int
    latency_s: float

    @property
    def failed_share(self) -> float:
        return self.failed / self.calls

    @property
    def mean_s(self) -> float:
        return self.latency_s / self.calls


NO_CALLS = CallCounts(0, 0, 0.0)


class Outlier(NamedTuple):
    """The number of the endpoint, and why, for people."""

    number: int
    why: str


class Standing:
    """How one endpoint stands beside the others. `answers` are its answers to health checks so far.

    Attributes:
        slow: Why it counts as slow; "": it does not.
        is_ejected: It failed messages that others take, and has not taken one since.
        is_reported: An incident says that it is an outlier.
        pauses_until_s: It gets no probe before; 0: it has no pause.
    """

    __slots__ = (
        "_calls", "_ends_at", "_failed", "_latency_s", "_outlier", "_outlier_s", "_paused_s", "_pauses",
        "_soon_s", "_window", "is_ejected", "is_reported", "pauses_until_s", "slow",
    )  # fmt: skip

    def __init__(self) -> None:
        self.slow = self._outlier = ""
        self.is_ejected = self.is_reported = False
        self.pauses_until_s = 0.0
        self._outlier_s = self._paused_s = self._soon_s = float("-inf")
        self._pauses = 0  # in a row
        self._ends_at: int | None = None  # with more answers than these; None: with none
        self._calls = self._failed = 0
        self._latency_s = 0.0
        self._window = RateWindow(WINDOW_S, 0.0)

    def add(self, count: int, latency_s: float, *, failed: bool) -> None:
        """Counts messages, each answered after `latency_s`; `failed`: they were not taken."""
        self._calls += count
        self._latency_s += latency_s * count
        if failed:
            self._failed += count

    def counts(self, now_s: float) -> CallCounts:
        """The calls lately; is called about once in `INTERVAL_S`."""
        self._window.sample(now_s, self._calls, self._failed, self._latency_s)
        grown = self._window.growth()
        return NO_CALLS if grown is None else CallCounts(int(grown[1][0]), int(grown[1][1]), grown[1][2])

    def eject(self, why: str, now_s: float) -> None:
        """Begins its ejection (rule 4); the calls before it do not count afterwards."""
        self.is_ejected = True
        self._outlier, self._outlier_s = why, now_s
        self._window = RateWindow(WINDOW_S, 0.0)
        self._pause(now_s, None)

    def judge_speed(self, slow: str, now_s: float) -> None:
        """`slow`: why it is slow beside the others; "": it is not."""
        self.slow = slow
        if slow:
            self._outlier, self._outlier_s = slow, now_s

    def outlier(self, now_s: float) -> str:
        """Why it is an outlier, or was one lately; "": it was not."""
        return self._outlier if self.is_ejected or now_s < self._outlier_s + MAX_PAUSE_S else ""

    def failed_beside_others(self, now_s: float, started_s: float, answers: int, *, timed_out: bool) -> bool:
        """Takes a call that began at `started_s`; the breaker is open now, and others take messages (rules 4
        and 5). Returns whether it needs a health check."""
        if not self.pauses_until_s:
            self._pause(now_s, answers)
            return True
        if timed_out and started_s > self._paused_s:
            self._pause(now_s, None)
        return False

    def _pause(self, now_s: float, ends_at: int | None) -> None:
        self._pauses = self._pauses + 1 if now_s < self._soon_s else 1
        self._paused_s = now_s
        self.pauses_until_s = now_s + min(PAUSE_S * self._pauses, MAX_PAUSE_S)
        self._soon_s = self.pauses_until_s + MAX_PAUSE_S
        self._ends_at = ends_at

    def end_pause(self) -> None:
        """Gets probes again: no other endpoint takes messages."""
        self.pauses_until_s = 0.0

    def recover(self) -> None:
        """It took a message after its breaker had opened."""
        self.is_ejected = False
        self.end_pause()

    def is_paused(self, now_s: float, answers: int) -> bool:
        return now_s < self.pauses_until_s and (self._ends_at is None or answers <= self._ends_at)


def failing(found: Sequence[CallCounts]) -> list[Outlier]:
    """The endpoints that fail messages which the others take, the worst first."""
    outliers = [
        (mine.failed_share, index, mine, others)
        for index, mine, others in _compared(found)
        if mine.failed_share >= FAILED_SHARE and mine.failed_share >= FAILED_RATIO * others.failed_share
    ]
    return [
        Outlier(
            index,
            f"it failed {mine.failed} of {mine.calls} messages, the others {others.failed} of {others.calls}",
        )
        for _, index, mine, others in sorted(outliers, key=lambda outlier: -outlier[0])
    ]


def slow(found: Sequence[CallCounts]) -> list[Outlier]:
    """The endpoints that take far longer than the others."""
    return [
        Outlier(
            index,
            f"it takes {mine.mean_s * 1000:,.0f} ms for a message, the others {others.mean_s * 1000:,.0f} ms",
        )
        for index, mine, others in _compared(found)
        if mine.mean_s >= SLOW_RATIO * others.mean_s and mine.mean_s - others.mean_s >= SLOW_BY_S
    ]


def _compared(found: Sequence[CallCounts]) -> Iterator[tuple[int, CallCounts, CallCounts]]:
    """Each endpoint with its own calls, and those of all others, where both have enough (rule 2)."""
    calls, failed = sum(one.calls for one in found), sum(one.failed for one in found)
    latency_s = sum(one.latency_s for one in found)
    for index, mine in enumerate(found):
        others = CallCounts(calls - mine.calls, failed - mine.failed, latency_s - mine.latency_s)
        if mine.calls >= MIN_CALLS and others.calls >= MIN_CALLS:
            yield index, mine, others
