"""A token bucket: a rate of messages or bytes, with a small burst, that never blocks for ever.

    tokens ▲ burst ───╮      ╭──── full: no more tokens are saved
           │          ╰─╮  ╭─╯
         0 ┼────────────╰──╯─────▶ time       below 0: a debt, which must be waited for first

Rules
1. A caller that takes only when `wait_s` is 0 takes at most `rate * t + burst` in any interval `t`, plus the
   debt of one message.
2. A message larger than the burst passes when the bucket is full, and leaves a debt. So no message waits for
   ever.
3. A wait below `MIN_WAIT_S` counts as 0: no timer can keep it, and rounding must not make a caller spin. The
   tokens taken early are waited for later.

The state is one number, the time at which the bucket is full again (virtual scheduling, as in ITU-T I.371's
generic cell rate algorithm). So a query changes nothing, and time may stand still.
"""

from __future__ import annotations

DEFAULT_BURST_S = 0.1  # of the rate: short for a receiver's queue, longer than a timer's jitter
MIN_WAIT_S = 1e-6


class TokenBucket:
    """A bucket that fills at `rate_per_s`. Times are monotonic seconds.

    Args:
        rate_per_s: Tokens per second.
        burst: The most tokens that the bucket holds; None = `DEFAULT_BURST_S` worth, at least 1.

    Raises:
        ValueError: A figure is not a positive number, or the burst is below 1.
    """

    __slots__ = ("_configured_burst", "_full_at_s", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float | None = None) -> None:
        if burst is not None and not 1 <= burst < float("inf"):
            raise ValueError(f"burst {burst} must be at least 1, so that one message can go")
        self._configured_burst = burst
        self._full_at_s = float("-inf")
        self._set_rate(rate_per_s)

    def _set_rate(self, rate_per_s: float) -> None:
        if not 0 < rate_per_s < float("inf"):
            raise ValueError(f"rate {rate_per_s} per second must be above 0 and finite")
        self.rate_per_s = rate_per_s
        burst = self._configured_burst
        self.burst = max(1.0, rate_per_s * DEFAULT_BURST_S) if burst is None else burst

    def available(self, now_s: float) -> float:
        """The tokens at `now_s`, at most the burst; negative while there is a debt."""
        missing_s = self._full_at_s - now_s
        return self.burst - missing_s * self.rate_per_s if missing_s > 0 else self.burst

    def take(self, now_s: float, amount: float = 1.0) -> None:
        """Takes `amount`, into debt where the bucket holds less: call `wait_s` first."""
        full_at_s = self._full_at_s
        self._full_at_s = (full_at_s if full_at_s > now_s else now_s) + amount / self.rate_per_s

    def wait_s(self, now_s: float, amount: float = 1.0) -> float:
        """Seconds until `amount` may be taken; 0: now."""
        missing_s = self._full_at_s - now_s
        if missing_s <= 0:
            return 0.0
        burst = self.burst
        spare = burst - amount if amount < burst else 0.0
        wait_s = missing_s - spare / self.rate_per_s
        return wait_s if wait_s >= MIN_WAIT_S else 0.0

    def change(self, rate_per_s: float, now_s: float) -> None:
        """Changes the rate. Tokens and debt stay as they are, except that tokens above the new burst go."""
        available = self.available(now_s)
        self._set_rate(rate_per_s)
        self._full_at_s = now_s + (self.burst - min(available, self.burst)) / rate_per_s
