"""The pump of one dispatch job: fetched batches in, deliveries out, a contiguous prefix to commit.

    Fetched -> Intake -> Line (its time, its turn) -> Delivery -> tracker

Rule: a pump that is `closed` (fenced, moved, stopped) finishes nothing and sends nothing.

Invariant: `tracker.base` never passes an offset whose message is not finished.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from app.core.head_of_line import HeadOfLine, Verdict
from app.core.job import JobId
from app.core.outcome import Decision
from app.core.retry_headers import RAW_BATCH, Origin, moved_headers
from app.core.tracker import Snapshot, Tracker
from app.kafka.decode import Record, UndecodableBatch
from app.pump.delivery import BatchDelivery, Delivery
from app.pump.intake import Intake
from app.pump.line import Line
from app.push.metadata import MetadataTemplate
from app.wire import JobStatus

if TYPE_CHECKING:
    from app.kafka.fetched import Fetched, Gap
    from app.pump.workload import WorkloadRuntime

log = structlog.get_logger(__name__)


class DispatchPump:
    """See the module. Owned by the job manager; fed by the dispatch agent.

    `tier` is that of a retry topic, None for the main topic, and for the topic of what was `merged` back from
    the DLQ: its messages tell where they first stood, and begin again.
    """

    def __init__(
        self,
        job: JobId,
        epoch: int,
        runtime: WorkloadRuntime,
        *,
        tier: int | None,
        merged: bool = False,
        next_offset: int,
        snapshot: Snapshot | None,
        capacity: int,
        group: str,
        lineage: int,
    ) -> None:
        self.job = job
        self.epoch = epoch
        self.lineage = lineage
        self.runtime = runtime
        self.tier = tier
        self.tracker = Tracker(next_offset, capacity, snapshot)
        self.open: dict[int, Delivery] = {}  # sent on their own, and not finished
        self.calls: dict[int, Delivery] = {}  # those of them that are on their way
        self.batches: set[BatchDelivery] = set()  # runs on their way
        self.copying: dict[int, asyncio.Task[None]] = {}  # on their way to a retry topic or the DLQ
        self.is_main = tier is None and not merged
        self.paused = False
        self.in_turn = False
        self.closed = False
        self.draining = False
        self.trouble = ""
        self.high_watermark = -1
        self.delivered = self.retried = self.dead_lettered = 0
        self.snapshot_version = self.tracker.version
        self.head = HeadOfLine(runtime.head_after_s, runtime.head_tokens)
        self._intake = Intake(self.tracker, self._stash_batch)
        self._line = Line(self, self._intake, runtime.new_lanes() if self.is_main else None, self._stirred)
        self._reading = False
        self._group = group
        self._template = MetadataTemplate(job.topic, group, job.partition)

    # -- batches in ------------------------------------------------------------------------------

    def accept(self, fetched: Fetched) -> None:
        """Takes a fetched response; its bytes go back to the budget once all of it is decoded."""
        self.high_watermark = fetched.high_watermark
        if self.closed or self.draining:
            fetched.release()
            return
        self._intake.accept(fetched)
        self.refill()
        self.runtime.send()

    def skip(self, gap: Gap) -> None:
        """The log lost [start, end): nothing there can ever be delivered."""
        if not self.closed:
            self._intake.skip(gap.end)

    def refill(self) -> None:
        """Decodes what there is room for, and takes a turn when there is something to send."""
        if self.draining:
            return
        self._intake.refill()
        if self._line.has_some:
            self.runtime.offer(self)

    def _stirred(self) -> None:
        if not self.closed and not self.draining:
            self.runtime.offer(self)
            self.runtime.send()

    def pause(self, paused: bool) -> None:
        """Sends nothing new while paused; what was polled waits, within tracker and fetch budget."""
        if paused != self.paused:
            self.paused = paused
            if not paused:
                self._stirred()

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
        delivery = self._line.next_delivery()
        self._refill_soon()
        return delivery

    def next_records(self, most: int) -> list[Record]:
        """At most `most` messages that may go together over a stream; empty: ask `next_delivery`."""
        if not self.is_main or self.closed or self.draining or self.paused:
            return []
        return self._line.next_records(most)

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
        if origin is None:
            return self._template.build(
                record.offset, record.key, record.headers, record.timestamp, 0, delivery.attempts
            )
        template = MetadataTemplate(origin.topic, self._group, origin.partition)
        return template.build(
            origin.offset,
            record.key,
            record.headers,
            origin.timestamp_ms,
            origin.retry_count,
            origin.attempt + delivery.attempts,
        )

    def later(self, delivery: Delivery, delay_s: float) -> None:
        """Delivers again after `delay_s`; meanwhile it takes no call's place."""
        self._line.later(delivery, delay_s)

    # -- outcomes --------------------------------------------------------------------------------

    def finished(self, record: Record, *, acknowledged: bool, dead: bool = False) -> None:
        """The message is finished: acknowledged, or safe in another topic."""
        self.open.pop(record.offset, None)
        self._line.finished([record])
        if acknowledged:
            self.tracker.ack(record.offset)
            self.delivered += 1
        else:
            self.tracker.nack(record.offset)
            if dead:
                self.dead_lettered += 1
            else:
                self.retried += 1
        self._refill_soon()

    def finished_run(self, records: Sequence[Record], start: int, end: int) -> None:
        """Messages [start, end) of a run were acknowledged."""
        first, after = records[start].offset, records[end - 1].offset + 1
        if after - first == end - start:
            self.tracker.ack_range(first, after)
        else:
            self.tracker.ack_many([record.offset for record in records[start:end]])
        self.delivered += end - start
        self._line.finished(records[start:end])
        self._refill_soon()

    def conclude(self, offset: int, decision: Decision) -> bool:
        """Ends the message at `offset` as decided, wherever it is: its call and its retries are given up.

        Returns False when it cannot be: it is finished, or its copy is on its way, or it was not read yet.
        """
        if self.closed or offset in self.copying:
            return False
        call = self.calls.get(offset)
        if call is not None:
            call.verdict = decision
            self.tracker.cancel(offset)
            call.cancel()  # the answer, whatever it is, carries the decision out
            return True
        delivery = self._take(offset)
        if delivery is None:
            return self._conclude_in_batch(offset, decision)
        self.tracker.cancel(offset)
        self.runtime.carry_out(delivery, decision, "", "CANCELED", self.runtime.clock())
        return True

    def _conclude_in_batch(self, offset: int, decision: Decision) -> bool:
        for batch in self.batches:
            index = batch.find(offset)
            if index is not None and self.tracker.cancel(offset):
                batch.verdicts[offset] = decision
                batch.cancel(index, index + 1)
                return True
        return False

    def free_head(self, now_s: float) -> Verdict | None:
        """Moves the message that blocks the others out of their way, when there is one and it may go."""
        tracker, runtime = self.tracker, self.runtime
        decision = runtime.head_decision(self.tier)
        if decision is None or self.closed or self.draining:
            return None
        self.head.after_s, self.head.tokens = runtime.head_after_s, runtime.head_tokens
        verdict = self.head.look(
            now_s,
            base=tracker.base,
            capacity=tracker.capacity,
            unfinished=tracker.unfinished,
            finished_above=tracker.capacity - tracker.room - tracker.unfinished,
            head_sent_s=self.head_sent_s(),
            delivered=self.delivered,
            serving=runtime.is_serving(self.open.get(tracker.base), now_s),
        )
        if verdict is None or not self.conclude(verdict.offset, replace(decision, reason=verdict.reason)):
            return None
        return verdict

    def _take(self, offset: int) -> Delivery | None:
        """Takes the message out of whatever it waits in."""
        for queue in self.runtime.held():
            for delivery in queue:
                if delivery.pump is self and delivery.record.offset == offset:
                    queue.remove(delivery)
                    return delivery
        return self._line.take(offset)

    def _stash_batch(self, error: UndecodableBatch, shown: list[tuple[int, int]]) -> None:
        task = asyncio.get_running_loop().create_task(self._stash_raw(error, shown))
        self.copying[error.start] = task
        task.add_done_callback(lambda _: self.copying.pop(error.start, None))

    async def _stash_raw(self, error: UndecodableBatch, shown: list[tuple[int, int]]) -> None:
        log.error(
            "a record batch cannot be decoded; its bytes go to the DLQ", job=str(self.job), error=str(error)
        )
        origin = Origin(self.job.topic, self.job.partition, error.start, -1)
        headers = moved_headers(
            [],
            origin,
            tier=None,
            reason=str(error),
            code="UNDECODABLE",
            moved_at_ms=time.time_ns() // 1_000_000,
        )
        headers.append((RAW_BATCH, f"{error.start}-{error.end}".encode()))
        while not self.closed:
            if self.runtime.policy.dlq_enabled and self.runtime.lease.holds(self.runtime.clock()):
                try:
                    await self.runtime.copy_raw(error.raw, headers)
                except Exception as failure:  # noqa: BLE001 - the batch stays unfinished until it is safe
                    self.trouble = f"undecodable batch not stashed: {failure}"
                else:
                    for start, end in shown:
                        self.tracker.nack_range(start, end)
                    self.dead_lettered += 1
                    self.trouble = ""
                    self.refill()
                    return
            else:
                self.trouble = (
                    f"undecodable batch at offset {error.start}, and the workload has no DLQ: enable dlq"
                )
            await asyncio.sleep(1.0)

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
        return len(self.calls) + sum(batch.left for batch in self.batches)

    def head_sent_s(self) -> float | None:
        """When the oldest unfinished message was first sent; None while the receiver does not have it."""
        head = self.tracker.base
        if head in self.copying:
            return None
        if (delivery := self.open.get(head)) is not None:
            return delivery.first_sent_s
        return next((batch.started_s for batch in self.batches if batch.find(head) is not None), None)

    def status(self) -> JobStatus:
        """What the heartbeat says of this job."""
        tracker = self.tracker
        return JobStatus(
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
            trouble=self.trouble,
        )

    # -- the end ---------------------------------------------------------------------------------

    def stop_intake(self) -> None:
        """Sends nothing new from now on; what is in flight goes on."""
        self.draining = True
        self._line.close()
        self.open.clear()

    async def drain(self, grace_s: float) -> bool:
        """Waits for what is in flight, at most `grace_s`; then cancels it. Returns whether all ended."""
        self.stop_intake()
        deadline_s = time.monotonic() + grace_s
        # Sets that empty themselves, by callbacks: looked at, not waited for.
        while self._is_busy and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ended = not self._is_busy
        self._cancel_calls()
        return ended

    @property
    def _is_busy(self) -> bool:
        return bool(self.calls or self.batches or self.copying)

    def _cancel_calls(self) -> None:
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
        self.closed = True
        self._cancel_calls()
        for task in list(self.copying.values()):
            task.cancel()
