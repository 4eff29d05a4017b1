"""Translation of a reader's position into another cluster's topic, explained source by source. Pure.

    COPY    the other topic is a copy of the topic that was read      x = resume_at(c)
    COMMON  both topics are copies, of sources that they share        `offset_map`: k, x, the least x
    BACK    the topic that was read is a copy of the other one        k = read_up_to(c)

c: the reader's next offset; k: all of a source below it was read; x: the offset where the reader continues.

Rules
1. A source is a partition of a topic in a cluster. The cluster's id identifies it, because regions may
   give a cluster different names.
2. For COPY and BACK, only the lines between the two topics count, because all records of the reader pass
   through them. For COMMON, every source of the other topic counts. If it is not known how far one of them
   was read, the answer is the log's start.
3. Offsets belong to a log, so nothing is known about a topic recreated, or a source truncated, since.
   Lines of one source count as far as they agree on it (`OffsetMapLine.agrees_below`).
4. An answer lies within the present log, from its start to its end.
5. Missing knowledge only moves an answer back, at most to the log's start. It never leads to the log's end.
6. A line without an owner (`offset_map.LineEnd`) holds no reader back where it has no unread copies, because
   they were deleted or read. In the topic that was read, other lines of the same source partition replace it
   once all of its own copies were read.

`reread_messages` is an upper limit for the records of a source that are read again. They begin at the source
offset below which all copies lie below the answer, and end where the reader was. For COPY that end is known.
Otherwise it is the offset sync before the reader's position, plus the records read since. It is at most the
next offset sync.

Source: Uber, Disaster Recovery for Multi-Region Kafka, "offset management service".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from operator import attrgetter
from typing import NamedTuple

from app.kafka.records.leader_epochs import ENDLESS, NOWHERE
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, OffsetMapLine

NOT_COMMITTED = "the group has no position in this partition"
NO_LINE_READ = "the offset map has no line from this source into the topic that was read"
NO_LINE = "the offset map has no line from this source into this topic yet"
BEFORE_GENESIS = "the reader's position is before the first offset sync of this source"
COPYING_STARTED_LATER = "copying of this source into this topic began only after the reader's position"
RECREATED_READ = "the topic that was read was recreated since"
RECREATED_SOURCE = "the source was recreated or truncated since"
RECREATED_HERE = "the topic in the destination was recreated since"
NOTHING_HERE = "the offset map has no line into this partition"


class TopicRelation(StrEnum):
    """How the topic that was read and the other topic are related."""

    COPY = "copy"
    COMMON = "common"
    BACK = "back"


class CopiedPartition(NamedTuple):
    """A source (rule 1)."""

    cluster_id: str
    topic: str
    partition: int


class TopicIdentity(NamedTuple):
    """A topic. Without a `topic_id` it may be any topic that has had this name."""

    cluster_id: str
    topic: str
    topic_id: str = ""

    @property
    def log(self) -> LogId:
        return LogId(self.cluster_id, self.topic_id)


class CopiedLine(NamedTuple):
    """A line of the offset map, with its region, route and source."""

    region: str
    route: str
    source: CopiedPartition
    line: OffsetMapLine


class Log(NamedTuple):
    """The offsets [start, end) of a partition's present log."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LineReading:
    """How far a source was read, by one line: all of it below `k` (None: not known, because of `why`). At
    most `more` of its records were read beyond. Without a `line`, `k` is the reader's position in the
    source."""

    region: str
    route: str
    partition: int
    next_offset: int | None
    barrier: Barrier | None
    k: int | None
    more: int = 0
    why: str = ""
    line: OffsetMapLine | None = None


