"""The region's incidents, folded from the records of their topic. Pure.

    report (lasts) ──▶ open ──▶ end: the same record with `ended_ms`
    report (a moment) ──▶ no end

Rules (tests/controllog/test_incident_log.py)
1. A report and its end differ only in `ended_ms` and `ended_why`. Each incident is kept once, in whatever
   order its records come, and however often.
2. An end never opens again: the same problem at a later time is another incident.
3. At most `MAX_KEPT` open incidents are kept, and as many others. The oldest are dropped.
4. A worker's id is used once, so an incident has also ended when its worker no longer lives.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from app.controllog.codec import IncidentRecord

MAX_KEPT = 500
WORKER_GONE = "its worker is gone"


class IncidentLog:
    def __init__(self) -> None:
        # By the report; the open ones, and those that have ended or have no end.
        self._open: dict[IncidentRecord, IncidentRecord] = {}
        self._past: dict[IncidentRecord, IncidentRecord] = {}

    def add(self, record: IncidentRecord) -> None:
        report = msgspec.structs.replace(record, ended_ms=0, ended_why="")
        if report in self._past:
            return
        kept = self._open
        if record.ended_ms or not record.lasts:
            self._open.pop(report, None)
            kept = self._past
        kept[report] = record
        if len(kept) > MAX_KEPT:
            del kept[next(iter(kept))]

    def newest_first(self, live: Collection[str]) -> list[IncidentRecord]:
        """The open ones first, each part by time, the newest first. By rule 4 those of workers outside `live`
        have ended; an empty `live` is not known yet."""
        past = list(self._past.values())
        still_open = []
        for record in self._open.values():
            if live and record.worker not in live:
                past.append(msgspec.structs.replace(record, ended_why=WORKER_GONE))
            else:
                still_open.append(record)
        return [*_newest_first(still_open), *_newest_first(past)]


def is_open(record: IncidentRecord) -> bool:
    """Whether the state still lasts, as far as this record says."""
    return record.lasts and not (record.ended_ms or record.ended_why)


def _newest_first(records: list[IncidentRecord]) -> list[IncidentRecord]:
    # The sort is stable: of the same millisecond, the later record comes first.
    return sorted(records, key=lambda record: record.at_ms)[::-1]
