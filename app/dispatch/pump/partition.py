"""The pump of one dispatch job: fetched batches in, deliveries out, a contiguous prefix to commit.

    Fetched -> Intake -> Line (its time, its turn) -> Delivery -> tracker

Rule: a pump that is `closed` (fenced, moved, stopped) finishes nothing and sends nothing.

Invariant: `tracker.base` never passes an offset whose message is not finished.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from app.controllog.codec import JobStatus
from app.dispatch.model.head_of_line import HeadOfLineDetector
from app.dispatch.model.outcome import DeliveryDecision
from app.dispatch.model.retry_headers import Header
from app.dispatch.pump.catch_up import CatchUpAllowance, CatchUpBacklog
from app.dispatch.pump.delivery import BatchDelivery, Delivery, recall
from app.dispatch.pump.intake import HELD_BYTES, MessageIntake
from app.dispatch.pump.line_head import check_head_soon
from app.dispatch.pump.operator_finish import finish_by_operator, stash_batch
from app.dispatch.pump.ready_queue import ReadyQueue
from app.dispatch.pump.receiver_backlog import taken
from app.dispatch.pump.status import status_of
from app.dispatch.push.metadata import MetadataTemplate
from app.kafka.records.record import Record, size_of
from app.kafka.records.scan import PRODUCER_LIMITS
from app.kernel.job import JobFault, JobId
from app.kernel.ranges import Snapshot
from app.kernel.tracker import Tracker
from app.offsets.model.producer_progress import risks_of, with_audit, with_risks

if TYPE_CHECKING:
    from app.audit.pump.consumer_tap import ConsumerTap
    from app.dispatch.model.head_of_line import StashVerdict
    from app.dispatch.pump.remote_progress_filter import RemoteProgressFilter
    from app.dispatch.scheduler.workload import WorkloadRuntime
    from app.kafka.fetch.decoder import UndecodableBatch
    from app.kafka.fetch.deliveries import FetchedBatches, LogGap
    from app.offsets.model.source_frontier import PassOver

MAX_UNREPORTED = 100  # until the timer asks; each is counted, and says why in its copy


class DispatchPump:
    """See the module. Owned by the job manager; fed by the dispatch agent.

    `tier` is that of a retry topic, None for the main topic, and for the topic of what was `merged` back from
    the DLQ: its messages tell where they first stood, and begin again. `topic_id` is Kafka's, "" where the
    broker has none.
    """

    def __init__(
        self, job: JobId, epoch: int, runtime: WorkloadRuntime, *, tier: int | None, merged: bool = False,
        next_offset: int, snapshot: Snapshot | None, capacity: int, group: str, lineage: int,
        topic_id: str = "",
    ) -> None:  # fmt: skip
        self.job = job
        self.epoch = epoch
        self.lineage = lineage
        self.topic_id = topic_id
        self.runtime = runtime
        self.commits_to = runtime.workload.metadata.cluster, group
        self.tier = tier
        self.tracker = Tracker(next_offset, capacity, snapshot)
        self.open: dict[int, Delivery] = {}  # sent on their own, and not finished
        self.calls: dict[int, Delivery] = {}  # those of them that are on their way
        self.batches: set[BatchDelivery] = set()  # runs on their way
        self.copying: dict[int, asyncio.Task[None]] = {}  # on their way to a retry topic or the DLQ
        self.is_main = tier is None and not merged
        self.allowance: CatchUpAllowance | None = None  # a backlog's
        self.in_turn = self.paused = self.closed = self.draining = False
        self.head_due = False  # it is looked at in a moment
        # messages moved away after acknowledgements
        self.untold: deque[StashVerdict] = deque(maxlen=MAX_UNREPORTED)
        self.trouble = ""
        self.high_watermark = -1
        self.delivered = self.retried = self.dead_lettered = self.read_bytes = 0
        self.batched = 0  # messages of `batches` on their way
        self._snapshot_version = self.tracker.version
        self.head = HeadOfLineDetector(runtime.head_after_s, runtime.head_tokens)
        self._intake = MessageIntake(self.tracker, partial(stash_batch, self))
        if self.is_main:
            self._intake.limits = PRODUCER_LIMITS
        self._queue = ReadyQueue(
            self, self._intake, runtime.new_lanes() if self.is_main else None, self._on_sendable
        )
        self.backlog: CatchUpBacklog | None = None
        self.audit: ConsumerTap | None = None  # counts what is finished
        self._retired = 0  # the version of backlogs that are done, and of audits that have ended
        self._reading = False
        self._group = group
        self._template = MetadataTemplate(job.topic, group, job.partition)
        runtime.scheduler.join(self)

    # -- batches in ------------------------------------------------------------------------------

    def accept(self, fetched: FetchedBatches) -> None:
        """Takes a fetched response; its bytes go back to the budget once all of it is decoded."""
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
        """The log lost [start, end): nothing there can ever be delivered."""
        if not self.closed:
            self._intake.skip(gap.end)
            if self.audit is not None:
                self.audit.skip(gap)

    def refill(self) -> None:
        """Decodes what there is room for, and takes a turn when there is something to send."""
        if self.draining:
            return
        self._intake.refill()
        if self._queue.has_some:
            self.runtime.offer(self)

    def stashed(self, error: UndecodableBatch) -> None:
        """What could not be decoded is safe in the DLQ."""
        self._intake.stashed(error)
        self.refill()

    def _on_sendable(self) -> None:
        if not self.closed and not self.draining:
            self.runtime.offer(self)
            self.runtime.send_soon()  # what comes together goes together

    def pause(self, paused: bool) -> None:
        """Sends nothing while paused, nor what waits for credit; tracker and fetch budget bound it."""
        if self.backlog is not None:
            self.backlog.pump.pause(paused)
        was_paused, self.paused = self.paused, paused
        if paused:
            recall(self)
        elif was_paused:
            self._on_sendable()

    def _refill_soon(self) -> None:
        if self._intake.is_low and not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._refill_and_send)

    def _refill_and_send(self) -> None:
        self._reading = False
        self.refill()
        self.runtime.send()

    # -- deliveries out --------------------------------------------------------------------------

    def next_delivery(self) -> Delivery | None:
        """The next message to send, or None when there is none (now)."""
        if self.closed or self.draining or self.paused:
            return None
        if self.allowance is not None and not self.allowance.most(1):
            return None
        delivery = self._queue.next_delivery()
        if self.allowance is not None and delivery is not None:
            self.allowance.spend(1)
        self._refill_soon()
        return delivery

    def next_records(self, most: int) -> list[Record]:
        """At most `most` messages that may go together over a stream; empty: ask `next_delivery`."""
        if not self.is_main or self.closed or self.draining or self.paused:
            return []
        if self.allowance is None:
            return self._queue.next_records(most)
        records = self._queue.next_records(most) if (most := self.allowance.most(most)) else []
        self.allowance.spend(len(records))
        return records

    @property
    def delay_ms(self) -> int:
        """How long after it was appended a message may be delivered."""
        if self.tier is None:
            return self.runtime.delay_ms if self.is_main else 0
        tiers = self.runtime.policy.tiers
        return int(tiers[self.tier].delay_s * 1000) if self.tier < len(tiers) else 0

    def metadata(self, delivery: Delivery) -> Any:
        """The call's metadata; retried messages tell where they first stood."""
        record, origin = delivery.record, delivery.origin
        headers = self.passing(record.headers)
        if origin is None:
            return self._template.build(
                record.offset, record.key, headers, record.timestamp, 0, delivery.attempts
            )
        template = MetadataTemplate(origin.topic, self._group, origin.partition)
        return template.build(
            origin.offset, record.key, headers, origin.timestamp_ms, origin.retry_count,
            origin.attempt + delivery.attempts,
        )  # fmt: skip

    def passing(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Those that the receiver gets."""
        passing = self.runtime.header_filter
        return headers if passing is None or not headers else passing.of(headers)

    def later(self, delivery: Delivery, delay_s: float) -> None:
        """Delivers again after `delay_s`; meanwhile it takes no call's place."""
        self._queue.later(delivery, delay_s)

    def put_back(self, delivery: Delivery) -> None:
        """Delivers it before all others, once the pump is not paused any more."""
        self._queue.put_back(delivery)

    def hold(self, size: int) -> None:
        """So many bytes more of decoded messages wait for their receiver or an attempt; below 0: fewer."""
        self._intake.hold(size)

    def may_hold(self, record: Record) -> bool:
        """Whether a message may wait here without keeping others from being read."""
        return self._intake.held_bytes + size_of(record) < HELD_BYTES

    @property
    def fault(self) -> JobFault | None:
        """What ended its reading, or its backlog's: it has to begin again."""
        below = None if self.backlog is None else self.backlog.pump.fault
        return below or self._intake.fault

    def give_up(self, at: int, why: str) -> None:
        """The batch at this base offset goes to the DLQ undecoded."""
        self._intake.risks.give_up(at, why)

    @property
    def codec(self) -> int:
        """Kafka's number of its topic's compression; 0: none was seen."""
        return self._intake.codec

    # -- catching up -----------------------------------------------------------------------------

    def split(self, at: int) -> DispatchPump:
        """The pump of what lies from `at` on; this one becomes its backlog (`app.dispatch.pump.catch_up`)."""
        self._intake.end_at(at)
        above = [(max(start, at), end) for start, end in self.tracker.snapshot().finished if end > at]
        main = DispatchPump(
            self.job, self.epoch, self.runtime, tier=None, next_offset=at, group=self._group,
            snapshot=Snapshot(at, tuple(above)), capacity=self._queue.delayed.capacity, lineage=self.lineage,
            topic_id=self.topic_id,
        )  # fmt: skip
        main._intake.remote_progress = self._intake.remote_progress.twin()
        main._intake.risks = self._intake.risks
        self.allowance = CatchUpAllowance(self.runtime.backlog_bucket, self.runtime.clock, self._on_sendable)
        main.backlog = CatchUpBacklog(self, at)
        main.paused = self.paused
        main.snapshot_version = -1
        if self.audit is not None:  # both bring what it counts
            main.audit = self.audit
            main.audit.follow(main)
        return main

    @property
    def has_ended(self) -> bool:
        """A backlog: everything in it has been read."""
        return self._intake.has_ended

    @property
    def base(self) -> int:
        """Everything below it is finished: what may be committed."""
        backlog = self.backlog
        return backlog.pump.tracker.base if backlog is not None and not backlog.is_done else self.tracker.base

    @property
    def version(self) -> int:
        """Grows whenever something becomes finished."""
        former = 0 if self.backlog is None else self.backlog.pump.version
        audited = 0 if self.audit is None else self.audit.version
        return self._retired + self.tracker.version + former + audited + self._intake.risks.version

    @property
    def snapshot_version(self) -> int:
        """See `app.worker.jobs.pump`."""
        return self._snapshot_version

    @snapshot_version.setter
    def snapshot_version(self, version: int) -> None:
        self._snapshot_version = version
        if self._intake.risks.saved(version, self.version) and not self.closed:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """What waited for its note to be saved may be decoded, in this pump or its backlog's."""
        if self.backlog is not None:
            self.backlog.pump._refill_and_send()
        self._refill_and_send()

    def inherit_risks(self, note: bytes) -> None:
        """What a former owner of the same log noted of batches that may end a worker."""
        self._intake.risks.inherit(risks_of(note))

    def snapshot(self) -> Snapshot:
        """All that is finished."""
        snapshot = self.tracker.snapshot()
        return snapshot if self.backlog is None else self.backlog.joined(snapshot)

    @property
    def note(self) -> bytes:
        """What is finished, for a reader of another copy of the topic; b"" unless it is to `remember`."""
        elsewhere, backlog = self._intake.remote_progress, self.backlog
        reads = self if backlog is None or backlog.is_done else backlog.pump
        note = elsewhere.note(self.snapshot, reads.tracker.end, reads._intake.remote_progress)
        if self.audit is not None:
            note = with_audit(note, self.base, self.audit.note())
        risks = self._intake.risks.noted(self.base)
        return with_risks(note, self.base, risks) if risks else note

    def audit_by(self, audit: ConsumerTap | None) -> None:
        """From now on this counts what is finished; None: nothing does."""
        self._retired += 1 + (0 if self.audit is None else self.audit.version)
        self.audit = audit
        if self.backlog is not None:
            self.backlog.pump.audit_by(audit)

    @property
    def fetched_to(self) -> int:
        """Everything below has been given to it."""
        return self._intake.expected

    def remember(self, note: bytes | None, role_epoch: int = -1) -> None:
        """From now on its snapshots have a note; `note`: the former owner's, b"", or None: as before."""
        if self.is_main and (note is not None or self._intake.remote_progress.progress is None):
            self._intake.remote_progress.remember(self.tracker, note or b"", role_epoch)

    def pass_over(self, over: PassOver, hold_until_s: float | None = None) -> None:
        """What was finished in another copy is not delivered here (`RemoteProgressFilter`); again: more is
        known now."""
        if self.is_main:
            for one in self.remote_progress_filters:
                one.pass_over(over, hold_until_s)
            self.resume_held()

    @property
    def remote_progress_filters(self) -> list[RemoteProgressFilter]:
        """What ties it, and its backlog, to other copies."""
        return [
            self._intake.remote_progress,
            *([] if self.backlog is None else self.backlog.pump.remote_progress_filters),
        ]

    def resume_held(self) -> bool:
        """Goes on where what it held back is decided, or was held for long enough; whether it holds any."""
        below = self.backlog is not None and self.backlog.pump.resume_held()
        if self._intake.remote_progress.is_holding:
            self._refill_and_send()
        return below or self._intake.remote_progress.is_holding

    def retire(self) -> None:
        """Its backlog is done."""
        if self.backlog is not None:
            pump, self.backlog = self.backlog.pump, None
            self._retired += pump.version
            self.delivered += pump.delivered
            self.retried += pump.retried
            self.dead_lettered += pump.dead_lettered
            self._intake.remote_progress.take_in(pump._intake.remote_progress)
            self.untold += pump.untold
            pump.close()

    # -- outcomes --------------------------------------------------------------------------------

    def finished(self, record: Record, *, acknowledged: bool, dead: bool = False, sent: bool = True) -> None:
        """The message is finished: acknowledged (or, not `sent`, passed over), or safe in another topic."""
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
        """Messages [start, end) of a run were acknowledged."""
        first, after = records[start].offset, records[end - 1].offset + 1
        if after - first == end - start:
            self.tracker.ack_range(first, after)
        else:
            self.tracker.ack_many([record.offset for record in records[start:end]])
        self.delivered += end - start
        self._finished(records[start:end])

    def _finished(self, records: Sequence[Record]) -> None:
        self._queue.finished(records)
        self._refill_soon()
        if not self.tracker.room:
            check_head_soon(self)

    def finish_by_operator(self, offset: int, decision: DeliveryDecision) -> bool:
        """Ends a message, wherever it is (`app.dispatch.pump.operator_finish`)."""
        return finish_by_operator(self, offset, decision)

    def remove_waiting(self, offset: int) -> Delivery | None:
        """Takes the message out of whatever it waits in."""
        return taken(self.runtime.held(), self, offset) or self._queue.remove_waiting(offset)

    # -- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """For people."""
        if self.closed:
            return "closed"
        return "draining" if self.draining else "paused" if self.paused else "flowing"

    @property
    def in_flight(self) -> int:
        """Messages on their way to the receiver."""
        return len(self.calls) + self.batched

    def status(self) -> JobStatus:
        """What the heartbeat says of this job."""
        status = status_of(self, self._intake, self._queue)
        return status if self.backlog is None else self.backlog.added_to(status)

    # -- the end ---------------------------------------------------------------------------------

    def stop_intake(self) -> None:
        """Sends nothing new from now on, nor what waits for the receiver's credit; what was sent goes on."""
        if self.backlog is not None:
            self.backlog.pump.stop_intake()
        self.draining = True
        self._queue.close()
        self.open.clear()
        recall(self)

    async def drain(self, grace_s: float) -> bool:
        """Waits for what is in flight, at most `grace_s`; then cancels it. Returns whether all ended."""
        self.stop_intake()
        deadline_s = time.monotonic() + grace_s
        # Sets that empty themselves, by callbacks: looked at, not waited for.
        while self.is_busy and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ended = not self.is_busy
        self._cancel_calls()
        return ended

    @property
    def is_busy(self) -> bool:
        """Something of it is on its way."""
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
        """Fenced or moved: nothing of this pump counts from now on (rule 1)."""
        if self.closed:
            return
        self.stop_intake()
        if self.backlog is not None:
            self.backlog.pump.close()
        self.closed = True
        self.runtime.scheduler.leave(self)
        self._cancel_calls()
        for task in list(self.copying.values()):
            task.cancel()
