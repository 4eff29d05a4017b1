"""What only the leader reports ends with its leadership, and a new leader reports itself what it finds."""

from __future__ import annotations

from app.controllog.log import ControlLog
from app.kernel.incidents import IsOver, ReportIncident

OTHER_LEADER = "another worker leads now"


class NewTerm:
    """Tells a part of the leader that a leadership has begun: what it read or reported before may be old."""

    def __init__(self) -> None:
        self._term = 0

    def has_begun(self, term: int) -> bool:
        """Whether `term` is another one than at the last call."""
        before, self._term = self._term, term
        return term != before


def until_deposed(control: ControlLog, is_over: IsOver) -> IsOver:
    """`is_over` for what the present leader reports: also true once another worker leads, which reports
    itself what it finds."""
    own = control.worker or control.view.leader
    return lambda: (control.view.leader not in {own, ""} and OTHER_LEADER) or is_over()


def as_leader(control: ControlLog, report_incident: ReportIncident) -> ReportIncident:
    """`report_incident` with `until_deposed`, for what only the leader reports."""

    def report(kind: str, subject: str, message: str, remedy: str, is_over: IsOver | None = None) -> None:
        is_over = None if is_over is None else until_deposed(control, is_over)
        report_incident(kind, subject, message, remedy, is_over)

    return report
