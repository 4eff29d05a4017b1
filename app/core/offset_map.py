"""The offset map: which offset of a copy stands for which offset of its source.

    barrier (S, T)   every kept record of the source below S has a copy below T, and
                     no record of the source from S on has a copy below T
    line             the barriers of one source partition in one destination partition, in order

All offsets are next offsets: the design's inclusive (s, t) is (S - 1, T - 1).

What makes a barrier true, told by those who record one
1. It is recorded only at a new maximum of the source: after a restart not before the source passes whatever
   the previous incarnation may have sent.
2. The first of a line is its genesis: where copying began, and where the destination ended before that.
3. An idle barrier (S stays, T is the destination's end) is recorded when all that was sent is acknowledged,
   and nothing was sent until that end was known. Without it an idle source would hold others' readers back.
4. Another log (a topic made anew, or truncated, on either side) is another lineage, and begins a line.

Once true a barrier stays true in its lineage: logs only grow. So a line may get its barriers twice, late, or
not at all: what is missing moves a translated position back, never forth.

Translation (the design's k_r, x_r and x), of a reader whose next offset in one destination is c:

    k = max S of the line to where it read, with T <= c        all of the source below k was read
    x = max T of the line to where it goes on, with S <= k     nothing of the source from k on lies below x
    the least x of all sources; none known, or another lineage: the log's start, never its end

A source that is spread over several partitions was read as far as in the least of them.

Thinning drops barriers, of a line with more than `MAX_BARRIERS`: the further behind the newest, the wider
apart they may be, up to a share of that distance which is as small as their number allows (a few percent), so
that what is read again is a few percent of what the reader was behind.

Source: seeds/003, "offset management service"; its own pairing of the latest checkpoints loses records when
a source is idle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from app.core.fencing import LogId

MAX_BARRIERS = 512  # of a line: its record is written anew at every barrier, and stays below 30 kB
THINNED_TO = 384  # so that not every further one thins
FINEST_SHARE = 1 / 256

_source_end = attrgetter("source_end")
_target_end = attrgetter("target_end")


class Barrier(msgspec.Struct, frozen=True, array_like=True):
    """See the module. `source_end` is the design's s + 1, `target_end` its t + 1; recorded at `at_ms`."""

    source_end: int
    target_end: int
    at_ms: int = 0


class BarrierItem(msgspec.Struct, frozen=True, array_like=True):
    """New barriers of one source partition on their way to the table, oldest first.

    Attributes:
        route, topic, partition: the source partition, as the route's job names it.
        epoch, lineage: of the job that recorded them.
        source, target: the logs that the offsets are of.
        target_topic, target_partition: the copy.
        keep_from: the lowest next offset of the copy that anybody still asks for, if known.
        source_epoch: the leader epoch in which the source's log was found truncated; 0: it never was.
    """

    route: str
    topic: str
    partition: int
    epoch: int
    lineage: int
    source: LogId
    target: LogId
    target_topic: str
    target_partition: int
    barriers: list[Barrier]
    keep_from: int = 0
    source_epoch: int = 0

    @property
    def key(self) -> str:
        """The line's."""
        return line_key(self.route, self.topic, self.partition)


class Barriers(msgspec.Struct, frozen=True, tag="barriers", tag_field="event", kw_only=True):
    """Barriers of many lines by one worker, all of one partition of the checkpoint topic."""

    worker: str
    at_ms: int
    items: list[BarrierItem]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkpoint table holds for a source partition.

    Attributes:
        target_topic, target_partition: the copy.
        epoch: the highest of a job that wrote; lower ones are refused.
        lineage: of the job: how often the offsets have begun to mean something else.
        source, source_epoch, target: the logs that the offsets are of.
        barriers: neither their source nor their target ends decrease.
    """

    target_topic: str
    target_partition: int
    epoch: int
    lineage: int
    source: LogId
    target: LogId
    barriers: list[Barrier]
    source_epoch: int = 0

    def is_of_another(self, other: Line | BarrierItem) -> bool:
        """Whether the source's offsets certainly mean something else there."""
        return self.source_epoch != other.source_epoch or self.source.is_another(other.source)

    def read_up_to(self, next_offset: int) -> int | None:
        """k: all of the source below it was read by who came to `next_offset` of the copy; None: unknown."""
        at = bisect_right(self.barriers, next_offset, key=_target_end)
        return self.barriers[at - 1].source_end if at else None

    def resume_at(self, source_end: int) -> int | None:
        """x: nothing of the source from `source_end` on has a copy below it; None: unknown."""
        at = bisect_right(self.barriers, source_end, key=_source_end)
        return self.barriers[at - 1].target_end if at else None


def line_key(route: str, topic: str, partition: int) -> str:
    """The table's key; none of its parts holds a '/'."""
    return f"{route}/{topic}/{partition}"


