"""Compares a worker's clock with the brokers', and reports a difference.

Each heartbeat's acknowledgement has the brokers' time, because its topic uses log append time. The
worker's own clock (`app.kernel.clock`) is then corrected, but other programs on the host still have the
wrong time.
"""

from __future__ import annotations

from aiokafka.structs import RecordMetadata

from app.kernel.clock import Clock
from app.kernel.durations import format_duration
from app.kernel.incidents import ReportOwnIncident

REPORT_MS, CLEAR_MS = 5_000, 2_000  # reported from the first, until it is below the second
LOG_APPEND_TIME = 1  # `timestamp_type` of a record's metadata
REMEDY = "set the host's clock, as NTP does (`timedatectl`, `chronyc tracking`)"


class HostClock:
    """`trouble`: the difference from the brokers' clock in words; "" while it is small or not known."""

    def __init__(self, clock: Clock, report: ReportOwnIncident) -> None:
        self.trouble = ""
        self._clock = clock
        self._report = report

    def steady_ms(self) -> int:
        return self._clock.steady_ms()

    def acknowledged(self, metadata: RecordMetadata, sent_ms: int) -> None:
        """A heartbeat sent at `sent_ms` (steady) is in the log, with aiokafka's `metadata`."""
        if metadata.timestamp_type == LOG_APPEND_TIME and metadata.timestamp is not None:
            self._clock.observe(metadata.timestamp, sent_ms)
            self.look()

    def refused(self, error: object) -> None:
        """The brokers refused a heartbeat for its timestamp: its topic keeps the writers' (`topic_times`)."""
        if not self.trouble:
            self.trouble = f"the brokers refuse this worker's clock: {error}"
            self._report("clock", self.trouble, REMEDY, lambda: not self.trouble)

    def look(self) -> None:
        offset_ms = self._clock.host_offset_ms
        if offset_ms is None or abs(offset_ms) < CLEAR_MS:
            self.trouble = ""
        elif abs(offset_ms) >= REPORT_MS:
            is_new = not self.trouble
            side = "ahead of" if offset_ms > 0 else "behind"
            self.trouble = f"this worker's clock is {_words(abs(offset_ms))} {side} the brokers'"
            if is_new:
                words = f"{self.trouble}; it uses their time meanwhile"
                self._report("clock", words, REMEDY, lambda: not self.trouble)

    @property
    def ahead_s(self) -> float | None:
        """The host's clock minus the brokers'; None: not known."""
        return None if self._clock.host_offset_ms is None else self._clock.host_offset_ms / 1000


def _words(ms: int) -> str:
    """About two figures, because the value changes all the time."""
    for unit_ms in (3_600_000, 60_000):
        if ms >= 2 * unit_ms:
            return format_duration(round(ms / unit_ms) * unit_ms / 1000)
    return format_duration(round(ms / 1000))
