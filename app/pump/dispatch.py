"""The pump of one dispatch job: fetched batches in, deliveries out, a contiguous prefix to commit.

    Fetched -> RecordReader -> ready (a few hundred records) -> Delivery (a call) -> tracker

Rules
1. Records are decoded only as the tracker has room; the raw bytes wait, and their bytes are what the
   fetch budget counts.
2. What an inherited snapshot says is finished is not delivered again.
3. A pump that is `closed` (fenced, moved, stopped) finishes nothing and sends nothing.
4. Retry tiers wait until each record's delay has passed since it was appended; records of a tier are
   in order of time, so that looking at the first is enough.

Invariant: `tracker.base` never passes an offset whose message is not finished.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import structlog

from app.core.job import JobId
from app.core.retry_headers import RAW_BATCH, Origin, moved_headers, read_origin
from app.core.tracker import Snapshot, Tracker
from app.kafka.decode import Record, RecordReader, UndecodableBatch
from app.push.metadata import InvalidHeaderName, MetadataTemplate
from app.wire import JobStatus

if TYPE_CHECKING:
    from app.kafka.fetched import Fetched, Gap
    from app.pump.workload import WorkloadRuntime
    from app.push.unary import CallHandle, CallResult, UnaryTarget

log = structlog.get_logger(__name__)

CHUNK_RECORDS = 256  # decoded at once: long enough to be cheap, short enough not to hold the loop
READY_LOW = 64  # refilled below this many


class Delivery:
    """One message on its way to the receiver, over all its in-memory attempts."""

    __slots__ = ("attempts", "canceled", "handle", "origin", "pump", "record", "started_s")

    def __init__(self, pump: DispatchPump, record: Record, origin: Origin | None) -> None:
        self.pump = pump
        self.record = record
        self.origin = origin
        self.attempts = 0
        self.canceled = False
        self.started_s = 0.0
        self.handle: CallHandle | None = None

    def start(self, target: UnaryTarget, now_s: float) -> None:
        """Sends the message; `answered` is called exactly once, later."""
        pump, record = self.pump, self.record
        self.attempts += 1
        self.canceled = False
        self.started_s = now_s
        pump.calls[record.offset] = self
        try:
            metadata = pump.metadata(self)
        except InvalidHeaderName as error:
            asyncio.get_running_loop().call_soon(self.answered, pump.local_failure(str(error)))
            return
        self.handle = target.call(record.value, metadata, pump.runtime.timeout_s, self.answered)

    def answered(self, result: CallResult) -> None:
        """The call's answer, whatever it is."""
        self.handle = None
        self.pump.calls.pop(self.record.offset, None)
        self.pump.runtime.answered(self, result)

    def told_origin(self) -> Origin:
        """Where the message first stood, as headers tell it or as it stands here."""
        if self.origin is not None:
            return self.origin
        pump, record = self.pump, self.record
        return Origin(pump.job.topic, pump.job.partition, record.offset, record.timestamp)


