"""Counts the messages that a workload's group has finished in a partition, beside the dispatch pump.

    FetchedBatches -> pump -> intake -> ... -> tracker -> base
                   \\-> ConsumerReader ------------------> reports -> the audit topic

Rules (tests/audit/pump/test_consumer_tap.py)
1. Everything that the pump gets is counted once, before it is decoded, and from the batches' headers where
   these suffice. It is reported once it is below the group's committed prefix: acknowledged, or safe in a
   retry topic or DLQ.
2. The counts for a successor are in the note of the pump's own snapshots, so they agree with its base. They
   are those of parts that are not final, or whose reports may not have arrived. The note is made once a
   second, snapshots ten times. The successor reads on from where the counts end. If there are too many
   windows, it counts again from where the part began.
3. Nothing waits for the audit. A fault in it ends the audit of this partition, which begins again. The
   windows that may lack something are not compared.
"""

from __future__ import annotations

import time
from typing import Protocol

from app.audit.counts.consumer_counter import ConsumerReader
from app.audit.counts.counter import CountingSpec
from app.audit.counts.handover import AuditNote, CountsFrom
from app.audit.definition import AuditPlan
from app.kafka.fetch.deliveries import FetchedBatches, LogGap
from app.kernel.clock import now_ms
from app.kernel.job import JobId
from app.kernel.troubles import Troubles
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.places import group_of
from switchyard.audit.model.reports import Report, Scope

NOTE_INTERVAL_S = 1.0
PENDING_REPORTS_SENT_NOW = 32  # this many waiting final reports are sent at once
ALIVE_REPORT_INTERVAL_S = 30.0  # without new counts, so that the source is not silent


class TappedPump(Protocol):
    """The pump beside which the tap counts."""

    job: JobId
    closed: bool
    troubles: Troubles
    snapshot_version: int

    @property
    def base(self) -> int:
        """Everything below is finished."""
        ...

    @property
    def version(self) -> int:
        """Grows with changes that a successor must know; the table has `snapshot_version`."""
        ...


class ConsumerTap:
    """The audit of a dispatch job.

    Args:
        pump: The job's; a split replaces it (`follow`).
        counts: The tap gets all that is fetched from `counts.next_offset` on.

    Attributes:
        cluster: The cluster of the log.
        broken: The error that ended the audit; "": none.
    """

    def __init__(
        self,
        pump: TappedPump,
        plan: AuditPlan,
        scope: Scope,
        source: FingerprintSource,
        spec: CountingSpec,
        counts: CountsFrom,
        *,
        lineage: int,
    ) -> None:
        self.plan = plan
        self.cluster = group_of(scope.cluster)[0]
        self.broken = ""
        self._pump = pump
        self._counting = plan.counting
        self._reader = ConsumerReader(
            scope,
            source,
            spec,
            counts,
            lineage=lineage,
            lateness_ms=plan.bounds.lateness_ms,
            at_ms=now_ms(),
        )
        self._known_at = -1  # once the table has this version of the pump, a successor knows the counts
        self._note, self._noted, self._noted_s = b"", (-1, -1), float("-inf")
        self._reported_s, self._reported_offset = float("-inf"), -1

    def follow(self, pump: TappedPump) -> None:
        """Counts beside another pump of the same job from now on."""
        self._pump, self._known_at = pump, -1

    def adopts(self, plan: AuditPlan) -> bool:
        """Takes over a changed plan by which the counts stay the same; returns False if they do not."""
        if plan is self.plan:
            return True
        stays = (plan.name, plan.counting, plan.spec.id) == (
            self.plan.name,
            self._counting,
            self.plan.spec.id,
        )
        if stays:
            self.plan = plan
        return stays

    @property
    def job(self) -> JobId:
        return self._pump.job

    @property
    def troubles(self) -> Troubles:
        return self._pump.troubles

    @property
    def next_offset(self) -> int:
        """Everything below is counted and finished."""
        return self._reader.next_offset

    # -- batches in ------------------------------------------------------------------------------

    def fetched(self, fetched: FetchedBatches) -> None:
        """Counts a fetched response, which still belongs to the pump."""
        data = b"" if fetched.damage else fetched.data
        self._count(data, fetched.start_offset, fetched.next_offset, fetched.aborted)

    def skip(self, gap: LogGap) -> None:
        """The log lost the offsets of the gap: nothing there is counted."""
        self._count(b"", gap.start, gap.end, [])

    def _count(self, data: bytes, start: int, end: int, aborted: list[tuple[int, int]]) -> None:
        if self.broken:
            return
        try:
            self._reader.fetched(data, start, end, aborted)
        except Exception as error:  # noqa: BLE001 - rule 3
            self.broken = repr(error)

    def ended(self, end: int, at_ms: int) -> None:
        """The log ends at `end` now."""
        self._update()
        self._reader.ended(end, self._pump.base, at_ms)

    # -- reports out -----------------------------------------------------------------------------

    def _update(self) -> None:
        if self.broken:
            return
        try:
            self._reader.finished(self._pump.base, now_ms())
        except Exception as error:  # noqa: BLE001 - rule 3
            self.broken = repr(error)
        if self._reader.is_known:
            return
        if self._known_at < 0:
            self._noted_s = float("-inf")
            self._known_at = self._pump.version
        elif self._pump.snapshot_version >= self._known_at:
            self._reader.is_known, self._known_at = True, -1

    def is_due(self, now_s: float, interval_s: float) -> bool:
        """`interval_s`: between reports of new counts."""
        if now_s - self._reported_s < interval_s and self._reader.reader.pending < PENDING_REPORTS_SENT_NOW:
            return False
        self._update()
        if self.broken or self._reader.is_silent:
            return False
        changed = self._reader.reader.pending or self.next_offset != self._reported_offset
        return bool(changed) or now_s - self._reported_s >= max(ALIVE_REPORT_INTERVAL_S, interval_s)

    def reports(self, at_ms: int, now_s: float) -> list[Report]:
        self._reported_s, self._reported_offset = now_s, self.next_offset
        return self._reader.reader.reports(at_ms)

    def acknowledged(self, report: Report) -> None:
        self._reader.acknowledged(report)

    # -- for the successor -----------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._reader.version

    def note(self) -> bytes:
        """The counts for a successor (rule 2), of offsets below the base only."""
        now_s, version = time.monotonic(), self.version
        if now_s - self._noted_s >= NOTE_INTERVAL_S or self._noted[0] != version:
            self._update()
            version = self.version
            if self.broken:
                self._note = b""
            elif self._noted != (version, self.next_offset):
                state = self._reader.reader.state(whole=True)
                self._note = AuditNote(self._counting, self._reader.is_cut, state).to_bytes()
            self._noted, self._noted_s = (version, self.next_offset), now_s
        return self._note
