"""Where a reader of one cluster's topic goes on in another cluster, and why: source by source.

    COPY    the other topic is a copy of the one that was read          x = resume_at(c)
    COMMON  both are copies, of sources that they share                 `offset_map`: k, x, the least x
    BACK    the one that was read is a copy of the other                k = read_up_to(c)

Rules
1. A source is a partition of a topic in a cluster, known by the cluster's id: whatever regions call it.
2. Of a COPY and on the way BACK only the lines between the two topics count: all that the reader read or
   would have read went through those. Of COMMON ones every source counts that the other topic has, and one of
   which it is not known how far it was read leads to the log's start.
3. Offsets are of a log. What is known of another one (a topic made anew, a truncated source) is not known;
   lines of one source count as far as they agree on it (`OffsetMapLine.agrees_below`).
4. An answer lies within the log that there is: not before its start, and not behind its end.
5. What is not known only moves an answer back, to the log's start at the most. Never to its end.
6. A line without an owner (`offset_map.LineEnd`) holds nobody back where nothing unread of it lies: its
   copies are not there any more, or all that it copied was read. In the topic that was read another line of
   the same source partition takes its place once all of its own copies were read.

How much is read again, at most, of each source: all from the offset up to which nothing of it lies from the
answer on, to where the reader was. That is (of a COPY it is known) at the barrier behind which it stood, and
at most as much further as it had read since: records of the copy, whoever's, or up to the next barrier.

Source: Uber, Disaster Recovery for Multi-Region Kafka, "offset management service".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from operator import attrgetter
from typing import NamedTuple

from app.kafka.records.leader_epochs import ENDLESS, NOWHERE
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import Barrier, OffsetMapLine

NOT_COMMITTED = "the group has no position in that partition"
NO_LINE_READ = "nothing is known of its copying into the topic that was read"
NO_LINE = "nothing is known of its copying into this topic yet"
BEFORE_GENESIS = "the reader was before the first offset that is known of its copying"
COPYING_STARTED_LATER = "its copying into this topic began behind what was read"
RECREATED_READ = "the topic that was read was made anew since"
RECREATED_SOURCE = "the source was made anew or truncated since"
RECREATED_HERE = "the topic here was made anew since"
NOTHING_HERE = "no source's copies are known in this partition"


class TopicRelation(StrEnum):
    """How the two topics are joined."""

    COPY = "copy"
    COMMON = "common"
    BACK = "back"


class CopiedPartition(NamedTuple):
    """A partition that is copied elsewhere (rule 1)."""

    cluster_id: str
    topic: str
    partition: int


class TopicIdentity(NamedTuple):
    """A topic as it is now; without a `topic_id` it is not known which of its name it is."""

    cluster_id: str
    topic: str
    topic_id: str = ""

    @property
    def log(self) -> LogId:
        return LogId(self.cluster_id, self.topic_id)


class CopiedLine(NamedTuple):
    """A line, and whose it is."""

    region: str
    route: str
    source: CopiedPartition
    line: OffsetMapLine


class Log(NamedTuple):
    """A partition's log as it is now: [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LineReading:
    """How far one line tells that its source was read: `k`, or `why` not. At most `more` records of it were
    read beyond. Without a `line` it is what the reader itself read."""

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
    """What one source says of one partition of the other topic.

    Attributes:
        readings: one, or as many as partitions that it is spread over; the least counts.
        region, route: of the line by which it came here; "" on the way BACK.
        k: all of the source below it was read. barrier: the one used here. x: where it would go on.
        why: without an `x`.
        again: at most so many records of it are read again; None: nobody knows.
    """

    source: CopiedPartition
    readings: tuple[LineReading, ...]
    region: str
    route: str
    k: int | None
    barrier: Barrier | None
    x: int | None
    why: str = ""
    again: int | None = None


@dataclass(frozen=True, slots=True)
class ResumePosition:
    """Where to go on in one partition. `least` is the source that held it back most, `why` is told when that
    leads to the log's start; `again` sums up over the sources, None when one is not known."""

    partition: int
    next_offset: int
    log: Log
    sources: tuple[SourceReading, ...]
    least: CopiedPartition | None
    why: str = ""
    again: int | None = None


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """The answers by partition, and the sources of what was read that the other topic has not."""

    relation: TopicRelation
    answers: dict[int, ResumePosition]
    not_copied: tuple[CopiedPartition, ...] = field(default=())

    @property
    def next_offsets(self) -> dict[int, int]:
        return {partition: answer.next_offset for partition, answer in self.answers.items()}


def roads(
    read: TopicIdentity, into_read: Iterable[CopiedLine], from_shared: Iterable[CopiedLine], to: str
) -> dict[str, TopicRelation]:
    """The topics of the cluster `to` (its id) that `read` is joined with, without itself.

    `from_shared`: all lines from `read` itself, and from sources of it.
    """
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
    """Where a reader of `read` goes on in `to`.

    Args:
        next_offsets: of the reader, by partition of `read`; without one nothing was read.
        into_read, into_to: every line into the two topics.
        logs: the partitions of `to`, all of them.
        unknown: sources that are copied into a partition of `to`, or may be, and of which there is no line.
        incomplete: why there may be sources into `to` that are not named here; "": there are none.
    """
    into_read, into_to = list(into_read), list(into_to)
    if relation is TopicRelation.COPY:
        mine = (read.cluster_id, read.topic)
        into_to = [c for c in into_to if (c.source.cluster_id, c.source.topic) == mine]
        unknown = {at: why for at, why in (unknown or {}).items() if at[0][:2] == mine}
        readings = _directly(read, {c.source for c in into_to} | {at[0] for at in unknown}, next_offsets)
    else:
        readings = _by_lines(read, into_read, next_offsets)
    told: dict[int, list[SourceReading]] = defaultdict(list)
    if relation is TopicRelation.BACK:
        for place, found in readings.items():
            if (place.cluster_id, place.topic) == (to.cluster_id, to.topic):
                told[place.partition].append(_back(place, found, read, to))
    else:
        for copying in into_to:
            log = logs.get(copying.line.target_partition, Log(0, 0))
            told[copying.line.target_partition].append(
                _forth(copying, readings, read, to, relation, log.start)
            )
        for (place, partition), why in (unknown or {}).items():
            told[partition].append(SourceReading(place, (), "", "", None, None, None, why))
    shown = incomplete if relation is TopicRelation.COMMON else ""
    answers = {
        partition: _answer(partition, log, told.get(partition, []), into_to, shown)
        for partition, log in sorted(logs.items())
    }
    there = {one.source for many in told.values() for one in many}
    return ResumePlan(
        relation, answers, tuple(sorted(set(readings) - there)) if relation is not TopicRelation.COPY else ()
    )


