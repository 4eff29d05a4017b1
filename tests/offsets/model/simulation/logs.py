"""Logs of the simulated regions, and the lanes that copy one into another.

A record is a number that never changes; `SourceLog` knows where it was written. Killed lanes continue
exactly or from saved state, and their batches in flight may land late.
`app.replicate.pump.offset_sync_emitter` emits their offset syncs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from app.kafka.records.leader_epochs import ENDLESS, Epochs, read_in
from app.kafka.records.producer_sequences import ProducerStamp
from app.kafka.records.verbatim_copy import VerbatimCopy
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import (
    Barrier,
    BarrierItem,
    EndedItem,
    LineEnd,
    NeedItem,
    OffsetMapLine,
    after,
    at_end,
    needs_of,
    with_pins,
)
from app.offsets.model.translation import CopiedLine, CopiedPartition
from app.replicate.pump.offset_sync_emitter import OffsetSyncEmitter
from tests.offsets.model.simulation.handover import Left, Written, closing

STEP = 16  # epochs that a successor leaves
TOPIC = "orders"


@dataclass
class SourceLog:
    """A partition of a regional topic. `cuts`: where it lost its end, one per leader epoch."""

    region: str
    partition: int
    generation: int = 0
    start: int = 0
    records: list[int | None] = field(default_factory=list)  # None: nothing that is kept
    cuts: list[int] = field(default_factory=list)

    @cached_property
    def place(self) -> CopiedPartition:
        return CopiedPartition(f"{self.region}-regional", TOPIC, self.partition)

    @property
    def topic_id(self) -> str:
        return f"{self.region}-{self.generation}"

    @property
    def end(self) -> int:
        return len(self.records)

    def kept(self) -> set[int]:
        return {record for record in self.records[self.start :] if record is not None}

    def delete_below(self, start: int) -> None:
        self.start = max(self.start, min(start, self.end))

    def epoch_at(self, offset: int) -> int:
        return max((epoch for epoch, at in enumerate(self.cuts, 1) if at <= offset), default=0)

    def cut(self, at: int) -> None:
        del self.records[at:]
        self.cuts.append(at)

    def recreate(self) -> None:
        self.generation += 1
        self.start = 0
        self.records, self.cuts = [], []


@dataclass
class Batch:
    """A batch in a log, from offset `start` on; compaction leaves None."""

    start: int
    records: list[int | None]
    stamp: ProducerStamp  # of its first record

    @property
    def end(self) -> int:
        return self.start + len(self.records)


def _batch_end(batch: Batch) -> int:
    return batch.end


class Hidden(NamedTuple):
    """Records above a leader's high watermark; `comes` moves them below it. They belong to a lane's former
    owner, or to no lane."""

    count: int
    comes: Callable[[], None]
    lane: Lane | None = None


@dataclass
class CopyLog:
    """A partition of an aggregate topic; offsets without a batch belong to no lane. `end`: the high
    watermark; `tail`: the leader's records above it, in order; `elections`: clean ones, which lose the
    tail."""

    start: int = 0
    end: int = 0
    tail: list[Hidden] = field(default_factory=list)
    elections: int = 0
    batches: list[Batch] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)  # by retention
    compacted: set[int] = field(default_factory=set)

    @property
    def shown(self) -> int:
        """The high watermark that a leader returns."""
        return self.end

    @property
    def leader_end(self) -> int:
        """The end of the leader's log."""
        return self.end + sum(hidden.count for hidden in self.tail)

    def hide(self, count: int) -> None:
        """Appends records of no lane to the leader alone."""
        self.tail.append(Hidden(count, partial(self.grow, count)))

    def grow(self, count: int) -> None:
        """Appends records of no lane."""
        self.end += count

    def show(self) -> None:
        """Replicates the tail."""
        tail, self.tail = self.tail, []
        for hidden in tail:
            hidden.comes()

    def elect(self) -> None:
        """Elects another leader."""
        self.tail = []
        self.elections += 1

    def append(self, records: list[int], stamp: ProducerStamp) -> Batch:
        self.show()
        batch = Batch(self.end, list(records), stamp)
        self.batches.append(batch)
        self.end = batch.end
        return batch

    def from_offset(self, offset: int) -> Iterator[Batch]:
        """The batches with offsets at or above this one."""
        yield from self.batches[bisect_right(self.batches, offset, key=_batch_end) :]

    def delete_below(self, start: int) -> None:
        start = max(self.start, min(start, self.end))
        self.deleted.update(record for record, offset, _ in self.copies() if offset < start)
        self.start = start
        del self.batches[: bisect_right(self.batches, self.start, key=_batch_end)]

    def compact(self, batch: Batch, at: int) -> None:
        record, batch.records[at] = batch.records[at], None
        if record is not None:
            self.compacted.add(record)
        if not any(batch.records):
            self.batches.remove(batch)

    def copies(self) -> Iterator[tuple[int, int, Batch]]:
        """The record, offset and batch of every copy."""
        for batch in self.batches:
            for offset, record in enumerate(batch.records, batch.start):
                if record is not None and offset >= self.start:
                    yield record, offset, batch

    def recreate(self) -> None:
        self.start = self.end = 0
        self.tail = []
        self.batches, self.deleted, self.compacted = [], set(), set()


