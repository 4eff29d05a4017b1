"""Three regions, every regional topic copied into every aggregate one, and a group that reads in one of them.

Promises, checked during a history (`Broken`)
1. Records passed over by a mapped position, a snapshot or a frontier were finished before.
2. A mapped position never goes back when the reader advances, and missing knowledge only moves it back.
3. No source has more re-reads than `resume` says, and none of records covered by offset syncs and tracker
   records that arrived.
At the end (`drain`), every record in the group's aggregate was delivered.

A record that its reader could never get (`absent`) is not owed. Where the group reads, or has read, all its
copies were deleted before the reader arrived, and no more will come. While the group reads an aggregate, only
its kept records exist, because offset syncs are about kept records.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from app.kafka.records.producer_sequences import later
from app.kernel.fencing import LogId
from app.kernel.job import JobId, Kind
from app.kernel.ranges import Snapshot
from app.offsets.model.offset_map import LineSource, OffsetMapLine
from app.offsets.model.source_frontier import PassOver, SourceFinished, finished, together
from app.offsets.model.translation import (
    NO_LINE,
    CopiedLine,
    CopiedPartition,
    Log,
    ResumePlan,
    TopicIdentity,
    TopicRelation,
    resume,
)
from app.offsets.sync.remote_progress import reader_of
from tests.offsets.model.simulation.logs import TOPIC, Batch, CopyLog, CopyTopic, Lane, SourceLog
from tests.offsets.model.simulation.reader import Facts, Part, Saved, Stint

REGIONS = ("east", "north", "west")
LineKey = tuple[CopiedPartition, int, str]  # source, the copy's partition, and the route


class Broken(AssertionError):
    """A promise is broken."""


class World:
    """The simulated regions. `keyed`: records go to partitions by key, not by the source's partition.

    Attributes:
        delivered: How often each record was finished.
        absent: Records that are not owed (see the module).
        cut_off: Records that their source has lost, and whose offsets have others.
        lines, trackers: By region, its checkpoint table and its tracker records.
        line_copies, tracker_copies: The copies of both, by the region that has the copy and the one it is of.
        down, lost: Regions that do not work now, and never again.
        stint, zombie: The group's present stint, and a former one that still runs.
    """

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.now = self.records = 0
        self.keyed = chance.random() < 0.3
        self.sources = [
            SourceLog(region, partition) for region in REGIONS for partition in range(chance.randint(1, 3))
        ]
        self.topics = {
            region: CopyTopic(region, [CopyLog() for _ in range(chance.randint(1, 4))]) for region in REGIONS
        }
        pace = chance.choice([(1, 1), (3, 100), (10**6, 4), (8, 8)])
        first = chance.choice([0, 0, (1 << 31) - 1, (1 << 31) - 9])
        self.lanes = [
            Lane(source, topic, at, self._takes(at, len(topic.logs)), pace, first)
            for topic in self.topics.values()
            for source in self.sources
            for at in self._partitions(source, topic)
        ]
        self.where: dict[int, tuple[SourceLog, int, int]] = {}  # source, its `generation`, offset
        self.lines: dict[str, dict[LineKey, CopiedLine]] = {region: {} for region in REGIONS}
        self.trackers: dict[str, dict[int, Saved]] = {region: {} for region in REGIONS}
        apart = [(here, there) for here in REGIONS for there in REGIONS if here != there]
        self.line_copies: dict[tuple[str, str], dict[LineKey, CopiedLine]] = {at: {} for at in apart}
        self.tracker_copies: dict[tuple[str, str], dict[int, Saved]] = {at: {} for at in apart}
        self.down: set[str] = set()
        self.lost: set[str] = set()
        self.delivered: Counter[int] = Counter()
        self.absent: set[int] = set()
        self.cut_off: set[int] = set()
        self.lineages: Counter[str] = Counter()
        self.stints: list[Stint] = []
        self.zombie: Stint | None = None
        self.stint = self.begin(chance.choice(REGIONS))

    def _partitions(self, source: SourceLog, topic: CopyTopic) -> Iterable[int]:
        count = len(topic.logs)
        return range(count) if self.keyed else (source.partition % count,)

    def _takes(self, partition: int, count: int) -> partial[bool]:
        return partial(_is_there, self.keyed, partition, count)

    # -- the group's start ----------------------------------------------------------------------------

    def begin(self, region: str, *, fails_over: bool = False) -> Stint:
        """The group begins in a region, with the region's knowledge."""
        topic, facts = self.topics[region], self._facts(region)
        parts = {}
        for at, log in enumerate(topic.logs):
            saved = self.trackers[region].get(at)
            record = saved.record if saved is not None and saved.record.log == topic.log_id else None
            snapshot = Snapshot(log.start) if record is None else Snapshot.from_bytes(record.snapshot)
            for position in facts.positions[at]:
                snapshot = snapshot.merge(Snapshot(position))
            note = b"" if record is None else record.note
            parts[at] = Part(log, topic.log_id, at, snapshot, note, facts.known)
        stint = Stint(region, parts, facts, frozenset(self.delivered), fails_over)
        self._pass_over(stint)
        self._gaps(stint)
        self._not_passed(stint)
        self.stints.append(stint)
        self.stint = stint
        return stint

    def look_again(self) -> None:
        """The pumps look for newer knowledge."""
        self.stint.facts = self._facts(self.stint.region)
        self._pass_over(self.stint)

    def _pass_over(self, stint: Stint) -> None:
        lines = _sources(stint.facts.into)
        for at, part in stint.parts.items():
            part.over = PassOver(stint.facts.done, lines, at, self.topics[stint.region].log_id)

    def _facts(self, region: str) -> Facts:
        self.publish_lines()
        topic = self.topics[region]
        into_to = list(self.lines[region].values())
        to = TopicIdentity(topic.log_id.cluster_id, TOPIC, topic.log_id.topic_id)
        logs = {at: Log(log.start, log.end) for at, log in enumerate(topic.logs)}
        unknown = {
            (lane.source.place, lane.partition): NO_LINE
            for lane in self.lanes
            if lane.target is topic and not lane.gone and _key(lane) not in self.lines[region]
        }
        positions: dict[int, list[int]] = {at: [] for at in logs}
        readers: list[Mapping[Hashable, SourceFinished]] = []
        read_to: Counter[CopiedPartition] = Counter()
        known = {one for saved in self.trackers[region].values() for one in saved.known}
        for other in REGIONS:
            saved = self.tracker_copies.get((region, other), {})
            reader = reader_of((_job(at), one.record) for at, one in saved.items())
            if reader is None:
                continue
            into_read = list(self.line_copies[region, other].values())
            read, bases = (
                TopicIdentity(reader.log.cluster_id, TOPIC, reader.log.topic_id),
                reader.next_offsets,
            )
            ask = partial(resume, TopicRelation.COMMON, read, to, logs=logs, unknown=unknown)
            resumed = ask(bases, into_read, into_to)
            for at, answer in resumed.answers.items():
                if not answer.why:
                    below = min(reading.x for reading in answer.sources if reading.x is not None)
                    positions[at].append(min(below, answer.log.end))
            self._mapped(resumed, ask, bases, into_read, into_to)
            self._again(resumed, topic, other, bases, reader.log)
            readers.append(finished(reader.progress, _sources(into_read), reader.log))
            known.update(*(one.known for one in saved.values()))
            for place, k in _read_to(bases, into_read, into_to, reader.log).items():
                read_to[place] = max(read_to[place], k)
        done = together(readers, _sources(into_to))
        return Facts(positions, done, into_to, read_to, frozenset(known))

    # -- what must hold ----------------------------------------------------------------------------------

    def _mapped(
        self,
        resumed: ResumePlan,
        ask: partial[ResumePlan],
        bases: dict[int, int],
        into_read: list[CopiedLine],
        into_to: list[CopiedLine],
    ) -> None:
        """Promise 2."""
        before = {at: max(0, base - self.chance.randint(0, 6)) for at, base in bases.items()}
        for less in (
            ask(before, into_read, into_to),
            ask(bases, self._some(into_read), self._some(into_to)),
            ask({at: base for at, base in bases.items() if self.chance.random() < 0.8}, into_read, into_to),
        ):
            for at, answer in less.answers.items():
                if answer.next_offset > resumed.answers[at].next_offset:
                    raise Broken(f"partition {at}: less is known, {answer} lies behind {resumed.answers[at]}")

    def _some(self, lines: list[CopiedLine]) -> list[CopiedLine]:
        """The lines without some offset syncs, as if those were lost."""
        return [
            copying._replace(
                line=msgspec.structs.replace(
                    copying.line,
                    barriers=[one for one in copying.line.barriers if self.chance.random() < 0.7],
                    ended=copying.line.ended and (copying.line.ended if self.chance.random() < 0.7 else None),
                )
            )
            for copying in lines
        ]

    def _again(
        self, resumed: ResumePlan, topic: CopyTopic, other: str, bases: dict[int, int], log_id: LogId
    ) -> None:
        """Promise 3, first half, for records that the other region's copy still has."""
        there = self.topics[other]
        if there.log_id != log_id:
            return
        read = {
            record
            for at, base in bases.items()
            for record, offset, _ in there.logs[at].copies()
            if offset < base
        }
        for partition, answer in resumed.answers.items():
            seen: dict[tuple[CopiedPartition, str], set[int]] = {}
            log = topic.logs[partition]
            copies = list(log.copies())
            twice = {record for record, offset, _ in copies if offset < answer.next_offset}
            twice |= log.deleted | log.compacted
            for record, offset, batch in copies:
                if offset >= answer.next_offset and record in read - twice:
                    source, generation, _at = self.where[record]
                    if generation == source.generation and record not in self.cut_off:
                        route = topic.routes[batch.stamp.producer_id]
                        seen.setdefault((source.place, route), set()).add(record)
            for reading in answer.sources:
                count = len(seen.get((reading.source, reading.route), ()))
                if not answer.why and reading.reread_messages is not None and count > reading.reread_messages:
                    raise Broken(f"{count} records are read again of {reading}, partition {partition}")

    def _not_passed(self, stint: Stint) -> None:
        """Promise 1 for positions: a record below the base has a copy above it, or was finished."""
        below: set[int] = set()
        above: set[int] = set()
        for part in stint.parts.values():
            for record, offset, _ in part.log.copies():
                (below if part.began_with(offset) else above).add(record)
        self._was_finished(below - above, stint.region)

    def _gaps(self, stint: Stint) -> None:
        """Retention deleted records before the reader's position; the reader skips the gap."""
        for part in stint.parts.values():
            if part.tracker.end <= part.log.start:
                self.absent |= part.log.deleted - self.delivered.keys()

    def _was_finished(self, records: set[int], region: str) -> None:
        wrong = records - self.delivered.keys() - self.absent
        if wrong:
            one = min(wrong)
            raise Broken(f"{len(wrong)} records are passed over in {region}, as {one}: {self.where[one]}")

    def _covered(self, facts: Facts, partition: int, record: int, batch: Batch) -> bool:
        """Promise 3, second half: whether the offset syncs beside its batch cover the record."""
        source, generation, offset = self.where[record]
        if generation != source.generation or record in self.cut_off or offset >= facts.read_to[source.place]:
            return False
        for copying in facts.into:
            line = copying.line
            if copying.source != source.place or line.target_partition != partition:
                continue
            stamped = [
                (one, one.stamp)
                for one in line.barriers
                if one.stamp is not None and one.stamp.producer == batch.stamp.producer
            ]
            before = [both for both in stamped if both[0].target_end <= batch.start]
            behind = [both for both in stamped if both[0].target_end >= batch.end]
            if before and behind:
                (first, its), (last, other) = before[-1], behind[0]
                return last.source_end - first.source_end == later(other.sequence, its.sequence)
        return False

    def _is_open_ended(self, stint: Stint, partition: int, batch: Batch) -> bool:
        """Whether the batch lies behind the last offset sync of a lane that has ended."""
        producer, topic = batch.stamp.producer, self.topics[stint.region]
        lanes = [lane for lane in self.lanes if lane.target is topic and lane.stamp is not None]
        if any(lane.stamp is not None and lane.stamp.producer == producer for lane in lanes):
            return False
        return not any(
            one.target_end >= batch.end
            for copying in stint.facts.into
            if copying.line.target_partition == partition
            for one in copying.line.barriers
            if one.stamp is not None and one.stamp.producer == producer
        )

    # -- what the group does -----------------------------------------------------------------------------

    def _finish(self, stint: Stint, record: int) -> None:
        if record in stint.before:
            stint.again.add(record)
            if record not in stint.facts.known:
                stint.unknown.add(record)
        self.delivered[record] += 1

    def read(self, stint: Stint, partition: int, count: int) -> None:
        self._gaps(stint)
        part = stint.parts[partition % len(stint.parts)]
        part.read(count)
        for offset, record, _ in part.left_out:
            self._was_finished({record}, stint.region)
            if not part.began_with(offset) and record in stint.before:
                stint.passed.add(record)
        for offset, record, batch in part.shown:
            if record in stint.before and self._covered(stint.facts, part.partition, record, batch):
                raise Broken(f"record {record} at {offset} is delivered again: {self.where[record]}")
            if record in stint.before and self._is_open_ended(stint, part.partition, batch):
                stint.open_ended.add(record)
        part.left_out.clear()
        part.shown.clear()

    def finish(self, stint: Stint, partition: int, start: int, count: int) -> None:
        part = stint.parts[partition % len(stint.parts)]
        part.finish(start, count, partial(self._finish, stint))

    def save(self, stint: Stint, partitions: Iterable[int]) -> None:
        """Writes snapshots to the region's table."""
        for at in partitions:
            part = stint.parts[at]
            record = part.save(self.lineages[stint.region], self.now)
            self.trackers[stint.region][at] = Saved(record, frozenset(part.known))

    def leave(self) -> None:
        """Records that the group's region can no longer provide are not owed."""
        region = self.stint.region
        self.absent |= self._missing(region)
        for log in self.topics[region].logs:  # what is copied twice may still be there
            self.absent |= (log.deleted | log.compacted) - self.delivered.keys()

    def _missing(self, region: str) -> set[int]:
        """Undelivered records without a copy in the region, now or later."""
        topic = self.topics[region]
        missing = self.where.keys() - self.delivered.keys() - self.absent - topic.present()
        coming: set[int] = set()
        for lane in self.lanes:
            if lane.target is topic and lane.topic_id == lane.source.topic_id and not lane.gone:
                rest = lane.source.records[max(lane.copied_to, lane.source.start) :]
                coming.update(one for one in rest if one is not None and lane.takes(one))
        return missing - coming

    def gone(self, records: set[int], compacted: Sequence[str] = ()) -> None:
        """Records that left their source: a region where the group has read them once gets no more copies.
        `compacted`: also in these regions, where repeated copies do not count."""
        for region in compacted or REGIONS:
            if self.trackers[region] or self.stint.region == region:
                there = set() if compacted else self.topics[region].present()
                self.absent |= records - self.delivered.keys() - there

    # -- the end -----------------------------------------------------------------------------------------

    def drain(self) -> set[int]:
        """The group reads everything in its region; returns the records there that were never delivered."""
        for lane in self.lanes:
            if self.works(lane):
                lane.settle(self.now)
        for at, part in self.stint.parts.items():
            part.patient = False
            self.read(self.stint, at, 10**6)
            part.finish(0, 10**9, partial(self._finish, self.stint))
        return self.topics[self.stint.region].present() - self.delivered.keys() - self.absent

    def works(self, lane: Lane, *, gone: bool = False) -> bool:
        """`gone`: also a lane whose route was deleted."""
        down = {lane.target.region, lane.source.region} & self.down
        return not down and (gone or not lane.gone)

    def route(self, which: int) -> list[Lane]:
        """The lanes between two regions, under all names of the route."""
        one = self.lanes[which % len(self.lanes)]
        ends = one.source.region, one.target
        return [lane for lane in self.lanes if (lane.source.region, lane.target) == ends]

    def needed(self) -> None:
        """Pins the offset syncs that the group needs."""
        for lane in self.lanes:
            saved = self.trackers[lane.target.region].get(lane.partition)
            if saved is not None and lane.line is not None:
                k = lane.line.read_up_to(saved.record.base)
                lane.need([saved.record.base], [] if k is None else [k])

    def publish_lines(self) -> None:
        """Writes lanes' offset syncs to their region's table: for a source all of them, or none yet."""
        lines = [(lane.target.region, _key(lane), lane.copying) for lane in self.lanes]
        silent = {
            (lane.target.region, lane.source.place, lane.route) for lane in self.lanes if lane.copying is None
        }
        for region, key, copying in lines:
            if copying is not None and (region, copying.source, copying.route) not in silent:
                self.lines[region][key] = copying