@dataclass(frozen=True, slots=True)
class SourceReading:
    """One source's part in the answer for a partition of the other topic.

    Attributes:
        readings: One for each line by which the source was read; the least counts.
        region, route: The line into the other topic; "" for BACK.
        k: All of the source below it was read.
        barrier: The offset sync used in the other topic.
        x: Where the reader would continue for this source; None: not known, because of `why`.
        reread_messages: At most this many of its records are read again; None: not known.
    """

    source: CopiedPartition
    readings: tuple[LineReading, ...]
    region: str
    route: str
    k: int | None
    barrier: Barrier | None
    x: int | None
    why: str = ""
    reread_messages: int | None = None


@dataclass(frozen=True, slots=True)
class ResumePosition:
    """Where a reader continues in one partition. `least` is the source that decided; `why`: the reason for
    the log's start. `reread_messages` is the sum over all sources; None: not known for one of them."""

    partition: int
    next_offset: int
    log: Log
    sources: tuple[SourceReading, ...]
    least: CopiedPartition | None
    why: str = ""
    reread_messages: int | None = None


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """The answers by partition, and the sources that the reader read but the other topic does not have."""

    relation: TopicRelation
    answers: dict[int, ResumePosition]
    not_copied: tuple[CopiedPartition, ...] = ()

    @property
    def next_offsets(self) -> dict[int, int]:
        return {partition: answer.next_offset for partition, answer in self.answers.items()}


def related_topics(
    read: TopicIdentity, into_read: Iterable[CopiedLine], from_shared: Iterable[CopiedLine], to: str
) -> dict[str, TopicRelation]:
    """The topics of cluster `to` (an id) that are related to `read`, without `read` itself. `from_shared`:
    all lines from `read` itself, and from its sources."""
    found: dict[str, TopicRelation] = {}
    for copying in from_shared:
        if copying.line.target.cluster_id == to:
            source, topic = copying.source, copying.line.target_topic
            is_copy = (source.cluster_id, source.topic) == (read.cluster_id, read.topic)
            if (to, topic) == (read.cluster_id, read.topic):
                continue
            if is_copy or found.get(topic) is not TopicRelation.COPY:
                found[topic] = TopicRelation.COPY if is_copy else TopicRelation.COMMON
    for copying in into_read:
        if copying.source.cluster_id == to and found.get(copying.source.topic) is not TopicRelation.COPY:
            found[copying.source.topic] = TopicRelation.BACK
    return found


def resume(
    relation: TopicRelation,
    read: TopicIdentity,
    to: TopicIdentity,
    next_offsets: Mapping[int, int],
    into_read: Iterable[CopiedLine],
    into_to: Iterable[CopiedLine],
    logs: Mapping[int, Log],
    unknown: Mapping[tuple[CopiedPartition, int], str] | None = None,
    incomplete: str = "",
) -> ResumePlan:
    """The positions at which a reader of `read` continues in `to`.

    Args:
        next_offsets: The reader's, by partition of `read`. A partition without one was not read.
        into_read, into_to: All lines into the two topics.
        logs: All partitions of `to`.
        unknown: Sources without a line that are copied, or may be, into a partition of `to`, and why.
        incomplete: Why `into_to` may lack sources; "": it has all.
    """
    into_read, into_to = list(into_read), list(into_to)
    if relation is TopicRelation.COPY:
        mine = (read.cluster_id, read.topic)
        into_to = [c for c in into_to if (c.source.cluster_id, c.source.topic) == mine]
        unknown = {at: why for at, why in (unknown or {}).items() if at[0][:2] == mine}
        readings = _directly(read, {c.source for c in into_to} | {at[0] for at in unknown}, next_offsets)
    else:
        readings = _by_lines(read, into_read, next_offsets)
    by_partition: dict[int, list[SourceReading]] = defaultdict(list)
    if relation is TopicRelation.BACK:
        for source, found in readings.items():
            if (source.cluster_id, source.topic) == (to.cluster_id, to.topic):
                by_partition[source.partition].append(_back(source, found, read, to))
    else:
        for copying in into_to:
            log = logs.get(copying.line.target_partition, Log(0, 0))
            by_partition[copying.line.target_partition].append(
                _forward(copying, readings, read, to, relation, log.start)
            )
        for (source, partition), why in (unknown or {}).items():
            by_partition[partition].append(SourceReading(source, (), "", "", None, None, None, why))
    missing = incomplete if relation is TopicRelation.COMMON else ""
    answers = {
        partition: _answer(partition, log, by_partition.get(partition, []), into_to, missing)
        for partition, log in sorted(logs.items())
    }
    in_other = {one.source for many in by_partition.values() for one in many}
    return ResumePlan(
        relation,
        answers,
        tuple(sorted(set(readings) - in_other)) if relation is not TopicRelation.COPY else (),
    )