@dataclass
class CopyTopic:
    """A region's aggregate topic. `ids`: the cluster's last producer id; `routes`: the owners of the ids."""

    region: str
    logs: list[CopyLog]
    generation: int = 0
    ids: int = 0
    routes: dict[int, str] = field(default_factory=dict)

    @property
    def log_id(self) -> LogId:
        return LogId(f"{self.region}-aggregate", f"{self.region}-{self.generation}")

    def present(self) -> set[int]:
        return {record for log in self.logs for record, _, _ in log.copies()}


@dataclass
class Flight:
    """A lane's batch; it is in the log once it has landed. Without records it leaves no trace there."""

    copy: VerbatimCopy
    records: list[int]
    stamp: ProducerStamp
    lineage: int
    landed: Batch | None = None


class Lane:
    """Copies the records of a source that `takes` accepts into one partition of an aggregate topic.

    Attributes:
        sent: The next source offset to send.
        base: All below it is acknowledged.
        saved: The base in the tracker table.
        read_epoch: The source leader's epoch at the last fetch; `epochs`: all that were read.
        line: The line in the checkpoint table.
        left: The note to a successor, once saved.
        route: The route's name; `gone`: it was deleted.
    """

    def __init__(
        self,
        source: SourceLog,
        target: CopyTopic,
        partition: int,
        takes: Callable[[int], bool],
        pace: tuple[int, int],
        first_sequence: int,
        generation: int = 0,
    ) -> None:
        """`pace`: the acts, or records, between two offset syncs. `first_sequence`: any number.
        `generation`: how often the route was renamed."""
        self.source, self.target, self.partition, self.takes = source, target, partition, takes
        self.route = f"{source.region}-to-{target.region}-{generation}"
        self.generation, self.gone = generation, False
        self.line: OffsetMapLine | None = None
        self.epoch = 1
        self.lineage = self.source_epoch = self.read_epoch = 0
        self.topic_id = source.topic_id
        self.saved = self.base = self.sent = source.start
        self.quiet_below = -1
        self.flying: list[Flight] = []
        self.ghosts: list[Flight] = []  # a former owner's
        self.producer: ProducerStamp | None = None  # that was written under last
        self.stamp: ProducerStamp | None = None  # of what goes next; None: the lane is not open
        self._pace, self._first = pace, first_sequence
        self.epochs: Epochs = ()
        self._saved_epochs: Epochs = ()  # with `saved`
        self._recorded_in = 0  # the `read_epoch` at the last offset sync
        self._is_first, self._has_landed, self._drops = True, False, False
        self.left = self._saved_left = Left(self.base, self.log.end)
        self._behind: tuple[tuple[int, LogId, int], int] | None = None  # where the log first ended, and when
        self._marks = self._new_marks()

    @property
    def log(self) -> CopyLog:
        return self.target.logs[self.partition]

    @property
    def copied_to(self) -> int:
        """No record below this offset is copied for the first time any more."""
        reported_end = max((barrier.source_end for barrier in self._barriers()[-1:]), default=0)
        return max(
            min(self.base, self._cut_since(self.read_epoch)),
            min(reported_end, self._cut_since(self._recorded_in)),
        )

    def _cut_since(self, epoch: int) -> int:
        """The offset from which the source has other records than in that leader epoch."""
        return min(self.source.cuts[epoch:], default=self.source.end)

    def _barriers(self) -> list[Barrier]:
        line = self.line
        mine = line is not None and (line.lineage, line.target) == (self.lineage, self.target.log_id)
        return line.barriers if line is not None and mine else []

    @property
    def copying(self) -> CopiedLine | None:
        if self.line is None:
            return None
        region = self.target.region
        return CopiedLine(region, self.route, self.source.place, self.line)

    def _new_marks(self) -> OffsetSyncEmitter:
        every, records = self._pace
        marks = OffsetSyncEmitter(every, records, self._record_sync)
        marks.quiet_below = self.quiet_below
        return marks

    def _is_unsure(self) -> None:
        """Batches in flight may be written twice."""
        self.quiet_below = self._marks.quiet_below = max(self.quiet_below, self.source.end)

    def _record_sync(self, source_end: int, target_end: int, stamp: ProducerStamp | None) -> None:
        if self._drops:
            return
        item = BarrierItem(
            "route", TOPIC, self.source.partition, self.epoch, self.lineage,
            LogId(self.source.place.cluster_id, self.topic_id), self.target.log_id, TOPIC, self.partition,
            [Barrier(source_end, target_end, 0, stamp)], source_epoch=self.source_epoch, epochs=self.epochs,
        )  # fmt: skip
        self.line = after(self.line, item) or self.line
        if self._barriers()[-1:] == item.barriers:
            self._recorded_in = self.read_epoch

    # -- copying -----------------------------------------------------------------------------------

    def notice(self, now: int) -> None:
        """Handles a fetch: the source was recreated, or has lost its end."""
        source = self.source
        if self.topic_id != source.topic_id:
            self._begin_lineage(source.start, 0, now)
            self.topic_id, self.epochs, self._saved_epochs = source.topic_id, (), ()
        elif (at := self._cut_since(self.read_epoch)) < self.sent:
            self._begin_lineage(at, len(source.cuts), now)
        self.read_epoch = len(source.cuts)

    def _begin_lineage(self, at: int, source_epoch: int, now: int) -> None:
        self.land(len(self.flying))
        self.acknowledge(len(self.flying), now)
        self.quiet_below = -1
        self._begin_again(at)
        self.saved, self._is_first = at, True
        self.left = self._saved_left = Left(at, self.log.end)
        self.lineage, self.source_epoch = self.lineage + 1, source_epoch

    def _begin_again(self, at: int) -> None:
        self.ghosts = [flight for flight in self.flying if flight.landed is None and flight.records]
        self.flying = []
        self.epoch += 1
        self.saved = min(self.saved, at)
        self.base = self.sent = at
        self.stamp, self._has_landed = None, False
        self._marks = self._new_marks()

    def copy(self, count: int, now: int) -> None:
        """Sends `count` further offsets."""
        self.notice(now)
        source = self.source
        if source.start > self.sent:  # the gap is reported
            self._pass(source.start)
        start, end = self.sent, min(source.end, self.sent + count)
        if end <= start:
            return
        self.epochs = read_in(self.epochs, source.epoch_at(end - 1), start)
        records = [one for one in source.records[start:end] if one is not None and self.takes(one)]
        copy = VerbatimCopy(b"", len(records), start, end)
        if not records:
            self._pass(end)
            return
        stamp = self._open(copy, now) if self.stamp is None else self.stamp
        self.flying.append(Flight(copy, records, stamp, self.lineage))
        self.stamp = stamp.behind(len(records))
        self.sent = end

    def _pass(self, end: int) -> None:
        """Skips offsets without records up to `end`."""
        self.sent = end
        if self.flying:
            nothing = Flight(VerbatimCopy(b"", 0, end, end), [], ProducerStamp(0, 0, 0), self.lineage)
            self.flying.append(nothing)
        else:
            self._move(end)

    def _move(self, base: int) -> None:
        self.base = max(self.base, base)
        self.left = self.left._replace(base=self.base)

    def _open(self, copy: VerbatimCopy, now: int) -> ProducerStamp:
        if self.producer is None:
            self.target.ids += 1
            self.target.routes[self.target.ids] = self.route
            self.left = Left(self.base, self.log.end)
            stamp = ProducerStamp(self.target.ids, 0, self._first)
        else:
            stamp = ProducerStamp(self.producer.producer_id, self.producer.epoch + STEP, self._first)
        self.producer = stamp
        self._saved_left = self.left
        self._marks.opened(stamp)
        if self._is_first:
            self._marks.genesis(copy.source_start, self.log.end, now)
        self._is_first = False
        self._marks.first = copy
        return stamp

    def land(self, count: int) -> None:
        """Appends `count` batches in flight to the log, in order."""
        for flight in self.flying[:count]:
            if flight.landed is None and flight.records:
                if self.ghosts and flight.stamp.producer_id == self.ghosts[0].stamp.producer_id:
                    self.ghosts.clear()  # from now on they are refused
                flight.landed = self.log.append(flight.records, flight.stamp)
                self._has_landed = True

    def haunt(self) -> None:
        """Appends a late batch of a former owner."""
        if not self.ghosts:
            return
        self._comes(self.ghosts.pop(0))

    def _comes(self, ghost: Flight) -> None:
        self.log.append(ghost.records, ghost.stamp)
        if self.stamp is None and ghost.lineage == self.lineage and self._looks_for(ghost):
            # It is looked for before the first goes.
            self.sent = max(self.sent, ghost.copy.source_end)
            self._find(self.sent)
            if not self.gone:
                self.close()
        else:
            self._is_unsure()

    def _looks_for(self, ghost: Flight) -> bool:
        return self.producer is not None and self.producer.producer_id == ghost.stamp.producer_id

    def acknowledge(self, count: int, now: int, *, drops: bool = False) -> None:
        """Acknowledges `count` batches; `drops`: their offset syncs are lost."""
        self._drops = drops
        while count and self.flying and (self.flying[0].landed is not None or not self.flying[0].records):
            flight, count = self.flying.pop(0), count - 1
            self._move(flight.copy.source_end)
            if flight.landed is not None:
                self._marks.stamp = stamp = flight.stamp.behind(len(flight.records))
                self.left = Left(self.base, flight.landed.end, stamp)
                self._marks.acknowledged(flight.copy, flight.landed.start, now)
        self._drops = False

    def idle(self, now: int) -> None:
        self.notice(now)
        rests = not self.flying and self.base == self.sent == self.source.end
        is_sure = not self.ghosts and all(hidden.lane is not self for hidden in self.log.tail)
        if rests and is_sure and self._marks.wants_idle(now):
            self._marks.idle(self.base, self.log.end, now)
            stamp = None if self.left.passed else self.left.stamp
            self.left = Left(self.base, self.log.end, stamp)

    def save(self) -> None:
        self.saved, self._saved_epochs, self._saved_left = self.base, self.epochs, self.left

    def need(self, read: Iterable[int], resumed: Iterable[int]) -> None:
        """Pins offsets of readers at rest."""
        needs = needs_of(read, resumed)
        item = NeedItem("route", TOPIC, self.source.partition, self.target.log_id, needs)
        self.line = with_pins(self.line, item) or self.line

    # -- owners ------------------------------------------------------------------------------------

    def bump(self) -> None:
        """Continues under the next producer epoch, which writes the batches again that did not land."""
        if self.stamp is None:
            return
        stamp = self.producer = ProducerStamp(self.stamp.producer_id, self.stamp.epoch + 1, self._first)
        for flight in self.flying:
            if flight.landed is None and flight.records:
                flight.stamp = stamp
                stamp = stamp.behind(len(flight.records))
        self.stamp = stamp

    def take_over(self, *, sure: bool, closes: bool = True) -> None:
        """Another owner continues, behind the copies found in the log or from saved state. `closes`: it
        records the end of the former owner's lane, if that is certain."""
        landed = [flight.copy.source_end for flight in self.flying if flight.landed is not None]
        found_to = max([self.base, *landed])
        if sure and self._cut_since(self.read_epoch) >= found_to:  # else what is found is not in the source
            self._begin_again(found_to)
            self.left = self._saved_left
            self._find(found_to)
            if closes:
                self.close()
        else:
            self.epochs = self._saved_epochs
            self._begin_again(self.saved)
            self.producer = None
            self._is_unsure()

    def _find(self, found_to: int) -> None:
        """The log has copies up to this source offset."""
        self._move(found_to)
        count = sum(len(batch.records) for batch in self._written())
        self.left = self.left._replace(passed=count)

    def _written(self) -> list[Written]:
        """Its producer's batches since the saved state."""
        return [
            Written(batch.start, batch.end, batch.stamp, [one for one in batch.records if one is not None])
            for batch in self.log.from_offset(self._saved_left.floor)
            if self.producer is not None and batch.stamp.producer_id == self.producer.producer_id
        ]

    def close(self) -> None:
        """Records the end of a former owner's lane, if that is certain."""
        left = self._saved_left
        if self.log.start > left.floor:
            return
        source = (
            (at, one)
            for at, one in enumerate(self.source.records[left.base :], left.base)
            if one is not None and self.takes(one) and at >= self.source.start
        )
        found = closing(left, self._written(), source, self._first)
        if found is not None:
            self._marks.closed(*found, 0)

    def under_new_route(self) -> Lane:
        """The lane of a route with another name, which copies everything again."""
        return Lane(
            self.source, self.target, self.partition, self.takes, self._pace, self._first, self.generation + 1
        )

    def delete(self, *, sure: bool) -> None:
        """Deletes the route; batches in flight may still land."""
        self.take_over(sure=sure, closes=False)
        self.gone = True

    def come_back(self) -> None:
        self.gone, self.epoch = False, self.epoch + 1
        self.close()

    def look(self, *, asks_source: bool) -> None:
        """The leader publishes the end of a deleted route's line, once nothing is in flight
        (`app.replicate.jobs.orphaned_lines`)."""
        log, line, source_end = self.log, self.line, ENDLESS
        log.tail += [Hidden(len(one.records), partial(self._comes, one), self) for one in self.ghosts]
        self.ghosts.clear()
        seen = self.epoch, self.target.log_id, log.elections
        if self._behind is None or self._behind[0] != seen:
            self._behind = seen, log.leader_end
        since = self._behind[1]
        if line is None or log.shown < since:
            return
        if asks_source and line.source.topic_id == self.source.topic_id:
            source_end = max(self.source.end, line.barriers[-1].source_end)
        ended = LineEnd(self.epoch, self.target.log_id, source_end, since, log.shown)
        item = EndedItem("route", TOPIC, self.source.partition, line.lineage, line.source, ended)
        self.line = at_end(line, item) or line

    def target_recreated(self) -> None:
        """The destination topic was recreated; its copies are gone."""
        self.quiet_below = -1
        self._begin_again(self.saved)
        self.left = self._saved_left = Left(self.saved, 0)
        self.ghosts.clear()
        self.producer = None

    def settle(self, now: int) -> None:
        """Copies and acknowledges everything, and records that the source is idle."""
        self.notice(now)
        self.copy(self.source.end, now)
        self.land(len(self.flying))
        self.acknowledge(len(self.flying), now)
        self.ghosts.clear()
        self.save()
        self.idle(now)


def index_at(log: CopyLog, offset: int) -> Batch | None:
    """The batch at this offset."""
    at = bisect_right(log.batches, offset, key=_batch_end)
    found = log.batches[at] if at < len(log.batches) else None
    return found if found is not None and found.start <= offset else None
