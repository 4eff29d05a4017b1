"""How many calls one receiver gets at once: as many as it can work on, and few that wait.

    latency ▲
            │             ╭──▶ a queue: latency = base * limit / capacity
     aim ── │─ ─ ─ ─ ─ ●──╯    the limit is held here
    base ── ├──────────╯
            └──────────┴─────▶ calls in flight
                   capacity

    RAMP ──latency above the aim──▶ HOLD ──a probe is due, or latency rose──▶ PROBE (half the limit)
      ▲                              ▲                                           │
      └── half the limit was no faster: there is headroom ◀────┬──────────────── ┘
                                     └── it was faster: there was a queue

Rules
1. Time is cut into windows, each with one limit throughout. A call that was started before its window
   says nothing of it. A window ends with two calls a slot, `MIN_SAMPLES` at least and `MIN_WINDOW_S`,
   or after a second or so with what there is.
2. RAMP doubles the limit as long as latency stays at the base (TCP slow start, RFC 5681). At the first
   window above the aim it goes to HOLD with `limit * aim / latency`: by Little's law a receiver with a
   queue has throughput limit / latency, whatever the limit.
3. The aim is the base and `HEADROOM` more, `slack_s` at least: so much of a queue keeps the receiver busy
   between answers (cf. CoDel's target of 5 ms, RFC 8289; below that it is our own event loop that is seen).
4. PROBE measures the base anew, at half the limit, as the ProbeRTT of BBR does (Cardwell et al., "BBR:
   Congestion-Based Congestion Control", 2016): if latency fell there was a queue, and by how much it fell
   says how long; if not, the receiver has just become slower, or wider, and the limit goes up again.
5. The limit only grows when it is used: `in_flight` came within a tenth of it.
6. When more than `DROP_SHARE` of a window was dropped (timed out, RESOURCE_EXHAUSTED) the limit is cut,
   and grows gently for a while. One poison pill in a thousand cuts nothing.
7. A single latency counts at most `cap_s`, a few times the mean: a message that takes for ever says
   nothing of the receiver.

Why not one of Netflix' concurrency-limits: Gradient2 compares with a long-term mean, which a backlog
that never ends drags up, and the limit with it; Vegas (uForwarder's choice) compares with the smallest
latency of a long time, so that a receiver that becomes slower, or varies, starves; both grow by a few
calls at a time. Measured, in tests/bench/simulate_concurrency.py: 8 servers of 10 ms, latency 5.7 and 2.7
times the base against 1.4 here; tenfold slow for 10 s, 40 % and 32 % of the best fixed limit's throughput
against 100 %; 1,000 servers of 50 ms after 12 s, 9 % and 21 % against 99 %.
"""

from __future__ import annotations

from enum import StrEnum

INITIAL = 20  # Netflix' default; enough to see a latency, too little to hurt
MAXIMUM = 2_000  # calls in flight one worker can hold in memory for one receiver
HEADROOM = 1.3  # of the base: the difference stands out from the noise of a window of 100 calls
SLACK_S = 0.005
QUEUE_RATIO = 1.15  # half the limit makes this much of a difference only when there was a queue
STILL_QUEUED = 0.6  # of the latency at half the limit: nearer to a half means the queue is still there
GROWTH = 2.0
GENTLE_GROWTH = 1.1
DROP_SHARE = 0.1
DROP_CUT = 0.7  # CUBIC's beta (RFC 9438)
USED_SHARE = 0.9
CAP = 4.0  # of the last window's mean
MIN_SAMPLES = 100
FEW_SAMPLES = 10  # below that a mean says nothing, however long the window was
MIN_WINDOW_S = 0.05  # answers come in bursts, one for each turn of the event loop
MAX_WINDOW_S = 1.0  # or three latencies, whichever is longer
PROBE_MIN_S = 2.0
PROBE_MAX_S = 16.0  # while nothing changes; a change of latency makes for a probe at once
PROBE_SHARE = 20  # windows between two probes, at least: a probe costs about half a window's calls


