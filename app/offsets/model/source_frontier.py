"""Source frontiers: what a reader of one copy has finished, as offsets of the sources; and where that lies in
another copy, so that it is not delivered again there.

    copy a:  progress (app.offsets.model.producer_progress)  --stamped barriers of a-->  source A: all below
    7_120, [7_300, 7_410) copy d:  a fetched batch's header   --stamped barriers of d-->  its records are A's
    7_090 to 7_139
                                                                    -> the first 30 of them are passed over

A barrier (S, T) with a stamp n of a producer: its records numbered below n have source offsets below S and
lie below T, the others neither. A lane sends what there is of its source in order, each record once; offsets
only skip (compaction, control records, what a route leaves out), they never come twice. So the record with
number s has at least the source offset S + (s - n), by a barrier with n <= s, and at most S - (n - s), by one
with s < n. Where nothing is skipped between two barriers, both are exact.

Finished is a source offset
- below S + (s - n): all below s of this producer, and all below T, is finished, n <= s
- from S - (n - s) by a barrier with s <= n, to S + (e - n) by one with n <= e: all of the run [s, e) is
A record of another copy is passed over if all offsets that it may have are finished.

What is missing (a barrier that was lost or thinned, a producer that was forgotten) costs re-reads, never a
record: nothing is concluded from its absence. Neither is from what contradicts itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

from app.kafka.records.leader_epochs import ENDLESS, NOWHERE
from app.kafka.records.producer_sequences import NEAR, Producer, ProducerStamp, later
from app.kernel.fencing import LogId
from app.kernel.ranges import Range, Snapshot, outside
from app.offsets.model.offset_map import Barrier, LineSource, OffsetMapLine
from app.offsets.model.producer_progress import FinishedOffsets

ANY_LOG = LogId()

_source_end = attrgetter("source_end")


class SourceFinished(NamedTuple):
    """What is finished of a source partition, in offsets of the source that all of `lines` speak of.

    `beyond`: more is, up to there, of which some line does not know yet whether it speaks of the same: it has
    not read that far, or not since its source has another leader.
    """

    offsets: Snapshot
    lines: tuple[OffsetMapLine, ...]
    beyond: int = 0

    @property
    def end(self) -> int:
        """Nothing at or above it is finished."""
        finished = self.offsets.finished
        return finished[-1][1] if finished else self.offsets.base

    def of(self, lines: Iterable[OffsetMapLine]) -> SourceFinished | None:
        """In offsets of the source that those lines speak of; None: of another log."""
        lines = tuple(lines)
        below = min(mine.agrees_below(line) for mine in self.lines for line in lines)
        if below == NOWHERE:
            return None
        if below >= self.end:
            return SourceFinished(self.offsets, lines, self.beyond)
        return SourceFinished(_common(self.offsets, Snapshot(below)), lines, max(self.end, self.beyond))


def finished(
    progress: Mapping[int, FinishedOffsets], read: Iterable[LineSource], log: LogId = ANY_LOG
) -> dict[Hashable, SourceFinished]:
    """By source partition, what a reader of a copy has certainly finished.

    Args:
        progress: of the reader, by partition of the copy; without a note of it, `FinishedOffsets(next
        offset)`. read: every line into that copy. One source's may lead to several partitions, its records to
        any. log: the copy's; lines into another one say nothing.
    """
    known: dict[Hashable, SourceFinished] = {}
    unknown: set[Hashable] = set()
    for name, line in read:
        at = progress.get(line.target_partition)
        before = known.get(name)
        if at is None or line.target.is_another(log):
            unknown.add(name)
            continue
        offsets = _finished(line, at)
        if before is None:
            known[name] = SourceFinished(offsets, (line,))
        else:
            known[name] = SourceFinished(_common(before.offsets, offsets), (*before.lines, line))
    return {
        name: agreed
        for name, done in known.items()
        if name not in unknown and (agreed := done.of(done.lines)) is not None
    }


def _finished(line: OffsetMapLine, progress: FinishedOffsets) -> Snapshot:
    base, reach = progress.base, progress.reach
    frontier = line.read_up_to(base) or 0
    marks = _by_producer(line.barriers)
    ranges: list[Range] = []
    newest = next((one.stamp.producer for one in reversed(line.barriers) if one.stamp is not None), None)
    for produced in progress.producers:
        producer = produced.producer_id, produced.epoch
        # Barriers by how far their stamp is behind `produced.sequence`.
        placed = [
            (distance, barrier)
            for barrier, stamp in marks.get(producer, ())
            if base - NEAR < barrier.target_end < base + NEAR
            and min(0, barrier.target_end - reach)
            <= (distance := later(stamp.sequence, produced.sequence))
            <= max(0, barrier.target_end - base)
        ]
        if not _in_order(placed):
            continue
        known_to = _known_to(line, marks[producer][-1][0]) if placed and producer != newest else ENDLESS
        if produced.all_below:
            below = [(at, barrier) for at, barrier in placed if at <= 0 and barrier.target_end <= base]
            frontier = max([frontier, *(min(known_to, one.source_end - at) for at, one in below[-1:])])
        distances = [at for at, _ in placed]
        for start, end in produced.finished:
            above, below_end = bisect_left(distances, start), bisect_right(distances, end) - 1
            if above < len(placed) and below_end >= 0:
                first = placed[above][1].source_end - (distances[above] - start)
                last = min(known_to, placed[below_end][1].source_end + (end - distances[below_end]))
                if 0 <= first < last:
                    ranges.append((first, last))
    return Snapshot(frontier, tuple(ranges))


def _known_to(line: OffsetMapLine, last: Barrier) -> int:
    """Up to which offset of the source is certain what a former owner's producer wrote, whose last barrier
    this is. Behind it the source may have lost what was copied, where a later leader's epoch begins, and have
    others there."""
    starts = [start.start_offset for start in line.epochs]
    if starts and last.source_end < starts[0]:
        return last.source_end  # the epochs of that time are not kept
    return min((start for start in starts if start >= last.source_end), default=ENDLESS)


def _by_producer(barriers: Sequence[Barrier]) -> dict[Producer, list[tuple[Barrier, ProducerStamp]]]:
    found: dict[Producer, list[tuple[Barrier, ProducerStamp]]] = defaultdict(list)
    for barrier in barriers:
        if barrier.stamp is not None:
            found[barrier.stamp.producer].append((barrier, barrier.stamp))
    return found


def _in_order(placed: Sequence[tuple[int, Barrier]]) -> bool:
    """Barriers of one producer: no number goes back, and its sources' offsets move at least as far."""
    return all(
        0 <= newer - older <= after.source_end - before.source_end
        for (older, before), (newer, after) in pairwise(placed)
    )


