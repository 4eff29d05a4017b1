"""Logs skipped records of a topic in few lines, however many they are.

One request may contain a million bad records, and a log line costs as much as all other work on one.
"""

from __future__ import annotations

import asyncio

import structlog

log = structlog.get_logger(__name__)

REPORT_DELAY_S = 1.0  # records within it share a line


class UnreadableRecords:
    """The skipped records since the last log line. The line has `message` and `fields`, the count, first
    and last offset, and the last error."""

    def __init__(self, message: str, **fields: object) -> None:
        self._message = message
        self._fields = fields
        self._count = 0
        self._first = self._last = -1
        self._why = ""
        self._due: asyncio.TimerHandle | None = None

    def add(self, offset: int, error: Exception) -> None:
        """Counts a record; the caller must call `report`."""
        if not self._count:
            self._first = offset
        self._count, self._last, self._why = self._count + 1, offset, str(error)

    def add_for_later(self, offset: int, error: Exception) -> None:
        """Counts a record and reports within `REPORT_DELAY_S`; call it in the event loop."""
        self.add(offset, error)
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(REPORT_DELAY_S, self.report)

    def report(self) -> None:
        self._due = None
        if self._count:
            log.error(
                self._message, **self._fields, records=self._count, offset=self._first,
                last_offset=self._last, error=self._why,
            )  # fmt: skip
        self._count = 0
