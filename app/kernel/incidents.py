"""How all rooms report a problem that a person must know of (`app.worker.runtime.incidents`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# A text: the incident ends here, for this reason, although the problem may last.
IsOver = Callable[[], bool | str]
JOB_CLOSED = "its job stopped or moved"


class ReportIncident(Protocol):
    def __call__(
        self, kind: str, subject: str, message: str, remedy: str, is_over: IsOver | None = None, /
    ) -> None:
        """Reports an incident.

        Args:
            is_over: Whether the reported state has ended, or why. It is called about once a second until
                then, so it must be cheap. It must be true once the pump or definition is gone here. None:
                the incident is an event of one moment, which has no end.
        """
        ...


class ReportOwnIncident(Protocol):
    """`ReportIncident` for one subject."""

    def __call__(self, kind: str, message: str, remedy: str, is_over: IsOver | None = None, /) -> None: ...


class Closable(Protocol):
    """A pump."""

    @property
    def closed(self) -> bool: ...


def until_closed(pump: Closable, is_over: IsOver) -> IsOver:
    """`is_over` for what a job reports: also true once the job has stopped here."""
    return lambda: (pump.closed and JOB_CLOSED) or is_over()
