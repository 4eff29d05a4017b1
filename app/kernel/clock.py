"""The wall clock for Kafka timestamps and for people. Leases and deadlines use `time.monotonic` instead.

A host's clock may be wrong or jump. Brokers refuse timestamps far in the future, and workers read due times
that other workers wrote. So once a broker's time is known (`Clock.observe`), it corrects the host's:

    the host's clock is within TOLERANCE_MS of the brokers' -> the host's clock
    otherwise                                               -> the brokers' time, carried on monotonically

`tests/kernel/test_clock.py` holds these rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

TOLERANCE_MS = 1_000  # more than synchronised clocks and slow answers differ by


class Clock:
    """A host's clock, corrected by the brokers'. `wall_ms` counts from 1970, `steady_ms` from any moment."""

    __slots__ = ("_offset_ms", "_steady_ms", "_wall_ms")

    def __init__(self, wall_ms: Callable[[], int], steady_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._offset_ms: int | None = None  # the brokers' clock minus the steady one

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        wall_ms = self._wall_ms()
        if self._offset_ms is None:
            return wall_ms
        brokers_ms = self._steady_ms() + self._offset_ms
        return wall_ms if abs(wall_ms - brokers_ms) <= TOLERANCE_MS else brokers_ms

    def observe(self, broker_ms: int, sent_ms: int) -> None:
        """Takes a broker's time, read between `sent_ms` (steady, when the request was sent) and now."""
        least, most = broker_ms - self._steady_ms(), broker_ms + 1 - sent_ms
        known = (least + most) // 2 if self._offset_ms is None else self._offset_ms
        self._offset_ms = max(least, min(most, known))

    def steady_ms(self) -> int:
        """The steady clock, for the `sent_ms` of `observe`."""
        return self._steady_ms()

    @property
    def host_offset_ms(self) -> int | None:
        """The host's clock minus the brokers', in milliseconds; None: no broker's time is known."""
        return None if self._offset_ms is None else self._wall_ms() - self._steady_ms() - self._offset_ms


def _steady_ms() -> int:
    """A monotonic clock that includes the time a host was suspended, where the system has one (Linux)."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


clock = Clock(lambda: time.time_ns() // 1_000_000, _steady_ms)
now_ms = clock.now_ms


def iso(at_ms: int) -> str:
    """The time in UTC, to the millisecond, as `fromisoformat` reads it; the plain number beyond year 9999."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
