"""Dispatch as a tier: counts what a workload's group has finished of a partition, beside its pump.

    Fetched -> pump -> intake -> ... -> tracker -> base
            \\-> ConsumerReader ------------------> reports -> the reports' topic

Rules
1. What the pump is given is counted once, from the batches' headers where those tell, before it is decoded;
   it is told once the group's committed prefix has passed it: acknowledged, or safe in a retry topic or DLQ.
2. What a successor needs stands in the note of the pump's own snapshots, so that it agrees with their base:
   the figures of parts that are not finished, or not known to have arrived. They are made anew once a second,
   snapshots ten times. It reads on from where the figures end; those of too many windows are left out, and
   counted again from where the part began.
3. Nothing waits for the audit: its faults end the audit of this partition, which begins anew, and the windows
   that lack something are told.
"""

from __future__ import annotations

import time
from typing import Protocol

from app.audit.counts.consumer_counter import ConsumerReader
from app.audit.counts.counter import CountingSpec
from app.audit.counts.handover import AuditNote
from app.audit.definition import AuditPlan
from app.kafka.fetch.deliveries import FetchedBatches, LogGap
from app.kernel.clock import now_ms
from app.kernel.job import JobId
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.places import group_of
from switchyard.audit.model.reports import Report, Scope

NOTE_INTERVAL_S = 1.0
PENDING_REPORTS_SENT_NOW = 32  # reports of what has ended that wait: they are sent at once
ALIVE_REPORT_INTERVAL_S = 30.0  # how often it says that it is there


class TappedPump(Protocol):
    """What it asks of the pump that it stands beside."""

    job: JobId
    closed: bool
    trouble: str
    snapshot_version: int

    @property
    def base(self) -> int:
        """Everything below is finished."""
        ...

    @property
    def version(self) -> int:
        """Grows with what a successor has to know; what the table has is `snapshot_version`."""
        ...


class ConsumerTap:
    """See the module.

    Args:
        pump: of the job; another one takes its place when it is split (`follow`).
        next_offset: from where on it is given all that is fetched. former: what the last owner left.
        is_cut: something before was not counted.

    Attributes:
        cluster: whose log it is.
        broken: why it counts nothing more; "": it does.
    """

    def __init__(
        self,
        pump: TappedPump,
        plan: AuditPlan,
        scope: Scope,
        source: FingerprintSource,
        spec: CountingSpec,
        next_offset: int,
        *,
        lineage: int,
        former: AuditNote | None,
        is_cut: bool,
    ) -> None:
        self.plan = plan
        self.cluster = group_of(scope.cluster)[0]
        self.broken = ""
        self._pump = pump
        self._counting = plan.counting
        self._reader = ConsumerReader(
            scope, source, spec, next_offset, lineage=lineage, state=() if former is None else former.state,
            is_cut=is_cut, lateness_ms=plan.bounds.lateness_ms, at_ms=now_ms(),
        )  # fmt: skip
        self._known_at = -1  # the version of the pump that is known when the successor knows
        self._note, self._noted, self._noted_s = b"", (-1, -1), float("-inf")
        self._reported_s, self._reported_offset = float("-inf"), -1

    def follow(self, pump: TappedPump) -> None:
        """It stands beside this one now, of the same job."""
        self._pump, self._known_at = pump, -1

    def goes_on_by(self, plan: AuditPlan) -> bool:
        """Whether what it counts stays the same by a changed plan, which is its own from then on."""
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
        """Whose partition it is."""
        return self._pump.job

    @property
    def trouble(self) -> str:
        """The pump's, where it is the audit's."""
        return self._pump.trouble

    @trouble.setter
    def trouble(self, trouble: str) -> None:
        if not self._pump.trouble or self._pump.trouble.startswith("report: "):
            self._pump.trouble = trouble

    @property
    def next_offset(self) -> int:
        """Everything below is counted and finished."""
        return self._reader.next_offset

    # -- batches in ------------------------------------------------------------------------------

    def fetched(self, fetched: FetchedBatches) -> None:
        """Counts a fetched response, which stays its pump's."""
        data = b"" if fetched.damage else fetched.data
        self._count(data, fetched.start_offset, fetched.next_offset, fetched.aborted)

    def skip(self, gap: LogGap) -> None:
        """The log lost what lies in it: nothing there is counted."""
        self._count(b"", gap.start, gap.end, [])

    def _count(self, data: bytes, start: int, end: int, aborted: list[tuple[int, int]]) -> None:
        if self.broken:
            return
        try:
            self._reader.fetched(data, start, end, aborted)
        except Exception as error:  # noqa: BLE001 - rule 3; whatever it is
            self.broken = repr(error)

    def ended(self, end: int, at_ms: int) -> None:
        """The log ends there now."""
        self._update()
        self._reader.ended(end, self._pump.base, at_ms)

    # -- reports out -----------------------------------------------------------------------------

    def _update(self) -> None:
        if self.broken:
            return
        try:
            self._reader.finished(self._pump.base, now_ms())
        except Exception as error:  # noqa: BLE001 - rule 3; whatever it is
            self.broken = repr(error)
        if self._reader.is_known:
            return
        if self._known_at < 0:
            self._noted_s = float("-inf")
            self._known_at = self._pump.version
        elif self._pump.snapshot_version >= self._known_at:
            self._reader.is_known, self._known_at = True, -1

    def is_due(self, now_s: float, interval_s: float) -> bool:
        """Whether reports are to be made. `interval_s`: between those of what was counted."""
        if now_s - self._reported_s < interval_s and self._reader.reader.pending < PENDING_REPORTS_SENT_NOW:
            return False
        self._update()
        if self.broken or self._reader.is_silent:
            return False
        changed = self._reader.reader.pending or self.next_offset != self._reported_offset
        return bool(changed) or now_s - self._reported_s >= max(ALIVE_REPORT_INTERVAL_S, interval_s)

    def reports(self, at_ms: int, now_s: float) -> list[Report]:
        """What is to be appended to the topic."""
        self._reported_s, self._reported_offset = now_s, self.next_offset
        return self._reader.reader.reports(at_ms)

    def acknowledged(self, report: Report) -> None:
        """The topic has it."""
        self._reader.acknowledged(report)

    # -- for the successor -----------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows when it has to be told."""
        return self._reader.version

    def note(self) -> bytes:
        """Rule 2; of nothing that is not below the base."""
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
