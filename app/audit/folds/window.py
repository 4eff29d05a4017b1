"""A window's record: a tumbling window of event time with an explicit key. A fold over reports and closings.

    open --watermark past its end--> provisional --watermark past its end and the lateness--> closed

Rules
1. Open and provisional only name where the watermark is (`phase`); closed is in the record.
2. Closed is final: `totals` never change again. Later counts go into `late`.
3. Every event has a position, and the record skips events at or below its own. A closing counts by position:
   reports before it in the topic are in time, reports behind it late, in every replay.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from app.audit.folds.counted_parts import NOTHING_COUNTED, Counted, ReportOutcome, count_report
from app.kernel.ranges import Range
from switchyard.audit.model.reports import MOST_SOURCES, Report, Scope
from switchyard.audit.model.spans import NO_SPAN
from switchyard.audit.model.tally import UNTIMED
from switchyard.audit.model.totals import NO_TOTALS, Totals

OPEN_MS = -1
NEVER_MS = 1 << 62  # where the window of records without a timestamp ends


class WindowPhase(enum.Enum):
    OPEN = "open"
    PROVISIONAL = "provisional"
    CLOSED = "closed"


class WindowKey(NamedTuple):
    """The key of a window's record, of one shard; its names contain no slash."""

    topic: str
    tier: str
    cluster: str
    width_ms: int
    start_ms: int
    shard: int = 0

    @property
    def end_ms(self) -> int:
        return NEVER_MS if self.start_ms == UNTIMED else self.start_ms + self.width_ms

    @property
    def scope(self) -> Scope:
        return Scope(self.topic, self.tier, self.cluster, self.width_ms)

    def __str__(self) -> str:
        return "/".join(map(str, self[:]))

    @classmethod
    def parse(cls, text: str) -> WindowKey:
        """Raises ValueError: The text is no key of a window."""
        topic, tier, cluster, width, start, shard = text.split("/")
        return cls(topic, tier, cluster, int(width), int(start), int(shard))


class WindowRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one shard of a window.

    Attributes:
        late_ms: When the last late records were reported; -1: there are none.
        closed_ms: When the window was closed; `OPEN_MS`: it is not.
        without: Sources that were silent at the closing, with watermarks below the window's end.
        counted: Source -> its counts, in time or late.
        apart: In the window of records without a timestamp, the records of final parts without room for
            windows of their own (`collector`). Repeated reports may be in it twice.
        position: The position of the last event that changed the record.
    """

    totals: Totals = NO_TOTALS
    late: Totals = NO_TOTALS
    late_ms: int = -1
    closed_ms: int = OPEN_MS
    without: tuple[str, ...] = ()
    counted: dict[str, Counted] = {}
    position: int = -1
    apart: Totals = NO_TOTALS

    @property
    def is_closed(self) -> bool:
        return self.closed_ms != OPEN_MS


def on_report(
    record: WindowRecord, report: Report, totals: Totals, position: int, span: Range = NO_SPAN
) -> tuple[WindowRecord, Totals, ReportOutcome]:
    """The record after a report, the totals that the report added, and its outcome."""
    if position <= record.position:
        return record, NO_TOTALS, ReportOutcome.REPEATED
    if report.source not in record.counted and len(record.counted) >= MOST_SOURCES:
        return record, NO_TOTALS, ReportOutcome.FULL
    known, added, verdict = count_report(
        record.counted.get(report.source, NOTHING_COUNTED), report, totals, span
    )
    if verdict is not ReportOutcome.COUNTED:
        return record, NO_TOTALS, verdict
    counted = {**record.counted, report.source: known}
    if not record.is_closed:
        record = msgspec.structs.replace(
            record, totals=record.totals.plus(added), counted=counted, position=position
        )
        return record, added, verdict
    if not added.count:
        return msgspec.structs.replace(record, counted=counted, position=position), added, verdict
    late, late_ms = record.late.plus(added), max(record.late_ms, report.at_ms)
    record = msgspec.structs.replace(record, late=late, late_ms=late_ms, counted=counted, position=position)
    return record, added, ReportOutcome.LATE


def on_apart(record: WindowRecord, totals: Totals, position: int) -> WindowRecord:
    """The record with totals that had no room for a window of their own."""
    return msgspec.structs.replace(record, apart=record.apart.plus(totals), position=position)


def on_close(record: WindowRecord, at_ms: int, without: tuple[str, ...], position: int) -> WindowRecord:
    """The closed record; one that is closed already stays as it is."""
    if position <= record.position or record.is_closed:
        return record
    return msgspec.structs.replace(record, closed_ms=at_ms, without=without, position=position)


def rewound(record: WindowRecord, end: int) -> WindowRecord:
    """The record in a topic that was truncated to `end`. If its last event was behind that, it takes events
    from any position; repeated reports still count once (`counted`)."""
    return record if record.position < end else msgspec.structs.replace(record, position=-1)


def phase(key: WindowKey, record: WindowRecord, watermark_ms: int) -> WindowPhase:
    """The phase of a window. `watermark_ms`: its tier's (`tier.watermark`)."""
    if record.is_closed:
        return WindowPhase.CLOSED
    return WindowPhase.PROVISIONAL if watermark_ms >= key.end_ms else WindowPhase.OPEN
