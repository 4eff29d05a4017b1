"""Rates from growing counters: a job's arrivals, its receiver's latency, one partition's highest throughput.

    counter ▲                    ╭──●  now
            │              ╭─────╯  ┊
            │      ╭───────╯        ┊      the rate is the growth since `older`, so over one
            │  ────╯  ┊         ┊   ┊      to two windows: a burst of a second hardly moves it
            └────────older────newer─now─▶

Rules
1. A window keeps two marks and no history. So memory does not grow, and samples may come at any interval.
2. Less than `MIN_GROWTH_WINDOW_S` of growth gives no rate. A counter that fell is a new counter, so both
   marks move to the sample.
3. A partition's highest throughput shows only while nothing else limits it. For `BUSY_STRETCH_S` in a row,
   more messages must wait than arrive in a second. Also, either the worker's cpu is full, or no ready message
   waits for the receiver (the partition's order or the fetch is the limit).

Times are monotonic seconds, passed in.
"""

from __future__ import annotations

WINDOW_S = 30.0
MIN_GROWTH_WINDOW_S = 5.0
BUSY_STRETCH_S = 10.0
BACKLOG_S = 1.0  # of arrivals; a stream without a backlog also has this many waiting for a moment

CounterSample = tuple[float, tuple[float, ...]]  # time and counters


class RateWindow:
    """Growth of some counters over the last one to two windows (rules 1 and 2), once there is `least_s` of
    it."""

    __slots__ = ("_least_s", "_newer", "_now", "_older", "_window_s")

    def __init__(self, window_s: float = WINDOW_S, least_s: float = MIN_GROWTH_WINDOW_S) -> None:
        self._window_s = window_s
        self._least_s = least_s
        self._older: CounterSample | None = None
        self._newer: CounterSample | None = None
        self._now: CounterSample | None = None

    def sample(self, now_s: float, *counters: float) -> None:
        """Takes the counters at `now_s`; each call has the same number of them."""
        mark = (now_s, counters)
        last = self._now
        if last is None or now_s < last[0] or _fell(last[1], counters):
            self._older = self._newer = mark
        self._now = mark
        if self._newer is not None and now_s - self._newer[0] >= self._window_s:
            self._older, self._newer = self._newer, mark

    def growth(self) -> tuple[float, tuple[float, ...]] | None:
        """The length of the interval in seconds, and each counter's growth in it; None: not known yet."""
        if self._older is None or self._now is None or self._now[0] - self._older[0] < self._least_s:
            return None
        (then_s, then), (now_s, now) = self._older, self._now
        return now_s - then_s, tuple(new - old for new, old in zip(now, then, strict=True))


def _fell(before: tuple[float, ...], now: tuple[float, ...]) -> bool:
    return any(new < old for new, old in zip(now, before, strict=True))


class JobRates:
    """One job's rates while one worker owns it.

    Attributes:
        ceiling: The most messages per second that the partition carried at its limit (rule 3); None: it never
            reached its limit.
    """

    __slots__ = ("_arrived", "_busy_since", "_finished", "ceiling")

    def __init__(self) -> None:
        self.ceiling: float | None = None
        self._arrived = RateWindow()
        self._finished = RateWindow()
        self._busy_since: tuple[float, float] | None = None

    @property
    def arriving(self) -> float | None:
        """Messages that arrive per second; None: not known yet."""
        return _per_s(self._arrived)

    @property
    def finishing(self) -> float | None:
        """Messages that are finished per second; None: not known yet."""
        return _per_s(self._finished)

    def sample(self, now_s: float, high_watermark: int, finished: float, waiting: int, alone: bool) -> None:
        """Takes a sample.

        Args:
            high_watermark: The log's end; below 0: not known.
            finished: Messages finished since the job started.
            waiting: Messages that are ready for work and not in flight.
            alone: Only the partition and its worker limit the job (rule 3).
        """
        self._finished.sample(now_s, finished)
        if high_watermark >= 0:
            self._arrived.sample(now_s, high_watermark)
        arriving = self.arriving
        busy = alone and arriving is not None and waiting > max(1.0, arriving * BACKLOG_S)
        if not busy or self._busy_since is None or finished < self._busy_since[1]:
            self._busy_since = (now_s, finished) if busy else None
            return
        then_s, then = self._busy_since
        if now_s - then_s >= BUSY_STRETCH_S:
            carried = (finished - then) / (now_s - then_s)
            if carried > 0:
                self.ceiling = max(carried, self.ceiling or 0.0)
            self._busy_since = (now_s, finished)


def _per_s(window: RateWindow) -> float | None:
    grown = window.growth()
    return None if grown is None else grown[1][0] / grown[0]


class MeanLatency:
    """The mean time from a call to its answer over the last one to two windows that had answers."""

    __slots__ = ("_answers", "_last_s", "_sum_s", "_window")

    def __init__(self) -> None:
        self._answers = 0
        self._sum_s = 0.0
        self._last_s: float | None = None
        self._window = RateWindow()

    def add(self, latency_s: float, count: int) -> None:
        """Counts `count` messages, each answered after `latency_s`."""
        self._answers += count
        self._sum_s += latency_s * count

    def mean_s(self, now_s: float) -> float | None:
        """The mean at `now_s`; None: no answer yet."""
        self._window.sample(now_s, self._answers, self._sum_s)
        grown = self._window.growth()
        if grown is not None and grown[1][0] > 0:
            self._last_s = grown[1][1] / grown[1][0]
        elif self._last_s is None and self._answers:
            self._last_s = self._sum_s / self._answers  # the first seconds
        return self._last_s
