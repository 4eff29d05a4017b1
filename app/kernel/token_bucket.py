"""A token bucket: so many messages or bytes a second, with a small burst, and nothing blocked for ever.

    tokens ▲ burst ───╮      ╭──── full: nothing more is saved up
           │          ╰─╮  ╭─╯
         0 ┼────────────╰──╯─────▶ time       below 0: a debt, which is waited for before anything else

Rules
1. What asks `wait_s` and takes only when it says 0 never passes more than `rate * t + burst` in any `t`,
   plus the debt of one message.
2. A message larger than the burst goes when the bucket is full, and leaves a debt. None waits for ever.
3. A wait below `MIN_WAIT_S` is none: a timer cannot keep it, and rounding must not make a caller spin.
   It is not given away: what is taken early is waited for later.

The state is one number, the time at which the bucket is full again (the virtual scheduling form of
ITU-T I.371's generic cell rate algorithm), so that asking changes nothing and time may stand still.
"""

from __future__ import annotations

DEFAULT_BURST_S = 0.1  # of the rate: short enough for a receiver's queue, longer than a timer's jitter
MIN_WAIT_S = 1e-6


class TokenBucket:
    """See the module.

    Args:
        rate_per_s: tokens a second.
        burst: the most that is saved up; None = `DEFAULT_BURST_S` worth, at least 1.

    Attributes (read only): rate_per_s, burst.

    Raises:
        ValueError: a figure is not a positive number, or the burst is below 1.
    """

    __slots__ = ("_asked_burst", "_full_at_s", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float | None = None) -> None:
        if burst is not None and not 1 <= burst < float("inf"):
            raise ValueError(f"burst {burst} must be at least 1, so that one message can go")
        self._asked_burst = burst
        self._full_at_s = float("-inf")
        self._set_rate(rate_per_s)

    def _set_rate(self, rate_per_s: float) -> None:
        if not 0 < rate_per_s < float("inf"):
            raise ValueError(f"rate {rate_per_s} per second must be above 0 and finite")
        self.rate_per_s = rate_per_s
        burst = self._asked_burst
        self.burst = max(1.0, rate_per_s * DEFAULT_BURST_S) if burst is None else burst

    def available(self, now_s: float) -> float:
        """Tokens there are at `now_s`, at most the burst; negative while a debt is waited for."""
        missing_s = self._full_at_s - now_s
        return self.burst - missing_s * self.rate_per_s if missing_s > 0 else self.burst

    def take(self, now_s: float, amount: float = 1.0) -> None:
        """Takes `amount`, into debt if there is not so much: ask `wait_s` first."""
        full_at_s = self._full_at_s
        self._full_at_s = (full_at_s if full_at_s > now_s else now_s) + amount / self.rate_per_s

    def wait_s(self, now_s: float, amount: float = 1.0) -> float:
        """Seconds until `amount` may be taken; 0 when it may go now."""
        missing_s = self._full_at_s - now_s
        if missing_s <= 0:
            return 0.0
        burst = self.burst
        spare = burst - amount if amount < burst else 0.0
        wait_s = missing_s - spare / self.rate_per_s
        return wait_s if wait_s >= MIN_WAIT_S else 0.0

    def change(self, rate_per_s: float, now_s: float) -> None:
        """Takes another rate into force; tokens and debt stay as they are, the burst is cut to size."""
        available = self.available(now_s)
        self._set_rate(rate_per_s)
        self._full_at_s = now_s + (self.burst - min(available, self.burst)) / rate_per_s
