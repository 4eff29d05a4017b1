"""Capped exponential backoff with jitter. The caller passes the random number, so that runs can be replayed.

    delay(n) = min(cap, base * factor ** (n - 1)), of which the share `jitter` is random

Jitter keeps messages that failed together from being retried together. Full jitter would allow a wait of
nearly 0, so only a share of the delay is random.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_EXPONENT = 64  # beyond it every sane cap is reached; a float would overflow at about 1024


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt.

    Attributes:
        base_s: The wait before the second attempt, in seconds.
        cap_s: The longest wait, in seconds.
        factor: The growth from one wait to the next.
        jitter: The share of the wait that is random, 0 to 1.

    Raises:
        ValueError: A figure is outside its bounds.
    """

    base_s: float = 0.1
    cap_s: float = 10.0
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s < float("inf"):
            raise ValueError(f"backoff base {self.base_s} s must be above 0, at most the cap {self.cap_s} s")
        if not 1 <= self.factor < float("inf"):
            raise ValueError(f"backoff factor {self.factor} must be at least 1: waits do not shrink")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"backoff jitter {self.jitter} must be a share from 0 to 1")

    def delay_s(self, failures: int, random01: float = 1.0) -> float:
        """Seconds to wait after the `failures`-th failure (from 1), in (1 - jitter .. 1] of the full wait.

        `random01` is uniform in [0, 1]; 1 gives the full wait.
        """
        exponent = min(max(failures, 1) - 1, MAX_EXPONENT)
        full_s = min(self.cap_s, self.base_s * float(min(self.factor**exponent, 1e18)))
        return full_s * (1.0 - self.jitter * (1.0 - random01))
