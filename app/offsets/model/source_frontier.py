"""Source frontiers: one copy's finished records as source offsets, and where they lie in another copy.

A consumer of the other copy passes over those records, so they are not delivered again.

    copy a:  progress (app.offsets.model.producer_progress)
               ──stamped offset syncs of a──▶  source A: all below 7_120, and [7_300, 7_410) are finished
    copy d:  the header of a fetched batch
               ──stamped offset syncs of d──▶  its records are A's 7_090 to 7_139
                                         ──▶  the first 30 of them are passed over

An offset sync (S, T) may carry a stamp: number n of a producer. The producer's records with numbers below n
have source offsets below S and lie below T; its later records have source offsets from S on, and lie from T
on. A lane sends its source in order, each record once. Source offsets may skip (compaction, control records,
records that the route leaves out), but they never repeat. So the record with number s has a source offset
- of at least S + (s - n), by an offset sync with n <= s
- of at most S - (n - s), by an offset sync with s < n
Where nothing is skipped between two offset syncs, both are exact.

These source offsets are finished (`tests/offsets/model/test_source_frontier.py`):
- below S + (s - n), with n <= s, if the producer's numbers below s and all offsets below T are finished
- from S - (n - s), by an offset sync with s <= n, to S + (e - n), by one with n <= e, if the run [s, e) is
  finished
A record of another copy is passed over if all of its possible source offsets are finished.

A missing offset sync or producer costs re-reads, never a record: nothing is concluded from an absence or from
a contradiction.
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
    """The finished records of a source partition, as offsets that mean the same records in all `lines`.
    `beyond`: further records below this offset are finished, not all; a line cannot confirm yet that they are
    the same. It has not read that far, or not since the source has another leader."""

    offsets: Snapshot
    lines: tuple[OffsetMapLine, ...]
    beyond: int = 0

    @property
    def end(self) -> int:
        """No offset at or above it is finished."""
        finished = self.offsets.finished
        return finished[-1][1] if finished else self.offsets.base

    def of(self, lines: Iterable[OffsetMapLine]) -> SourceFinished | None:
        """The same, limited to offsets on which `lines` agree; None: their source is another log."""
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
        progress: The reader's, by partition of the copy; `FinishedOffsets(next offset)` without a note.
        read: All lines into the copy. One source may have lines to several partitions.
        log: The copy's; lines into another log are ignored.
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
        # Offset syncs, with the distance of their stamp from `produced.sequence`.
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
    """The source offset up to which a former owner's producer certainly wrote this source's records. Behind
    `last`, its last offset sync, a later leader epoch may have other records at the copied offsets."""
    starts = [start.start_offset for start in line.epochs]
    if starts and last.source_end < starts[0]:
        return last.source_end  # that time's epochs are not kept
    return min((start for start in starts if start >= last.source_end), default=ENDLESS)


def _by_producer(barriers: Sequence[Barrier]) -> dict[Producer, list[tuple[Barrier, ProducerStamp]]]:
    found: dict[Producer, list[tuple[Barrier, ProducerStamp]]] = defaultdict(list)
    for barrier in barriers:
        if barrier.stamp is not None:
            found[barrier.stamp.producer].append((barrier, barrier.stamp))
    return found


def _in_order(placed: Sequence[tuple[int, Barrier]]) -> bool:
    """Whether a producer's numbers never go back, and its source offsets grow at least as much."""
    return all(
        0 <= newer - older <= after.source_end - before.source_end
        for (older, before), (newer, after) in pairwise(placed)
    )


def _common(one: Snapshot, other: Snapshot) -> Snapshot:
    """The offsets that are finished in both."""
    ours = ((0, one.base), *one.finished)
    theirs = ((0, other.base), *other.finished)
    both = [part for start, end in ours for part in outside(outside(theirs, start, end), start, end)]
    return Snapshot(0, tuple(both))


def together(
    readers: Iterable[Mapping[Hashable, SourceFinished]], resumed: Iterable[LineSource]
) -> dict[Hashable, SourceFinished]:
    """By source partition, what any of several readers has finished, as offsets on which `resumed` agrees."""
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
    """The records in one partition of a copy that are finished in another copy, and not delivered again.

    Args:
        done: By source partition (`finished`).
        resumed: All lines into this copy, as known now.
        log: This copy's; lines into another log are ignored.

    Attributes:
        until: No record of the partition at or above this offset can be passed over yet.
        lags: A source is finished beyond its newest offset sync here, so newer ones will show more.
        reached: The sum of the newest source ends of lagging lines. While it changes, offset syncs arrive.
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
        # For lagging sources: each current lane with the offset of its last stamp, and the lines' ends.
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
                # Two lines with the same producer contradict each other, so neither counts.
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
        """Whether newer offset syncs may show more of a batch of offsets [start, end) as finished. The
        batch's lane must copy a source that `lags`, or have no offset sync yet."""
        if not self._ends or producer_id < 0:
            return False
        if (producer_id, epoch) in self._marks:
            return end > self._newest.get((producer_id, epoch), end)
        return start >= min(self._ends)

    def ranges(self, start: int, end: int, producer_id: int, epoch: int, sequence: int) -> list[Range]:
        """The finished ranges of a batch of offsets [start, end) whose first record has number `sequence`."""
        marks = self._marks.get((producer_id, epoch))
        return [] if marks is None else marks.ranges(start, end, sequence)


class _Marks:
    """A producer's stamped offset syncs, and the finished offsets of the source that it copies."""

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
        highest = barrier.source_end - distance  # of the record at `start`
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
        """The least source offset that the record at `start` may have."""
        below = bisect_right(self._ends, start) - 1
        if below < 0:
            return 0
        barrier, stamp = self._barriers[below]
        distance = later(sequence, stamp.sequence)
        known = 0 <= distance <= start - barrier.target_end < NEAR
        return barrier.source_end + distance if known else 0
