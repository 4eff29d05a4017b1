"""The pump of one replica: it copies a partition of one cluster into a partition of another.

    FetchedBatches -> unchanged, or encoded again -> Lane -> acknowledged by all in-sync replicas -> Ledger

Rules
1. Batches go in the source's order through one lane, and are acknowledged in that order, so the finished part
   is one number. It moves over acknowledged batches, and over offsets without a record once everything before
   them is finished.
2. Nothing is appended before `app.replicate.pump.send_gate` allows it and the tracker table knows the
   producer's id and epoch (`app.replicate.destination.handover`). Behind a former owner the pump continues
   where that owner stopped (`app.replicate.destination.succession`).
3. A batch that the destination refuses, or that cannot be decoded, waits
   (`app.replicate.pump.blocked_batch`).
4. A pump that is `closed` (fenced, moved, stopped) appends nothing and moves nothing. The job of a pump that
   is `lost` begins again.
5. `app.replicate.pump.intake` takes fetched batches and gaps, and halts before gaps at which the route stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from app.controllog.seals import Seals
from app.failover.topology import RESERVED as BOOKKEEPING
from app.kafka.append.encoder import copies
from app.kafka.append.errors import BatchRefused
from app.kafka.append.local_appends import LaneWrites
from app.kafka.append.own_offsets import renumbered_batches
from app.kafka.append.pending_batch import stamp_of
from app.kafka.fetch.decoder import UndecodableBatch
from app.kafka.fetch.deliveries import FetchedBatches, LogGap
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.clock import now_ms
from app.kernel.fencing import LogId
from app.kernel.incidents import IsOver, ReportIncident, until_closed
from app.kernel.job import JobId
from app.kernel.load import JobWork
from app.kernel.ranges import Range, Snapshot
from app.kernel.troubles import Troubles
from app.replicate.destination.ledger import CopyLedger, SentBatch
from app.replicate.destination.predecessor import begins_at
from app.replicate.destination.sealed_copies import SealedCopies
from app.replicate.destination.session import DestinationSession, FormerCopies, SessionPorts
from app.replicate.pump.blocked_batch import BlockedBatch
from app.replicate.pump.intake import BatchIntake
from app.replicate.pump.offset_sync_emitter import OffsetSyncEmitter
from app.replicate.pump.send_gate import SendGate
from app.replicate.pump.tasks import ReplicaTasks
from app.replicate.pump.unsnapshotted_budget import UnsnapshottedRecords
from app.worker.jobs.start_position import StartPosition

if TYPE_CHECKING:
    from app.replicate.pump.route_runtime import RouteRuntime

REPLICA_POLL_INTERVAL_S = 0.02
# while nothing is in flight; a successor reads at most what others write in this time
IDLE_FLOOR_INTERVAL_S = 5.0
MAX_TIMESTAMP = slice(35, 43)  # in a batch's header
NO_LIMIT = (1 << 31) - 1  # bytes, more than any batch has

OnBarrier = Callable[["ReplicaPump", int, int, ProducerStamp | None], None]  # next offsets, the lane's stamp


class ReplicaPump:
    """Owned by the job manager; fed by the replicate agent.

    Args:
        start: The source's log, and where copying begins.
        former: What the last owner copied.
        on_barrier: Takes offset syncs (`app.replicate.pump.offset_sync_emitter`).
        seals: The region's seals; only for a control topic.

    Raises:
        LookupError: The route does not copy the topic (any more).
    """

    def __init__(
        self,
        job: JobId,
        epoch: int,
        runtime: RouteRuntime,
        start: StartPosition,
        former: FormerCopies,
        report_incident: ReportIncident,
        on_barrier: OnBarrier,
        seals: Callable[[], Seals | None] | None = None,
    ) -> None:
        self.job = job
        self.epoch = epoch
        self.lineage = start.lineage
        self.runtime = runtime
        target_topic = runtime.route.destination(job.topic)
        if target_topic is None:
            raise LookupError(f"route {job.name} does not copy {job.topic} (any more)")
        self.target = target_topic, job.partition
        self.high_watermark = -1
        self.closed = self.draining = False
        self.troubles = Troubles()
        self.lost = ""
        self.copied_ms = now_ms()  # when the last copied record was written; at first, when this pump began
        self.lost_at_s = 0.0
        self.reset: LogGap | None = None
        self._snapshot_version = self.encoded = 0
        self.unsnapshotted = UnsnapshottedRecords(runtime.unsnapshotted_budget)
        self.barrier: tuple[int, int, int] | None = None  # the newest, as in `CopyingStatus`
        self._report_incident = report_incident
        self.edit = runtime.edit(job.topic, job.partition, target_topic)
        self._sealed = None if seals is None else SealedCopies(job.topic, job.partition, seals, self.edit)
        self._tasks = ReplicaTasks(job, self.lose)
        self._is_first = start.is_first
        self.source_log = start.log
        checkpoint = runtime.definition.spec.checkpoint
        self._offset_syncs = OffsetSyncEmitter(
            checkpoint.every, checkpoint.records, partial(on_barrier, self)
        )
        self.emit_offset_sync = self._offset_syncs.now  # called when a consumer waits for one
        self.intake = BatchIntake(start.snapshot.base, self.lose)
        self.ledger = CopyLedger(start.snapshot.base, self._acknowledged, self._failed, self.intake.release)
        session_ports = SessionPorts(
            start_task=self._tasks.start,
            report_incident=self.report_incident,
            on_unsure=self._unsure,
            on_lost=self._offset_syncs.lost,
            on_closed=self._offset_syncs.closed,
        )
        self.session = DestinationSession(runtime, self.target, self.ledger, start, former, session_ports)
        runtime.verifier.start_replica(job, self.ledger.uncompared)
        # after the session, because `where` names its destination
        self.blocked_batch = BlockedBatch(self.report_incident, self.where)
        self.send_gate = SendGate(job, runtime, self.intake, self.session, self.unsnapshotted)
        self.pause = self.send_gate.pause  # fetched batches wait
        self.is_stall_reported = False
        self.reported_rounds = 0, float("-inf")  # the number that was reported, and when
        self._is_late_checked = False
        self._floor_at_s = float("-inf")
        self._lane_writes: LaneWrites | None = None
        runtime.pumps.add(self)
        self._running = self._tasks.start(self._run)

    # -- batches in ------------------------------------------------------------------------------

    def accept(self, fetched: FetchedBatches) -> None:
        """Takes a fetched response; releases its bytes to the budget once all of it is acknowledged."""
        self.high_watermark = fetched.high_watermark
        if self.intake.accept(fetched, takes=not (self.closed or self.draining)):
            self.ledger.record_fetched(fetched)

    def skip(self, gap: LogGap) -> None:
        """Takes a gap: the log has lost [start, end). Or the log is another one now: once everything of the
        former log is copied, the pump sets `reset`, and its job begins again there."""
        if not (self.closed or self.draining):
            self.intake.skip(gap)

    def halt(self, gap: LogGap, why: str) -> None:
        """Halts this replica before the gap: nothing is fetched until the job begins again."""
        self.intake.halt(gap, why)

    @property
    def halted(self) -> str | None:
        """Why it halts until the definition changes or an operator skips the gap; None: it does not."""
        return self.intake.halted

    @property
    def stuck(self) -> tuple[Range, ...]:
        """Offsets [start, end) of the source that wait for an operator; each is skipped as a whole."""
        gap = self.intake.halts_at
        return self.blocked_batch.waiting_ranges if gap is None else (*self.blocked_batch.waiting_ranges, gap)

    def finish_by_operator(self, start: int, end: int) -> bool:
        """Skips `stuck` offsets for an operator. False: exactly these offsets do not wait."""
        if self.closed or self.draining:
            return False
        if (start, end) != self.intake.halts_at:
            return self.blocked_batch.skip(start, end)
        skipped = f"{self.where}, offsets [{start}, {end}): an operator skipped the gap"
        self.intake.resume()
        self.report_incident(
            "replica-skipped", skipped, "nothing to do: the copy lacks the records of the gap"
        )
        return True

    # -- copying ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self.session.meet()
        self._offset_syncs.quiet_below = self.session.quiet_below
        self.session.close_former(self.base)
        while True:
            item = await self.intake.get()
            if isinstance(item, LogGap) and item.begun_anew:
                while not self.ledger.is_empty:  # noqa: ASYNC110 - callbacks empty it
                    await asyncio.sleep(REPLICA_POLL_INTERVAL_S)
                self.reset = item
                return
            if isinstance(item, LogGap):
                self.ledger.pass_over(SentBatch(item.end, lost=item.end - item.start))
            else:
                await self._copy(item)
                self.ledger.pass_over(SentBatch(item.next_offset, fetched=item))
                await asyncio.sleep(0)

    async def _copy(self, fetched: FetchedBatches) -> None:
        renumbered = await renumbered_batches(fetched)
        for start, batch in renumbered.items():
            if batch is not None and batch.header.next_offset > fetched.start_offset:
                where = f"offsets [{start}, {batch.header.next_offset})"
                self.runtime.renumbered.record(f"{self.where}, {where}")
        edit = self.edit if self._sealed is None else self._sealed.edit(fetched.next_offset)
        while True:
            try:
                max_batch_bytes = self.session.max_batch_bytes if self.runtime.divides else NO_LIMIT
                for copy in copies(fetched, max_batch_bytes, edit, renumbered):
                    await self._send(copy)
                    if copy.read_again is not None:
                        await asyncio.sleep(0)  # encoding takes long, so other tasks run between batches
                return
            except UndecodableBatch as error:
                if fetched.damage or self._sealed is None or not await self._sealed.refuses(error):
                    await self.blocked_batch.wait(
                        error.start, error.end,
                        f"these batches cannot be copied unchanged and cannot be decoded: {error}",
                        "find the producer that wrote them; skip them if they may be lost",
                    )  # fmt: skip
                if error.end >= fetched.next_offset:
                    return
                self.ledger.pass_over(SentBatch(error.end))
                fetched.start_offset = error.end  # `copies` continues there

    async def _send(self, copy: VerbatimCopy) -> None:
        session = self.session
        self.ledger.take_next(copy)
        rest = session.not_yet_copied([copy], copy)
        while rest and not session.is_ready:
            floor = await session.open(lambda: self.snapshot_version)
            self._offset_syncs.opened(session.opening_stamp)
            if self._is_first:
                self._offset_syncs.genesis(self.base, floor, time.monotonic())
            rest = session.not_yet_copied(rest, copy)
            self._offset_syncs.first = rest[0] if rest and begins_at(rest[0], copy) >= 0 else None
            self._lane_writes = self.runtime.lane_writes(self)
        for piece in rest:
            await self.send_gate.wait(piece)
            assert session.lane is not None, "it is ready"
            self.ledger.append(piece, await session.lane.append(piece.data, piece.record_count))
            self.unsnapshotted.appended(self.ledger.delivered + self.ledger.in_flight)

    # -- acknowledged or failed ------------------------------------------------------------------

    def _acknowledged(self, sent: SentBatch, base_offset: int, moved: bool) -> None:
        copy, self._offset_syncs.stamp = sent.copy, stamp_of(base_offset)
        assert copy is not None, "only copies are acknowledged"
        self.session.why, self.is_stall_reported = "", False
        self.encoded += 0 if isinstance(copy.data, memoryview) else copy.record_count
        if self.blocked_batch.why:
            self.blocked_batch.drop_below(self.base)
        if self._lane_writes is not None:
            self._lane_writes.acknowledged(base_offset, copy)
        if base_offset < 0:
            self.runtime.verifier.leave_uncompared(self.job, copy.record_count)
            return
        self.session.acknowledged(base_offset, base_offset + copy.record_count)
        if not self._is_late_checked:
            self._is_late_checked = True
            self._tasks.start(partial(self.session.check_late, base_offset))
        self.copied_ms = int.from_bytes(copy.data[MAX_TIMESTAMP], signed=True)
        self.runtime.verifier.add(self.job, self.target, base_offset, copy, self.session.log.topic_id)
        if moved:
            self._offset_syncs.acknowledged(copy, base_offset, self.ledger.progress_s)

    def _failed(self, sent: SentBatch, error: BaseException) -> None:
        if not isinstance(error, BatchRefused):
            self.lose(str(error))
        elif (lane := self.session.lane) is not None:
            divides = self.runtime.divides
            mend = partial(self.blocked_batch.mend, sent, error, lane, self.ledger, divides=divides)
            self._tasks.start(partial(mend, self.session.read_limit))

    def _unsure(self, why: str) -> None:
        self._offset_syncs.quiet_below = self.session.quiet_below = max(
            self.session.quiet_below, self.high_watermark
        )
        self.ledger.version += 1
        self.report_incident(
            "replica-resumed-unsure",
            f"{self.where}, at {self.base}: {why}",
            "nothing to do: records behind this offset may be in the copy twice; none is lost",
        )

    # -- offset syncs ----------------------------------------------------------------------------

    def wants_idle_barrier(self, now_s: float) -> bool:
        """Whether everything is copied, and an idle offset sync needs the destination's end."""
        is_idle = self.session.is_at_rest and not (self.closed or self.draining)
        is_idle = is_idle and self.ledger.is_empty and self.intake.is_empty
        return is_idle and self.base >= self.high_watermark >= 0 and self._offset_syncs.wants_idle(now_s)

    def wants_floor(self, now_s: float) -> bool:
        """Whether nothing is in flight and `IDLE_FLOOR_INTERVAL_S` has passed, such as while it is paused or
        limited.

        The floor then rises to the destination's end, so that a successor reads few of the others' writes.
        """
        is_quiet = self.session.is_ready and self.ledger.is_empty and not (self.closed or self.draining)
        return is_quiet and now_s - self._floor_at_s >= IDLE_FLOOR_INTERVAL_S

    async def ended_at(self, target_end: int, appended: int) -> None:
        """Takes the destination's end, read after `appended` batches: emits a due idle offset sync, raises
        the floor.

        Raises: ClusterUnreachable, KafkaError: It cannot be known now."""
        self._floor_at_s = time.monotonic()
        if not await self.session.ends_at(target_end) or self.ledger.appended != appended:
            return
        now_s = time.monotonic()
        if is_idle := self.wants_idle_barrier(now_s):
            self._offset_syncs.idle(self.base, target_end, now_s)
        if is_idle or (self.session.is_ready and self.ledger.is_empty):
            self.session.rests_at(target_end)

    # -- state -----------------------------------------------------------------------------------

    @property
    def base(self) -> int:
        """All offsets below it are copied, or have no record."""
        return self.ledger.base

    @property
    def version(self) -> int:
        """Grows whenever the snapshot or the note changes. Updates the note's number of uncompared copies."""
        self.ledger.set_uncompared(self.runtime.verifier.unverified(self.job))
        return self.ledger.version

    def snapshot(self) -> Snapshot:
        self.unsnapshotted.taken(self.version, self.ledger.delivered)
        return Snapshot(self.base)

    @property
    def snapshot_version(self) -> int:
        """The version that the tracker table has; -1: none."""
        return self._snapshot_version

    @snapshot_version.setter
    def snapshot_version(self, version: int) -> None:
        self._snapshot_version = version
        self.runtime.verifier.noted(self.job, self.ledger.delivered, self.unsnapshotted.saved(version))

    @property
    def awaits_snapshot(self) -> bool:
        """Whether nothing is sent before a snapshot is taken."""
        return self.session.is_saving or not self.session.is_ready or self.send_gate.unsaved_s > 0

    @property
    def may_save_seldom(self) -> bool:
        """Whether this copy of another region's control topic flows. Each snapshot is one more record that
        regions copy from each other."""
        return (
            self.job.topic.startswith(BOOKKEEPING) and self.snapshot_version >= 0 and not self.awaits_snapshot
        )

    @property
    def note(self) -> bytes:
        return self.session.note

    @property
    def target_log(self) -> LogId:
        """The destination's log, once the session has read it."""
        return self.session.log

    @property
    def commits_to(self) -> tuple[str, str]:
        """The cluster and the consumer group of its commits, by which Kafka's own tools show its lag."""
        return self.runtime.source.name, self.runtime.group

    @property
    def paused(self) -> bool:
        return self.send_gate.paused

    @property
    def limited(self) -> bool:
        """As `SendGate.limited`."""
        return self.send_gate.limited

    @property
    def in_flight(self) -> int:
        return self.ledger.in_flight

    def work(self) -> JobWork:
        """The work since it began; it writes as many bytes as it reads."""
        return JobWork(2 * self.intake.read_bytes, self.ledger.delivered, 0)

    @property
    def where(self) -> str:
        """Source and destination, for messages."""
        source = f"{self.runtime.source.name}/{self.job.topic}/{self.job.partition}"
        return f"{source} to {self.session.name}"

    def report_incident(self, kind: str, message: str, remedy: str, is_over: IsOver | None = None) -> None:
        """Reports an incident of this replica. An open one also ends when the replica is closed."""
        ends = None if is_over is None else until_closed(self, is_over)
        self._report_incident(kind, str(self.job), message, remedy, ends)

    # -- the end ---------------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """Stops this pump, so that its job begins again."""
        if not self.closed and not self.lost:
            self.lost, self.lost_at_s = why, time.monotonic()
            self.report_incident(
                "replica-begins-again",
                f"{self.where}, at {self.base}: {why}",
                "the worker begins the job again by itself",
            )
            self.draining = True

    def stop_intake(self) -> None:
        """Appends nothing new; batches in flight are still acknowledged."""
        self.draining = True
        self._running.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether records are in flight, or copies are being compared."""
        is_comparing = self.runtime.verifier.is_comparing(self.job, self.target)
        return is_comparing or (self.in_flight > 0 and not self.lost)

    async def drain(self, grace_s: float) -> bool:
        """Waits for records in flight, at most `grace_s`. Returns whether all of them were acknowledged."""
        self.stop_intake()
        deadline_s = time.monotonic() + grace_s
        while self.is_busy and time.monotonic() < deadline_s:  # noqa: ASYNC110 - callbacks change it
            await asyncio.sleep(0.01)
        return not self.in_flight

    def close(self) -> None:
        """Ends a fenced or moved pump; nothing of it counts any more (rule 4)."""
        if self.closed:
            return
        self.stop_intake()
        self.closed = True
        self.runtime.pumps.discard(self)
        self.ledger.close()
        if self._lane_writes is not None:
            self._lane_writes.close()
        self.unsnapshotted.close()
        self._tasks.cancel()
        self.session.close()
        for fetched in self.intake.held:
            self.intake.release(fetched)
