"""Since when positions stand still, for jobs that do not know how old their first unfinished message is.

A job knows only the ages of messages that it has read. Without an age, the series of its lag in time would
end when nothing can be read, and no alert would see that. So the lag is at least the time for which the
position has stood still while messages wait behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from app.controllog.codec import JobStatus


class _Stand(NamedTuple):
    epoch: int
    committed: int
    since_ms: int


class StandingPositions:
    def __init__(self) -> None:
        self._stands: dict[str, _Stand] = {}

    def with_ages(self, statuses: Iterable[JobStatus], at_ms: int) -> list[JobStatus]:
        """The statuses of all jobs that run here; where the age is missing, with the time since."""
        stands, found = dict[str, _Stand](), list[JobStatus]()
        for status in statuses:
            if 0 <= status.committed < status.high_watermark:
                known = self._stands.get(status.job)
                if known is None or known[:2] != (status.epoch, status.committed):
                    known = _Stand(status.epoch, status.committed, at_ms)
                stands[status.job] = known
                if status.oldest_ms < 0:
                    status = msgspec.structs.replace(status, oldest_ms=known.since_ms)  # noqa: PLW2901
            found.append(status)
        self._stands = stands
        return found
