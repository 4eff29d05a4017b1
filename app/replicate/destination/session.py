"""A replica's session with its destination: the former owner's copies, the producer, and the lane.

Rules
1. The replica appends nothing under an id and epoch before the tracker table knows them
   (`app.replicate.destination.handover`).
2. The destination's log is known by its id. A note of another log says nothing, because the topic was
   recreated. When the log becomes another one, the replica begins again where the source stands.
3. Calls on the way to the first batch are repeated until they succeed; `why` shows the obstacle. The session
   reports obstacles that do not heal by themselves, such as a missing permission.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from aiokafka.errors import BrokerResponseError, KafkaError

from app.kafka.append.errors import NOT_ENOUGH_REPLICAS, AppendIncident, LaneClosed, remedy_of
from app.kafka.append.lane import AppendLane
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.producers.history import TooFewReplicas
from app.kafka.producers.ids import new_producer
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.fencing import LogId
from app.kernel.incidents import ReportOwnIncident
from app.replicate.destination.handover import BadHandover, ReplicaHandover
from app.replicate.destination.ledger import CopyLedger, SentBatch
from app.replicate.destination.predecessor import begins_at
from app.replicate.destination.succession import Succession
from app.worker.jobs.start_position import StartPosition

if TYPE_CHECKING:
    from app.kafka.append.appender import Appender
    from app.kafka.client.cluster import ClusterClient

DESTINATION_RETRY_INTERVAL_S = 1.0
SNAPSHOT_POLL_INTERVAL_S = 0.02
SNAPSHOT_TIMEOUT_S = 5.0
NOT_SAVED = (
    "the tracker table has not saved this replica's state, and nothing is appended before that; check that "
    "the control cluster takes records and that a worker follows the tracker topic"
)
DESTINATION_RECREATED = "its destination topic was deleted and recreated"

T = TypeVar("T")


class DestinationRoute(Protocol):
    """What a session asks of its route (`app.replicate.pump.route_runtime`)."""

    source: ClusterClient
    target: ClusterClient
    appender: Appender

    async def max_batch_bytes(self, target_topic: str) -> int:
        """The destination topic's `max.message.bytes`."""
        ...


@dataclass(frozen=True, slots=True)
class FormerCopies:
    """The copies that a former owner left at the destination.

    Attributes:
        note: That owner's note, b"" if there was none.
        is_same_log: The note was written for the source log that is copied now.
        source_epoch: The leader epoch in which the source was last found truncated; None: as the note says.
    """

    note: bytes
    is_same_log: bool
    source_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class SessionPorts:
    """What a session does outside of itself.

    Attributes:
        start_task: Runs a coroutine for as long as the replica runs.
        report_incident: Reports an incident of the replica; an open one also ends with the replica.
        on_unsure: Takes the reason why later records may be in the copy twice.
        on_lost: Is called when the destination has lost acknowledged records.
        on_closed: Takes the offset sync behind a former owner's lane: source and target end, stamp, and time.
    """

    start_task: Callable[[Callable[[], Awaitable[None]]], object]
    report_incident: ReportOwnIncident
    on_unsure: Callable[[str], None]
    on_lost: Callable[[], None]
    on_closed: Callable[[int, int, ProducerStamp, float], None]


