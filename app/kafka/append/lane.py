"""A lane: one sender's batches on their way to one partition, in order, each exactly once.

    append -> [ in flight | waiting ] -> acknowledged, or refused: the sender replaces the batch

Rules (tests/kafka/append/test_lane.py)
1. Only acknowledged or replaced batches leave the queue. A batch keeps its sequence number in every attempt,
   except for rules 4 and 5.
2. After an error nothing is sent until everything in flight has been answered. Then the head's error
   decides. A refused batch waits for the sender's replacement, with the batches behind it. A newer epoch
   of the producer ends the lane. Out of sequence: rule 4. After any other error the lane sends everything
   again, with backoff, for ever. But a head that the broker answers with an unknown error for
   `UNEXPLAINED_S` counts as refused, because some brokers fail so over a record that they cannot read.
3. A batch is sent alone while the one before it may not be in the log: at first, after an error, and
   when the lane was empty. A broker takes any sequence number from an unknown producer, so it might take a
   second batch without the first. After an acknowledged batch, `IN_FLIGHT` are sent.
4. Before a batch that may be in the log is sent again, it is looked up there (`LaneOwner.look_up`). A
   restarted broker remembers only a producer's last batch, and nothing if that is old. If retention has
   deleted that part of the log, the leader (DescribeProducers) still names the producer's last batch. If a
   head was sent alone, is out of sequence and not in the log, then the log has lost acknowledged batches. The
   lane reports it and continues in the next epoch from sequence 0 (KIP-360). An out-of-sequence batch that
   was sent behind others proves nothing: it is sent again, alone.
5. An unanswered batch may arrive later. This is harmless while its sequence numbers belong only to it. So
   if batches are renumbered after a refusal and one may be on its way or in the log, they move to the next
   epoch. Batches that may be in the log are first looked up under their old numbers.
6. In a new epoch nothing is sent until the sender has saved the epoch (`epoch_saved`), if it asked for that.
7. If a batch was taken before its predecessor, the lane reports it; neither gets an offset (`pending_batch`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from aiokafka.errors import for_code

from app.kafka.append.errors import (
    DUPLICATE,
    FENCED,
    NOT_APPENDED,
    OUT_OF_SEQUENCE,
    REFUSED,
    UNANSWERED,
    UNKNOWN_SERVER_ERROR,
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
from app.kernel.incidents import IsOver

if TYPE_CHECKING:
    from app.kafka.client.cluster import ClusterClient

IN_FLIGHT = 5  # batches that a broker remembers per producer and partition, to detect duplicates
LANE_BYTES = 2 * 1024 * 1024  # queued for one partition before `append` waits
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.05, 1.0
UNEXPLAINED_S = 30.0
INCIDENT_DELAY_S = 3.0  # shorter trouble, such as a leader election, is not reported


class LaneOwner(Protocol):
    """What a lane asks of its appender (`app.kafka.append.appender`)."""

    cluster: ClusterClient
    report_incident: Callable[[AppendIncident], None]

    def ready(self, lane: AppendLane) -> None:
        """Registers a lane that may have something to send."""

    def look_up(self, lane: AppendLane) -> None:
        """Finds out which of the lane's batches are in the log, and calls `AppendLane.looked_up`."""

    def forget(self, lane: AppendLane) -> None:
        """Removes a closed lane."""


