"""How all rooms report a problem that a person must know of (`app.worker.runtime.incidents`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# A text: the incident ends here, for this reason, although the problem may last.
IsOver = Callable[[], bool | str]
JOB_CLOSED = "its job stopped or moved"
OTHER_LEADER = "another worker leads now"


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
