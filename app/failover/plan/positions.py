"""Where partitions go on, as a failover plan shows it: answers of the offset map, and what is known to be
finished of what would be read again. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from app.failover.plan.document import Check, PlannedPartition, PlannedSource
from app.kernel.ranges import Range
from app.offsets.model.source_frontier import SourceFinished
from app.offsets.model.translation import CopiedPartition, ResumePosition, SourceReading, TopicRelation
from app.offsets.sync.mapper import JoinedTopics


def row(
    answer: ResumePosition,
    joined: JoinedTopics,
    done: Mapping[Hashable, SourceFinished],
    names: Mapping[str, str],
    own: int | None = None,
) -> PlannedPartition:
    """A partition. `done`: what is finished, by source; `names`: of clusters, by their ids; `own`: up to
    where this region has finished it itself, which it does not read again."""
    at = max(answer.next_offset, own or 0)
    sources = [_source(told, answer, joined, done, names, at) for told in answer.sources]
    counts = [one.again for one in sources]
    again = None if answer.reread_messages is None or None in counts else sum(count or 0 for count in counts)
    return PlannedPartition(
        partition=answer.partition, mapped=answer.next_offset, log_end=answer.log.end, again=again,
        passed_over=sum(one.passed_over for one in sources), why=answer.why, sources=sources,
        least="" if answer.least is None else _place(answer.least, names),
    )  # fmt: skip


def _source(
    told: SourceReading,
    answer: ResumePosition,
    joined: JoinedTopics,
    done: Mapping[Hashable, SourceFinished],
    names: Mapping[str, str],
    at: int,
) -> PlannedSource:
    source, over, again = told.source, 0, told.reread_messages
    known = done.get(source)
    if again:
        begins = _begins(told, joined, at)
        again = max(0, again + _begins(told, joined, answer.next_offset) - begins)
        if known is not None:
            over = _overlap(((0, known.offsets.base), *known.offsets.finished), begins, begins + again)
    return PlannedSource(
        cluster=names.get(source.cluster_id, source.cluster_id), topic=source.topic,
        partition=source.partition, read_up_to=told.k, next_offset=told.x, again=again, passed_over=over,
        why=told.why,
    )  # fmt: skip


def _begins(told: SourceReading, joined: JoinedTopics, at: int) -> int:
    """Up to which offset of the source nothing lies from `at` on."""
    if joined.relation is TopicRelation.BACK:
        return at
    ends = told.source, told.region, told.route
    line = next(c.line for c in joined.into_to if (c.source, c.region, c.route) == ends)
    return line.read_up_to(at) or 0


def _overlap(spans: Iterable[Range], start: int, end: int) -> int:
    return sum(max(0, min(end, before) - max(start, after)) for after, before in spans)


def _place(place: CopiedPartition, names: Mapping[str, str]) -> str:
    return f"{names.get(place.cluster_id, place.cluster_id)}/{place.topic}-{place.partition}"


def away(rows: Sequence[PlannedPartition]) -> list[Check]:
    """Sources that do not answer: what is known of them is as of when they did."""
    gone = [one for row in rows for one in row.routes if not one.reachable]
    found = []
    for cluster, region in sorted({(one.cluster, one.region) for one in gone}):
        counts = [one.records for one in gone if one.cluster == cluster]
        count = sum(count or 0 for count in counts)
        words = (
            f"at least {count} records of it are not here, how many more is not known"
            if None in counts
            else f"{count} records or more of it are not here"
        )
        found.append(Check(
            name="sources", level="warn", detail=f"{cluster} does not answer: {words}",
            remedy=f"they come once region {region} returns; nothing else waits for them",
        ))  # fmt: skip
    return found


def passed_by(rows: Sequence[PlannedPartition], group: str, topic: str) -> list[Check]:
    """Positions here that nothing of Switchyard committed, beyond where the other region is: what lies
    between is passed over, and nobody knows whether it was read."""
    found = [
        row for row in rows if row.own_is_foreign and (row.mapped is None or row.mapped < (row.own or 0))
    ]
    if not found:
        return []
    first = found[0]
    of = f"partition {first.partition}: group {group} is at {first.own} here, which Switchyard did not commit"
    counts = [None if row.mapped is None or row.own is None else row.own - row.mapped for row in found]
    if first.mapped is None:
        of += ", and where it is elsewhere is not known"
    else:
        of += f", {counts[0]} records beyond {first.mapped}, where it is elsewhere"
    if len(found) > 1:
        known = "" if None in counts else f", {sum(count or 0 for count in counts)} records in all"
        of += f"; likewise {len(found) - 1} more partitions{known}"
    to = "where they shall begin" if first.mapped is None else first.mapped
    return [Check(
        name="own-positions", level="warn", detail=f"{of}; they are passed over",
        remedy="if they were not read, set it back first: kafka-consumer-groups.sh --reset-offsets --group "
        f"{group} --topic {topic}:{first.partition} --to-offset {to} --execute",
    )]  # fmt: skip
