"""How many calls one receiver gets at once: as many as it can work on, and few that wait.

    latency ▲
            │             ╭──▶ a queue: latency = base * limit / capacity
     aim ── │─ ─ ─ ─ ─ ●──╯    the limit is held here
    base ── ├──────────╯
            └──────────┴─────▶ calls in flight
                   capacity

    RAMP ──a queue, it seems──▶ PROBE (half the limit) ◀──one is due, or latency changed── HOLD
      ▲                           │    │                                                    ▲
      └──────no queue at all──────┘    └──────there was one: by Little's law───────────────┘

Rules
1. Time is cut into windows, each with one limit throughout; one begins once no more are out than its limit.
   It ends with two calls a slot, `MIN_SAMPLES` at least and `MIN_WINDOW_S`, or after a second or so with
   what there is.
2. A queue delays everybody. So it is looked for in the lower quantiles of what a window's own calls took:
   as far as each of them rose, a queue is there. One message in forty that takes a hundred times as long
   says nothing there, and everything in a mean: of a hundred calls such a mean is half noise. (Envoy's
   adaptive concurrency compares medians, too.)
3. How large the limit must be is a matter of the mean, though (Little's law). It is calls in flight * time /
   calls ended: that counts as well what is still out, and has not ended in any window as short as these.
   A mean that rose by `ERRORS` of its standard errors is a queue, too: a processor that is shared slows
   short work by little, all work by much.
4. RAMP doubles the limit as long as there is no queue (TCP slow start, RFC 5681).
5. PROBE takes half of it for a window, as the ProbeRTT of BBR does (Cardwell et al., "BBR: Congestion-Based
   Congestion Control", 2016). Faster: the limit is set to `limit * (mean - queue + allowed) / mean`. No
   faster, in a second window neither: there is no queue, the receiver has just become slower, or wider, and
   RAMP goes on. Twice as fast: it was all queue, and unless the base is known there may be more of it: half
   of the half is tried as well.
6. The queue allowed is `QUEUE` of the mean, `slack_s` at least: so much of it keeps the receiver busy between
   answers (cf. CoDel's target of 5 ms, RFC 8289; below that it is our own event loop that is seen).
7. A probe takes no more than a quarter away where the throughput of late (the best of some seconds, times
   the mean without a queue) needs it: a machine that others use is faster now and then by itself.
8. The limit only grows when it is used: `in_flight` came within a tenth of it.
9. When more than `DROP_SHARE` of a window was dropped (timed out, RESOURCE_EXHAUSTED) the limit is cut,
   and grows gently for a while. One poison pill in a thousand cuts nothing.

Why not one of Netflix' concurrency-limits: Gradient2 compares with a long-term mean, which a backlog
that never ends drags up, and the limit with it; Vegas (uForwarder's choice) compares with the smallest
latency of a long time, so that a receiver that becomes slower, or varies, starves; both grow by a few
calls at a time. Measured, in tests/bench/simulate_concurrency.py: 8 servers of 10 ms, latency 5.7 and 2.7
times the base against 1.4 here; tenfold slow for 10 s, 40 % and 32 % of the best fixed limit's throughput
against 100 %; 1,000 servers of 50 ms after 12 s, 9 % and 21 % against 99 %; an event loop of 1 ms where one
message in forty waits for 300 ms, 100 % at 5.8 times the base and 53 %, against 96 % at 1.7 times.

What it cannot: where a tenth of the messages takes 500 times as long as the others, or cores are shared, a
queue shows late: throughput is that of the best fixed limit, latency some four times the base. Below a
hundred answers a second a window takes a second, and the first ramp and its probes up to a minute.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from math import hypot, sqrt
from operator import mul, sub
from typing import NamedTuple

INITIAL = 20  # Netflix' default; enough to see a latency, too little to hurt
MAXIMUM = 2_000  # calls in flight one worker can hold in memory for one receiver
QUEUE = 0.3  # of the mean without a queue: that much of one is wanted
SLACK_S = 0.005
NO_QUEUE = 0.15  # of the mean: half the limit makes more of a difference only when there was a queue
ALL_QUEUE = 0.4  # of the mean: nearer to a half means that at half the limit there may be one still
FASTER = 0.6  # of the base: not by chance
QUANTILES = (0.25, 0.5)  # two: messages of two kinds, half of each, make one of them jump
ERRORS = 2.5  # standard errors of a difference of means: less is chance
SURE = 2  # probes after which the base is known
BEST_OF = 8  # rates of a second or more
LEAST_LEFT = 0.75  # by one probe, where the best rate of late needs as much
GROWTH = 2.0
GENTLE_GROWTH = 1.1
DROP_SHARE = 0.1
DROP_CUT = 0.7  # CUBIC's beta (RFC 9438)
USED_SHARE = 0.9
MIN_SAMPLES = 100
FEW_SAMPLES = 10  # below that a quantile says nothing, however long the window was
MIN_WINDOW_S = 0.05  # answers come in bursts, one for each turn of the event loop
MAX_WINDOW_S = 1.0  # or three latencies, whichever is longer
PROBE_MIN_S = 2.0
PROBE_MAX_S = 16.0  # while nothing changes; a change of latency makes for a probe at once
PROBE_SHARE = 20  # windows between two probes, at least: a probe costs about half a window's calls


class LimiterPhase(StrEnum):
    """See the module's picture."""

    RAMP = "ramp"
    HOLD = "hold"
    PROBE = "probe"


