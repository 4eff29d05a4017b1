"""A replica's way to its destination: whose copies are there already, whose name they go under, its lane.

Rules
1. Nothing is appended under an id and epoch before the tracker table knows them
   (`app.replicate.destination.handover`).
2. The destination's log is known by its id: a note of another one (the topic was made anew) says nothing, and
   when it becomes another one the replica begins again, from where the source stands.
3. What needs the destination is tried as often as it takes; `why` says what is in the way, and what does not
   heal by itself (a right that is missing) is told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

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
from app.replicate.destination.handover import BadHandover, ReplicaHandover
from app.replicate.destination.ledger import CopyLedger, SentBatch
from app.replicate.destination.predecessor import begins_at
from app.replicate.destination.succession import Succession

if TYPE_CHECKING:
    from app.replicate.pump.route_runtime import RouteRuntime

DESTINATION_RETRY_INTERVAL_S = 1.0
SNAPSHOT_POLL_INTERVAL_S = 0.02
SNAPSHOT_TIMEOUT_S = 5.0
NOT_SAVED = (
    "the tracker table has not taken what has to stand there before anything is appended; see whether the "
    "control cluster takes records, and somebody follows the tracker topic"
)
DESTINATION_RECREATED = "its destination topic was deleted and made anew"

T = TypeVar("T")


class DestinationSession:
    """See the module.

    Args:
        target: topic and partition.
        note: of the former owner, b"" when there was none; `is_same_log`: it knew the log that is copied.
        lineage: of the source's offsets now.
        source_epoch: in which the source was last found truncated; None: as the note says.
        is_first: nothing was copied before.
        start_task: begins a task of the replica's.
        report_incident: takes kind, message and remedy. on_unsure: takes why records may come twice from here
        on. on_lost: is called when the destination has lost what it had acknowledged.
        on_closed: takes the barrier behind a former owner's lane: source and target end, stamp, and the time.

    Attributes:
        log: the destination's, once it `is_met`.
        lane: None until there is something to append; `is_ready`: it may be appended to (rule 1).
        max_batch_bytes: of the destination.
        why: what is in the way, "" while nothing is.
        is_saving: nothing goes on before what is finished is saved.
        losses: how often the destination has lost what it had acknowledged, or was made anew.
        quiet_below: as in the note.
    """

    def __init__(
        self,
        runtime: RouteRuntime,
        target: tuple[str, int],
        ledger: CopyLedger,
        note: bytes,
        *,
        is_same_log: bool,
        lineage: int,
        source_epoch: int | None,
        is_first: bool,
        start_task: Callable[[Callable[[], Awaitable[None]]], object],
        report_incident: Callable[[str, str, str], None],
        on_unsure: Callable[[str], None],
        on_lost: Callable[[], None],
        on_closed: Callable[[int, int, ProducerStamp, float], None],
    ) -> None:
        self.target = target
        self.log = LogId()
        self.lane: AppendLane | None = None
        self.is_met = self.is_ready = self.is_saving = False
        self.max_batch_bytes = 0
        self.why = ""
        self._runtime = runtime
        self._ledger = ledger
        self._note_bytes = note
        self._lineage = lineage
        self._is_known = is_first  # what was copied before
        self._start_task = start_task
        self._report_incident = report_incident
        self._on_unsure = on_unsure
        self._on_lost = on_lost
        self._on_closed = on_closed
        self._saved: Callable[[], int] = lambda: -1
        self._target_end = -1  # of our copies, once one was acknowledged
        self._succession = self._succeed(None)
        self._predecessor: ReplicaHandover | None = None
        self._bad = ""
        try:
            self._predecessor = ReplicaHandover.from_bytes(note) if note else None
        except BadHandover as error:
            self._bad = str(error)
        former = self._predecessor
        self.losses = 0 if former is None else former.losses
        if former is not None:
            ledger.lost, ledger.lost_ms = former.lost, former.lost_ms
            ledger.uncompared, ledger.begun_anew = former.uncompared, former.begun_anew
        self.source_epoch = source_epoch or 0
        self.quiet_below = -1
        if former is not None and is_same_log:
            ledger.read_epoch, ledger.epochs = former.read_epoch, former.epochs
            if former.lineage in {-1, lineage}:
                self.quiet_below = former.quiet_below
            self.source_epoch = former.source_epoch if source_epoch is None else source_epoch

    @property
    def name(self) -> str:
        """The destination, for people."""
        return f"{self._runtime.target.name}/{self.target[0]}"

    @property
    def note(self) -> bytes:
        """For the successor; what the former owner left until there is something of our own."""
        note = self._ledger.note or self._predecessor
        if note is None:
            return self._note_bytes
        return msgspec.structs.replace(
            note, source_epoch=self.source_epoch, read_epoch=self._ledger.read_epoch, losses=self.losses,
            source=self._runtime.source.name, target=self.name, lost=self._ledger.lost,
            lost_ms=self._ledger.lost_ms, quiet_below=self.quiet_below, epochs=self._ledger.epochs,
            uncompared=self._ledger.uncompared, begun_anew=self._ledger.begun_anew,
        ).to_bytes()  # fmt: skip

    def _succeed(self, note: ReplicaHandover | None) -> Succession:
        is_same_log = note is not None and note.lineage in {-1, self._lineage}
        return Succession(self._runtime.target, *self.target, note, is_same_log=is_same_log)

    async def meet(self) -> None:
        """Gets to know the destination, and what a former owner has copied there."""
        self.log = await self._trying(self._find_log)
        self.max_batch_bytes = await self.limit()
        note = self._predecessor
        self._is_known = self._is_known or note is not None
        if self._bad:
            self._report_incident(
                "note-corrupt", self._bad, "what was copied since the last position comes twice"
            )
        if note is not None and note.log.is_another(self.log):
            self._report_incident(
                "destination-begun-anew",
                f"the copies were in {note.log}, what is there now is {self.log}; copying goes on at "
                f"{self._ledger.base}, what was copied before is not there any more",
                "reset the route's topic to copy it from its start",
            )
            note, self.quiet_below = None, -1
            self.losses += 1  # saved with what is copied next
        self._succession = self._succeed(note)
        self._ledger.inherit(note)
        await self._trying(self._succession.look_up)
        if note is not None and note.base != self._ledger.base:
            self._succession.prove_nothing()
        self._report_lost()
        self.is_met = True

    @property
    def opening(self) -> ProducerStamp:
        """The lane's before anything was appended to it."""
        assert self.lane is not None, "it is open"
        return ProducerStamp(*self.lane.producer, 0)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is being done here, if there is nothing to copy."""
        return self.is_ready or (self.is_met and self.lane is None)

    async def ends_at(self, end: int) -> bool:
        """Whether all copies of what lies behind are below `end`, where the destination was said to end while
        this was at rest; if so, those to come lie at or above it, once the caller says so (`rests_at`).

        Raises: ClusterUnreachable, KafkaError: it cannot be known now.
        """
        note = self._ledger.note
        if note is not None and end < note.floor:
            lost_from = await self._succession.end_below(note.floor)
            if lost_from >= 0 and self._ledger.note is note:
                self._succession.lose(lost_from)
                self._has_lost(lost_from, note.floor)
            return False
        if self.is_ready and not self._ledger.appended:
            await self._succession.stays_silent()
        is_settled = self.is_ready or await self._succession.has_settled()
        return not self._report_lost() and is_settled and self.is_at_rest

    def rests_at(self, end: int) -> None:
        """See `ends_at`; nothing has come meanwhile."""
        self._ledger.raise_floor(end, self._lineage)
        if self.lane is None:
            self._succession.begin_at(end)
        else:
            self.lane.rests_at(end)

    def acknowledged(self, base_offset: int, end: int) -> None:
        """A copy lies at these offsets of the destination."""
        if base_offset < self._target_end:
            self._count_loss()
            start, former_end = base_offset, self._target_end
            self._start_task(lambda: self._find_loss(start, former_end))
        self._target_end = end

    async def _find_loss(self, start: int, end: int) -> None:
        if self.log.is_another(await self._trying(self._find_log)):
            raise ValueError(DESTINATION_RECREATED)  # it begins again, and tells what is not there any more
        self._report_loss(start, end)

    def _report_lost(self) -> bool:
        """Whether the destination was found to have lost what a former owner wrote."""
        lost, self._succession.lost = self._succession.lost, None
        if lost is not None:
            self._has_lost(*lost)
        return lost is not None

    def _has_lost(self, start: int, end: int) -> None:
        self._target_end = min(self._target_end, start)  # or `acknowledged` finds the same
        if self.lane is not None:
            self.lane.floor = min(self.lane.floor, start)
        self._ledger.lower_floor(start)
        self._count_loss()
        self._report_loss(start, end)

    def close_former(self, source_end: int) -> None:
        """Tells the barrier behind the former owner's lane (rule 4 of
        `app.replicate.destination.succession`), if all that it wrote are copies of records below
        `source_end`; -1: who knows."""
        tail = self._succession.tail
        if tail is not None and source_end >= 0:
            self._on_closed(source_end, *tail, time.monotonic())

    def _count_loss(self) -> None:
        self.losses += 1
        self._succession.prove_nothing()
        self._ledger.version += 1
        self._on_lost()

    def _report_loss(self, start: int, end: int) -> None:
        self._report_incident(
            "destination-truncated",
            f"{self.name}/{self.target[1]} has lost offsets [{start}, {end}), which it had acknowledged; "
            f"copying goes on at {self._ledger.base} of the source",
            "an unclean leader was elected, or a broker lost its disk; reset the route's topic to copy from "
            "before the loss again",
        )

    async def _find_log(self) -> LogId:
        client, topic = self._runtime.target, self.target[0]
        ids = await client.topic_ids([topic])
        if topic not in ids:
            await client.partitions(topic)  # which permission is missing, if that is why
            raise ClusterUnreachable(f"topic {topic} is not known in {client.name}")
        return LogId(await client.cluster_id(), ids[topic])

    async def limit(self) -> int:
        """The destination's `max.message.bytes`, asked for again."""
        self.max_batch_bytes = await self._runtime.max_batch_bytes(self.target[0])
        return self.max_batch_bytes

    def not_yet_copied(self, found: list[VerbatimCopy], copy: VerbatimCopy) -> list[VerbatimCopy]:
        """What of the copy, all of which is in `found`, was not copied before."""
        succession = self._succession
        if succession.is_over:
            return found
        rest = [piece for one in found for piece in succession.rest(one, self.max_batch_bytes)]
        self._ledger.pass_over(SentBatch(-1 if rest else copy.source_end, accounted=succession.accounted))
        if rest and succession.unmatched:
            self._on_unsure(
                f"{succession.unmatched} records that were copied are not in the source any more, or differ; "
                "what follows the last one that was found may be there twice"
            )
        self.close_former(begins_at(rest[0], copy) if rest else copy.source_end)
        return rest

    async def open(self, saved: Callable[[], int]) -> int:
        """Makes it ready to append, once the version of the ledger that is `saved` has the note (rule 1).
        Returns where the destination ended before.

        What was under way of a former owner may have arrived meanwhile: ask `rest` again.
        """
        ledger, succession = self._ledger, self._succession
        self._saved = saved
        if self.lane is None:
            lane = self.lane = await self._trying(self._new_lane)
            succession.begins(lane.producer)
            note = ledger.note
            if note is not None and note.producer_id == lane.producer.id and succession.goes_on:
                # What the former owner wrote stays behind its floor until a copy of ours moves that.
                ledger.start_under(msgspec.structs.replace(note, epoch=lane.producer.epoch), goes_on=True)
            else:
                begun = ReplicaHandover(
                    self.log, ledger.base, *lane.producer, lane.floor, lineage=self._lineage
                )
                ledger.start_under(begun, goes_on=False)
            if not self._is_known:
                self._on_unsure("nobody knows what was copied behind the last position")
            elif succession.unsure:
                self._on_unsure(succession.unsure)
        floor, told = self.lane.floor, succession.unsure
        self._target_end = floor  # where it ended: nothing of ours comes to lie below
        await self._save(ledger.version)
        await self._trying(partial(succession.look_up, is_last=True))
        if succession.unsure != told:
            self._on_unsure(succession.unsure)
        self._report_lost()
        await self._save(ledger.version)  # the floor may be another
        self.is_ready = True
        return floor

    async def _new_lane(self) -> AppendLane:
        runtime = self._runtime
        producer = self._succession.producer or await new_producer(runtime.target)
        lane = await runtime.appender.lane(*self.target, producer, self._on_append_incident, self._bumped)
        if lane.floor < 0:
            lane.close()
            raise ClusterUnreachable(f"{self.name}/{self.target[1]} has no leader that answers")
        return lane

    async def _save(self, version: int) -> None:
        since_s = time.monotonic()
        while self._saved() < version:  # a round of snapshots does it
            self.is_saving = True
            if time.monotonic() - since_s > SNAPSHOT_TIMEOUT_S:
                self.why = NOT_SAVED
            await asyncio.sleep(SNAPSHOT_POLL_INTERVAL_S)
        self.is_saving = False
        if self.why == NOT_SAVED:
            self.why = ""

    def _bumped(self, lane: AppendLane) -> None:
        """The lane goes on under another epoch, once the table knows it (rule 1)."""
        version = self._ledger.under(lane.producer.epoch)

        async def go_on() -> None:
            await self._save(version)
            lane.epoch_saved()

        self._start_task(go_on)

    async def check_late(self, base_offset: int) -> None:
        """What a former owner got in behind our last look, before our first batch shut it out."""
        late = await self._trying(lambda: self._late(base_offset))
        if late:
            self._on_unsure(f"a former owner wrote {late} records after its successor had looked")

    async def _late(self, base_offset: int) -> int:
        lane = self.lane
        return 0 if lane is None else await self._succession.late(base_offset, lane.producer)

    def _on_append_incident(self, trouble: AppendIncident) -> None:
        self.why = f"append: {trouble.message}; {trouble.remedy}"
        self._report_incident("append-trouble", trouble.message, trouble.remedy)

    async def _trying(self, act: Callable[[], Awaitable[T]]) -> T:
        """Rule 3."""
        since_s, is_told = time.monotonic(), False
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
                    remedy = remedy_of(code, self._runtime.target.spec, self.target[0])
                    self.why += f"; {remedy}"
                    if not is_told:
                        is_told = True
                        at = f"{self.name}/{self.target[1]}"
                        self._report_incident("append-trouble", f"{at}: {error}", remedy)
                await asyncio.sleep(DESTINATION_RETRY_INTERVAL_S)
            else:
                self.why = ""
                return found

    def close(self) -> None:
        """Appends nothing any more."""
        if self.lane is not None:
            self.lane.close()
