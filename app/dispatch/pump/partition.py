"""The pump of one dispatch job: fetched batches in, deliveries out, an offset to commit.

    FetchedBatches -> MessageIntake -> ReadyQueue (its time, its turn) -> Delivery -> tracker

Rule: a pump that is `closed` (fenced, moved, stopped) finishes nothing and sends nothing.

Invariant: `tracker.base` never passes an offset whose message is not finished.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from app.controllog.codec import TRACKER_CAPACITY, JobStatus
from app.dispatch.model.outcome import DeliveryDecision
from app.dispatch.model.retry_headers import Header
from app.dispatch.pump.catch_up import CatchUpAllowance, CatchUpBacklog
from app.dispatch.pump.delivery import BatchDelivery, Delivery, recall
from app.dispatch.pump.intake import HELD_BYTES, MessageIntake
from app.dispatch.pump.line_head import LineHead
from app.dispatch.pump.operator_finish import finish_by_operator, stash_batch
from app.dispatch.pump.ready_queue import ReadyQueue
from app.dispatch.push.metadata import KEY, RECORD_TS, CallMetadata, MetadataTemplate, tracing_info
from app.grpc_client.header_encoder import Field
from app.kafka.records.record import Record, size_of
from app.kafka.records.scan import PRODUCER_LIMITS
from app.kernel.job import JobFault, JobId
from app.kernel.load import JobWork
from app.kernel.ranges import Snapshot
from app.kernel.tracker import Tracker
from app.kernel.troubles import Troubles
from app.offsets.model.producer_progress import risks_of, with_audit, with_risks
from app.worker.jobs.start_position import StartPosition

if TYPE_CHECKING:
    from app.audit.pump.consumer_tap import ConsumerTap
    from app.controllog.codec import HeadStatus
    from app.dispatch.model.head_of_line import StashVerdict
    from app.dispatch.model.latency_trace import PartitionTrace
    from app.dispatch.pump.delivery import Dispatcher
    from app.dispatch.pump.remote_progress_filter import RemoteProgressFilter
    from app.kafka.fetch.decoder import UndecodableBatch
    from app.kafka.fetch.deliveries import FetchedBatches, LogGap
    from app.offsets.model.source_frontier import PassOver

MAX_ORIGINS = 1_000  # partitions whose messages a retry topic has


class DispatchPump:
    """One partition's pump. The job manager owns it, and the dispatch agent feeds it.

    Args:
        start: The log, its lineage, and what earlier owners finished there.
        tier: The retry topic's; None: the main topic, or one of returned or delayed messages.
        merged: Its topic has returned or delayed messages, whose headers say where they were first produced.
    """

    may_save_seldom = False

    def __init__(
        self,
        job: JobId,
        epoch: int,
        runtime: Dispatcher,
        start: StartPosition,
        *,
        tier: int | None,
        merged: bool = False,
    ) -> None:
        workload = runtime.settings.workload
        self.job = job
        self.epoch = epoch
        self.lineage = start.lineage
        self.topic_id = start.log.topic_id
        self.runtime = runtime
        self.commits_to = workload.metadata.cluster, workload.metadata.group
        self.tier = tier
        self.tracker = Tracker(start.snapshot.base, workload.spec.tracker.capacity, start.snapshot)
        self.open: dict[int, Delivery] = {}  # sent on their own, not finished
        self.calls: dict[int, Delivery] = {}  # the open ones that are on their way
        self.batches: set[BatchDelivery] = set()  # runs on their way
        self.copying: dict[int, asyncio.Task[None]] = {}  # on their way to a retry topic or the DLQ
        self.is_main = tier is None and not merged
        self.allowance: CatchUpAllowance | None = None  # set for a backlog
        self.in_turn = self.paused = self.closed = self.draining = False
        self.troubles = Troubles()
        self.high_watermark = -1
        self.delivered = self.retried = self.dead_lettered = self.read_bytes = 0
        self.batched = 0  # messages in `batches`
        self._snapshot_version = self.tracker.version
        self.head = LineHead(self)
        self._intake = MessageIntake(self.tracker, partial(stash_batch, self))
        if self.is_main:
            self._intake.limits = PRODUCER_LIMITS
        lanes = runtime.settings.new_lanes() if self.is_main else None
        self._queue = ReadyQueue(self, self._intake, lanes, self._on_sendable)
        self.backlog: CatchUpBacklog[DispatchPump] | None = None
        self.audit: ConsumerTap | None = None  # counts what is finished
        self.trace: PartitionTrace | None = None
        self._retired_versions = 0  # versions of former backlogs and audits
        self._refill_pending = False
        self._log = start.log
        self._group = workload.metadata.group
        self._template = MetadataTemplate(job.topic, self._group, job.partition)
        self._origin_templates: dict[tuple[str, int], MetadataTemplate] = {}  # of a retry topic's messages
        runtime.join(self)

    # -- batches in ------------------------------------------------------------------------------

    def accept(self, fetched: FetchedBatches) -> None:
        self.high_watermark = fetched.high_watermark
        if self.closed or self.draining:
            fetched.release()
            return
        self.read_bytes += fetched.nbytes
        self._queue.delayed.retention = fetched.retention
        if self.audit is not None:
            self.audit.fetched(fetched)
        self._intake.accept(fetched)
        self.refill()
        self.runtime.send()

    def skip(self, gap: LogGap) -> None:
        if not self.closed:
            self._intake.skip(gap.end)
            if self.audit is not None:
                self.audit.skip(gap)

    def refill(self) -> None:
        if self.draining:
            return
        self._intake.refill()
        if self._queue.has_messages:
            self.runtime.offer(self)

    def apply_settings(self) -> None:
        """The definition has changed: another capacity of the tracker, or a delay that is shorter or gone."""
        self.tracker.capacity, self.tracker.extra = self.runtime.settings.workload.spec.tracker.capacity, 0
        self.refill()

    def stashed(self, error: UndecodableBatch) -> None:
        self._intake.stashed(error)
        self.refill()

    def _on_sendable(self) -> None:
        if not self.closed and not self.draining:
            self.runtime.offer(self)
            self.runtime.send_soon()  # one sending for all pumps of this turn of the loop

    def pause(self, paused: bool) -> None:
        """Pauses or resumes sending, also of messages that wait for credit; it reads while it has room."""
        if self.backlog is not None:
            self.backlog.pump.pause(paused)
        was_paused, self.paused = self.paused, paused
        if paused:
            recall(self)
        elif was_paused:
            self._on_sendable()

    def _refill_soon(self) -> None:
        if self._intake.is_low and not self._refill_pending:
            self._refill_pending = True
            asyncio.get_running_loop().call_soon(self._refill_and_send)

    def _refill_and_send(self) -> None:
        self._refill_pending = False
        self.refill()
        self.runtime.send()

    # -- deliveries out --------------------------------------------------------------------------

    def next_delivery(self) -> Delivery | None:
        if self.closed or self.draining or self.paused:
            return None
        if self.allowance is not None and not self.allowance.available(1):
            return None
        delivery = self._queue.next_delivery()
        if self.allowance is not None and delivery is not None:
            self.allowance.spend(1)
        self._refill_soon()
        return delivery

    def next_records(self, limit: int) -> list[Record]:
        if not self.is_main or self.closed or self.draining or self.paused:
            return []
        if self.allowance is None:
            return self._queue.next_records(limit)
        records = self._queue.next_records(limit) if (limit := self.allowance.available(limit)) else []
        self.allowance.spend(len(records))
        return records

    @property
    def delay_ms(self) -> int:
        settings = self.runtime.settings
        if self.tier is None:
            return settings.delay_ms if self.is_main else 0
        return settings.tier_delay_ms(self.tier)

    def metadata(self, delivery: Delivery) -> CallMetadata:
        """The call's metadata; a retried message names the place where it was first produced."""
        record, origin, role = delivery.record, delivery.origin, self.runtime.role_metadata
        headers = self.filter_headers(record.headers)
        if origin is None:
            template = self._template
            own = template.build(record.offset, record.key, headers, record.timestamp, 0, delivery.attempts)
        else:
            template = self._template_of(origin.topic, origin.partition)
            own = template.build(
                origin.offset, record.key, headers, origin.timestamp_ms, origin.retry_count,
                origin.attempt + delivery.attempts,
            )  # fmt: skip
        settings = self.runtime.settings
        if settings.header_map is not None:
            own += settings.header_map.fields(record.headers)
        if settings.is_uforwarder:
            own += self._as_uforwarder(delivery)
        return CallMetadata(template.shared(role), own)

    def _as_uforwarder(self, delivery: Delivery) -> Iterator[Field]:
        record, origin = delivery.record, delivery.origin
        yield RECORD_TS, b"%d" % (record.timestamp if origin is None else origin.timestamp_ms)
        if origin is not None and origin.topic != self.job.topic:
            yield tracing_info(self.job.topic, self.job.partition, record.offset)
        if record.key is None:
            yield KEY, b""

    def _template_of(self, topic: str, partition: int) -> MetadataTemplate:
        found = self._origin_templates.get((topic, partition))
        if found is None:
            if len(self._origin_templates) >= MAX_ORIGINS:
                self._origin_templates.clear()
            found = MetadataTemplate(topic, self._group, partition)
            self._origin_templates[topic, partition] = found
        return found

    def filter_headers(self, headers: Sequence[Header]) -> Sequence[Header]:
        header_filter = self.runtime.settings.header_filter
        return headers if header_filter is None or not headers else header_filter.of(headers)

    def later(self, delivery: Delivery, delay_s: float) -> None:
        self._queue.later(delivery, delay_s)

    def put_back(self, delivery: Delivery) -> None:
        self._queue.put_back(delivery)

    def put_back_unsent(self, records: Sequence[Record]) -> None:
        self._queue.put_back_unsent(records)

    def hold(self, size: int) -> None:
        self._intake.hold(size)

    def may_hold(self, record: Record) -> bool:
        return self._intake.held_bytes + size_of(record) < HELD_BYTES

    @property
    def fault(self) -> JobFault | None:
        """Why the reading stopped, here or in the backlog; the job has to start again."""
        backlog_fault = None if self.backlog is None else self.backlog.pump.fault
        return backlog_fault or self._intake.fault

    def give_up(self, at: int, why: str) -> None:
        """Sends the batch at this base offset to the DLQ undecoded."""
        self._intake.risks.give_up(at, why)

    @property
    def codec(self) -> int:
        return self._intake.codec

    # -- catching up -----------------------------------------------------------------------------

    def split(self, at: int) -> DispatchPump:
        """Makes a pump for offsets from `at` on; this one becomes its backlog (`catch_up`)."""
        self._intake.end_at(at)
        above = [(max(start, at), end) for start, end in self.tracker.snapshot().finished if end > at]
        start = StartPosition(Snapshot(at, tuple(above)), self.lineage, self._log, known=True)
        main = DispatchPump(self.job, self.epoch, self.runtime, start, tier=None)
        main._intake.remote_progress = self._intake.remote_progress.for_rest_of_partition()
        main._intake.risks = self._intake.risks
        self.allowance = CatchUpAllowance(self.runtime.backlog_bucket, self.runtime.clock, self._on_sendable)
        main.backlog = CatchUpBacklog(self, at)
        main.paused = self.paused
        main.snapshot_version = -1
        if self.audit is not None:  # both pumps deliver what it counts
            main.audit = self.audit
            main.audit.follow(main)
        return main

    @property
    def has_ended(self) -> bool:
        return self._intake.has_ended

    @property
    def base(self) -> int:
        """The offset to commit: everything below it is finished."""
        backlog = self.backlog
        return backlog.pump.tracker.base if backlog is not None and not backlog.is_done else self.tracker.base

    @property
    def version(self) -> int:
        """Grows whenever something becomes finished."""
        backlog_version = 0 if self.backlog is None else self.backlog.pump.version
        audit_version = 0 if self.audit is None else self.audit.version
        return (
            self._retired_versions
            + self.tracker.version
            + backlog_version
            + audit_version
            + self._intake.risks.version
        )

    @property
    def snapshot_version(self) -> int:
        """The `version` in the tracker table (`app.worker.jobs.pump`)."""
        return self._snapshot_version

    @snapshot_version.setter
    def snapshot_version(self, version: int) -> None:
        self._snapshot_version = version
        if self._intake.risks.saved(version, self.version) and not self.closed:
            asyncio.get_running_loop().call_soon(self._decode_noted)

    def _decode_noted(self) -> None:
        """Decodes batches whose notes are saved now, here and in the backlog."""
        if self.backlog is not None:
            self.backlog.pump._refill_and_send()
        self._refill_and_send()

    def inherit_risks(self, note: bytes) -> None:
        """Takes a former owner's note of batches that may kill the worker."""
        self._intake.risks.inherit(risks_of(note))

    def snapshot(self) -> Snapshot:
        snapshot = self.tracker.snapshot()
        return snapshot if self.backlog is None else self.backlog.combined_snapshot(snapshot)

    @property
    def note(self) -> bytes:
        """The snapshot's note: progress for other copies' readers, audit counts, risky batches; b"": none."""
        progress_filter, backlog = self._intake.remote_progress, self.backlog
        lowest_pump = self if backlog is None or backlog.is_done else backlog.pump
        note = progress_filter.note(
            self.snapshot, lowest_pump.tracker.end, lowest_pump._intake.remote_progress
        )
        if self.audit is not None:
            note = with_audit(note, self.base, self.audit.note())
        risks = self._intake.risks.noted(self.base)
        return with_risks(note, self.base, risks) if risks else note

    def audit_by(self, audit: ConsumerTap | None) -> None:
        """Has `audit` count finished messages from now on; None: nothing counts them."""
        self._retired_versions += 1 + (0 if self.audit is None else self.audit.version)
        self.audit = audit
        if self.backlog is not None:
            self.backlog.pump.audit_by(audit)

    @property
    def fetched_to(self) -> int:
        """Everything below this offset has been given to the pump."""
        return self._intake.expected

    def remember(self, note: bytes | None, role_epoch: int = -1) -> None:
        """Adds progress for readers of other copies to the snapshots from now on.

        `note` is the former owner's, b"" if it had none; None: continue as before, or start without one.
        """
        if self.is_main and (note is not None or self._intake.remote_progress.progress is None):
            self._intake.remote_progress.remember(self.tracker, note or b"", role_epoch)

    def pass_over(self, over: PassOver, hold_until_s: float | None = None) -> None:
        """Passes over what another copy has finished. Called again when more is known."""
        if self.is_main:
            for progress_filter in self.remote_progress_filters:
                progress_filter.pass_over(over, hold_until_s)
            self.resume_held()

    @property
    def remote_progress_filters(self) -> list[RemoteProgressFilter]:
        return [
            self._intake.remote_progress,
            *([] if self.backlog is None else self.backlog.pump.remote_progress_filters),
        ]

    def resume_held(self) -> bool:
        """Reads on if a held batch is decided or was held long enough; returns whether one is still held."""
        backlog_holds = self.backlog is not None and self.backlog.pump.resume_held()
        if self._intake.remote_progress.is_holding:
            self._refill_and_send()
        return backlog_holds or self._intake.remote_progress.is_holding

    def retire(self) -> None:
        """Takes over the counts of the backlog, which is done, and closes it."""
        if self.backlog is not None:
            pump, self.backlog = self.backlog.pump, None
            self._retired_versions += pump.version
            self.delivered += pump.delivered
            self.retried += pump.retried
            self.dead_lettered += pump.dead_lettered
            self._intake.remote_progress.add_counts(pump._intake.remote_progress)
            self.head.unreported += pump.head.unreported
            pump.close()

    # -- outcomes --------------------------------------------------------------------------------

    def finished(self, record: Record, *, acknowledged: bool, dead: bool = False, sent: bool = True) -> None:
        self.open.pop(record.offset, None)
        if acknowledged:
            self.tracker.ack(record.offset)
            self.delivered += sent
        else:
            self.tracker.nack(record.offset)
            self.dead_lettered += dead
            self.retried += not dead
        self._finished([record])

    def finished_run(self, records: Sequence[Record], start: int, end: int) -> None:
        first_offset, end_offset = records[start].offset, records[end - 1].offset + 1
        if end_offset - first_offset == end - start:
            self.tracker.ack_range(first_offset, end_offset)
        else:
            self.tracker.ack_many([record.offset for record in records[start:end]])
        self.delivered += end - start
        self._finished(records[start:end])

    def _finished(self, records: Sequence[Record]) -> None:
        self._queue.finished(records)
        self._refill_soon()
        if not self.tracker.room:
            self.head.check_soon()

    def finish_by_operator(self, offset: int, decision: DeliveryDecision) -> bool:
        """As `app.dispatch.pump.operator_finish`, here or in the backlog."""
        if self.backlog is not None and offset < self.backlog.end:
            return self.backlog.pump.finish_by_operator(offset, decision)
        return finish_by_operator(self, offset, decision)

    def free_head(self, now_s: float) -> StashVerdict | None:
        """As `LineHead.free`; the backlog's head goes first."""
        if self.backlog is not None and (verdict := self.backlog.pump.free_head(now_s)):
            return verdict
        return self.head.free(now_s)

    def head_candidate(self, now_s: float) -> HeadStatus | None:
        """As `LineHead.candidate`; the backlog's head goes first."""
        if self.backlog is not None and (found := self.backlog.pump.head_candidate(now_s)):
            return found
        return self.head.candidate(now_s)

    def remove_waiting(self, offset: int) -> Delivery | None:
        return self.runtime.take_waiting(self, offset) or self._queue.remove_waiting(offset)

    # -- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        if self.closed:
            return "closed"
        return "draining" if self.draining else "paused" if self.paused else "flowing"

    @property
    def in_flight(self) -> int:
        return len(self.calls) + self.batched

    def work(self) -> JobWork:
        """The work since the pump started. It sends the bytes that it reads, so they count twice."""
        pumps = [self] if self.backlog is None else [self, self.backlog.pump]
        messages = sum(one.delivered + one.retried + one.dead_lettered for one in pumps)
        calls = messages if self.runtime.sends_calls else 0
        return JobWork(2 * sum(one.read_bytes for one in pumps), messages, calls)

    def status(self) -> JobStatus:
        """The job's state as the heartbeat reports it."""
        tracker, trouble = self.tracker, self.troubles.words
        # msgspec leaves out what *is* the default, not what equals it.
        capacity = TRACKER_CAPACITY if tracker.limit == TRACKER_CAPACITY else tracker.limit
        status = JobStatus(
            job=str(self.job),
            epoch=self.epoch,
            state=self.state,
            committed=tracker.base,
            fetched=tracker.end,
            high_watermark=self.high_watermark,
            in_flight=self.in_flight,
            unfinished=tracker.unfinished,
            oldest_ms=self._intake.oldest_ms(),
            delivered=self.delivered,
            retried=self.retried,
            dead_lettered=self.dead_lettered,
            outgoing=len(self.copying),
            passed_over=self._intake.remote_progress.passed_over,
            trouble=trouble or self._queue.risk(),
            trouble_from=self.troubles.source or "",
            used=tracker.limit - tracker.room,
            capacity=capacity,
            **self._queue.status_fields(),
        )
        return status if self.backlog is None else self.backlog.combined_status(status)

    def trace_by(self, trace: PartitionTrace | None) -> None:
        """Has `trace` note where messages wait from now on; None: nothing notes it."""
        self.trace = self._intake.trace = trace

    # -- the end ---------------------------------------------------------------------------------

    def stop_intake(self) -> None:
        """Sends nothing new, and takes back what waits for credit; messages already sent continue."""
        if self.backlog is not None:
            self.backlog.pump.stop_intake()
        self.draining = True
        self._queue.close()
        self.open.clear()
        recall(self)

    async def drain(self, grace_s: float) -> bool:
        """Waits at most `grace_s` for messages in flight, then cancels them. Returns whether all ended."""
        self.stop_intake()
        deadline_s = time.monotonic() + grace_s
        # Callbacks empty these collections; there is no future to await.
        while self.is_busy and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ended = not self.is_busy
        self._cancel_calls()
        return ended

    @property
    def is_busy(self) -> bool:
        busy = bool(self.calls or self.batches or self.copying)
        return busy or (self.backlog is not None and self.backlog.pump.is_busy)

    def _cancel_calls(self) -> None:
        if self.backlog is not None:
            self.backlog.pump._cancel_calls()
        for delivery in list(self.calls.values()):
            delivery.canceled = True
            delivery.cancel()
        for batch in list(self.batches):
            batch.cancel(0, len(batch.records))

    def close(self) -> None:
        """Ends a fenced or moved pump: from now on it finishes nothing and sends nothing."""
        if self.closed:
            return
        self.stop_intake()
        if self.backlog is not None:
            self.backlog.pump.close()
        self.closed = True
        self.runtime.leave(self)
        self._cancel_calls()
        for task in list(self.copying.values()):
            task.cancel()