class WindowLatency(NamedTuple):
    """What a window has shown, seconds: quantiles, and the mean by Little's law and of the calls that ended.

    The means differ while long calls pile up that have not ended yet, or old ones end.
    """

    low_s: tuple[float, ...]
    mean_s: float
    ended_s: float
    error_s: float

    @classmethod
    def of(cls, own_s: list[float], older_s: list[float], mean_s: float) -> WindowLatency:
        """From the latencies of calls that began in a window, of those that only ended in it, and the mean
        that Little's law gives. Sorts the first list."""
        own_s.sort()
        count = len(own_s) + len(older_s)
        ended_s = (sum(own_s) + sum(older_s)) / count
        square = (sum(map(mul, own_s, own_s)) + sum(map(mul, older_s, older_s))) / count
        error_s = sqrt(max(0.0, square - ended_s**2) / count)
        return cls(tuple(own_s[int(share * len(own_s))] for share in QUANTILES), mean_s, ended_s, error_s)

    def above_s(self, other: WindowLatency) -> float:
        """How much longer everybody takes than in the other; negative when somebody takes less."""
        low_s: float = min(map(sub, self.low_s, other.low_s))
        surely_s = min(self.mean_s, self.ended_s) - max(other.mean_s, other.ended_s)
        if surely_s > ERRORS * hypot(self.error_s, other.error_s):
            return max(low_s, self.mean_s - other.mean_s)
        return low_s

    def is_faster(self, other: WindowLatency) -> bool:
        """The receiver is another one than in the other window, or was."""
        return all(mine < FASTER * its for mine, its in zip(self.low_s, other.low_s, strict=True))