class AppendLane:
    """A queue to one partition. One sender uses it, in order; `Appender.lane` makes it.

    Attributes:
        producer: The id and epoch of the batches; the epoch changes by rules 4 and 5.
        node: The broker of the batches in flight.
        floor: No batch in flight is below this offset; -1: not known yet.

    Args:
        report_incident: Takes its `AppendIncident`; without it, the appender's function does.
        on_epoch_bump: Is called when the epoch has changed; the lane then waits for `epoch_saved`.
    """

    def __init__(
        self,
        appender: LaneOwner,
        topic: str,
        partition: int,
        producer: ProducerId,
        floor: int = -1,
        report_incident: Callable[[AppendIncident], None] | None = None,
        on_epoch_bump: Callable[[AppendLane], None] | None = None,
    ) -> None:
        self.topic, self.partition = topic, partition
        self.producer = producer
        self.node: int | None = None
        self.floor = floor
        self._appender = appender
        self._own_report = report_incident
        self._on_epoch_bump = on_epoch_bump
        self._awaits_save = False  # rule 6
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PendingBatch] = deque()
        self._held_bytes = 0
        self._sent = 0  # batches of the queue that were sent since the last error
        self._out_of_order = OutOfOrderBatches()
        self._in_flight = 0
        self._next_sequence = 0
        self._known = False  # the batch before the next one is acknowledged (rule 3)
        self._stalled = False  # nothing is sent until the answers are in and the error is handled
        self._refused = False
        self._unsure = False  # some batch may be in the log without an acknowledgement (rule 4)
        self._suspect: PendingBatch | None = None  # was sent alone and is out of sequence
        self._in_doubt = False  # some batch of this epoch was never answered (rule 5)
        self._failing_since_s = 0.0
        self._failures = 0
        self._unexplained: tuple[PendingBatch, float] | None = None  # the head of rule 2, and since when
        self._due: PendingBatch | None = None  # counts as refused unless it is in the log after all
        self._reported = ""
        self._error: AppendError | None = None
        self._room = asyncio.Event()
        self._room.set()

    # -- called by the sender ----------------------------------------------------------------------

    async def append(self, data: Bytes, record_count: int) -> asyncio.Future[int]:
        """Queues a batch of `record_count` records; waits once two or more batches hold `LANE_BYTES`, until
        they hold half of it or one is left.

        `data` must not change until the batch is acknowledged, because every attempt reads it.

        Returns: A future of the base offset in the destination's log, done once all in-sync replicas have the
        batch. An offset of -1 is not known (rules 4 and 7, or the broker does not say); see `stamp_of`. The
        futures of a lane are done in order. They raise `BatchRefused`, `ProducerFenced`, or `AppendError`
        when no epoch is left; closing the lane cancels them.

        Raises:
            AppendError: The lane has ended.
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

    def replace_refused(self, batches: Sequence[tuple[Bytes, int]]) -> list[asyncio.Future[int]]:
        """Replaces the refused batch by these (data, record count); an empty sequence drops it. Raises
        ValueError: no batch is refused."""
        if not self._refused:
            raise ValueError(f"{self._name} has no refused batch to replace")
        refused = self._queue.popleft()
        replacements = [PendingBatch(data, count, self._loop.create_future()) for data, count in batches]
        self._queue.extendleft(reversed(replacements))
        self._count_bytes(sum(len(pending.data) for pending in replacements) - len(refused.data))
        self._refused = False
        if not self._in_doubt and all(pending.base_offset is None for pending in self._queue):
            self._renumber(refused.sequence)
        else:
            self._bump(AppendError(f"{self._name}: no producer epoch is left after a refused batch"))
        self._acknowledge()  # without a replacement, the new head may already be in the log
        self._known = False
        self._resume()
        return [pending.future for pending in replacements]

    def epoch_saved(self) -> None:
        self._awaits_save = False
        if self._error is None and self._queue:
            self._appender.ready(self)

    def close(self) -> None:
        """Ends the lane and cancels the futures of batches that are not acknowledged. Batches in flight may
        be in the log, or arrive there later."""
        self._end(LaneClosed(f"the lane to {self._name} is closed"))

    # -- called by the appender --------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return (
            not self._stalled
            and not self._awaits_save
            and self._sent < len(self._queue)
            and self._sent < (IN_FLIGHT if self._known else 1)
        )

    @property
    def doubtful_records(self) -> int:
        """The most records that may be in the log without an acknowledgement."""
        return sum(pending.record_count for pending in islice(self._queue, IN_FLIGHT))

    @property
    def has_in_flight(self) -> bool:
        return self._in_flight > 0

    def take(self) -> PendingBatch | None:
        """The next batch to send; it is in flight from now on."""
        while self._sent < len(self._queue):
            pending = self._queue[self._sent]
            self._sent += 1
            if pending.base_offset is not None:  # an earlier attempt appended it
                continue
            if pending.sequence < 0:
                pending.sequence, pending.epoch = self._next_sequence, self.producer.epoch
                self._next_sequence = next_sequence(pending.sequence, pending.record_count)
            pending.alone = self._in_flight == 0
            self._in_flight += 1
            return pending
        return None

    def answered(
        self, pending: PendingBatch, code: int, base_offset: int, message: str, log_time_ms: int = -1,
        refused: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Takes the answer to a batch in flight (`app.kafka.append.protocol.AppendAnswer`)."""
        self._in_flight -= 1
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
        if self._stalled and not self._in_flight:
            self._handle_error()

    @property
    def known(self) -> ProducerStamp | None:
        """The stamp after the last acknowledged batch; None: no numbered batch is unacknowledged."""
        for pending in self._queue:
            if pending.base_offset is None and pending.sequence >= 0:
                return ProducerStamp(self.producer.id, pending.epoch, pending.sequence)
        return None

    def rests_at(self, end: int) -> None:
        """Raises the floor to a log end that was read while the queue was empty."""
        if not self._queue:
            self.floor = max(self.floor, end)

    def looked_up(self, found: Sequence[BatchHeader], last: ProducerStamp | None = None) -> None:
        """Takes the producer's batches that are in the log from `floor` on (rule 4). `last`: the stamp after
        the last batch that the log took, if the log has deleted some."""
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
        due, self._due = self._due, None
        if suspect is not None and suspect.base_offset is None:
            self._begin_next_epoch()
        elif due is not None and self._queue and self._queue[0] is due:
            self._in_doubt = True  # what replaces it gets no number of an attempt without a clear answer
            self._refuse(due, f"{self._name}: {due.message or for_code(due.code).__name__}")
        else:
            self._resume()

    def failed(self, code: int, message: str) -> None:
        """Retries later, with backoff."""
        if code != UNKNOWN_SERVER_ERROR:
            self._unexplained = self._due = None
        self._stalled, self._known = True, False
        now_s = self._loop.time()
        if not self._failures:
            self._failing_since_s = now_s
        delay_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(self._failures, 10))
        self._failures += 1
        if now_s - self._failing_since_s > INCIDENT_DELAY_S and message != self._reported:
            self._reported = message
            self._report(
                message, remedy_of(code, self._appender.cluster.spec, self.topic),
                lambda: self._reported != message or self._error is not None,
            )  # fmt: skip
        self._loop.call_later(delay_s, self._resume)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.partition} in {self._appender.cluster.name}"

    def _count_bytes(self, count: int) -> None:
        self._held_bytes += count
        # The next large batch must be queued when this one is acknowledged. After a wait, a sender may queue
        # many small ones.
        if len(self._queue) <= 1 or self._held_bytes <= LANE_BYTES // 2:
            self._room.set()
        elif self._held_bytes >= LANE_BYTES:
            self._room.clear()

    def _acknowledge(self) -> None:
        queue, freed_bytes = self._queue, 0
        while queue and queue[0].base_offset is not None:
            pending = queue.popleft()
            self._sent = max(0, self._sent - 1)  # a batch found in the log was not sent again
            base_offset, is_behind = self._out_of_order.place(pending)
            if is_behind:
                self._report(
                    f"{self._name}: a batch was appended before the one in front of it; none is lost",
                    "check the order of the last records in this partition",
                )
            if base_offset >= 0:
                self.floor = base_offset + pending.record_count  # may decrease, if the log has lost its end
            freed_bytes += len(pending.data)
            pending.acknowledge(base_offset, self.producer.id)
        if not freed_bytes:
            return
        self._count_bytes(-freed_bytes)
        self._failures, self._reported = 0, ""
        self._known = bool(queue)

    def _handle_error(self) -> None:
        """Decides how to continue after an error, once everything in flight has been answered (rule 2)."""
        head = self._queue[0]
        code, alone = head.code, head.alone
        reason = refusal(code, self._appender.cluster.spec, self.topic) or head.message
        reason = reason or ("no answer" if code in UNANSWERED else for_code(code).__name__)
        message = f"{self._name}: {reason}"
        self._out_of_order.see(self._queue)
        self._sent, self._known = 0, False
        if code in FENCED:
            self._end(
                ProducerFenced(f"{message}; another producer appends in a newer epoch than {self.producer}")
            )
        elif code in REFUSED and self._unsure:  # a later batch may be in the log: rule 5
            self._in_doubt = True
            self._resume()  # the head is refused again, alone
        elif code in REFUSED:
            self._refuse(head, message)
        elif self._is_due(head):
            self._due = head
            self._resume()  # its last attempt may be in the log, so it is looked up first
        elif code in OUT_OF_SEQUENCE:
            if alone:
                self._unsure, self._suspect = True, head
            self._resume()
        else:
            self.failed(code, message)

    def _is_due(self, head: PendingBatch) -> bool:
        """Whether the broker has answered this head with nothing but an unknown error for long enough."""
        if head.code != UNKNOWN_SERVER_ERROR:
            self._unexplained = None
            return False
        now_s = self._loop.time()
        if self._unexplained is None or self._unexplained[0] is not head:
            self._unexplained = head, now_s
        return now_s - self._unexplained[1] >= UNEXPLAINED_S

    def _refuse(self, head: PendingBatch, message: str) -> None:
        self._refused = True
        if not head.future.done():
            head.future.set_exception(BatchRefused(message, head.code, head.refused))

    def _begin_next_epoch(self) -> None:
        message = f"{self._name}: {self._queue[0].message or 'out of sequence'}"
        id_, epoch, sequence = *self.producer, self._queue[0].sequence
        if self._bump(AppendError(f"{message}; producer id {id_} has no epoch left")):
            self._report(
                f"{message}; the log has lost records of producer {id_} in epoch {epoch} before sequence "
                f"{sequence}, or the broker forgot them; the lane continues in epoch {self.producer.epoch}",
                "check for an unclean leader election or a recreated topic, and verify the copy",
            )
            self._resume()

    def _bump(self, no_epoch_left: AppendError) -> bool:
        """Renumbers all queued batches in the next epoch. Without a next epoch, the lane ends."""
        bumped = self.producer.bumped()
        if bumped is None:
            self._end(no_epoch_left)
            return False
        self.producer, self._in_doubt = bumped, False
        self._renumber(0)
        if self._on_epoch_bump is not None:
            self._awaits_save = True
            self._on_epoch_bump(self)
        return True

    def _renumber(self, sequence: int) -> None:
        self._next_sequence = sequence
        for pending in self._queue:
            pending.sequence = -1

    def _resume(self) -> None:
        if self._error is not None or self._refused:
            return
        if self._unsure and self._queue:
            self._appender.look_up(self)
            return
        self._stalled = self._unsure = False
        if self._queue:
            self._appender.ready(self)

    def _report(self, message: str, remedy: str, is_over: IsOver | None = None) -> None:
        report = self._own_report or self._appender.report_incident
        report(AppendIncident(self.topic, self.partition, message, remedy, is_over))

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
                pending.future.exception()  # marks it as retrieved: one raised error is enough
        self._queue.clear()
        self._held_bytes = 0
        self._room.set()
        self._appender.forget(self)
