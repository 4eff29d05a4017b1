"""Turns answers of the offset map into partitions and checks of a failover plan. Pure.

Of the messages that are read again, it counts those that the other region is known to have finished.
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
    """A partition of the plan.

    `done`: the finished offsets, by source. `names`: cluster names, by id. `own`: the end of what this region
    has finished itself, and does not read again.
    """
    at = max(answer.next_offset, own or 0)
    sources = [_source(reading, answer, joined, done, names, at) for reading in answer.sources]
    counts = [one.again for one in sources]
    again = None if answer.reread_messages is None or None in counts else sum(count or 0 for count in counts)
    return PlannedPartition(
        partition=answer.partition, mapped=answer.next_offset, log_end=answer.log.end, again=again,
        passed_over=sum(one.passed_over for one in sources), why=answer.why, sources=sources,
        least="" if answer.least is None else _place(answer.least, names),
    )  # fmt: skip


def _source(
    reading: SourceReading,
    answer: ResumePosition,
    joined: JoinedTopics,
    done: Mapping[Hashable, SourceFinished],
    names: Mapping[str, str],
    at: int,
) -> PlannedSource:
    source, passed_over, again = reading.source, 0, reading.reread_messages
    known = done.get(source)
    if again:
        begins = _begins(reading, joined, at)
        again = max(0, again + _begins(reading, joined, answer.next_offset) - begins)
        if known is not None:
            passed_over = _overlap(((0, known.offsets.base), *known.offsets.finished), begins, begins + again)
    return PlannedSource(
        cluster=names.get(source.cluster_id, source.cluster_id), topic=source.topic,
        partition=source.partition, read_up_to=reading.k, next_offset=reading.x, again=again,
        passed_over=passed_over, why=reading.why,
    )  # fmt: skip


def _begins(reading: SourceReading, joined: JoinedTopics, at: int) -> int:
    """The end of the source's records that lie below `at` here."""
    if joined.relation is TopicRelation.BACK:
        return at
    ends = reading.source, reading.region, reading.route
    line = next(c.line for c in joined.into_to if (c.source, c.region, c.route) == ends)
    return line.read_up_to(at) or 0


def _overlap(spans: Iterable[Range], start: int, end: int) -> int:
    return sum(max(0, min(end, before) - max(start, after)) for after, before in spans)


def _place(place: CopiedPartition, names: Mapping[str, str]) -> str:
    return f"{names.get(place.cluster_id, place.cluster_id)}/{place.topic}-{place.partition}"


def away(rows: Sequence[PlannedPartition]) -> list[Check]:
    """Warns of sources that do not answer. Their counts are as of their last report."""
    gone = [one for row in rows for one in row.routes if not one.reachable]
    found = []
    for cluster, region in sorted({(one.cluster, one.region) for one in gone}):
        counts = [one.records for one in gone if one.cluster == cluster]
        count = sum(count or 0 for count in counts)
        words = (
            f"at least {count} of its records are not here, and how many more is not known"
            if None in counts
            else f"{count} or more of its records are not here"
        )
        found.append(Check(
            name="sources", level="warn", detail=f"{cluster} does not answer: {words}",
            remedy=f"they arrive once region {region} returns; nothing else waits for them",
        ))  # fmt: skip
    return found


def passed_by(rows: Sequence[PlannedPartition], group: str, topic: str) -> list[Check]:
    """Warns of foreign commits here that are beyond the other region's position.

    Delivery skips the messages in between, and no worker knows whether they were read.
    """
    found = [
        row for row in rows if row.own_is_foreign and (row.mapped is None or row.mapped < (row.own or 0))
    ]
    if not found:
        return []
    first = found[0]
    of = f"partition {first.partition}: group {group} is at {first.own} here, which Switchyard did not commit"
    counts = [None if row.mapped is None or row.own is None else row.own - row.mapped for row in found]
    if first.mapped is None:
        of += ", and its position in the other region is not known"
    else:
        of += f", {counts[0]} records beyond {first.mapped}, its position in the other region"
    if len(found) > 1:
        known = "" if None in counts else f", {sum(count or 0 for count in counts)} records in all"
        of += f"; {len(found) - 1} more partitions are like this{known}"
    to = "NEW_OFFSET" if first.mapped is None else first.mapped
    return [Check(
        name="own-positions", level="warn", detail=f"{of}; delivery skips them",
        remedy="if nobody read them, set it back first: kafka-consumer-groups.sh --reset-offsets --group "
        f"{group} --topic {topic}:{first.partition} --to-offset {to} --execute",
    )]  # fmt: skip