class DestinationSession:
    """The way of one replica's copies into its destination partition.

    Args:
        target: Topic and partition.
        start: The lineage that is copied, and whether the route ever copied this log.

    Attributes:
        log: The destination's log, once it `is_met`.
        lane: None until there is something to append; then batches wait until it `is_ready` (rule 1).
        why: The present obstacle, "" for none.
        is_saving: The replica waits until the tracker table has its state.
        losses: How often the destination lost acknowledged records, or was recreated.
        quiet_below: As in the note.
    """

    def __init__(
        self,
        route: DestinationRoute,
        target: tuple[str, int],
        ledger: CopyLedger,
        start: StartPosition,
        former: FormerCopies,
        ports: SessionPorts,
    ) -> None:
        self.target = target
        self.log = LogId()
        self.lane: AppendLane | None = None
        self.is_met = self.is_ready = self.is_saving = False
        self.max_batch_bytes = 0
        self.why = ""
        self._route = route
        self._ledger = ledger
        self._note_bytes = former.note
        self._lineage = start.lineage
        self._is_history_known = start.is_first  # whether it is known what was copied before
        self._start_task = ports.start_task
        self._report_incident = ports.report_incident
        self._on_unsure = ports.on_unsure
        self._on_lost = ports.on_lost
        self._on_closed = ports.on_closed
        self._saved_version: Callable[[], int] = lambda: -1
        self._target_end = -1  # of this replica's copies, once one was acknowledged
        self._succession = self._succession_of(None)
        self._predecessor: ReplicaHandover | None = None
        self._note_error = ""
        try:
            self._predecessor = ReplicaHandover.from_bytes(former.note) if former.note else None
        except BadHandover as error:
            self._note_error = str(error)
        note = self._predecessor
        self.losses = 0 if note is None else note.losses
        if note is not None:
            ledger.lost, ledger.lost_ms = note.lost, note.lost_ms
            ledger.uncompared, ledger.begun_anew = note.uncompared, note.begun_anew
        self.source_epoch = former.source_epoch or 0
        self.quiet_below = -1
        if note is not None and former.is_same_log:
            ledger.read_epoch, ledger.epochs = note.read_epoch, note.epochs
            if note.lineage in {-1, start.lineage}:
                self.quiet_below = note.quiet_below
            self.source_epoch = note.source_epoch if former.source_epoch is None else former.source_epoch

    @property
    def name(self) -> str:
        """The destination as "cluster/topic", for messages."""
        return f"{self._route.target.name}/{self.target[0]}"

    @property
    def note(self) -> bytes:
        """For the successor; the former owner's note until this replica has its own."""
        note = self._ledger.note or self._predecessor
        if note is None:
            return self._note_bytes
        return msgspec.structs.replace(
            note, source_epoch=self.source_epoch, read_epoch=self._ledger.read_epoch, losses=self.losses,
            source=self._route.source.name, target=self.name, lost=self._ledger.lost,
            lost_ms=self._ledger.lost_ms, quiet_below=self.quiet_below, epochs=self._ledger.epochs,
            uncompared=self._ledger.uncompared, begun_anew=self._ledger.begun_anew,
        ).to_bytes()  # fmt: skip

    def _succession_of(self, note: ReplicaHandover | None) -> Succession:
        is_same_log = note is not None and note.lineage in {-1, self._lineage}
        return Succession(self._route.target, *self.target, note, is_same_log=is_same_log)

    async def meet(self) -> None:
        """Reads the destination's id and limit, and what a former owner has copied there."""
        self.log = await self._retry(self._find_log)
        self.max_batch_bytes = await self.read_limit()
        note = self._predecessor
        self._is_history_known = self._is_history_known or note is not None
        if self._note_error:
            self._report_incident(
                "note-corrupt",
                self._note_error,
                "nothing to do: records since the last saved position are copied again; none is lost",
            )
        if note is not None and note.log.is_another(self.log):
            self._report_incident(
                "destination-begun-anew",
                f"the copies were in {note.log}, but the destination is now {self.log}; copying continues at "
                f"{self._ledger.base}, and the earlier copies no longer exist",
                "reset the route's topic to copy it from its start",
            )
            note, self.quiet_below = None, -1
            self.losses += 1  # saved with the next copies
        self._succession = self._succession_of(note)
        self._ledger.inherit(note)
        await self._retry(self._succession.look_up)
        if note is not None and note.base != self._ledger.base:
            self._succession.distrust_tail()
        self._report_former_loss()
        self.is_met = True

    @property
    def opening_stamp(self) -> ProducerStamp:
        """The lane's stamp before its first batch."""
        assert self.lane is not None, "it is open"
        return ProducerStamp(*self.lane.producer, 0)

    @property
    def is_at_rest(self) -> bool:
        """Whether the session does nothing while there is nothing to copy."""
        return self.is_ready or (self.is_met and self.lane is None)

    async def ends_at(self, end: int) -> bool:
        """Whether all copies of finished records are below `end`, the destination's end offset that was read
        while the session was at rest.

        If so, later copies lie at or above `end`, once the caller calls `rests_at`. Raises
        ClusterUnreachable, KafkaError: it cannot be known now."""
        note = self._ledger.note
        if note is not None and end < note.floor:
            lost_from = await self._succession.end_below(note.floor)
            if lost_from >= 0 and self._ledger.note is note:
                self._succession.lose(lost_from)
                self._has_lost(lost_from, note.floor)
            return False
        if self.is_ready and not self._ledger.appended:
            await self._succession.skip_silence()
        is_settled = self.is_ready or await self._succession.has_settled()
        return not self._report_former_loss() and is_settled and self.is_at_rest

    def rests_at(self, end: int) -> None:
        """Raises the floor to `end` (see `ends_at`). The caller has checked that nothing was appended."""
        self._ledger.raise_floor(end, self._lineage)
        if self.lane is None:
            self._succession.restart_at(end)
        else:
            self.lane.rests_at(end)

    def acknowledged(self, base_offset: int, end: int) -> None:
        """Takes the offsets of an acknowledged copy; offsets below the last end show a loss."""
        if base_offset < self._target_end:
            self._count_loss()
            start, former_end = base_offset, self._target_end
            self._start_task(lambda: self._find_loss(start, former_end))
        self._target_end = end

    async def _find_loss(self, start: int, end: int) -> None:
        if self.log.is_another(await self._retry(self._find_log)):
            raise ValueError(DESTINATION_RECREATED)  # the job begins again and reports the missing copies
        self._report_loss(start, end)

    def _report_former_loss(self) -> bool:
        """Reports a former owner's copies that the destination has lost; whether there are any."""
        lost, self._succession.lost = self._succession.lost, None
        if lost is not None:
            self._has_lost(*lost)
        return lost is not None

    def _has_lost(self, start: int, end: int) -> None:
        self._target_end = min(self._target_end, start)  # else `acknowledged` would report it again
        if self.lane is not None:
            self.lane.floor = min(self.lane.floor, start)
        self._ledger.lower_floor(start)
        self._count_loss()
        self._report_loss(start, end)

    def close_former(self, source_end: int) -> None:
        """Reports the offset sync behind the former owner's lane (rule 4 of
        `app.replicate.destination.succession`), if all that it wrote are copies of records below
        `source_end`; -1: not known."""
        tail = self._succession.tail
        if tail is not None and source_end >= 0:
            self._on_closed(source_end, *tail, time.monotonic())

    def _count_loss(self) -> None:
        self.losses += 1
        self._succession.distrust_tail()
        self._ledger.version += 1
        self._on_lost()

    def _report_loss(self, start: int, end: int) -> None:
        self._report_incident(
            "destination-truncated",
            f"{self.name}/{self.target[1]} has lost offsets [{start}, {end}), which it had acknowledged; "
            f"copying continues at {self._ledger.base} of the source",
            "an unclean leader was elected, or a broker lost its disk; reset the route's topic to a position "
            "before the loss to copy the lost records again",
        )

    async def _find_log(self) -> LogId:
        client, topic = self._route.target, self.target[0]
        ids = await client.topic_ids([topic])
        if topic not in ids:
            await client.partitions(topic)  # raises if a permission is missing
            raise ClusterUnreachable(f"topic {topic} does not exist in {client.name}")
        return LogId(await client.cluster_id(), ids[topic])

    async def read_limit(self) -> int:
        """Reads the destination's `max.message.bytes` again."""
        self.max_batch_bytes = await self._route.max_batch_bytes(self.target[0])
        return self.max_batch_bytes

    def not_yet_copied(self, found: list[VerbatimCopy], copy: VerbatimCopy) -> list[VerbatimCopy]:
        """The parts of `found`, which make up the copy, that no former owner has copied."""
        succession = self._succession
        if succession.is_over:
            return found
        rest = [piece for part in found for piece in succession.uncopied(part, self.max_batch_bytes)]
        self._ledger.pass_over(SentBatch(-1 if rest else copy.source_end, accounted=succession.accounted))
        if rest and succession.unmatched:
            self._on_unsure(
                f"{succession.unmatched} copied records are no longer in the source, or differ from it; "
                "records behind the last one that was found may be in the copy twice"
            )
        self.close_former(begins_at(rest[0], copy) if rest else copy.source_end)
        return rest

    async def open(self, saved: Callable[[], int]) -> int:
        """Makes the lane ready to append, once the tracker table has the ledger's version with the note (rule
        1).

        Returns where the destination ended before. A former owner's batches may have arrived meanwhile, so
        the caller calls `not_yet_copied` again. `saved`: returns the version that the table has."""
        ledger, succession = self._ledger, self._succession
        self._saved_version = saved
        if self.lane is None:
            lane = self.lane = await self._retry(self._new_lane)
            succession.use_producer(lane.producer)
            note = ledger.note
            if note is not None and note.producer_id == lane.producer.id and succession.continues:
                # The former owner's records stay behind its floor until a copy of this replica moves that.
                ledger.start_under(msgspec.structs.replace(note, epoch=lane.producer.epoch), continues=True)
            else:
                first_note = ReplicaHandover(
                    self.log, ledger.base, *lane.producer, lane.floor, lineage=self._lineage
                )
                ledger.start_under(first_note, continues=False)
            if not self._is_history_known:
                self._on_unsure("no note says what was copied behind the last saved position")
            elif succession.unsure:
                self._on_unsure(succession.unsure)
        floor, reported = self.lane.floor, succession.unsure
        self._target_end = floor  # this replica's copies lie at or above the end
        await self._save(ledger.version)
        await self._retry(partial(succession.look_up, is_last=True))
        if succession.unsure != reported:
            self._on_unsure(succession.unsure)
        self._report_former_loss()
        await self._save(ledger.version)  # the floor may have changed
        self.is_ready = True
        return floor

    async def _new_lane(self) -> AppendLane:
        producer = self._succession.producer or await new_producer(self._route.target)
        lane = await self._route.appender.lane(
            *self.target, producer, self._on_append_incident, self._on_epoch_bump
        )
        if lane.floor < 0:
            lane.close()
            raise ClusterUnreachable(f"{self.name}/{self.target[1]} has no leader that answers")
        return lane

    async def _save(self, version: int) -> None:
        since_s = time.monotonic()
        while self._saved_version() < version:  # the next round of snapshots saves it
            self.is_saving = True
            if time.monotonic() - since_s > SNAPSHOT_TIMEOUT_S:
                self.why = NOT_SAVED
            await asyncio.sleep(SNAPSHOT_POLL_INTERVAL_S)
        self.is_saving = False
        if self.why == NOT_SAVED:
            self.why = ""

    def _on_epoch_bump(self, lane: AppendLane) -> None:
        """Saves the lane's new epoch before the lane uses it (rule 1)."""
        version = self._ledger.change_epoch(lane.producer.epoch)

        async def save_epoch() -> None:
            await self._save(version)
            lane.epoch_saved()

        self._start_task(save_epoch)

    async def check_late(self, base_offset: int) -> None:
        """Reports records that a former owner wrote between the last look and this replica's first batch."""
        late_records = await self._retry(lambda: self._count_late(base_offset))
        if late_records:
            self._on_unsure(
                f"a former owner wrote {late_records} records after this owner had read its last ones"
            )

    async def _count_late(self, base_offset: int) -> int:
        lane = self.lane
        return 0 if lane is None else await self._succession.count_late(base_offset, lane.producer)

    def _on_append_incident(self, trouble: AppendIncident) -> None:
        self.why = f"append: {trouble.message}; {trouble.remedy}"
        self._report_incident("append-trouble", trouble.message, trouble.remedy, trouble.is_over)

    async def _retry(self, act: Callable[[], Awaitable[T]]) -> T:
        """Repeats `act` until it succeeds (rule 3)."""
        since_s, is_reported, done = time.monotonic(), False, asyncio.Event()
        while True:
            try:
                found = await act()
            except LaneClosed:
                raise
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                self.why = f"append: {error or repr(error)}, for {time.monotonic() - since_s:.0f} s"
                code = NOT_ENOUGH_REPLICAS if isinstance(error, TooFewReplicas) else None
                if isinstance(error, BrokerResponseError) and not error.retriable:
                    code = error.errno
                if code is not None:
                    remedy = remedy_of(code, self._route.target.spec, self.target[0])
                    self.why += f"; {remedy}"
                    if not is_reported:
                        is_reported = True
                        at = f"{self.name}/{self.target[1]}"
                        self._report_incident("append-trouble", f"{at}: {error}", remedy, done.is_set)
                await asyncio.sleep(DESTINATION_RETRY_INTERVAL_S)
            else:
                self.why = ""
                done.set()
                return found

    def close(self) -> None:
        if self.lane is not None:
            self.lane.close()
