"""The pump of one replica: a partition of one cluster, copied into a partition of another.

    Fetched -> batches as they are, or encoded anew -> Lane -> acknowledged by all in-sync replicas -> Ledger

Rules
1. Batches go in the source's order, through one lane, and are acknowledged in that order: what is finished is
   a number. It moves over what is acknowledged, and over offsets that show no record once all before them is.
2. Nothing is appended unless the lease holds, nor before the tracker table knows under whose id and epoch
   (`app.replica.note`). Behind a former owner it goes on where that one had come (`app.replica.succession`).
3. What the destination does not take, or nobody can decode, waits (`app.replica.refused`).
4. A pump that is `closed` (fenced, moved, stopped) appends nothing and moves nothing. One that is `lost` has
   to begin again.
5. What was fetched is kept until all of it is acknowledged: the fetch budget bounds what is held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from app.clock import now_ms
from app.core.fencing import LogId
from app.core.job import JobId
from app.core.load import Work
from app.core.ranges import Snapshot
from app.core.verbatim import Copy
from app.kafka.append_encode import copies
from app.kafka.append_errors import AppendError, Refused
from app.kafka.decode import UndecodableBatch
from app.kafka.fetched import Fetched, Gap
from app.replica.ledger import Ledger, Sent
from app.replica.marks import Marks
from app.replica.refused import Obstacle
from app.replica.verify import Tell
from app.replica.way import Way
from app.wire import JobStatus

if TYPE_CHECKING:
    from app.replica.runtime import RouteRuntime

log = structlog.get_logger(__name__)

LOOK_S = 0.02
NO_PROGRESS_S = 30.0
FIRST_TIMESTAMP = slice(27, 35)  # of a batch

OnBarrier = Callable[["ReplicaPump", int, int], None]  # source's and destination's next offset


class ReplicaPump:
    """See the module. Owned by the job manager; fed by the replicate agent.

    Args:
        next_offset: where copying (again) begins.
        note: of the former owner, b"" when there was none; `is_same_log`: of the log that is copied.
        is_first: nothing of this log was ever copied by this route. source_log: which it is.
        on_barrier: takes barriers of the offset map (`app.replica.marks`).

    Raises:
        LookupError: the route does not copy the topic (any more).
    """

    def __init__(
        self, job: JobId, epoch: int, runtime: RouteRuntime, *, next_offset: int, lineage: int, note: bytes,
        is_same_log: bool, is_first: bool, source_log: LogId, tell: Tell, on_barrier: OnBarrier,
    ) -> None:  # fmt: skip
        self.job = job
        self.epoch = epoch
        self.lineage = lineage
        self.runtime = runtime
        target_topic = runtime.route.destination(job.topic)
        if target_topic is None:
            raise LookupError(f"route {job.name} does not copy {job.topic} (any more)")
        self.target = target_topic, job.partition
        self.high_watermark = -1
        self._expected = next_offset
        self.closed = self.paused = self.draining = False
        self.halted = False  # before a gap: what came before it is copied, nothing else is taken
        self.trouble = self.lost = ""
        self.lost_at_s = 0.0
        self.anew: Gap | None = None
        self.read_bytes = self.snapshot_version = 0
        self._tell_trouble = tell
        self._edit = runtime.edit(job.topic, job.partition, target_topic)
        self._is_first = is_first
        self.source_log = source_log
        self._ledger = Ledger(next_offset, self._acknowledged, self._failed, self._release)
        self._way = Way(
            runtime, self.target, self._ledger, note,
            is_same_log=is_same_log, is_first=is_first, tell=self._tell, unsure=self._unsure,
        )  # fmt: skip
        checkpoint = runtime.definition.spec.checkpoint
        self._marks = Marks(checkpoint.every, checkpoint.records, partial(on_barrier, self))
        self._obstacle = Obstacle(self._tell, self.where)  # after the way, whose end it names
        self._inbox: asyncio.Queue[Fetched | Gap] = asyncio.Queue()
        self._held: dict[int, Fetched] = {}
        self._goes = asyncio.Event()  # not paused
        self._goes.set()
        self._told_stalled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._checked = False
        runtime.pumps.add(self)
        self._running = self._begin(self._run)

    def _begin(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task of its own; whatever it fails by makes the job begin again."""

        async def guarded() -> None:
            try:
                await work()
            except (AppendError, ValueError) as error:
                self.lose(str(error))
            except Exception as error:
                log.exception("a replica failed; its job begins again", job=str(self.job))
                self.lose(repr(error))

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- batches in ------------------------------------------------------------------------------

    def accept(self, fetched: Fetched) -> None:
        """Takes a fetched response; its bytes go back to the budget once all of it is acknowledged."""
        self.high_watermark = fetched.high_watermark
        if self.closed or self.draining or self.halted or fetched.next_offset <= self._expected:
            fetched.release()
            return
        if fetched.start_offset > self._expected:
            fetched.release()
            self.lose(f"[{self._expected}, {fetched.start_offset}) was not fetched, what follows it was")
            return
        fetched.start_offset, self._expected = self._expected, fetched.next_offset
        self.read_bytes += fetched.nbytes
        self._held[id(fetched)] = fetched
        self._inbox.put_nowait(fetched)

    def skip(self, gap: Gap) -> None:
        """The log lost [start, end): nothing there can ever be copied. Or it is another one now: once all
        that came of the former one is copied, it is to begin `anew`."""
        if not self.closed:
            self._expected = gap.end
            self._inbox.put_nowait(gap)

    def pause(self, paused: bool) -> None:
        """Appends nothing new while paused; what was fetched waits, within the fetch budget."""
        self.paused = paused
        if paused:
            self._goes.clear()
        else:
            self._goes.set()

    def conclude(self, before: int) -> bool:
        """An operator skips what cannot be copied, if all of it lies below `before`."""
        return not self.closed and self._obstacle.skip(before)

    # -- copying ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        item = await self._inbox.get()
        await self._way.meet()
        while True:
            if isinstance(item, Gap) and item.begun_anew:
                while not self._ledger.is_empty:  # noqa: ASYNC110 - callbacks empty it
                    await asyncio.sleep(LOOK_S)
                self.anew = item
                return
            if isinstance(item, Gap):
                self._ledger.pass_over(Sent(item.end))
            else:
                await self._copy(item)
                self._ledger.pass_over(Sent(item.next_offset, fetched=item))
                await asyncio.sleep(0)
            item = await self._inbox.get()

    async def _copy(self, fetched: Fetched) -> None:
        while True:
            try:
                for copy in copies(fetched, self._way.max_batch_bytes, self._edit):
                    await self._send(copy)
                return
            except UndecodableBatch as error:
                await self._obstacle.wait(
                    error.start, error.end, f"they cannot go as they are, nor be decoded: {error}",
                    "see what wrote them; skip them if they may be lost",
                )  # fmt: skip
                if error.end >= fetched.next_offset:
                    return
                fetched.start_offset = error.end  # `copies` goes on there

    async def _send(self, copy: Copy) -> None:
        way = self._way
        rest = way.rest([copy], copy)
        while rest and not way.is_ready:
            floor = await way.open(lambda: self.snapshot_version)
            if self._is_first:
                self._marks.genesis(self.base, floor, time.monotonic())
            rest = way.rest(rest, copy)
        for piece in rest:
            await self._clearance(piece)
            assert way.lane is not None, "it is ready"
            self._ledger.append(piece, await way.lane.append(piece.data, piece.record_count))

    async def _clearance(self, copy: Copy) -> None:
        """Until the batch may go: not paused, within the limits, under the lease."""
        runtime, records, size_bytes = self.runtime, copy.record_count, len(copy.data)
        while True:
            if self.paused:
                await self._goes.wait()
            now_s = time.monotonic()
            wait_s = runtime.wait_s(now_s, records, size_bytes)
            if not wait_s and runtime.lease.holds(now_s):
                runtime.take(now_s, records, size_bytes)
                return
            await asyncio.sleep(min(1.0, wait_s or LOOK_S))

    # -- what becomes of it ----------------------------------------------------------------------

    def _acknowledged(self, sent: Sent, base_offset: int, moved: bool) -> None:
        copy = sent.copy
        assert copy is not None, "only copies are acknowledged"
        self._way.why, self._told_stalled = "", False
        if sent.is_mended and self._obstacle.at is not None:
            self._obstacle.gone()
        if base_offset < 0:
            return
        if not self._checked:
            self._checked = True
            self._begin(partial(self._way.check_late, base_offset))
        self.runtime.verifier.add(self.job, self.target, base_offset, copy)
        if moved:
            end = base_offset + copy.record_count
            self._marks.acknowledged(sent.source_end, end, copy.record_count, self._ledger.progress_s)

    def _release(self, fetched: Fetched) -> None:
        if self._held.pop(id(fetched), None) is not None:
            fetched.release()

    def _failed(self, sent: Sent, error: BaseException) -> None:
        if not isinstance(error, Refused):
            self.lose(str(error))
        elif (lane := self._way.lane) is not None:
            self._begin(partial(self._obstacle.mend, sent, error, lane, self._ledger, self._way.limit))

    def _unsure(self, why: str) -> None:
        self._marks.quiet_below = max(self._marks.quiet_below, self.high_watermark)
        self._tell(
            "replica-resumed-unsure",
            f"{self.where}, at {self.base}: {why}",
            "records behind it may be in the copy twice; none is lost",
        )

    def look(self, now_s: float) -> None:
        """Tells when it does not get on although it may; on a timer."""
        waits = self.in_flight or (self._held and not self.paused)
        if not waits or not self.runtime.lease.holds(now_s):
            self._ledger.progress_s = now_s
        elif now_s - self._ledger.progress_s > NO_PROGRESS_S and not self._told_stalled:
            self._told_stalled = True
            self._tell(
                "replica-no-progress",
                f"{self.where}, at {self.base}: nothing was acknowledged for {NO_PROGRESS_S:.0f} s: "
                + (self._obstacle.why or self._way.why or "the destination does not answer"),
                "see whether the destination's brokers run and have enough replicas in sync",
            )

    # -- barriers --------------------------------------------------------------------------------

    @property
    def appended(self) -> int:
        """Batches that were handed to the lane."""
        return self._ledger.appended

    def wants_idle_barrier(self, now_s: float) -> bool:
        """Whether all there is was copied, and the destination's end is wanted: see `Marks`."""
        is_idle = self._way.is_ready and not self.closed and self._ledger.is_empty and not self._held
        return is_idle and self.base >= self.high_watermark >= 0 and self._marks.wants_idle(now_s)

    def idle_barrier(self, target_end: int, now_s: float) -> None:
        """The destination ended there, and nothing was appended since it was asked."""
        if self.wants_idle_barrier(now_s):
            self._marks.idle(self.base, target_end, now_s)
            self._ledger.raise_floor(target_end)

    # -- state -----------------------------------------------------------------------------------

    @property
    def base(self) -> int:
        """Everything below it is copied, or shows no record."""
        return self._ledger.base

    @property
    def version(self) -> int:
        """Grows whenever snapshot or note change."""
        return self._ledger.version

    def snapshot(self) -> Snapshot:
        """What is finished."""
        return Snapshot(self.base)

    @property
    def note(self) -> bytes:
        """For the successor (`app.replica.note`)."""
        return self._way.note

    @property
    def target_log(self) -> LogId:
        """The destination's, once something was to be copied."""
        return self._way.log

    @property
    def commits_to(self) -> tuple[str, str]:
        """Cluster and group under which Kafka's own tools see its lag."""
        return self.runtime.source.name, self.runtime.group

    @property
    def in_flight(self) -> int:
        """Records on their way."""
        return self._ledger.in_flight

    def work(self) -> Work:
        """What it has done since it began; what it read it wrote, too."""
        return Work(2 * self.read_bytes, self._ledger.delivered, 0)

    def status(self) -> JobStatus:
        """What the heartbeat says of this job."""
        head, held = self._ledger.head, self._held.values()
        state = "closed" if self.closed else "paused" if self.paused else "flowing"
        return JobStatus(
            job=str(self.job), epoch=self.epoch, state="draining" if self.draining else state,
            committed=self.base, fetched=self._expected,
            high_watermark=self.high_watermark, in_flight=self.in_flight, unfinished=self.in_flight,
            oldest_ms=-1 if head is None else min(now_ms(), int.from_bytes(head.data[FIRST_TIMESTAMP])),
            delivered=self._ledger.delivered,
            trouble=self.lost or self._obstacle.why or self.trouble or self._way.why,
            buffered_bytes=sum(fetched.nbytes for fetched in held),
            left_out=0 if self._edit is None else self._edit.rounds,
        )  # fmt: skip

    @property
    def where(self) -> str:
        """From where to where, for people."""
        here = f"{self.runtime.source.name}/{self.job.topic}/{self.job.partition}"
        return f"{here} to {self._way.name}"

    def _tell(self, kind: str, message: str, remedy: str) -> None:
        self._tell_trouble(kind, str(self.job), message, remedy)

    # -- the end ---------------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """It cannot go on: its job begins again."""
        if not self.closed and not self.lost:
            self.lost, self.lost_at_s = why, time.monotonic()
            self._tell("replica-begins-again", f"{self.where}, at {self.base}: {why}", "it does so by itself")
            self.draining = True

    def stop_intake(self) -> None:
        """Appends nothing new from now on; what is under way goes on."""
        self.draining = True
        self._running.cancel()

    @property
    def is_busy(self) -> bool:
        """Something of it is on its way."""
        return self.in_flight > 0 and not self.lost

    async def drain(self, grace_s: float) -> bool:
        """Waits for what is under way, at most `grace_s`. Returns whether all of it was acknowledged."""
        self.stop_intake()
        deadline_s = time.monotonic() + grace_s
        while self.is_busy and time.monotonic() < deadline_s:  # noqa: ASYNC110 - callbacks change it
            await asyncio.sleep(0.01)
        return not self.in_flight

    def close(self) -> None:
        """Fenced or moved: nothing of this pump counts from now on (rule 4)."""
        if self.closed:
            return
        self.stop_intake()
        self.closed = True
        self.runtime.pumps.discard(self)
        self._ledger.close()
        for task in list(self._tasks):
            task.cancel()
        self._way.close()
        for fetched in list(self._held.values()):
            self._release(fetched)