def _common(one: Snapshot, other: Snapshot) -> Snapshot:
    """What is finished in both."""
    ours = ((0, one.base), *one.finished)
    theirs = ((0, other.base), *other.finished)
    both = [part for start, end in ours for part in outside(outside(theirs, start, end), start, end)]
    return Snapshot(0, tuple(both))


def together(
    readers: Iterable[Mapping[Hashable, SourceFinished]], resumed: Iterable[LineSource]
) -> dict[Hashable, SourceFinished]:
    """By source partition, what any of several readers has finished of the log that `resumed` speaks of."""
    readers = list(readers)
    found: dict[Hashable, SourceFinished] = {}
    for name, line in resumed:
        known = [done[name].of([line]) for done in readers if name in done]
        same = [done for done in known if done is not None]
        if same:
            offsets = reduce(Snapshot.merge, (done.offsets for done in same))
            found[name] = SourceFinished(offsets, (line,), max(done.beyond for done in same))
    return found


class PassOver:
    """What of one partition of a copy is not to be delivered: its records are finished in another copy.

    Args:
        done: by source partition (`finished`).
        resumed: every line into this copy, as known now.
        log: this copy's; lines into another one say nothing.

    Attributes:
        until: nothing at or above this offset of the partition can be passed over by what is known.
        lags: a source was finished beyond the newest barrier here: more will be known, once there are others.
        reached: how far the newest barriers of those sources are, together: as long as it changes, they come.
    """

    __slots__ = ("_ends", "_marks", "_newest", "reached", "until")

    def __init__(
        self,
        done: Mapping[Hashable, SourceFinished],
        resumed: Iterable[LineSource],
        partition: int,
        log: LogId = ANY_LOG,
    ) -> None:
        self.until = self.reached = 0
        self._marks: dict[Producer, _Marks] = {}
        # Of sources that lag: the lanes that go on, each with where its last stamp lies, and the lines' ends.
        self._newest: dict[Producer, int] = {}
        self._ends: list[int] = []
        for name, line in resumed:
            if name not in done or line.target_partition != partition or line.target.is_another(log):
                continue
            known = done[name].of([line])
            if known is None or not (end := max(known.end, known.beyond)):
                continue
            stamped = _by_producer(line.barriers)
            for producer, barriers in stamped.items():
                # Of two lines that claim the same producer neither can be believed.
                claimed = producer in self._marks
                self._marks[producer] = _Marks([] if claimed else barriers, known.offsets)
            last = max((barriers[-1][0].target_end for barriers in stamped.values()), default=0)
            behind = bisect_left(line.barriers, known.end, key=_source_end)
            ends = [last, *(barrier.target_end for barrier in line.barriers[behind : behind + 1])]
            self.until = max(self.until, min(ends))
            if not line.barriers or line.barriers[-1].source_end < end:
                self._ends.append(line.barriers[-1].target_end if line.barriers else 0)
                self.reached += line.barriers[-1].source_end if line.barriers else 0
                lane = max(stamped, key=lambda producer: stamped[producer][-1][0].target_end, default=None)
                if lane is not None:
                    self._newest[lane] = stamped[lane][-1][0].target_end

    @property
    def lags(self) -> bool:
        return bool(self._ends)

    def may_grow(self, start: int, end: int, producer_id: int, epoch: int) -> bool:
        """Whether more of a batch of offsets [start, end) may come to be known as finished, once there are
        newer barriers: of a lane that copies a source that `lags`, or one that has told none yet."""
        if not self._ends or producer_id < 0:
            return False
        if (producer_id, epoch) in self._marks:
            return end > self._newest.get((producer_id, epoch), end)
        return start >= min(self._ends)

    def ranges(self, start: int, end: int, producer_id: int, epoch: int, sequence: int) -> list[Range]:
        """What of a batch of offsets [start, end) is finished; its first record is numbered `sequence`."""
        marks = self._marks.get((producer_id, epoch))
        return [] if marks is None else marks.ranges(start, end, sequence)


