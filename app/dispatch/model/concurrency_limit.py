"""Adapts how many calls one receiver gets at once: as many as it can work on, and few that queue.

    latency ▲
            │             ╭──▶ a queue: latency = base * limit / capacity
     aim ── │─ ─ ─ ─ ─ ●──╯    the limit is held here
    base ── ├──────────╯
            └──────────┴─────▶ calls in flight
                   capacity

    RAMP ──maybe a queue──▶ PROBE (half the limit) ◀──a probe is due, or latency changed── HOLD
      ▲                        │    │                                                       ▲
      └─────no queue at all────┘    └───────a queue: the limit by Little's law──────────────┘

Rules (tests/dispatch/model/test_concurrency_limit.py, tests/bench/simulate_concurrency.py)
1. Time is cut into windows with a constant limit. A window begins once at most that many calls are in flight.
   It ends after two calls a slot, at least `MIN_SAMPLES` and `MIN_WINDOW_S`, or after a second or so with the
   calls that it has.
2. A queue delays every call. So the queue is the least rise among the lower quantiles of the calls that began
   in the window. One message in forty that takes a hundred times as long leaves these unchanged, but makes a
   mean of a hundred calls half noise. (Envoy's adaptive concurrency compares medians, too.)
3. The size of the limit depends on the mean (Little's law): calls in flight * time / calls ended. It includes
   the calls that have not ended yet, which are many in such short windows. A mean that rose by `ERRORS` of
   its standard errors is a queue, too: a shared processor delays short calls little, and all work much.
4. RAMP doubles the limit while there is no queue (TCP slow start, RFC 5681).
5. PROBE halves the limit for a window, as the ProbeRTT of BBR does (Cardwell et al., "BBR: Congestion-Based
   Congestion Control", 2016). If calls get faster, the limit becomes
   `limit * (mean - queue + allowed) / mean`. If they do not, in a second window either, there is no queue:
   the receiver has become slower or larger, and RAMP continues. If they get twice as fast, all was queue, and
   there may be more of it unless the base is known: the probe halves again.
6. The allowed queue is `QUEUE` of the mean, and at least `slack_s`. It keeps the receiver busy between
   answers (cf. CoDel's target of 5 ms, RFC 8289); less would only show this worker's own event loop.
7. On a shared machine calls are sometimes faster by chance. So a probe takes at most a quarter of the limit
   away while recent throughput needs more. The need is the best recent rate times the mean without a queue.
8. The limit grows only when it was used: `in_flight` reached `USED_SHARE` of it.
9. If more than `DROP_SHARE` of a window's calls were dropped (timed out, overloaded or unavailable), the
   limit is cut, and then grows gently. One poison pill in a thousand changes nothing.

Netflix' concurrency-limits were not used. Gradient2 compares with a long-term mean, and a lasting backlog
raises both the mean and the limit. Vegas (uForwarder's choice) compares with the smallest latency of a long
time, so a receiver that varies or becomes slower starves. Both grow by a few calls at a time. Measured by
tests/bench/simulate_concurrency.py:

| receiver                                           | Gradient2, Vegas                  | this limit      |
|----------------------------------------------------|-----------------------------------|-----------------|
| 8 servers of 10 ms: latency, times the base        | 5.7, 2.7                          | 1.4             |
| tenfold slow for 10 s: of the best fixed limit     | 40 %, 32 %                        | 100 %           |
| 1,000 servers of 50 ms, after 12 s                 | 9 %, 21 %                         | 99 %            |
| event loop of 1 ms, 1 in 40 messages waits 300 ms  | 100 % at 5.8 times the base, 53 % | 96 % at 1.7     |

Limits of the method: if a tenth of the messages takes 500 times as long as the others, or cores are shared, a
queue shows late. Throughput is then that of the best fixed limit, and latency about four times the base.
Below a hundred answers a second a window takes a second, and the first ramp with its probes up to a minute.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from math import hypot, sqrt
from operator import mul, sub
from typing import NamedTuple

INITIAL = 20  # Netflix' default: enough to measure a latency, too few to do harm
MAXIMUM = 2_000  # calls in flight to one receiver that fit into a worker's memory
QUEUE = 0.3  # the allowed queue, as a share of the mean without a queue
SLACK_S = 0.005
NO_QUEUE = 0.15  # of the mean: halving the limit changes more only if there was a queue
ALL_QUEUE = 0.4  # of the mean: a larger difference means that half the limit may still queue
FASTER = 0.6  # of the base: not by chance
QUANTILES = (0.25, 0.5)  # two, because one of them jumps between messages of two kinds
ERRORS = 2.5  # standard errors of a difference of means: less is chance
SURE = 2  # probes after which the base is known
BEST_OF = 8  # rates, each of a second or more
LEAST_LEFT = 0.75  # of the limit after one probe, if the best recent rate needs it
GROWTH = 2.0
GENTLE_GROWTH = 1.1
DROP_SHARE = 0.1
DROP_CUT = 0.7  # CUBIC's beta (RFC 9438)
USED_SHARE = 0.9
MIN_SAMPLES = 100
FEW_SAMPLES = 10  # fewer make no quantile, even in a long window
MIN_WINDOW_S = 0.05  # answers come in bursts, one for each turn of the event loop
MAX_WINDOW_S = 1.0  # or three latencies, whichever is longer
PROBE_MIN_S = 2.0
PROBE_MAX_S = 16.0  # while nothing changes; a change of latency causes a probe at once
PROBE_SHARE = 20  # windows between two probes, at least, because a probe costs about half a window's calls


class LimiterPhase(StrEnum):
    RAMP = "ramp"
    HOLD = "hold"
    PROBE = "probe"


class WindowLatency(NamedTuple):
    """A window's latencies in seconds: quantiles, the mean by Little's law, and the mean of ended calls.

    The means differ while long calls accumulate, or old ones end. `error_s` is that of `ended_s`.
    """

    low_s: tuple[float, ...]
    mean_s: float
    ended_s: float
    error_s: float

    @classmethod
    def of(cls, own_s: list[float], older_s: list[float], mean_s: float) -> WindowLatency:
        """From latencies of calls that began in the window (sorts them) or only ended in it, and Little's
        mean."""
        own_s.sort()
        count = len(own_s) + len(older_s)
        ended_s = (sum(own_s) + sum(older_s)) / count
        square = (sum(map(mul, own_s, own_s)) + sum(map(mul, older_s, older_s))) / count
        error_s = sqrt(max(0.0, square - ended_s**2) / count)
        return cls(tuple(own_s[int(share * len(own_s))] for share in QUANTILES), mean_s, ended_s, error_s)

    def above_s(self, other: WindowLatency) -> float:
        """How much longer every call takes than in the other window; negative if some take less."""
        low_s: float = min(map(sub, self.low_s, other.low_s))
        surely_s = min(self.mean_s, self.ended_s) - max(other.mean_s, other.ended_s)
        if surely_s > ERRORS * hypot(self.error_s, other.error_s):
            return max(low_s, self.mean_s - other.mean_s)
        return low_s

    def is_faster(self, other: WindowLatency) -> bool:
        """Whether all quantiles fell so far that the receiver must have changed."""
        return all(low_s < FASTER * other_s for low_s, other_s in zip(self.low_s, other.low_s, strict=True))


class AdaptiveLimit:
    """One for each receiver and worker; for one thread.

    Args:
        initial: The start of every ramp after a reset.
        minimum, maximum: The limit's bounds.
        slack_s: A shorter queue does not count.

    Attributes (read only):
        limit: The number of calls that may be in flight.

    Raises:
        ValueError: Not 1 <= minimum <= initial <= maximum.
    """

    __slots__ = (
        "_base", "_before", "_before_limit", "_call_seconds", "_changed", "_dropped", "_from_limit",
        "_growth", "_in_flight", "_interval_s", "_is_second_window", "_last_s", "_needed", "_older", "_own",
        "_probe_at_s",
        "_rated", "_rated_s", "_rates", "_reset_s", "_since_s", "_verdicts", "initial", "limit", "maximum",
        "minimum", "phase", "slack_s",
    )  # fmt: skip

    def __init__(
        self,
        initial: int = INITIAL,
        minimum: int = 1,
        maximum: int = MAXIMUM,
        *,
        slack_s: float = SLACK_S,
    ) -> None:
        if not 1 <= minimum <= initial <= maximum:
            raise ValueError(
                f"limits must be 1 <= minimum {minimum} <= initial {initial} <= maximum {maximum}"
            )
        self.initial = initial
        self.minimum = minimum
        self.maximum = maximum
        self.slack_s = slack_s
        self.limit = self._from_limit = self._before_limit = initial
        self._since_s = self._last_s = self._reset_s = float("-inf")
        self._dropped = self._in_flight = self._needed = 0
        self.reset(float("-inf"))

    def reset(self, now_s: float) -> None:
        """Starts again, because the receiver is back after an outage, or is another instance."""
        self.limit = self._from_limit = self._before_limit = self.initial
        self.phase = LimiterPhase.RAMP
        self._base: WindowLatency | None = None
        self._verdicts = 0  # probes; before `SURE` of them the base may include a queue
        self._before: WindowLatency | None = None
        self._is_second_window = self._changed = False
        self._growth = GROWTH
        self._interval_s = PROBE_MIN_S
        self._probe_at_s = float("inf")
        self._rates = deque([0.0], BEST_OF)
        self._rated, self._rated_s = 0, 0.0
        self._reset_s = now_s
        self._start_window(now_s)

    # -- samples ---------------------------------------------------------------------------------

    def on_sample(self, now_s: float, latency_s: float, in_flight: int, dropped: bool = False) -> None:
        if dropped:
            self.on_samples(now_s, 0, latency_s, in_flight, 1)
        else:
            self.on_samples(now_s, 1, latency_s, in_flight)

    def on_samples(
        self, now_s: float, count: int, latency_s: float, in_flight: int, dropped: int = 0
    ) -> None:
        """Takes `count` calls that ended after `latency_s` each, and `dropped` further ones."""
        if in_flight > self.limit:
            self._start_window(now_s)
            return
        if in_flight > self._in_flight:  # noqa: PLR1730 - a call of max() for every message
            self._in_flight = in_flight
        passed_s = now_s - self._last_s
        self._last_s = now_s
        # After an idle gap the calls have been out for `latency_s` only.
        self._call_seconds += in_flight * (passed_s if passed_s < latency_s else latency_s)
        started_s = now_s - latency_s
        if started_s < self._since_s:
            if started_s >= self._reset_s:
                self._older += [latency_s] * count
            return
        if count == 1:
            self._own.append(latency_s)
        else:
            self._own += [latency_s] * count
        self._dropped += dropped
        if len(self._own) + self._dropped >= self._needed:
            self._try_end_window(now_s)

    def _start_window(self, now_s: float) -> None:
        self._since_s = self._last_s = now_s
        self._own: list[float] = []  # latencies of calls that began in the window
        self._older: list[float] = []  # latencies of calls that only ended in it
        self._call_seconds = 0.0  # time times calls in flight
        self._dropped = self._in_flight = 0
        self._needed = 1 if now_s == float("-inf") else FEW_SAMPLES

    def _try_end_window(self, now_s: float) -> None:
        """Ends the window if it has enough samples or time (rule 1)."""
        if self._since_s == float("-inf"):  # the first window begins with its first sample
            self._since_s = self._reset_s = now_s
        samples = len(self._own) + self._dropped
        lasted_s = now_s - self._since_s
        enough = max(MIN_SAMPLES, 2 * self.limit)
        if samples < enough or lasted_s < MIN_WINDOW_S:
            latency_s = self._call_seconds / (samples + len(self._older))
            if lasted_s < max(MAX_WINDOW_S, 3 * latency_s):
                self._needed = samples + max(1, samples // 8)  # checks again after an eighth more
                return
        self._end(now_s)
        self._start_window(now_s)

    # -- decisions -------------------------------------------------------------------------------

    def _end(self, now_s: float) -> None:
        used = self._in_flight >= USED_SHARE * self.limit
        count = len(self._own)
        if self._dropped > DROP_SHARE * (count + self._dropped):
            self._cut(now_s)
        elif count:
            ended = count + len(self._older)
            self._rate(ended, now_s - self._since_s)
            window = WindowLatency.of(self._own, self._older, self._call_seconds / ended)
            base = self._base
            if self.phase is LimiterPhase.PROBE and base is not None and self._before is not None:
                self._end_probe(now_s, window, base, self._before, used)
                return
            if base is None or base.above_s(window) > 0:
                self._base = window
            if used:
                self._adjust(now_s, window, base or window)

    def _rate(self, ended: int, lasted_s: float) -> None:
        """Records throughput over at least a second, because a shorter rate is noise."""
        self._rated += ended
        self._rated_s += lasted_s
        if self._rated_s >= 1:
            self._rates.append(self._rated / self._rated_s)
            self._rated, self._rated_s = 0, 0.0

    def _adjust(self, now_s: float, window: WindowLatency, base: WindowLatency) -> None:
        """RAMP or HOLD, after a window that used the limit."""
        queue_s = max(0.0, window.above_s(base))
        allowed_s = self._allowed_s(window.mean_s - queue_s)
        if self.phase is LimiterPhase.RAMP:
            if queue_s > allowed_s:
                self._from_limit = self.limit
                self._probe(window)
            elif self.limit == self.maximum:
                self._hold(now_s, self.maximum)
            else:
                self._set(self.limit * self._growth)
                self._growth = min(GROWTH, self._growth * GENTLE_GROWTH)
            return
        changed = queue_s > 2 * allowed_s or window.is_faster(base)
        if now_s >= self._probe_at_s:
            self._from_limit = self.limit
            self._probe(window)
        elif changed:
            if self._changed or len(self._own) >= MIN_SAMPLES:  # one window with few samples is no proof
                self._probe_at_s = now_s  # after the next window, which is not mixed
        elif queue_s < allowed_s / 2 and self._growth == GROWTH:
            self._set(self.limit * GENTLE_GROWTH)  # a noisy probe may have lowered it too far
        self._changed = changed

    def _probe(self, window: WindowLatency) -> None:
        """Halves the limit for a window, to measure the latency then."""
        self._before_limit, self._before = self.limit, window
        half = max(self.minimum, self.limit // 2)
        if half == self.limit:  # the minimum: only a larger limit is left to try
            self.phase = LimiterPhase.RAMP
            self._base = window
            return
        self.phase = LimiterPhase.PROBE
        self.limit = half
        self._is_second_window = False

    def _end_probe(
        self, now_s: float, window: WindowLatency, base: WindowLatency, before: WindowLatency, used: bool
    ) -> None:
        """Decides by a window at half the limit, against the one `before`."""
        if not used:
            self._hold(now_s, self._from_limit)
            return
        mean_s = before.mean_s
        queue_s = min(mean_s, before.above_s(window))
        allowed_s = self._allowed_s(mean_s - queue_s)
        changed = window.above_s(base) > allowed_s
        if queue_s > max(ALL_QUEUE * mean_s, self.slack_s) and (changed or self._verdicts < SURE):
            self._base = window
            self._probe(window)
            return
        is_free = queue_s <= NO_QUEUE * (mean_s - queue_s)
        ramp = is_free and self._before_limit == self._from_limit
        if ramp and not self._is_second_window:
            self._is_second_window = True  # some calls of the first one began before the probe
            return
        self._verdicts = SURE if is_free else self._verdicts + 1
        if ramp:
            self._base = window
            self.limit = self._before_limit
            if self.limit == self.maximum:
                self._hold(now_s, self.maximum)
            else:
                self.phase = LimiterPhase.RAMP
            return
        if changed or base.above_s(window) > 0:  # otherwise this window may still have a part of the queue
            self._base = base = window
        served_s = mean_s - min(mean_s, max(queue_s, before.above_s(base)))
        wanted = self._before_limit * min(GROWTH, (served_s + self._allowed_s(served_s)) / mean_s)
        self._hold(now_s, max(wanted, min(LEAST_LEFT * self._from_limit, max(self._rates) * served_s)))

    def _allowed_s(self, served_s: float) -> float:
        """The allowed queue, if latency is `served_s` without one (rule 6)."""
        return max(QUEUE * served_s, self.slack_s)

    def _cut(self, now_s: float) -> None:
        self._growth = GENTLE_GROWTH
        self._from_limit = self.limit
        self._hold(now_s, self.limit * DROP_CUT)

    def _hold(self, now_s: float, limit: float) -> None:
        """Stays at `limit` until the next probe; the wait doubles while nothing changes."""
        self._set(limit)
        is_stable = 0.5 <= self.limit / self._from_limit <= 2
        self._interval_s = min(PROBE_MAX_S, 2 * self._interval_s) if is_stable else PROBE_MIN_S
        wait_s = max(self._interval_s, PROBE_SHARE * (now_s - self._since_s))
        self._probe_at_s = now_s if self._verdicts == 1 else now_s + wait_s
        self._changed = False
        self.phase = LimiterPhase.HOLD

    def _set(self, limit: float) -> None:
        self.limit = min(self.maximum, max(self.minimum, round(limit)))