# -- how far the sources were read ---------------------------------------------------------------------

_target_end = attrgetter("target_end")
_source_end = attrgetter("source_end")


def _directly(
    read: TopicIdentity, sources: Iterable[CopiedPartition], next_offsets: Mapping[int, int]
) -> dict[CopiedPartition, list[LineReading]]:
    positions = {source: next_offsets.get(source.partition) for source in sources}
    return {
        source: [LineReading("", "", source.partition, at, None, at, 0, NOT_COMMITTED if at is None else "")]
        for source, at in positions.items()
    }


def _by_lines(
    read: TopicIdentity, into_read: Iterable[CopiedLine], next_offsets: Mapping[int, int]
) -> dict[CopiedPartition, list[LineReading]]:
    found: dict[CopiedPartition, list[LineReading]] = defaultdict(list)
    for region, route, source, line in into_read:
        at = next_offsets.get(line.target_partition)
        found[source].append(_reading(region, route, line, at, read))
    return found


def _reading(
    region: str, route: str, line: OffsetMapLine, at: int | None, read: TopicIdentity
) -> LineReading:
    barriers, partition = line.barriers, line.target_partition
    barrier, k, more = None, None, 0
    if line.target.is_another(read.log):
        why = RECREATED_READ
    elif at is None:
        why = NOT_COMMITTED
    else:
        k = line.read_up_to(at)
        why = BEFORE_GENESIS if k is None else ""
        index = bisect_right(barriers, at, key=_target_end)
        if k is not None:
            barrier, more = barriers[index - 1], at - barriers[index - 1].target_end
            if index < len(barriers):
                more = min(more, barriers[index].source_end - k)
    return LineReading(region, route, partition, at, barrier, k, more, why, line)


def _read_to(
    readings: list[LineReading], to: OffsetMapLine | None, read: TopicIdentity
) -> tuple[int | None, str]:
    """k of a source for the line `to`, and why it is not known. All readings count, or only those that rule 6
    keeps, if that leads further."""
    k, why = _least_k(readings, to)
    by_partition: dict[int, list[LineReading]] = defaultdict(list)
    for reading in readings:
        by_partition[reading.partition].append(reading)
    kept = [one for many in by_partition.values() for one in _without_ended(many, read)]
    further = None if kept == readings else _least_k(kept, to)[0]
    return (further, "") if further is not None and (k is None or further > k) else (k, why)


def _without_ended(readings: list[LineReading], read: TopicIdentity) -> list[LineReading]:
    """The readings of one partition that rule 6 keeps, taken where no ended line has copies any more."""
    at = readings[0].next_offset
    ended_readings = [
        one
        for one in readings
        if one.line is not None and (ended := one.line.ended) is not None
        if at is not None and ended.since <= at and not ended.target.is_another(read.log)
    ]
    if at is None or not ended_readings:
        return readings
    all_read_at = min([at, *(one.line.ended.until for one in ended_readings if one.line and one.line.ended)])
    rest = [one for one in readings if one not in ended_readings]
    # One line alone covers all of the source, except for records before its genesis.
    rest = rest or [max(ended_readings, key=lambda one: -1 if one.k is None else one.k)]
    return [
        _reading(one.region, one.route, one.line, all_read_at, read) for one in rest if one.line is not None
    ]