def after(line: Line | None, item: BarrierItem) -> Line | None:
    """The line with the barriers of `item`; None when they are refused or say nothing new.

    Refused are those of an older epoch or lineage, and a barrier that runs counter to the newest one. The
    same items once more, in their order, change nothing for good.
    """
    if line is not None and (item.epoch, item.lineage) < (line.epoch, line.lineage):
        return None
    continues = (
        line is not None
        and item.lineage == line.lineage
        and (item.target_topic, item.target_partition) == (line.target_topic, line.target_partition)
        and not line.is_of_another(item)
        and not line.target.is_another(item.target)
    )
    before, source, target = [], item.source, item.target
    if line is not None and continues:
        before, source, target = line.barriers, line.source.filled_in(source), line.target.filled_in(target)
    barriers = thinned(_extended(before, item.barriers), item.keep_from)
    if not barriers:
        return None
    new = Line(
        target_topic=item.target_topic, target_partition=item.target_partition, epoch=item.epoch,
        lineage=item.lineage, source=source, target=target, barriers=barriers,
        source_epoch=item.source_epoch,
    )  # fmt: skip
    return None if new == line else new


def _extended(barriers: Sequence[Barrier], more: Iterable[Barrier]) -> list[Barrier]:
    """Of three in a row with the same source end the first and the last say it all: the least T that one may
    have come to, the greatest at which one may go on. The same for three with one target end."""
    extended = list(barriers)
    for new in more:
        last = extended[-1] if extended else None
        if last is not None:
            grown = new.source_end - last.source_end, new.target_end - last.target_end
            if min(grown) < 0 or max(grown) == 0:
                continue
            if len(extended) > 1:
                other = extended[-2]
                if (
                    other.source_end == new.source_end == last.source_end
                    or other.target_end == new.target_end == last.target_end
                ):
                    extended.pop()
        extended.append(new)
    return extended


def thinned(barriers: Sequence[Barrier], keep_from: int = 0) -> list[Barrier]:
    """At most `MAX_BARRIERS` of them, in order: all when there are no more, else `THINNED_TO` at most.

    Never dropped: the genesis, the newest, and the one that a reader at `keep_from` (a next offset of the
    copy) asks for. Those between it and the genesis go first.
    """
    if len(barriers) <= MAX_BARRIERS:
        return list(barriers)
    asked = max(0, bisect_right(barriers, keep_from, key=_target_end) - 1)
    asked = min(asked, len(barriers) - 2)  # the newest is not among those that go
    old = [barriers[0], barriers[asked]] if asked else [barriers[0]]
    share = FINEST_SHARE
    while True:
        kept = _spaced(barriers[asked:], share)
        if len(old) + len(kept) <= THINNED_TO:
            return old + kept
        share *= 1.25


def _spaced(barriers: Sequence[Barrier], share: float) -> list[Barrier]:
    """Those behind the first, some left out: no wider apart than `share` of the distance of the older one
    from the newest, in offsets of the copy, unless they were before."""
    newest = barriers[-1].target_end
    kept = [barriers[-1]]
    for index in range(len(barriers) - 2, 0, -1):
        older = barriers[index - 1].target_end
        if kept[-1].target_end - older > share * (newest - older):
            kept.append(barriers[index])
    return kept[::-1]


class Source(NamedTuple):
    """A source partition's line to one destination. `name` says which partition it is, for every destination
    the same: its cluster, topic and partition."""

    name: Hashable
    line: Line


def translate(
    next_offsets: Mapping[int, int],
    read: Iterable[Source],
    resumed: Iterable[Source],
    log_starts: Mapping[int, int],
) -> dict[int, int]:
    """Where a reader of one copy of a topic goes on in another copy: by partition, next offsets.

    Args:
        next_offsets: of the reader, by partition of the copy that it read; without one nothing was read.
        read: every line into that copy.
        resumed: every line into the other copy.
        log_starts: of the other copy, by partition: all that there are.
    """
    known: dict[Hashable, tuple[int, Line]] = {}
    unknown: set[Hashable] = set()
    for name, line in read:
        source_end = line.read_up_to(next_offsets.get(line.target_partition, -1))
        before = known.get(name)
        if source_end is None or (before and before[1].is_of_another(line)):
            unknown.add(name)
        elif not before or source_end < before[0]:
            known[name] = source_end, line
    found: dict[int, list[int]] = defaultdict(list)
    for name, line in resumed:
        next_offset = None
        if name in known and name not in unknown:
            source_end, other = known[name]
            next_offset = None if other.is_of_another(line) else line.resume_at(source_end)
        found[line.target_partition].append(-1 if next_offset is None else next_offset)
    return {
        partition: max(log_start, min(found.get(partition, [-1])))
        for partition, log_start in log_starts.items()
    }