class _Marks:
    """A producer's barriers, and what is finished of the source that it copies."""

    __slots__ = ("_barriers", "_done", "_ends")

    def __init__(self, barriers: Sequence[tuple[Barrier, ProducerStamp]], done: Snapshot) -> None:
        self._barriers = barriers
        self._ends = [barrier.target_end for barrier, _ in barriers]
        self._done = ((0, done.base), *done.finished)

    def ranges(self, start: int, end: int, sequence: int) -> list[Range]:
        above = bisect_left(self._ends, end)
        if above == len(self._ends):
            return []
        barrier, stamp = self._barriers[above]
        distance = later(stamp.sequence, sequence)
        if not end - start <= distance <= barrier.target_end - start < NEAR:
            return []
        highest = barrier.source_end - distance  # of the first record
        lowest = self._lowest(start, sequence)
        if lowest > highest:
            return []
        found: list[Range] = []
        first = bisect_right(self._done, highest, key=itemgetter(1))
        for done_from, done_to in self._done[first:]:
            if done_from >= highest + end - start:
                break
            begin = start + max(0, done_from - lowest)
            stop = min(end, start + done_to - highest)
            if begin < stop:
                found.append((begin, stop))
        return found

    def _lowest(self, start: int, sequence: int) -> int:
        """The least source offset that the record at `start` can have."""
        below = bisect_right(self._ends, start) - 1
        if below < 0:
            return 0
        barrier, stamp = self._barriers[below]
        distance = later(sequence, stamp.sequence)
        known = 0 <= distance <= start - barrier.target_end < NEAR
        return barrier.source_end + distance if known else 0
