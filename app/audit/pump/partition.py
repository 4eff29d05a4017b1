"""The pump of one audit job: counts the records of a partition.

    FetchedBatches -> PartitionReader -> reports -> the audit topic -> acknowledged -> base

Rules (tests/audit/pump/test_partition.py)
1. Batches are counted at once, and their memory is released: nothing is sent on.
2. Everything below `base` is in acknowledged reports. A successor continues where this pump had come, with
   the counts of its last windows (`note`). If a record of another window arrives, which is rare, the
   successor counts the part again from its start (`is_lacking`).
3. While `MOST_PENDING` reports wait to be acknowledged, nothing is counted, and fetched batches wait, too.
4. A second owner does no harm (`app.audit.counts`), so the pump needs no lease.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.audit.counts.handover import AuditNote, CountsFrom
from app.audit.counts.partition_counter import PartitionReader
from app.audit.definition import AuditPlan, of_job_name
from app.audit.pump.counting_spec import how_of
from app.controllog.codec import JobStatus
from app.kafka.fetch.deliveries import FetchedBatches, FetchedHeaders, LogGap
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.load import JobWork
from app.kernel.ranges import Snapshot
from app.kernel.troubles import Troubles
from app.payload.event_time.source import EventTime
from app.worker.jobs.start_position import StartPosition
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import Report, Scope

REPORT_INTERVAL_S = 5.0  # between reports of new counts
ALIVE_REPORT_INTERVAL_S = 30.0  # and without new counts, so that the source is not silent
PENDING_REPORTS_SENT_NOW = 32  # this many waiting final reports are sent at once
MOST_PENDING = 256
PART_OFFSETS = 1 << 18  # larger parts need fewer reports, which take a worker some milliseconds each
MOST_WINDOWS = 16, 8, 4, 2, 1  # the last ones, whose counts are in the note: the first number that fits
COUNT_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class AuditPorts:
    """The ways out of an audit pump. `send` reports a pump's latest counts; it returns once the topic has
    taken or refused them."""

    report_incident: ReportIncident
    send: Callable[[AuditPump], Awaitable[None]]


def group_of(plan: str) -> str:
    """The group under which a plan's positions are committed in a cluster, for people and their tools."""
    return f"switchyard-audit-{plan}"


