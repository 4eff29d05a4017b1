"""A group's reader of one region's copy, without a clock: tracker, progress and frontiers are the
product's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from app.kernel.fencing import LogId, TrackerRecord
from app.kernel.ranges import Snapshot, outside
from app.kernel.tracker import Tracker
from app.offsets.model.producer_progress import ProducerProgress
from app.offsets.model.source_frontier import PassOver, SourceFinished
from app.offsets.model.translation import CopiedLine, CopiedPartition
from tests.offsets.model.simulation.logs import Batch, CopyLog

CAPACITY = 10_000


@dataclass
class Saved:
    """A tracker record; `known`: the records that it counts as finished."""

    record: TrackerRecord
    known: frozenset[int]


class Part:
    """One partition's pump.

    Attributes:
        snapshot: Its first snapshot.
        open: Records delivered and not finished, by offset.
        shown, left_out: Offset, record and batch of the records delivered, and passed over.
        known: The records finished before it began, or by it.
        patient: Records that may turn out to be finished in another region wait.
    """

    def __init__(
        self,
        log: CopyLog,
        log_id: LogId,
        partition: int,
        snapshot: Snapshot,
        note: bytes,
        known: frozenset[int],
    ) -> None:
        self.log, self.log_id, self.partition, self.snapshot = log, log_id, partition, snapshot
        self.tracker = Tracker(snapshot.base, CAPACITY, snapshot)
        self.trail = ProducerProgress(self.tracker.base, note)
        self.over: PassOver | None = None
        self.open: dict[int, int] = {}
        self.shown: list[tuple[int, int, Batch]] = []
        self.left_out: list[tuple[int, int, Batch]] = []
        self.known = set(known)
        self.patient = False

    def read(self, count: int) -> None:
        """Reads the next `count` batches."""
        tracker = self.tracker
        for _ in range(count):
            if tracker.end < self.log.start:  # the gap is reported
                tracker.skip(tracker.end, self.log.start)
            batch = next(self.log.from_offset(tracker.end), None)
            if batch is None or (self.patient and self._may_grow(batch)):
                return
            self._take(batch)

    def _may_grow(self, batch: Batch) -> bool:
        return self.over is not None and self.over.may_grow(batch.start, batch.end, *batch.stamp.producer)

    def _take(self, batch: Batch) -> None:
        tracker, at = self.tracker, self.tracker.end
        self.trail.seen(batch.start, batch.end, *batch.stamp, tracker.base)
        if self.over is not None:
            tracker.inherit(self.over.ranges(batch.start, batch.end, *batch.stamp))
        for offset, record in enumerate(batch.records, batch.start):
            if record is None or offset < at:
                continue
            if tracker.fetched(offset, offset + 1):
                self.open[offset] = record
                self.shown.append((offset, record, batch))
            else:
                self.known.add(record)
                self.left_out.append((offset, record, batch))
        if tracker.end < batch.end:
            tracker.skip(tracker.end, batch.end)

    def finish(self, start: int, count: int, finished: Callable[[int], None]) -> None:
        """Finishes the delivered records among `count` offsets of the window, from `start` on."""
        first = self.tracker.base + start % max(1, self.tracker.end - self.tracker.base)
        for offset in [at for at in self.open if first <= at < first + count]:
            record = self.open.pop(offset)
            self.tracker.ack(offset)
            self.known.add(record)
            finished(record)

    def save(self, lineage: int, now: int) -> TrackerRecord:
        snapshot = self.tracker.snapshot()
        return TrackerRecord(
            epoch=1, base=snapshot.base, snapshot=snapshot.to_bytes(), lineage=lineage, at_ms=now,
            cluster_id=self.log_id.cluster_id, topic_id=self.log_id.topic_id,
            note=self.trail.note(snapshot, self.tracker.end),
        )  # fmt: skip

    def began_with(self, offset: int) -> bool:
        """Whether the offset was finished when this pump began."""
        below = ((0, self.snapshot.base), *self.snapshot.finished)
        return not outside(below, offset, offset + 1)


@dataclass
class Facts:
    """A region's knowledge of records finished in others.

    Attributes:
        positions: By partition of its own copy, a position for each other region where it is known.
        done, into: The finished records by source, and the lines into its copy.
        read_to: By source, the offset below which all was finished, by records and offset syncs alone.
        known: The records finished by the tracker records that arrived.
    """

    positions: dict[int, list[int]]
    done: Mapping[Hashable, SourceFinished]
    into: list[CopiedLine]
    read_to: Mapping[CopiedPartition, int]
    known: frozenset[int]


@dataclass
class Stint:
    """The group's time in one region.

    Attributes:
        before: Records finished by then in any region.
        facts: The region's knowledge of them.
        again: Records finished here a second time; no tracker record here covered the `unknown` ones.
        passed: Records not delivered here, because they were finished in another region.
        open_ended: Records delivered again, whose lane has recorded no offset sync behind them, and never
            will.
    """

    region: str
    parts: dict[int, Part]
    facts: Facts
    before: frozenset[int] = frozenset()
    is_failover: bool = False
    again: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    open_ended: set[int] = field(default_factory=set)
