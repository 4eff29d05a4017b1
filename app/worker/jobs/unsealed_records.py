"""Incidents of records in control topics that were refused because they lack a seal
(`app.controllog.seals`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from app.controllog.seals import Refused
from app.kernel.incidents import ReportIncident
from app.kernel.repeated_trouble import RepeatedTrouble

REMEDY = (
    "find the writer and withdraw its permission (docs/permissions.md); if it is a worker of an earlier "
    "version, update it"
)


class UnsealedRecords:
    """Reports each topic at once, then seldom (`app.kernel.repeated_trouble`)."""

    def __init__(self, report_incident: ReportIncident) -> None:
        self._report_incident = report_incident
        self._troubles = defaultdict[str, RepeatedTrouble](RepeatedTrouble)

    def report(self, refused: Iterable[Refused], now_s: float) -> None:
        for one in refused:
            where = f"offset {one.offset} of partition {one.partition}"
            self._troubles[one.topic].record(where, one.count)
        for topic, trouble in self._troubles.items():
            if (due := trouble.due(now_s)) is not None:
                count, where = due
                self._report_incident(
                    "unsealed", topic,
                    f"{count} records without a worker's seal do not count, the last at {where}: another "
                    "program wrote them",
                    REMEDY,
                )  # fmt: skip