class Phase(StrEnum):
    """See the module's picture."""

    RAMP = "ramp"
    HOLD = "hold"
    PROBE = "probe"


class AdaptiveLimit:
    """See the module. One a receiver and worker, used from one thread.

    Args:
        initial: where every ramp from nothing begins.
        minimum, maximum: the limit's bounds.
        slack_s: a queue shorter than this is none.

    Attributes (read only):
        limit: calls that may be in flight.
        phase: what is being found out.
        base_s: latency without a queue; inf while unknown.
        cap_s: the most a single latency counts; callers of `on_samples` cap before they add up.

    Raises:
        ValueError: not 1 <= minimum <= initial <= maximum.
    """

    __slots__ = (
        "_before_limit", "_before_s", "_count", "_dropped", "_growth", "_in_flight", "_interval_s",
        "_needed", "_probe_at_s", "_probed_once", "_since_s", "_sum_s", "base_s", "cap_s", "initial",
        "limit", "maximum", "minimum", "phase", "slack_s",
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
        self._since_s = float("-inf")
        self._count = self._dropped = self._in_flight = 0
        self._sum_s = 0.0
        self._needed = 1
        self.reset(self._since_s)

    def reset(self, now_s: float) -> None:
        """Begins from nothing: the receiver is back after an outage, or another one."""
        self.limit = self.initial
        self.phase = Phase.RAMP
        self.base_s = self.cap_s = float("inf")
        self._growth = GROWTH
        self._probed_once = False
        self._interval_s = PROBE_MIN_S
        self._probe_at_s = float("inf")
        self._before_limit, self._before_s = self.limit, 0.0
        self._begin(now_s)

    # -- samples ---------------------------------------------------------------------------------

    def on_sample(self, now_s: float, latency_s: float, in_flight: int, dropped: bool = False) -> None:
        """A call ended after `latency_s`; `in_flight` were out just before."""
        if now_s - latency_s < self._since_s:
            return
        if dropped:
            self._dropped += 1
        else:
            self._count += 1
            cap_s = self.cap_s
            self._sum_s += latency_s if latency_s < cap_s else cap_s
        if in_flight > self._in_flight:  # noqa: PLR1730 - a call of max() for every message
            self._in_flight = in_flight
        if self._count + self._dropped >= self._needed:
            self._look(now_s)

    def on_samples(
        self, now_s: float, count: int, mean_latency_s: float, max_in_flight: int, dropped: int = 0
    ) -> None:
        """`count` calls ended, after `mean_latency_s` on average, and `dropped` more were dropped."""
        if now_s - mean_latency_s < self._since_s:
            return
        self._dropped += dropped
        self._count += count
        self._sum_s += min(mean_latency_s, self.cap_s) * count
        self._in_flight = max(self._in_flight, max_in_flight)
        if self._count + self._dropped >= self._needed:
            self._look(now_s)

    def _begin(self, now_s: float) -> None:
        """A new window, from `now_s` on, with the limit as it is."""
        self._since_s = now_s
        self._count = self._dropped = self._in_flight = 0
        self._sum_s = 0.0
        self._needed = 1 if now_s == float("-inf") else FEW_SAMPLES

    def _look(self, now_s: float) -> None:
        """Whether the window may end."""
        if self._since_s == float("-inf"):
            self._since_s = now_s  # the very first window begins with its first sample
        samples = self._count + self._dropped
        lasted_s = now_s - self._since_s
        enough = max(MIN_SAMPLES, 2 * self.limit)
        if samples < enough or lasted_s < MIN_WINDOW_S:
            latency_s = self._sum_s / self._count if self._count else 0.0
            if lasted_s < max(MAX_WINDOW_S, 3 * latency_s):
                self._needed = samples + max(1, samples // 8)  # looks again after an eighth more
                return
        self._end(now_s)
        self._begin(now_s)

    # -- decisions -------------------------------------------------------------------------------

    def _end(self, now_s: float) -> None:
        """Decides by the window that ends now."""
        used = self._in_flight >= USED_SHARE * self.limit
        if self._dropped > DROP_SHARE * (self._count + self._dropped):
            self._cut(now_s)
        elif self._count:
            latency_s = self._sum_s / self._count
            self.cap_s = CAP * latency_s
            if self.phase is Phase.PROBE:
                self._probed(now_s, latency_s, used)
            elif used:
                self._used(now_s, latency_s)
            elif latency_s < self.base_s:
                self.base_s = latency_s

    def _used(self, now_s: float, latency_s: float) -> None:
        """RAMP or HOLD, and the limit was used."""
        faster = latency_s < STILL_QUEUED * self.base_s
        self.base_s = min(self.base_s, latency_s)
        if self.phase is Phase.RAMP:
            aim_s = self._aim(self.base_s)
            if latency_s > aim_s:
                self._hold(now_s, self.limit * aim_s / latency_s)
            elif self.limit == self.maximum:
                self._hold(now_s, self.maximum)
            else:
                self._set(self.limit * self._growth)
                self._growth = min(GROWTH, self._growth * GENTLE_GROWTH)
        elif now_s >= self._probe_at_s:
            self._probe(latency_s)
        elif faster or latency_s > HEADROOM * self._aim(self.base_s):
            self._probe_at_s = now_s  # the receiver has changed, within this window: first a clean one
        elif latency_s < QUEUE_RATIO * self.base_s and self._growth == GROWTH:
            self._set(self.limit * GENTLE_GROWTH)  # a noisy probe may have shown too little

    def _probe(self, latency_s: float) -> None:
        """Halves the limit to see what latency is then."""
        self._before_limit, self._before_s = self.limit, latency_s
        half = max(self.minimum, self.limit // 2)
        if half == self.limit:  # nothing to halve: more is the only other thing to try
            self.phase = Phase.RAMP
            self.base_s = latency_s
            return
        self.phase = Phase.PROBE
        self.limit = half

    def _probed(self, now_s: float, latency_s: float, used: bool) -> None:
        """What a window at half the limit has shown."""
        if not used:
            self._hold(now_s, self._before_limit)
            return
        self._probed_once = True
        before_s = self._before_s
        if latency_s < STILL_QUEUED * before_s and before_s - latency_s > self.slack_s:
            self._probe(latency_s)  # it is all queue still: on from here
            return
        if before_s <= QUEUE_RATIO * latency_s:
            self.base_s = latency_s
            self.limit = self._before_limit
            if self.limit == self.maximum:
                self._hold(now_s, self.maximum)
            else:
                self.phase = Phase.RAMP
            return
        # A queue within the slack may be in this window too: it must not creep into the base.
        slack = before_s - latency_s <= self.slack_s
        self.base_s = min(self.base_s, latency_s) if slack else latency_s
        self._hold(now_s, self._before_limit * self._aim(self.base_s) / before_s)

    def _aim(self, base_s: float) -> float:
        return max(HEADROOM * base_s, base_s + self.slack_s)

    def _cut(self, now_s: float) -> None:
        """Too many were dropped."""
        self._growth = GENTLE_GROWTH
        self._hold(now_s, self.limit * DROP_CUT)

    def _hold(self, now_s: float, limit: float) -> None:
        """Stays at `limit` until the next probe; ever longer while nothing changes."""
        self._set(limit)
        same = 0.8 <= self.limit / self._before_limit <= 1.25
        self._interval_s = min(PROBE_MAX_S, 2 * self._interval_s) if same else PROBE_MIN_S
        self._before_limit = self.limit
        # Unless a probe has shown the base, it may have been measured in a queue from the start on.
        wait_s = max(self._interval_s, PROBE_SHARE * (now_s - self._since_s)) if self._probed_once else 0.0
        self._probe_at_s = now_s + wait_s
        self.phase = Phase.HOLD

    def _set(self, limit: float) -> None:
        self.limit = min(self.maximum, max(self.minimum, round(limit)))