def _key(lane: Lane) -> LineKey:
    return lane.source.place, lane.partition, lane.route


def _job(partition: int) -> str:
    return str(JobId(Kind.DISPATCH, f"group/{TOPIC}", TOPIC, partition))


def _is_there(keyed: bool, partition: int, count: int, record: int) -> bool:
    return not keyed or record % 7 % count == partition


def _sources(lines: Iterable[CopiedLine]) -> list[LineSource]:
    return [LineSource(copying.source, copying.line) for copying in lines]


def _read_to(
    bases: Mapping[int, int], into_read: list[CopiedLine], into_to: list[CopiedLine], log: LogId
) -> dict[CopiedPartition, int]:
    """By source, k by the reference rule alone: all below it was finished."""
    found: dict[CopiedPartition, int] = {}
    unknown: set[CopiedPartition] = set()
    lines_to: dict[CopiedPartition, list[OffsetMapLine]] = {}
    for copying in into_to:
        lines_to.setdefault(copying.source, []).append(copying.line)
    for copying in into_read:
        line, place = copying.line, copying.source
        at = bases.get(line.target_partition)
        k = None if at is None or line.target.is_another(log) else line.read_up_to(at)
        if k is None:
            unknown.add(place)
        else:
            known = [found.get(place, k), *(line.agrees_below(other) for other in lines_to.get(place, ()))]
            found[place] = min(k, *known)
    return {place: k for place, k in found.items() if place not in unknown}


__all__ = ["REGIONS", "Broken", "World"]