class AuditPump:
    """The pump of a job. The job manager owns it; the audit agent feeds it.

    Args:
        start: The log that the job reads, its lineage, and the base below which everything is finished.
        counts: Where counting begins.
        times: The plan's event time, opened (`app.audit.pump.counting_spec`).

    Raises:
        UnusableField, DescriptorError: The plan's event time cannot be read here.
    """

    may_save_seldom = False

    def __init__(
        self,
        job: JobId,
        epoch: int,
        plan: AuditPlan,
        tier: str,
        start: StartPosition,
        counts: CountsFrom,
        ports: AuditPorts,
        times: EventTime | None = None,
    ) -> None:
        self.job = job
        self.epoch = epoch
        self.lineage = start.lineage
        self.plan = plan
        self.cluster = of_job_name(job.name)[1]
        self.high_watermark = -1
        self.closed = self.draining = False
        self.troubles = Troubles()
        self.snapshot_version = 0
        self.version = 0  # grows whenever snapshot or note change
        self.read_bytes = 0
        source = FingerprintSource(start.log.cluster_id, start.log.topic_id, job.partition)
        self.scope = Scope(job.topic, tier, self.cluster, plan.width_ms)
        self.reader = PartitionReader(
            self.scope,
            source,
            how_of(plan, source, times),
            counts.next_offset,
            lineage=start.lineage,
            part_offsets=PART_OFFSETS,
        )
        self._base = start.snapshot.base
        self._is_cut = counts.is_cut
        if counts.former is not None:
            at_ms = now_ms()
            self.reader.resume(counts.former.state, at_ms)
            self.reader.complete_ms = counts.former.complete_ms
            if self.reader.next_offset != counts.next_offset:
                self.reader.pass_over(counts.next_offset, at_ms)
                if counts.is_cut:  # the lost records belong to windows that had begun before now
                    self.reader.complete_ms = max(self.reader.complete_ms, at_ms)
        self._note, self._noted = b"", -1  # the note, and its version
        self._report_incident = ports.report_incident
        self._send = ports.send
        self._waiting: deque[FetchedBatches | LogGap] = deque()
        self._reported_s = float("-inf")
        self._reported_offset = -1

    # -- batches in ------------------------------------------------------------------------------

    def accept(self, fetched: FetchedBatches) -> None:
        self.high_watermark = max(self.high_watermark, fetched.high_watermark)
        if self.closed or self.draining:
            fetched.release()
            return
        self._waiting.append(fetched)
        self._count()

    def _count(self) -> None:
        while self._waiting and self.reader.pending < MOST_PENDING and not self.is_lacking:
            fetched = self._waiting.popleft()
            if isinstance(fetched, LogGap):
                self._pass(fetched)
                continue
            try:
                self._count_batches(fetched)
            finally:
                fetched.release()
            self._update_completeness()

    def _count_batches(self, fetched: FetchedBatches) -> None:
        reader, at_ms = self.reader, now_ms()
        if fetched.start_offset > reader.next_offset:
            raise ValueError(
                f"[{reader.next_offset}, {fetched.start_offset}) was not fetched, but later offsets were"
            )
        if isinstance(fetched, FetchedHeaders):
            if fetched.start_offset != reader.next_offset:
                raise ValueError(
                    f"headers begin at {fetched.start_offset}, but {reader.next_offset} comes next"
                )
            reader.add_headers(
                fetched.headers, fetched.next_offset, at_ms=at_ms, seen_at_ms=fetched.seen_at_ms
            )
            return
        data = fetched.data
        if fetched.damage:
            data = b""
            self._report_incident(
                "audit-damage", str(self.job),
                f"offsets [{fetched.start_offset}, {fetched.next_offset}) cannot be read and are not "
                f"counted: {fetched.damage}", "check the broker's disk; other tiers may show more records",
            )  # fmt: skip
        at_end = fetched.next_offset >= fetched.high_watermark
        reader.fetched(
            data, fetched.next_offset, at_ms=at_ms, seen_at_ms=at_ms if at_end else None, at_end=at_end,
            aborted=fetched.aborted,
        )  # fmt: skip
        self.read_bytes += fetched.nbytes

    def _update_completeness(self) -> None:
        reader = self.reader
        if reader.is_lacking:
            self.version += 1  # the note changes
        if self._is_cut and reader.complete_ms < 0 and reader.first_ms >= 0:
            reader.complete_ms = reader.first_ms + self.plan.bounds.lateness_ms

    def skip(self, gap: LogGap) -> None:
        """The log lost the offsets of the gap; what was fetched before it is still counted."""
        if not (self.closed or self.draining):
            self._waiting.append(gap)
            self._count()

    def _pass(self, gap: LogGap) -> None:
        if gap.end > self.reader.next_offset:
            at_ms = now_ms()
            self.reader.fetched(b"", gap.end, at_ms=at_ms)
            # This tier had the lost records. Their windows are unknown, but began before now.
            self.reader.complete_ms = max(self.reader.complete_ms, at_ms)

    def ended(self, end: int, at_ms: int) -> None:
        """The log ends at `end` now. If everything below is counted, no older record is on its way."""
        if end <= self.reader.next_offset and not (self._waiting or self.draining or self.closed):
            self.reader.fetched(b"", self.reader.next_offset, at_ms=at_ms, at_end=True)

    # -- reports out -----------------------------------------------------------------------------

    def is_due(self, now_s: float, interval_s: float) -> bool:
        """`interval_s`: between reports of new counts."""
        if self.is_lacking:
            return False
        if self.reader.pending >= PENDING_REPORTS_SENT_NOW:
            return True
        changed = self.reader.pending or self.reader.next_offset != self._reported_offset
        return now_s - self._reported_s >= (
            interval_s if changed else max(ALIVE_REPORT_INTERVAL_S, interval_s)
        )

    def reports(self, at_ms: int, now_s: float) -> list[Report]:
        if self.is_lacking:
            return []
        self._reported_s, self._reported_offset = now_s, self.reader.next_offset
        return self.reader.reports(at_ms)

    def acknowledged(self, report: Report) -> None:
        self.reader.acknowledged(report)
        base = max(self._base, self.reader.committable_offset)
        is_cut = self._is_cut and report.complete_ms < 0
        if (base, is_cut) != (self._base, self._is_cut):
            self._base, self._is_cut = base, is_cut
            self.version += 1
        if not self.closed:
            self._count()

    # -- state -----------------------------------------------------------------------------------

    @property
    def is_lacking(self) -> bool:
        """Whether the part must be counted again from its start (rule 2); until then nothing is reported."""
        return self.reader.is_lacking

    @property
    def base(self) -> int:
        return self._base

    @property
    def note(self) -> bytes:
        """The counts for a successor; made once a version."""
        if self._noted != self.version:
            self._noted, counting = self.version, self.plan.counting
            for most in MOST_WINDOWS:
                state = self.reader.state(most)
                note = AuditNote(counting, self._is_cut, state, self.reader.complete_ms)
                if note.fits:
                    break
            self._note = note.to_bytes()
        return self._note

    @property
    def commits_to(self) -> tuple[str, str]:
        """The cluster and group under which Kafka's own tools see the lag."""
        return self.cluster, group_of(self.plan.name)

    def snapshot(self) -> Snapshot:
        return Snapshot(self._base)

    def work(self) -> JobWork:
        """The work since the pump began; it sends nothing on."""
        return JobWork(self.read_bytes, self.reader.records, 0)

    def status(self) -> JobStatus:
        return JobStatus(
            job=str(self.job),
            epoch=self.epoch,
            state="draining" if self.draining else "flowing",
            committed=self._base,
            fetched=self.reader.next_offset,
            high_watermark=self.high_watermark,
            unfinished=max(0, self.reader.next_offset - self._base),
            delivered=self.reader.records,
            trouble=self.troubles.words,
            trouble_from=self.troubles.source or "",
            buffered_bytes=sum(item.nbytes for item in self._waiting if isinstance(item, FetchedBatches)),
        )

    # -- the end ---------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether counts are still to be reported."""
        return self.reader.next_offset > self._base and not (self.closed or self.is_lacking)

    def stop_intake(self) -> None:
        self.draining = True
        self._release()

    async def drain(self, grace_s: float) -> bool:
        """Reports the counts, for at most `grace_s`; returns whether the topic has all of them."""
        self.stop_intake()
        deadline_s = time.monotonic() + grace_s
        while self.is_busy and time.monotonic() < deadline_s:
            await self._send(self)
            if self.is_busy:
                await asyncio.sleep(COUNT_POLL_INTERVAL_S)
        return not self.is_busy

    def close(self) -> None:
        """Counts nothing from now on, and releases what waits."""
        self.closed = True
        self._release()

    def _release(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if isinstance(waiting, FetchedBatches):
                waiting.release()
