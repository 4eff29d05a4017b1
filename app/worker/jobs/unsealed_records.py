"""Records of control topics that were refused for want of a seal, as incidents (`app.controllog.seals`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from app.controllog.seals import Refused
from app.kernel.repeated_trouble import RepeatedTrouble
from app.worker.jobs.start_position import ReportIncident

REMEDY = (
    "see who else writes to that topic, and withdraw their permission (docs/permissions.md); if it is a "
    "worker of an earlier version, update it"
)


class UnsealedRecords:
    """Tells of each topic at once, then seldom (`app.kernel.repeated_trouble`)."""

    def __init__(self, report_incident: ReportIncident) -> None:
        self._report_incident = report_incident
        self._of = defaultdict[str, RepeatedTrouble](RepeatedTrouble)

    def tell(self, refused: Iterable[Refused], now_s: float) -> None:
        """So much was refused since the last call."""
        for one in refused:
            where = f"offset {one.offset} of partition {one.partition}"
            self._of[one.topic].record(where, one.count)
        for topic, trouble in self._of.items():
            if (due := trouble.due(now_s)) is not None:
                count, where = due
                self._report_incident(
                    "unsealed", topic,
                    f"{count} records without a worker's seal do not count, the last at {where}: somebody "
                    "else wrote them",
                    REMEDY,
                )  # fmt: skip