# -- how far the sources were read ---------------------------------------------------------------------

_target_end = attrgetter("target_end")
_source_end = attrgetter("source_end")


def _directly(
    read: TopicIdentity, places: Iterable[CopiedPartition], next_offsets: Mapping[int, int]
) -> dict[CopiedPartition, list[LineReading]]:
    found = {}
    for place in places:
        at = next_offsets.get(place.partition)
        why = NOT_COMMITTED if at is None else ""
        found[place] = [LineReading("", "", place.partition, at, None, at, 0, why)]
    return found


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
    """k of a source that goes on by the line `to`, and why it is not known: by all of the readings, or by
    those that rule 6 leaves, if that is further."""
    k, why = _least(readings, to)
    by_partition: dict[int, list[LineReading]] = defaultdict(list)
    for reading in readings:
        by_partition[reading.partition].append(reading)
    left = [one for many in by_partition.values() for one in _left(many, read)]
    less = None if left == readings else _least(left, to)[0]
    return (less, "") if less is not None and (k is None or less > k) else (k, why)


def _left(many: list[LineReading], read: TopicIdentity) -> list[LineReading]:
    """Of readings in one partition those that rule 6 leaves, as of where nothing of the others lies."""
    at = many[0].next_offset
    over = [
        one
        for one in many
        if one.line is not None and (ended := one.line.ended) is not None
        if at is not None and ended.since <= at and not ended.target.is_another(read.log)
    ]
    if at is None or not over:
        return many
    below = min([at, *(one.line.ended.until for one in over if one.line and one.line.ended)])
    rest = [one for one in many if one not in over]
    # One line alone tells of all of the source, but for what lies before its genesis.
    rest = rest or [max(over, key=lambda one: -1 if one.k is None else one.k)]
    return [_reading(one.region, one.route, one.line, below, read) for one in rest if one.line is not None]


def _least(readings: Iterable[LineReading], to: OffsetMapLine | None) -> tuple[int | None, str]:
    """k by these readings, and why it is not known: it lies where their lines, and `to`, are of one log."""
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
    """At most so many records of the source from `begins` on were read. What was read beyond a barrier may
    have any offsets from there on, as the source may skip some."""
    below = max(reading.k or 0 for reading in readings)
    return max(0, below - begins) + sum(reading.more for reading in readings)


# -- where each goes on --------------------------------------------------------------------------------


def _forth(
    copying: CopiedLine,
    readings: Mapping[CopiedPartition, list[LineReading]],
    read: TopicIdentity,
    to: TopicIdentity,
    relation: TopicRelation,
    start: int,
) -> SourceReading:
    """`start`: of the log there."""
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
    over = line.ended
    if over is not None and not over.target.is_another(to.log):  # rule 6
        is_read = k is not None and k >= over.source_end
        if (is_read or max(start, -1 if x is None else x) >= over.since) and (x is None or x < over.until):
            x, why = over.until, ""
    return SourceReading(source, tuple(mine), region, route, k, barrier, x, why)


def _back(
    place: CopiedPartition, readings: list[LineReading], read: TopicIdentity, to: TopicIdentity
) -> SourceReading:
    k, why = _read_to(readings, None, read)
    if any(one.line is not None and one.line.source.is_another(to.log) for one in readings):
        k, why = None, RECREATED_HERE
    return SourceReading(place, tuple(readings), "", "", k, None, k, why)


def _answer(
    partition: int, log: Log, told: list[SourceReading], into_to: Iterable[CopiedLine], incomplete: str
) -> ResumePosition:
    least = min(told, key=lambda one: -1 if one.x is None else one.x, default=None)
    why = incomplete or (NOTHING_HERE if least is None else least.why)
    known = -1 if why or least is None or least.x is None else least.x
    at = max(log.start, min(known, max(log.start, log.end)))
    lines = {(c.source, c.region, c.route): c.line for c in into_to if c.line.target_partition == partition}
    with_again = tuple(_with_again(one, lines.get((one.source, one.region, one.route)), at) for one in told)
    counts = [one.again for one in with_again]
    again = None if why or None in counts else sum(count for count in counts if count is not None)
    return ResumePosition(partition, at, log, with_again, None if least is None else least.source, why, again)


def _with_again(told: SourceReading, line: OffsetMapLine | None, at: int) -> SourceReading:
    over = None if line is None else line.ended
    if told.x is not None and over is not None and over.since <= at <= over.until:
        return replace(told, again=0)
    if told.x is None or told.k is None:
        return told
    # On the way back offsets of the log are the source's own.
    begins = at if line is None else (line.read_up_to(at) or 0)
    return replace(told, again=_read_beyond(told.readings, begins))