def _least_k(readings: Iterable[LineReading], to: OffsetMapLine | None) -> tuple[int | None, str]:
    """The least k of the readings, limited to where their lines and `to` agree, and why it is not known."""
    lines = [one.line for one in readings if one.line is not None] + ([] if to is None else [to])
    agreed = min((line.agrees_below(other) for line, other in combinations(lines, 2)), default=ENDLESS)
    if agreed == NOWHERE:
        return None, RECREATED_SOURCE
    k: int | None = None
    for reading in readings:
        if reading.k is None:
            return None, reading.why
        k = reading.k if k is None else min(k, reading.k)
    return (min(k, agreed), "") if k is not None else (None, NO_LINE_READ)


def _read_beyond(readings: Iterable[LineReading], begins: int) -> int:
    """At most this many records from `begins` on were read; beyond an offset sync they may have any
    offsets."""
    below = max(reading.k or 0 for reading in readings)
    return max(0, below - begins) + sum(reading.more for reading in readings)


# -- where the reader continues ------------------------------------------------------------------------


def _forward(
    copying: CopiedLine,
    readings: Mapping[CopiedPartition, list[LineReading]],
    read: TopicIdentity,
    to: TopicIdentity,
    relation: TopicRelation,
    start: int,
) -> SourceReading:
    """A source's part for COPY or COMMON. `start`: of the destination's log."""
    region, route, source, line = copying
    mine = readings.get(source, [])
    k, why = _read_to(mine, line, read)
    barrier = None
    if relation is TopicRelation.COPY and line.source.is_another(read.log):
        k, why = None, RECREATED_READ
    if line.target.is_another(to.log):
        why = RECREATED_HERE
    elif k is not None:
        index = bisect_right(line.barriers, k, key=_source_end)
        barrier = line.barriers[index - 1] if index else None
        why = "" if barrier else COPYING_STARTED_LATER
    x = None if barrier is None else barrier.target_end
    ended = line.ended
    if ended is not None and not ended.target.is_another(to.log):  # rule 6
        is_read = k is not None and k >= ended.source_end
        if (is_read or max(start, -1 if x is None else x) >= ended.since) and (x is None or x < ended.until):
            x, why = ended.until, ""
    return SourceReading(source, tuple(mine), region, route, k, barrier, x, why)


def _back(
    source: CopiedPartition, readings: list[LineReading], read: TopicIdentity, to: TopicIdentity
) -> SourceReading:
    k, why = _read_to(readings, None, read)
    if any(one.line is not None and one.line.source.is_another(to.log) for one in readings):
        k, why = None, RECREATED_HERE
    return SourceReading(source, tuple(readings), "", "", k, None, k, why)


def _answer(
    partition: int, log: Log, readings: list[SourceReading], into_to: Iterable[CopiedLine], incomplete: str
) -> ResumePosition:
    least = min(readings, key=lambda one: -1 if one.x is None else one.x, default=None)
    why = incomplete or (NOTHING_HERE if least is None else least.why)
    known = -1 if why or least is None or least.x is None else least.x
    at = max(log.start, min(known, max(log.start, log.end)))
    lines = {(c.source, c.region, c.route): c.line for c in into_to if c.line.target_partition == partition}
    sources = tuple(_with_reread(one, lines.get((one.source, one.region, one.route)), at) for one in readings)
    counts = [one.reread_messages for one in sources]
    reread = None if why or None in counts else sum(count for count in counts if count is not None)
    return ResumePosition(partition, at, log, sources, None if least is None else least.source, why, reread)


def _with_reread(reading: SourceReading, line: OffsetMapLine | None, at: int) -> SourceReading:
    ended = None if line is None else line.ended
    if reading.x is not None and ended is not None and ended.since <= at <= ended.until:
        return replace(reading, reread_messages=0)
    if reading.x is None or reading.k is None:
        return reading
    # For BACK, the log is the source itself.
    begins = at if line is None else (line.read_up_to(at) or 0)
    return replace(reading, reread_messages=_read_beyond(reading.readings, begins))
