"""Adapts the timeout of calls to one receiver: longer after repeated timeouts, shorter after quick answers.

    timeout_s ▲      ╭──────╮ the most
              │   ╭──╯      ╰──╮
       base_s ┼───╯            ╰────────▶      x 2 up, / 2 down

Two timeouts adapt:

- A message's (`for_message`): it doubles with every timeout of this message, up to the maximum. So a message
  that needs longer than others gets through. uForwarder does the same (GrpcUtils.getTimeout: `rpcTimeoutMs <<
  timeoutCount`, at most 30 minutes).
- The receiver's (`timeout_s`): it doubles after `STREAK` timeouts in a row, or when more than `TIMEOUT_SHARE`
  of `WINDOW_CALLS` calls timed out. Otherwise all work of a receiver that has become slow would be lost. It
  is at most `RECEIVER_FACTOR` times the definition's, so that hanging calls free their places.

Rules (tests/dispatch/model/test_adaptive_timeout.py)
1. base_s <= timeout_s <= for_message(n) <= for_message(n + 1) <= maximum_s: no call gets less than the
   definition's timeout.
2. After a change, calls that began before it do not count: they had the old timeout.
3. The timeout halves after a calm window, so that a step down does not cause new timeouts. At most
   `CALM_SHARE` of its calls timed out, and its slowest answer took less than `CALM_LATENCY` of the lower
   timeout.
"""

from __future__ import annotations

STREAK = 3
WINDOW_CALLS = 50
TIMEOUT_SHARE = 0.2
CALM_SHARE = 0.02
CALM_LATENCY = 0.8
FACTOR = 2.0
RECEIVER_FACTOR = 8.0
MAXIMUM_S = 1800.0  # uForwarder's maxRpcTimeoutMs
MAX_DOUBLINGS = 32  # beyond every sane maximum


class AdaptiveTimeout:
    """One for each receiver; for one thread.

    Args:
        base_s: The definition's timeout.
        maximum_s: The longest timeout of any call; at least `base_s`.

    Attributes (read only):
        timeout_s: The timeout of a message's first call.

    Raises:
        ValueError: base_s is not above 0, or maximum_s is below it.
    """

    __slots__ = (
        "_calls", "_since_s", "_slowest_s", "_streak", "_timeouts", "base_s", "maximum_s", "timeout_s",
    )  # fmt: skip

    def __init__(self, base_s: float, maximum_s: float = MAXIMUM_S) -> None:
        if not 0 < base_s <= maximum_s < float("inf"):
            raise ValueError(f"timeout {base_s} s must be above 0, at most the maximum of {maximum_s} s")
        self.base_s = base_s
        self.maximum_s = maximum_s
        self.timeout_s = base_s
        self._since_s = float("-inf")
        self._calls = self._timeouts = self._streak = 0
        self._slowest_s = 0.0

    def for_message(self, timeouts: int) -> float:
        """The timeout of a message that has timed out `timeouts` times."""
        if not timeouts:
            return self.timeout_s
        return min(self.maximum_s, max(self.timeout_s, self.base_s * FACTOR ** min(timeouts, MAX_DOUBLINGS)))

    def on_answer(self, now_s: float, latency_s: float) -> None:
        if now_s - latency_s < self._since_s:
            return
        self._streak = 0
        self._calls += 1
        if latency_s > self._slowest_s:  # noqa: PLR1730 - a call of max() for every message
            self._slowest_s = latency_s
        if self._calls >= WINDOW_CALLS:
            self._end_window(now_s)

    def on_answers(self, now_s: float, count: int, slowest_s: float) -> None:
        """Takes `count` calls that were answered in time, the slowest after `slowest_s`."""
        if not count or now_s - slowest_s < self._since_s:
            return
        self._streak = 0
        self._calls += count
        self._slowest_s = max(self._slowest_s, slowest_s)
        if self._calls >= WINDOW_CALLS:
            self._end_window(now_s)

    def on_timeout(self, now_s: float, after_s: float, count: int = 1) -> None:
        """Takes `count` calls that timed out after `after_s`."""
        if now_s - after_s < self._since_s:
            return
        self._streak += count
        self._timeouts += count
        self._calls += count
        if self._streak >= STREAK:
            self._step(now_s, self.timeout_s * FACTOR)
        elif self._calls >= WINDOW_CALLS:
            self._end_window(now_s)

    def reset(self, now_s: float) -> None:
        """Forgets everything, because the receiver is back after an outage, or is another instance."""
        self._step(now_s, self.base_s)

    def _end_window(self, now_s: float) -> None:
        share, lower_s = self._timeouts / self._calls, max(self.base_s, self.timeout_s / FACTOR)
        if share > TIMEOUT_SHARE:
            self._step(now_s, self.timeout_s * FACTOR)
        elif share <= CALM_SHARE and self._slowest_s < CALM_LATENCY * lower_s < self.timeout_s:
            self._step(now_s, lower_s)
        else:
            self._forget()

    def _step(self, now_s: float, timeout_s: float) -> None:
        timeout_s = min(timeout_s, self.maximum_s, RECEIVER_FACTOR * self.base_s)
        if timeout_s != self.timeout_s:
            self.timeout_s = timeout_s
            self._since_s = now_s
        self._forget()

    def _forget(self) -> None:
        self._calls = self._timeouts = self._streak = 0
        self._slowest_s = 0.0
