"""Trouble that may come thousands of times: the first is reported at once, later ones seldom, with a
count."""

from __future__ import annotations

REPORT_INTERVAL_S = 600.0


class RepeatedTrouble:
    """Counts one kind of trouble, and reports it at most once per `REPORT_INTERVAL_S`.

    Attributes:
        count: Occurrences since the worker started.
    """

    __slots__ = ("_last", "_reported", "_reported_s", "count")

    def __init__(self) -> None:
        self.count = self._reported = 0
        self._last = ""
        self._reported_s = float("-inf")

    def record(self, details: str, times: int = 1) -> None:
        """Counts `times` more occurrences; `details` describe the last one."""
        self.count += times
        self._last = details

    def due(self, now_s: float) -> tuple[int, str] | None:
        """The occurrences since the last report, and the last details; None: no report is due.

        The call counts as the report.
        """
        if self.count == self._reported or now_s < self._reported_s + REPORT_INTERVAL_S:
            return None
        count, self._reported, self._reported_s = self.count - self._reported, self.count, now_s
        return count, self._last
