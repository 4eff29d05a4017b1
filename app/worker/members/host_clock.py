"""Tells where a worker's clock differs from the brokers'.

Each heartbeat asks: its topic has the brokers' time, and the acknowledgement names it. The clock that workers
go by is right meanwhile (`app.kernel.clock`); what else runs on the host has the wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.kernel.clock import Clock
from app.kernel.durations import format_duration

TOLD_MS, RIGHT_MS = 5_000, 2_000  # told from the first on, until below the second
LOG_APPEND_TIME = 1  # `timestamp_type` of a record's metadata
REMEDY = "set the host's clock, as NTP does (`timedatectl`, `chronyc tracking`)"

Report = Callable[[str, str, str], None]  # kind, message, remedy


class HostClock:
    """See the module.

    Attributes:
        trouble: in words; "" while the clock is right, or the brokers have not told their time.
    """

    def __init__(self, clock: Clock, report: Report) -> None:
        self.trouble = ""
        self._clock = clock
        self._report = report

    def steady_ms(self) -> int:
        """Before a heartbeat is sent."""
        return self._clock.steady_ms()

    def acknowledged(self, metadata: Any, sent_ms: int) -> None:
        """A heartbeat that was sent then (steady) is in the log. `metadata`: aiokafka's of the record."""
        if metadata.timestamp_type == LOG_APPEND_TIME:
            self._clock.observe(metadata.timestamp, sent_ms)
            self.look()

    def refused(self, error: object) -> None:
        """A heartbeat was not taken for its timestamp: its topic keeps the writers' (`topic_times`)."""
        if not self.trouble:
            self.trouble = f"the brokers refuse this worker's clock: {error}"
            self._report("clock", self.trouble, REMEDY)

    def look(self) -> None:
        """Compares."""
        offset_ms = self._clock.host_offset_ms
        if offset_ms is None or abs(offset_ms) < RIGHT_MS:
            self.trouble = ""
        elif abs(offset_ms) >= TOLD_MS:
            is_news = not self.trouble
            side = "ahead of" if offset_ms > 0 else "behind"
            self.trouble = f"this worker's clock is {_words(abs(offset_ms))} {side} the brokers'"
            if is_news:
                self._report("clock", f"{self.trouble}; it goes by theirs meanwhile", REMEDY)

    @property
    def ahead_s(self) -> float | None:
        """By so much the host's clock is ahead, below 0 behind; None: not known."""
        return None if self._clock.host_offset_ms is None else self._clock.host_offset_ms / 1000


def _words(ms: int) -> str:
    """To two figures or so: it changes all the time."""
    for unit_ms in (3_600_000, 60_000):
        if ms >= 2 * unit_ms:
            return format_duration(round(ms / unit_ms) * unit_ms / 1000)
    return format_duration(round(ms / 1000))