class DispatchPump:
    """See the module. Owned by the job manager; fed by the dispatch agent."""

    def __init__(
        self,
        job: JobId,
        epoch: int,
        runtime: WorkloadRuntime,
        *,
        tier: int | None,
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
        self.calls: dict[int, Delivery] = {}
        self.copying: set[asyncio.Task[None]] = set()  # messages on their way to a retry topic or DLQ
        self.in_turn = False
        self.closed = False
        self.draining = False
        self.trouble = ""
        self.high_watermark = -1
        self.delivered = self.retried = self.dead_lettered = 0
        self.snapshot_version = self.tracker.version
        self.snapshot_base = -1
        self._ready: deque[Record] = deque()
        self._again: deque[Delivery] = deque()
        self._readers: deque[RecordReader] = deque()
        self._waiting: dict[int, tuple[asyncio.TimerHandle, Delivery]] = {}
        self._ages: deque[tuple[int, int]] = deque()
        self._due_timer: asyncio.TimerHandle | None = None
        self._reading = False
        self._group = group
        self._template = MetadataTemplate(job.topic, group, job.partition)

    # -- batches in ------------------------------------------------------------------------------

    def accept(self, fetched: Fetched) -> None:
        """Takes a fetched response; its bytes go back to the budget once all of it is decoded."""
        self.high_watermark = fetched.high_watermark
        if self.closed or self.draining or fetched.next_offset <= self.tracker.end:
            fetched.release()
            return
        self._readers.append(RecordReader(fetched))
        self.refill()
        self.runtime.send()

    def skip(self, gap: Gap) -> None:
        """The log lost [start, end): nothing there can ever be delivered."""
        if self.closed:
            return
        if self._readers:
            return  # what waits undecoded comes first; the next `fetched` behind the gap counts it
        if gap.end > self.tracker.end:
            self.tracker.skip(self.tracker.end, gap.end)

    def refill(self) -> None:
        """Decodes up to a chunk of records into `ready`, as far as the tracker has room (rule 1)."""
        ready, readers, tracker = self._ready, self._readers, self.tracker
        while readers and len(ready) < READY_LOW and not self.draining:
            room = min(tracker.room, CHUNK_RECORDS)
            if room <= 0:
                break
            reader = readers[0]
            try:
                records = [record for record in reader.read(room) if record.offset >= tracker.end]
            except UndecodableBatch as error:
                self._stash_batch(error)
                records = []
            if records:
                self._register(records)
            if reader.next_offset > tracker.end:
                tracker.skip(tracker.end, reader.next_offset)
            if reader.exhausted:
                readers.popleft().fetched.release()
        if ready or self._again:
            self.runtime.offer(self)

    def _register(self, records: list[Record]) -> None:
        tracker, ready = self.tracker, self._ready
        first, last = records[0].offset, records[-1].offset
        self._ages.append((last + 1, records[0].timestamp))
        dense = last - first + 1 == len(records)
        runs = [(first, last + 1)] if dense else _runs(records)
        deliver = [span for start, end in runs for span in tracker.fetched(start, end)]
        if sum(end - start for start, end in deliver) == len(records):
            ready.extend(records)
            return
        spans = iter(deliver)
        start, end = next(spans, (0, 0))
        for record in records:
            while end <= record.offset and end:
                start, end = next(spans, (0, 0))
            if start <= record.offset < end:
                ready.append(record)

    # -- deliveries out --------------------------------------------------------------------------

    def next_delivery(self) -> Delivery | None:
        """The next message to send, or None when there is none (now)."""
        if self.closed or self.draining:
            return None
        if self._again:
            return self._again.popleft()
        ready = self._ready
        if not ready:
            return None
        record = ready[0]
        origin = None
        if self.tier is not None:
            due_ms = record.timestamp + self._delay_ms()
            wait_ms = due_ms - time.time_ns() // 1_000_000
            if wait_ms > 0:
                self._wake_in(wait_ms / 1000)
                return None
            origin = read_origin(
                record.headers,
                topic=self.job.topic,
                partition=self.job.partition,
                offset=record.offset,
                timestamp_ms=record.timestamp,
                tier=self.tier,
            )
        ready.popleft()
        if len(ready) < READY_LOW and self._readers and not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._refill_soon)
        return Delivery(self, record, origin)

    def _delay_ms(self) -> int:
        tiers = self.runtime.policy.tiers
        assert self.tier is not None
        return int(tiers[self.tier].delay_s * 1000) if self.tier < len(tiers) else 0

    def _refill_soon(self) -> None:
        self._reading = False
        self.refill()
        self.runtime.send()

    def _wake_in(self, wait_s: float) -> None:
        if self._due_timer is None:
            self._due_timer = asyncio.get_running_loop().call_later(wait_s, self._due)

    def _due(self) -> None:
        self._due_timer = None
        if not self.closed:
            self.runtime.offer(self)
            self.runtime.send()

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

    @staticmethod
    def local_failure(reason: str) -> CallResult:
        """A result for a message that could not even be sent."""
        from app.push.unary import CallResult

        return CallResult.local(reason)

    def later(self, delivery: Delivery, delay_s: float) -> None:
        """Delivers again after `delay_s`; meanwhile it takes no call's place."""
        offset = delivery.record.offset
        handle = asyncio.get_running_loop().call_later(delay_s, self._again_now, offset)
        self._waiting[offset] = (handle, delivery)

    def _again_now(self, offset: int) -> None:
        _, delivery = self._waiting.pop(offset)
        self._again.append(delivery)
        self.runtime.offer(self)
        self.runtime.send()

    # -- outcomes --------------------------------------------------------------------------------

    def finished(self, offset: int, *, acknowledged: bool, dead: bool = False) -> None:
        """The message at `offset` is finished: acknowledged, or safe in another topic."""
        if acknowledged:
            self.tracker.ack(offset)
            self.delivered += 1
        else:
            self.tracker.nack(offset)
            if dead:
                self.dead_lettered += 1
            else:
                self.retried += 1
        if self._readers and len(self._ready) < READY_LOW and not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._refill_soon)

    def _stash_batch(self, error: UndecodableBatch) -> None:
        """A batch that cannot be decoded goes to the DLQ as it is, so that what follows can flow."""
        start = max(error.start, self.tracker.end)
        end = max(error.end, start)
        # All of the batch at once, whatever room there is: none of it takes a call's place.
        self.tracker.capacity += end - start
        try:
            deliver = self.tracker.fetched(start, end) if end > start else []
        finally:
            self.tracker.capacity -= end - start
        if not deliver:
            return
        task = asyncio.get_running_loop().create_task(self._stash_raw(error, deliver))
        self.copying.add(task)
        task.add_done_callback(self.copying.discard)

    async def _stash_raw(self, error: UndecodableBatch, deliver: list[tuple[int, int]]) -> None:
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
                    for start, end in deliver:
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

    def oldest_ms(self) -> int:
        """Append time of about the oldest unfinished message (its chunk's first), -1 when all is done."""
        ages, base = self._ages, self.tracker.base
        while ages and ages[0][0] <= base:
            ages.popleft()
        return ages[0][1] if ages and not self.tracker.idle else -1

    def status(self) -> JobStatus:
        """What the heartbeat says of this job."""
        tracker = self.tracker
        return JobStatus(
            job=str(self.job),
            epoch=self.epoch,
            state="closed" if self.closed else "draining" if self.draining else "flowing",
            committed=tracker.base,
            fetched=tracker.end,
            high_watermark=self.high_watermark,
            in_flight=len(self.calls),
            unfinished=tracker.unfinished,
            oldest_ms=self.oldest_ms(),
            delivered=self.delivered,
            retried=self.retried,
            dead_lettered=self.dead_lettered,
            trouble=self.trouble,
        )

    # -- the end ---------------------------------------------------------------------------------

    def stop_intake(self) -> None:
        """Sends nothing new from now on; what is in flight goes on."""
        self.draining = True
        self._ready.clear()
        self._again.clear()
        for handle, _ in self._waiting.values():
            handle.cancel()
        self._waiting.clear()
        if self._due_timer is not None:
            self._due_timer.cancel()
        while self._readers:
            self._readers.popleft().fetched.release()

    async def drain(self, grace_s: float) -> bool:
        """Waits for what is in flight, at most `grace_s`; then cancels it. Returns whether all ended."""
        self.stop_intake()
        deadline_s = time.monotonic() + grace_s
        # Two sets empty themselves, by callbacks: looked at, not waited for.
        while (self.calls or self.copying) and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        ended = not self.calls and not self.copying
        self._cancel_calls()
        return ended

    def _cancel_calls(self) -> None:
        for delivery in list(self.calls.values()):
            delivery.canceled = True
            if delivery.handle is not None:
                delivery.handle.cancel()

    def close(self) -> None:
        """Fenced or moved: nothing of this pump counts from now on (rule 3)."""
        if self.closed:
            return
        self.stop_intake()
        self.closed = True
        self._cancel_calls()
        for task in list(self.copying):
            task.cancel()


def _runs(records: list[Record]) -> list[tuple[int, int]]:
    """Contiguous runs of offsets, half-open."""
    runs: list[tuple[int, int]] = []
    start = previous = records[0].offset
    for record in records[1:]:
        if record.offset != previous + 1:
            runs.append((start, previous + 1))
            start = record.offset
        previous = record.offset
    runs.append((start, previous + 1))
    return runs
