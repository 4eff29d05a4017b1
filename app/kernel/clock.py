"""The wall clock, as Kafka's timestamps and people have it. Leases and deadlines go by `time.monotonic`.

The host's clock may be wrong, or jump. Where the brokers have told their time (`Clock.told`), theirs counts:
they refuse timestamps that lie ahead of it, and a due time that one worker writes is read by another.

    the host's is within TOLERANCE_MS of the brokers' -> the host's
    it is not                                         -> the brokers', carried on by the monotonic clock
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

TOLERANCE_MS = 1_000  # what hosts with a synchronised clock, and slow answers, stay below


class Clock:
    """See the module. `wall_ms` counts from 1970, `steady_ms` from anywhere."""

    __slots__ = ("_offset_ms", "_steady_ms", "_wall_ms")

    def __init__(self, wall_ms: Callable[[], int], steady_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._offset_ms: int | None = None  # from the steady clock to the brokers'

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        wall_ms = self._wall_ms()
        if self._offset_ms is None:
            return wall_ms
        brokers_ms = self._steady_ms() + self._offset_ms
        return wall_ms if abs(wall_ms - brokers_ms) <= TOLERANCE_MS else brokers_ms

    def told(self, broker_ms: int, asked_ms: int) -> None:
        """A broker's clock said so between `asked_ms` (steady) and now."""
        least, most = broker_ms - self._steady_ms(), broker_ms + 1 - asked_ms
        known = (least + most) // 2 if self._offset_ms is None else self._offset_ms
        self._offset_ms = max(least, min(most, known))

    def steady_ms(self) -> int:
        """What `told` takes."""
        return self._steady_ms()

    @property
    def ahead_ms(self) -> int | None:
        """By how much the host's clock is ahead of the brokers', below 0 behind; None: they have not told."""
        return None if self._offset_ms is None else self._wall_ms() - self._steady_ms() - self._offset_ms


def _steady_ms() -> int:
    """Counts on while the host is suspended, where the system has such a clock (Linux)."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


clock = Clock(lambda: time.time_ns() // 1_000_000, _steady_ms)
now_ms = clock.now_ms


def iso(at_ms: int) -> str:
    """A time for people and for `fromisoformat`: UTC, to the millisecond; beyond all clocks, the number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
