"""A lane: batches on their way to one partition, in order, each exactly once.

    append -> [ in flight | waiting ] -> acknowledged, or refused: its sender puts others in its place

Rules
1. Only what is acknowledged leaves the head of the queue. A batch keeps its sequence number in every try.
2. After any error nothing is sent until all that is in flight is answered. Then the head's error decides:
   refused for what it is -> its sender decides, those behind it wait; a newer epoch writes -> the lane ends;
   out of sequence -> rule 4; anything else -> tried again from the head on, with backoff, for ever.
3. A batch goes alone when the one before it is not known to be in the log: first of all, after an error, and
   when the lane was empty. A broker takes any sequence number from a producer that it knows nothing of, so
   that a second batch might be taken while the first is not. Behind an acknowledged one `IN_FLIGHT` go.
4. What may be in the log, though nobody said so, is looked for there before it is sent again (append_seek): a
   broker that was restarted remembers a producer's last batch only, and nothing of one whose records are old.
   Where the log has deleted its beginning meanwhile, the leader's memory tells the last batch that was taken.
   A head that went alone, is out of sequence and is not in the log shows that the log has lost what was
   acknowledged before: the lane goes on under the next epoch from sequence 0 on (KIP-360), and tells it.
   Out of sequence when it did not go alone shows nothing: it is sent again, alone.
5. What a broker never answered may get there later. It is harmless while its sequence number is its own: when
   batches are numbered anew after a refusal, and one of them may be under way or in the log, the next epoch
   has them: a number is one record's. What may be in the log is looked for under its former number first.
6. Under a further epoch nothing is sent before its sender has written that down (`AppendLane.go`), if it
   wants to.
7. A batch that was taken before the one in front of it is told, and of neither is said where it lies
   (append_pending).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from aiokafka.errors import for_code

from app.kafka.append.errors import (
    DUPLICATE,
    FENCED,
    NOT_APPENDED,
    OUT_OF_SEQUENCE,
    REFUSED,
    UNANSWERED,
    AppendError,
    AppendIncident,
    BatchRefused,
    LaneClosed,
    ProducerFenced,
    refusal,
    remedy_of,
)
from app.kafka.append.pending_batch import OutOfOrderBatches, PendingBatch
from app.kafka.producers.ids import ProducerId
from app.kafka.records.batch import BatchHeader
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import Bytes, next_sequence

if TYPE_CHECKING:
    from app.kafka.append.appender import Appender

IN_FLIGHT = 5  # of one producer and partition: so many a broker remembers, to know a duplicate by
LANE_BYTES = 2 * 1024 * 1024  # held for one partition; `append` waits while there are more, in many batches
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 1.0
INCIDENT_DELAY_S = 3.0  # trouble that heals by itself within this (a leader's election) is not told


class AppendLane:
    """See the module. One sender uses it, in order; `Appender.lane` makes it.

    Attributes:
        producer: the id and epoch it appends under; the epoch changes by rules 4 and 5.
        floor: what the lane has in flight is not below this offset; -1: not known yet.

    Args:
        report_incident: takes its `AppendIncident`; without it, the appender's.
        bumped: takes it when its epoch has changed; it then waits for `go`.
    """

    def __init__(
        self,
        appender: Appender,
        topic: str,
        partition: int,
        producer: ProducerId,
        floor: int = -1,
        report_incident: Callable[[AppendIncident], None] | None = None,
        bumped: Callable[[AppendLane], None] | None = None,
    ) -> None:
        self.topic, self.partition = topic, partition
        self.producer = producer
        self.node: int | None = None  # who has what is in flight
        self.floor = floor
        self._appender = appender
        self._own_report = report_incident
        self._bumped = bumped
        self._holds = False  # rule 6
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PendingBatch] = deque()
        self._held_bytes = 0
        self._sent = 0  # of the queue, since the last trouble
        self._out_of_order = OutOfOrderBatches()
        self._flying = 0
        self._next_sequence = 0
        self._known = False  # the broker has acknowledged a batch right before the next one (rule 3)
        self._stalled = False  # nothing is sent until what is in flight is answered, and then mended
        self._refused = False
        self._unsure = False  # something may be in the log, though nobody said so (rule 4)
        self._suspect: PendingBatch | None = None  # it went alone and was out of sequence
        self._in_doubt = False  # something was never answered in this epoch (rule 5)
        self._failing_since_s = 0.0
        self._failures = 0
        self._told = ""
        self._error: AppendError | None = None
        self._room = asyncio.Event()
        self._room.set()

    # -- the sender's ------------------------------------------------------------------------------

    async def append(self, data: Bytes, record_count: int) -> asyncio.Future[int]:
        """Queues a whole batch of `record_count` records; waits while the lane holds two, of `LANE_BYTES`.

        `data` is read again at every try: it must stay as it is until the batch is acknowledged.

        Returns:
            A future of the base offset in the destination's log, done once all in-sync replicas have it;
            -1: it is there, but nobody tells where (rule 7, or a broker). See `stamp_of`. Batches of a lane
            are done in order. It raises `BatchRefused`, `ProducerFenced`, or is cancelled when the lane is
            closed.

        Raises:
            AppendError: the lane has ended.
        """
        while not self._room.is_set():
            await self._room.wait()
        if self._error is not None:
            raise self._error
        pending = PendingBatch(data, record_count, self._loop.create_future())
        self._queue.append(pending)
        self._count_bytes(len(data))
        self._appender.ready(self)
        return pending.future

    def instead(self, batches: Sequence[tuple[Bytes, int]]) -> list[asyncio.Future[int]]:
        """Puts these (data, record count) into the place of the refused batch; none: it is left out.

        Raises:
            ValueError: none is refused.
        """
        if not self._refused:
            raise ValueError(f"no batch of {self._name} is refused")
        gone = self._queue.popleft()
        found = [PendingBatch(data, count, self._loop.create_future()) for data, count in batches]
        self._queue.extendleft(reversed(found))
        self._count_bytes(sum(len(pending.data) for pending in found) - len(gone.data))
        self._refused = False
        if not self._in_doubt and all(pending.base_offset is None for pending in self._queue):
            self._renumber(gone.sequence)
        else:
            self._bump(AppendError(f"{self._name}: a batch was refused while others were in doubt"))
        self._acknowledge()  # of none put there: who was taken before it
        self._known = False
        self._go_on()
        return [pending.future for pending in found]

    def go(self) -> None:
        """Its epoch is written down."""
        self._holds = False
        if self._error is None and self._queue:
            self._appender.ready(self)

    def close(self) -> None:
        """Ends it: nothing more is sent, and what is not acknowledged is cancelled. What was in flight may be
        in the log, or get there."""
        self._end(LaneClosed(f"the lane to {self._name} is closed"))

    # -- the appender's ----------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether `take` has something to send."""
        return (
            not self._stalled
            and not self._holds
            and self._sent < len(self._queue)
            and self._sent < (IN_FLIGHT if self._known else 1)
        )

    @property
    def in_doubt(self) -> int:
        """Records that may be in the log, though nobody said so, at most."""
        return sum(pending.record_count for pending in islice(self._queue, IN_FLIGHT))

    @property
    def is_flying(self) -> bool:
        """Whether something is in flight, all to `node`."""
        return self._flying > 0

    def take(self) -> PendingBatch | None:
        """The next batch to send, which is in flight from now on."""
        while self._sent < len(self._queue):
            pending = self._queue[self._sent]
            self._sent += 1
            if pending.base_offset is not None:  # taken by an earlier try, while one before it was not
                continue
            if pending.sequence < 0:
                pending.sequence, pending.epoch = self._next_sequence, self.producer.epoch
                self._next_sequence = next_sequence(pending.sequence, pending.record_count)
            pending.alone = self._flying == 0
            self._flying += 1
            return pending
        return None

    def answered(
        self, pending: PendingBatch, code: int, base_offset: int, message: str, log_time_ms: int = -1,
        refused: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """What became of a batch in flight (`app.kafka.append.protocol.AppendAnswer`)."""
        self._flying -= 1
        if self._error is not None:
            return
        if code in {0, DUPLICATE}:
            pending.base_offset, pending.log_time_ms = base_offset, log_time_ms
            self._acknowledge()
        else:
            pending.code, pending.message, pending.refused = code, message, refused
            self._stalled = True
            self._in_doubt = self._in_doubt or code in UNANSWERED
            self._unsure = self._unsure or code not in NOT_APPENDED
        if self._stalled and not self._flying:
            self._mend()

    @property
    def known(self) -> ProducerStamp | None:
        """Behind the last batch that was acknowledged; None: nothing waits for an answer in its epoch."""
        for pending in self._queue:
            if pending.base_offset is None and pending.sequence >= 0:
                return ProducerStamp(self.producer.id, pending.epoch, pending.sequence)
        return None

    def rests_at(self, end: int) -> None:
        """The log ended there while nothing waited: what will be in flight is not below."""
        if not self._queue:
            self.floor = max(self.floor, end)

    def looked_up(self, found: Sequence[BatchHeader], last: ProducerStamp | None = None) -> None:
        """The batches of its producer id in the log, from `floor` on: rule 4. `last`: behind the last that
        the log took, where it has deleted some."""
        if self._error is not None:
            return
        offsets = {
            (header.base_sequence, header.record_count): header.base_offset
            for header in found
            if header.producer_epoch == self.producer.epoch
        }
        for pending in self._queue:
            if pending.base_offset is None:
                pending.base_offset = offsets.get((pending.sequence, pending.record_count))
            if pending.base_offset is None and pending.sequence >= 0 and last is not None:
                begins = ProducerStamp(self.producer.id, pending.epoch, pending.sequence)
                pending.base_offset = -1 if begins.behind(pending.record_count) == last else None
        self._acknowledge()
        self._out_of_order.see(self._queue)
        self._sent, self._known, self._unsure = 0, False, False
        suspect, self._suspect = self._suspect, None
        if suspect is not None and suspect.base_offset is None:
            self._begin_next_epoch()
        else:
            self._go_on()

    def failed(self, code: int, message: str) -> None:
        """It cannot be sent now; it is tried again, with backoff."""
        self._stalled, self._known = True, False
        now_s = self._loop.time()
        if not self._failures:
            self._failing_since_s = now_s
        delay_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(self._failures, 10))
        self._failures += 1
        if now_s - self._failing_since_s > INCIDENT_DELAY_S and message != self._told:
            self._told = message
            self._report(message, remedy_of(code, self._appender.cluster.spec, self.topic))
        self._loop.call_later(delay_s, self._go_on)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.partition} in {self._appender.cluster.name}"

    def _count_bytes(self, count: int) -> None:
        self._held_bytes += count
        few = len(self._queue) <= 1  # large ones: the next is to be there when this one is acknowledged
        if few or self._held_bytes <= LANE_BYTES // 2:  # many batches follow a wait, not each its own
            self._room.set()
        elif self._held_bytes >= LANE_BYTES:
            self._room.clear()

    def _acknowledge(self) -> None:
        queue, freed_bytes = self._queue, 0
        while queue and queue[0].base_offset is not None:
            pending = queue.popleft()
            self._sent = max(0, self._sent - 1)  # who was ahead was not sent again
            base_offset, is_behind = self._out_of_order.place(pending)
            if is_behind:
                self._report(
                    f"{self._name}: a batch was taken before the one in front of it; none is lost",
                    "verify the order of its last records",
                )
            if base_offset >= 0:
                self.floor = base_offset + pending.record_count  # lower, if the log has lost its end
            freed_bytes += len(pending.data)
            pending.acknowledge(base_offset, self.producer.id)
        if not freed_bytes:
            return
        self._count_bytes(-freed_bytes)
        self._failures, self._told = 0, ""
        self._known = bool(queue)

    def _mend(self) -> None:
        """All is answered and not all is well: rule 2."""
        head = self._queue[0]
        code, alone = head.code, head.alone
        reason = refusal(code, self._appender.cluster.spec, self.topic) or head.message
        reason = reason or (for_code(code).__name__ if code > 0 else "no answer")
        said = f"{self._name}: {reason}"
        self._out_of_order.see(self._queue)
        self._sent, self._known = 0, False
        if code in FENCED:
            self._end(
                ProducerFenced(f"{said}; another producer appends under a newer epoch than {self.producer}")
            )
        elif code in REFUSED and self._unsure:  # of one behind it: rule 5
            self._in_doubt = True
            self._go_on()  # and is refused again, alone
        elif code in REFUSED:
            self._refused = True
            if not head.future.done():
                head.future.set_exception(BatchRefused(said, code, head.refused))
        elif code in OUT_OF_SEQUENCE:
            if alone:
                self._unsure, self._suspect = True, head
            self._go_on()
        else:
            self.failed(code, said)

    def _begin_next_epoch(self) -> None:
        said = f"{self._name}: {self._queue[0].message or 'out of sequence'}"
        id_, epoch, sequence = *self.producer, self._queue[0].sequence
        if self._bump(AppendError(f"{said}; producer id {id_} has no epoch left")):
            self._report(
                f"{said}; the log has lost what producer {id_} wrote in epoch {epoch} before sequence "
                f"{sequence}, or the broker forgot it; it goes on in epoch {self.producer.epoch}",
                "see whether an unclean leader was elected or the topic was made anew, and verify the copy",
            )
            self._go_on()

    def _bump(self, no_epoch_left: AppendError) -> bool:
        """Numbers all that is queued anew in the next epoch; when there is none, the lane ends."""
        bumped = self.producer.bumped()
        if bumped is None:
            self._end(no_epoch_left)
            return False
        self.producer, self._in_doubt = bumped, False
        self._renumber(0)
        if self._bumped is not None:
            self._holds = True
            self._bumped(self)
        return True

    def _renumber(self, sequence: int) -> None:
        """Gives all that is not in the log new sequence numbers, from `sequence` on."""
        self._next_sequence = sequence
        for pending in self._queue:
            pending.sequence = -1

    def _go_on(self) -> None:
        if self._error is not None or self._refused:
            return
        if self._unsure and self._queue:
            self._appender.look_up(self)
            return
        self._stalled = self._unsure = False
        if self._queue:
            self._appender.ready(self)

    def _report(self, message: str, remedy: str) -> None:
        tell = self._own_report or self._appender.report_incident
        tell(AppendIncident(self.topic, self.partition, message, remedy))

    def _end(self, error: AppendError) -> None:
        if self._error is not None:
            return
        self._error, self._stalled = error, True
        closed = isinstance(error, LaneClosed)
        for pending in self._queue:
            if pending.future.done():
                continue
            if closed:
                pending.future.cancel()
            else:
                pending.future.set_exception(error)
                pending.future.exception()  # one of them is enough to know
        self._queue.clear()
        self._held_bytes = 0
        self._room.set()
        self._appender.forget(self)
