"""Sources copied into two aggregates by lanes that stamp their batches, and a reader of the first of them.

A history is a list of acts of three small numbers; impossible acts are skipped. `World.delivered` has the
reader's finished records as (source, offset); a copy's `written` has the record at each offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.kafka.records.producer_sequences import SEQUENCES, ProducerStamp
from app.kernel.fencing import LogId
from app.kernel.tracker import Tracker
from app.offsets.model.offset_map import Barrier, BarrierItem, LineSource, OffsetMapLine, after
from app.offsets.model.producer_progress import ProducerProgress

Act = tuple[int, int, int]  # what, who, how much
Record = tuple[str, int]  # source, offset
ACTS = 16
STEP = 16  # epochs that a successor leaves


@dataclass
class Batch:
    """A batch in a log, from offset `start` on."""

    start: int
    records: list[Record]
    stamp: ProducerStamp  # of its first record

    @property
    def end(self) -> int:
        return self.start + len(self.records)


@dataclass
class Log:
    """A partition of an aggregate; offsets without a batch belong to no lane."""

    end: int = 0
    batches: list[Batch] = field(default_factory=list)

    def append(self, records: list[Record], stamp: ProducerStamp) -> Batch:
        batch = Batch(self.end, records, stamp)
        self.batches.append(batch)
        self.end = batch.end
        return batch


@dataclass
class Flying:
    """A lane's batch of [source_start, source_end); it is in the log once it has landed."""

    records: list[Record]
    source_start: int
    source_end: int
    stamp: ProducerStamp
    landed: Batch | None = None


@dataclass
class Copier:
    """Copies a source into a log; every `hidden`th source offset has no kept record."""

    name: str
    log: Log
    hidden: int
    ids: list[int]  # the cluster's: the last id that was given
    sequence: int  # where its epochs begin: any number will do
    partition: int = 0
    end: int = 0  # of the source
    sent: int = 0
    saved: int = 0
    quiet: int = -1
    epoch: int = 0
    stamp: ProducerStamp = field(init=False)
    flying: list[Flying] = field(default_factory=list)
    ghosts: list[Flying] = field(default_factory=list)  # a former owner's
    line: OffsetMapLine | None = None
    begins: bool = True  # nothing of this epoch is acknowledged

    def __post_init__(self) -> None:
        self.stamp = self.new_id()
        self.record(Barrier(0, self.log.end, 0, self.stamp))

    def new_id(self) -> ProducerStamp:
        self.ids[0] += 1
        return ProducerStamp(self.ids[0], 0, self.sequence)

    def record(self, barrier: Barrier) -> None:
        if barrier.source_end <= self.quiet:
            return
        topic = LogId("c", self.name)
        item = BarrierItem(
            "route", self.name, 0, self.epoch, 0, topic, LogId("d", "t"), "t", self.partition, [barrier]
        )
        self.line = after(self.line, item) or self.line

    def copy(self, count: int) -> None:
        """Sends `count` further offsets."""
        start, end = self.sent, min(self.end, self.sent + count)
        kept = [(self.name, at) for at in range(start, end) if not self.hidden or at % self.hidden]
        self.sent = end
        if kept:
            self.flying.append(Flying(kept, start, end, self.stamp))
            self.stamp = self.behind(self.stamp, len(kept))

    @staticmethod
    def behind(stamp: ProducerStamp, count: int) -> ProducerStamp:
        return stamp._replace(sequence=(stamp.sequence + count) % SEQUENCES)

    def land(self, count: int) -> None:
        """Appends `count` batches in flight to the log, in order."""
        for one in self.flying[:count]:
            if one.landed is None:
                if self.ghosts and one.stamp.producer_id == self.ghosts[0].stamp.producer_id:
                    self.ghosts.clear()  # from now on they are refused
                one.landed = self.log.append(one.records, one.stamp)

    def haunt(self) -> None:
        """Appends a late batch of a former owner."""
        if self.ghosts:
            ghost = self.ghosts.pop(0)
            self.log.append(ghost.records, ghost.stamp)

    def acknowledge(self, count: int, *, lost: bool = False) -> None:
        """Acknowledges `count` batches; `lost`: their offset syncs are lost."""
        while count and self.flying and (landed := self.flying[0].landed) is not None:
            one, count = self.flying.pop(0), count - 1
            self.saved = max(self.saved, one.source_end)
            if lost:
                continue
            if self.begins:
                self.record(Barrier(one.source_start, landed.start, 0, one.stamp))
            self.begins = False
            self.record(Barrier(one.source_end, landed.end, 0, self.behind(one.stamp, len(one.records))))

    def idle(self) -> None:
        if not self.flying and self.sent == self.end and not self.begins:
            self.record(Barrier(self.end, self.log.end, 0, self.stamp))

    def bump(self, doubt: int) -> None:
        """The lane continues under its next epoch, and writes doubtful batches again."""
        first = next((at for at, one in enumerate(self.flying) if one.landed is None), len(self.flying))
        again = self.flying[max(0, first - doubt) :]
        del self.flying[max(0, first - doubt) :]
        self.acknowledge(len(self.flying))
        self.stamp = ProducerStamp(self.stamp.producer_id, self.stamp.epoch + 1, self.sequence)
        self.begins = True
        for one in again:
            self.flying.append(Flying(one.records, one.source_start, one.source_end, self.stamp))
            self.stamp = self.behind(self.stamp, len(one.records))

    def take_over(self, *, sure: bool) -> None:
        """Another owner continues, behind the copies found in the log or from saved state."""
        self.ghosts = [one for one in self.flying if one.landed is None]
        landed = [one.source_end for one in self.flying if one.landed is not None]
        self.flying.clear()
        self.epoch, self.begins = self.epoch + 1, True
        if sure:
            self.sent = max([self.saved, *landed])
            self.stamp = ProducerStamp(self.stamp.producer_id, self.stamp.epoch + STEP, self.sequence)
        else:
            self.quiet, self.sent = max(self.quiet, self.sent), self.saved
            self.stamp = self.new_id()