class AdaptiveLimit:
    """See the module. One a receiver and worker, used from one thread.

    Args:
        initial: where every ramp from nothing begins.
        minimum, maximum: the limit's bounds.
        slack_s: a queue shorter than this is none.

    Attributes (read only):
        limit: calls that may be in flight.
        phase: what is being found out.

    Raises:
        ValueError: not 1 <= minimum <= initial <= maximum.
    """

    __slots__ = (
        "_again", "_base", "_before", "_before_limit", "_changed", "_dropped", "_from_limit", "_growth",
        "_held_s", "_in_flight", "_interval_s", "_last_s", "_needed", "_older", "_own", "_probe_at_s",
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
        """Begins from nothing: the receiver is back after an outage, or another one."""
        self.limit = self._from_limit = self._before_limit = self.initial
        self.phase = LimiterPhase.RAMP
        self._base: WindowLatency | None = None
        self._verdicts = 0  # by two probes the base is known; before, it may have been measured in a queue
        self._before: WindowLatency | None = None
        self._again = self._changed = False
        self._growth = GROWTH
        self._interval_s = PROBE_MIN_S
        self._probe_at_s = float("inf")
        self._rates = deque([0.0], BEST_OF)
        self._rated, self._rated_s = 0, 0.0
        self._reset_s = now_s
        self._start_window(now_s)

    # -- samples ---------------------------------------------------------------------------------

    def on_sample(self, now_s: float, latency_s: float, in_flight: int, dropped: bool = False) -> None:
        """A call ended after `latency_s`; `in_flight` were out just before."""
        if dropped:
            self.on_samples(now_s, 0, latency_s, in_flight, 1)
        else:
            self.on_samples(now_s, 1, latency_s, in_flight)

    def on_samples(
        self, now_s: float, count: int, latency_s: float, in_flight: int, dropped: int = 0
    ) -> None:
        """`count` calls ended after `latency_s` each, and `dropped` more were dropped."""
        if in_flight > self.limit:
            self._start_window(now_s)
            return
        if in_flight > self._in_flight:  # noqa: PLR1730 - a call of max() for every message
            self._in_flight = in_flight
        passed_s = now_s - self._last_s
        self._last_s = now_s
        # It began when another had ended, if the limit was used; if not, nobody may have been out so long.
        self._held_s += in_flight * (passed_s if passed_s < latency_s else latency_s)
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
        """A new window, from `now_s` on, with the limit as it is."""
        self._since_s = self._last_s = now_s
        self._own: list[float] = []  # latencies of calls that began in the window
        self._older: list[float] = []  # and of those that only ended in it
        self._held_s = 0.0  # time times calls in flight
        self._dropped = self._in_flight = 0
        self._needed = 1 if now_s == float("-inf") else FEW_SAMPLES

    def _try_end_window(self, now_s: float) -> None:
        """Whether the window may end."""
        if self._since_s == float("-inf"):  # the very first window begins with its first sample
            self._since_s = self._reset_s = now_s
        samples = len(self._own) + self._dropped
        lasted_s = now_s - self._since_s
        enough = max(MIN_SAMPLES, 2 * self.limit)
        if samples < enough or lasted_s < MIN_WINDOW_S:
            latency_s = self._held_s / (samples + len(self._older))
            if lasted_s < max(MAX_WINDOW_S, 3 * latency_s):
                self._needed = samples + max(1, samples // 8)  # looks again after an eighth more
                return
        self._end(now_s)
        self._start_window(now_s)

    # -- decisions -------------------------------------------------------------------------------

    def _end(self, now_s: float) -> None:
        """Decides by the window that ends now."""
        used = self._in_flight >= USED_SHARE * self.limit
        count = len(self._own)
        if self._dropped > DROP_SHARE * (count + self._dropped):
            self._cut(now_s)
        elif count:
            ended = count + len(self._older)
            self._rate(ended, now_s - self._since_s)
            now = WindowLatency.of(self._own, self._older, self._held_s / ended)
            base = self._base
            if self.phase is LimiterPhase.PROBE and base is not None and self._before is not None:
                self._probed(now_s, now, base, self._before, used)
                return
            if base is None or base.above_s(now) > 0:
                self._base = now
            if used:
                self._used(now_s, now, base or now)

    def _rate(self, ended: int, lasted_s: float) -> None:
        """Remembers throughput, by the second: in less of it a rate is noise."""
        self._rated += ended
        self._rated_s += lasted_s
        if self._rated_s >= 1:
            self._rates.append(self._rated / self._rated_s)
            self._rated, self._rated_s = 0, 0.0

    def _used(self, now_s: float, now: WindowLatency, base: WindowLatency) -> None:
        """RAMP or HOLD, and the limit was used."""
        queue_s = max(0.0, now.above_s(base))
        allowed_s = self._allowed_s(now.mean_s - queue_s)
        if self.phase is LimiterPhase.RAMP:
            if queue_s > allowed_s:
                self._from_limit = self.limit
                self._probe(now)
            elif self.limit == self.maximum:
                self._hold(now_s, self.maximum)
            else:
                self._set(self.limit * self._growth)
                self._growth = min(GROWTH, self._growth * GENTLE_GROWTH)
            return
        changed = queue_s > 2 * allowed_s or now.is_faster(base)
        if now_s >= self._probe_at_s:
            self._from_limit = self.limit
            self._probe(now)
        elif changed:
            if self._changed or len(self._own) >= MIN_SAMPLES:  # few samples: not by one window
                self._probe_at_s = now_s  # within this window, perhaps: first a clean one
        elif queue_s < allowed_s / 2 and self._growth == GROWTH:
            self._set(self.limit * GENTLE_GROWTH)  # a noisy probe may have shown too little
        self._changed = changed

    def _probe(self, now: WindowLatency) -> None:
        """Halves the limit to see what latency is then."""
        self._before_limit, self._before = self.limit, now
        half = max(self.minimum, self.limit // 2)
        if half == self.limit:  # nothing to halve: more is the only other thing to try
            self.phase = LimiterPhase.RAMP
            self._base = now
            return
        self.phase = LimiterPhase.PROBE
        self.limit = half
        self._again = False

    def _probed(
        self, now_s: float, now: WindowLatency, base: WindowLatency, before: WindowLatency, used: bool
    ) -> None:
        """What a window at half the limit has shown: `now`, against `before` it."""
        if not used:
            self._hold(now_s, self._from_limit)
            return
        mean_s = before.mean_s
        queue_s = min(mean_s, before.above_s(now))
        allowed_s = self._allowed_s(mean_s - queue_s)
        changed = now.above_s(base) > allowed_s
        if queue_s > max(ALL_QUEUE * mean_s, self.slack_s) and (changed or self._verdicts < SURE):
            self._base = now
            self._probe(now)
            return
        none = queue_s <= NO_QUEUE * (mean_s - queue_s)
        ramp = none and self._before_limit == self._from_limit
        if ramp and not self._again:
            self._again = True  # what ended was from before in part, and took as long as then
            return
        self._verdicts = SURE if none else self._verdicts + 1
        if ramp:
            self._base = now
            self.limit = self._before_limit
            if self.limit == self.maximum:
                self._hold(now_s, self.maximum)
            else:
                self.phase = LimiterPhase.RAMP
            return
        if changed or base.above_s(now) > 0:  # else a part of the queue may be in this window, too
            self._base = base = now
        served_s = mean_s - min(mean_s, max(queue_s, before.above_s(base)))
        wanted = self._before_limit * min(GROWTH, (served_s + self._allowed_s(served_s)) / mean_s)
        self._hold(now_s, max(wanted, min(LEAST_LEFT * self._from_limit, max(self._rates) * served_s)))

    def _allowed_s(self, served_s: float) -> float:
        """The queue that is wanted when latency is `served_s` without one."""
        return max(QUEUE * served_s, self.slack_s)

    def _cut(self, now_s: float) -> None:
        """Too many were dropped."""
        self._growth = GENTLE_GROWTH
        self._from_limit = self.limit
        self._hold(now_s, self.limit * DROP_CUT)

    def _hold(self, now_s: float, limit: float) -> None:
        """Stays at `limit` until the next probe; ever longer while nothing changes."""
        self._set(limit)
        same = 0.5 <= self.limit / self._from_limit <= 2
        self._interval_s = min(PROBE_MAX_S, 2 * self._interval_s) if same else PROBE_MIN_S
        wait_s = max(self._interval_s, PROBE_SHARE * (now_s - self._since_s))
        self._probe_at_s = now_s if self._verdicts == 1 else now_s + wait_s
        self._changed = False
        self.phase = LimiterPhase.HOLD

    def _set(self, limit: float) -> None:
        self.limit = min(self.maximum, max(self.minimum, round(limit)))
