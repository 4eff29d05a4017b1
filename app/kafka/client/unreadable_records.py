"""Records of a topic that are passed over, told in few lines of the log however many they are.

Whoever may write to a topic may write a million bad records in one request, and a line of the log takes as
long as all else that is done with such a record.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

log = structlog.get_logger(__name__)

REPORT_DELAY_S = 1.0  # what comes within it is one line


class UnreadableRecords:
    """Those since the last report.

    Args:
        message: the line.
        fields: what it says besides how many they are, their first and last offset, and why the last one is
            bad.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        self._message = message
        self._fields = fields
        self._count = 0
        self._first = self._last = -1
        self._why = ""
        self._due: asyncio.TimerHandle | None = None

    def add(self, offset: int, error: Exception) -> None:
        """One more, to be reported by who adds it."""
        if not self._count:
            self._first = offset
        self._count, self._last, self._why = self._count + 1, offset, str(error)

    def add_for_later(self, offset: int, error: Exception) -> None:
        """One more, reported within `REPORT_DELAY_S`; in the event loop."""
        self.add(offset, error)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(REPORT_DELAY_S, self.report)

    def report(self) -> None:
        """Logs them, if there are any."""
        self._due = None
        if self._count:
            log.error(
                self._message, **self._fields, records=self._count, offset=self._first,
                last_offset=self._last, error=self._why,
            )  # fmt: skip
        self._count = 0