class World:
    """The sources, aggregates and reader. `hidden`: by source; `sequence`: the first number of every
    epoch."""

    def __init__(self, hidden: list[int], sequence: int, capacity: int = 1_000) -> None:
        self.a, self.d = Log(), Log()
        ids_a, ids_d = [0], [50]
        self.into_a = [Copier(f"s{at}", self.a, hide, ids_a, sequence) for at, hide in enumerate(hidden)]
        self.into_d = [Copier(f"s{at}", self.d, hide, ids_d, sequence) for at, hide in enumerate(hidden)]
        self.copiers = self.into_a + self.into_d
        self.capacity = capacity
        self.tracker = Tracker(0, capacity)
        self.trail = ProducerProgress(0)
        self.delivered: set[Record] = set()
        self._read = 0

    def play(self, acts: list[Act]) -> None:
        """Plays the acts in order."""
        for what, who, count in acts:
            copier = self.copiers[who % len(self.copiers)]
            match what:
                case 0 | 1:
                    self.grow(who, count)
                case 2 | 3:
                    copier.copy(count)
                case 4:
                    copier.land(count)
                case 5 | 6:
                    copier.land(count)
                    copier.acknowledge(count, lost=count == 5)
                case 7:
                    copier.idle()
                case 8:
                    copier.bump(count % 3)
                case 9:
                    copier.take_over(sure=count > 2)
                case 10:
                    copier.haunt()
                case 11:
                    copier.log.end += count % 2  # a marker
                case 12 | 13:
                    self.read(count)
                case 14:
                    self.finish(who, count * count)
                case _:
                    self.begin_again()

    def grow(self, who: int, count: int) -> None:
        """Appends records to a source."""
        at = who % len(self.into_a)
        for copier in (self.into_a[at], self.into_d[at]):
            copier.end += count

    def read(self, count: int) -> None:
        """The reader reads batches of `a`."""
        for batch in self.a.batches[self._read :][:count]:
            if self.tracker.room < len(batch.records):
                return
            self._read += 1
            self.trail.seen(batch.start, batch.end, *batch.stamp, self.tracker.base)
            self.tracker.fetched(max(batch.start, self.tracker.end), batch.end)

    def finish(self, at: int, count: int) -> None:
        """The reader finishes records from some place of its window on."""
        start = self.tracker.base + at % max(1, self.tracker.end - self.tracker.base)
        self.tracker.ack_range(start, start + count)
        self.delivered = {record for record, offset in self.in_a() if self.tracker.is_finished(offset)}

    def in_a(self) -> list[tuple[Record, int]]:
        return [
            (record, batch.start + at) for batch in self.a.batches for at, record in enumerate(batch.records)
        ]

    def note(self) -> bytes:
        return self.trail.note(self.tracker.snapshot(), self.tracker.end)

    def begin_again(self) -> None:
        """Another owner continues the reader's job."""
        note, snapshot = self.note(), self.tracker.snapshot()
        self.trail = ProducerProgress(snapshot.base, note)
        self.tracker = Tracker(snapshot.base, self.capacity, snapshot)
        self._read = next(
            (at for at, batch in enumerate(self.a.batches) if batch.end > snapshot.base),
            len(self.a.batches),
        )

    @staticmethod
    def lines(copiers: list[Copier]) -> list[LineSource]:
        return [LineSource(copier.name, copier.line) for copier in copiers if copier.line is not None]
