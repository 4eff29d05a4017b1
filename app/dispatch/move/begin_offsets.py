"""Where a moved workload begins in each partition there, and how many messages are delivered again at most.

Rules (tests/dispatch/move/test_mover.py)
1. Where offset syncs join the two topics, they say where the unfinished copies begin
   (`app.offsets.model.translation`). Records that producers have already written there have no offset sync,
   so the workload begins no later than at the first record of the time of the source's latest one.
2. Otherwise it begins by time (`app.dispatch.move.time_mapping`).
3. By rule 2, `again` counts the finished messages of the source from the first one of that time on. Their
   timestamps need not rise, so it adds the records there behind the start that are older, or that have the
   log's time. What there was no time to read counts too.
4. Where the copies have not come so far, all finished messages of the source count: they may still be copied.
   Where the source has deleted finished ones of that time, all that is there behind the start counts.
5. The ends there are read before the times, so that messages copied there in between lie behind them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka.errors import KafkaError

from app.dispatch.dlq.rules import Span
from app.dispatch.move.copier import LOG_APPEND_TIME, TimedRecord, at_times, ends, offsets, read_records
from app.dispatch.move.time_mapping import SourcePartition, latest_times, times
from app.kafka.client.cluster import EARLIEST, ClusterClient, ClusterUnreachable
from app.kernel.clock import iso
from app.kernel.json_types import JsonObject
from app.offsets.model.translation import ResumePosition
from app.offsets.store.tables import NotRead
from app.offsets.sync.mapper import NotJoined, OffsetMapper

OFFSET_SYNCS, TIME = "offset syncs", "time"
MAP_TIMEOUT_S = 3.0

# The exact positions in cluster `to` (a name) of a reader of `topic` in cluster `read_at`, from its next
# offsets; {}: nothing joins the topics.
MapOffsets = Callable[[str, str, str, dict[int, int]], Awaitable[dict[int, ResumePosition]]]


@dataclass(frozen=True, slots=True)
class BeginOffset:
    """`again`: at most so many finished messages are delivered again. `since_ms`: the time of rule 1 or 2,
    less the margin; None: it begins at the log's start. `by`: `OFFSET_SYNCS` or `TIME`."""

    offset: int
    again: int
    since_ms: int | None
    by: str


@dataclass(frozen=True, slots=True)
class BeginOffsets:
    """`logged`: how many offsets the topic has there. `is_behind`: copies have not come to the time of a
    partition's start."""

    partitions: list[BeginOffset]
    logged: int
    complete: bool
    is_behind: bool

    @property
    def again(self) -> int:
        return sum(begin.again for begin in self.partitions)

    @property
    def offsets(self) -> list[int]:
        return [begin.offset for begin in self.partitions]

    def rows(self, sources: Sequence[SourcePartition]) -> list[JsonObject]:
        """A row per partition, of either topic."""
        rows: list[JsonObject] = []
        for p in range(max(len(sources), len(self.partitions))):
            row: JsonObject = {"partition": p, "position": None, "end": None, "unfinished": None}
            if p < len(sources):
                source = sources[p]
                row |= {"position": source.position, "end": source.end, "unfinished": source.unfinished}
            row |= {"since": None, "to": None, "again": None, "by": None}
            if p < len(self.partitions):
                begin = self.partitions[p]
                since = None if begin.since_ms is None else iso(begin.since_ms)
                row |= {"since": since, "to": begin.offset, "again": begin.again, "by": begin.by}
            rows.append(row)
        return rows


async def not_joined(*_: object) -> dict[int, ResumePosition]:
    """For a worker without the offset syncs of regions."""
    return {}


def by_offset_syncs(mapper: OffsetMapper) -> MapOffsets:
    async def mapped(
        read_at: str, topic: str, to: str, next_offsets: dict[int, int]
    ) -> dict[int, ResumePosition]:
        try:
            await mapper.read(MAP_TIMEOUT_S)
            (joined,) = await mapper.join(read_at, topic, to, topic)
        except (NotJoined, NotRead, ClusterUnreachable, KafkaError, ValueError):
            return {}
        return joined.resume(next_offsets).answers

    return mapped


async def find_begin_offsets(
    source: ClusterClient,
    target: ClusterClient,
    topic: str,
    sources: Sequence[SourcePartition],
    partitions: int,
    margin_ms: int,
    map_offsets: MapOffsets,
    report_progress: Callable[[int, int], None],
    within_s: float | None,
    *,
    all_read: bool,
) -> BeginOffsets:
    """Finds them for sources of which all was read (`read_times`), or not; reads what is there for at most
    `within_s`.

    Raises:
        ClusterUnreachable, KafkaError, TimeoutError.
    """
    at = [(topic, p) for p in range(partitions)]
    lasts, firsts = await ends(target, at), await offsets(target, at, EARLIEST)  # rule 5
    logs = [(firsts[place], max(firsts[place], lasts[place])) for place in at]
    found = await map_offsets(source.name, topic, target.name, {s.partition: s.position for s in sources})
    exact = {p: answer for p, answer in found.items() if p < partitions and not answer.why}
    oldest, latest = times(sources, partitions), latest_times(sources, partitions)
    # The margin counts here, so that all later steps have the time that is asked for.
    since = [
        None if (t := (latest if p in exact else oldest)[p]) is None else max(0, t - margin_ms)
        for p in range(partitions)
    ]
    begins_by_time = await at_times(target, topic, since)
    by_time = [
        first if since_ms is None else last if offset is None else max(first, min(offset, last))
        for since_ms, offset, (first, last) in zip(since, begins_by_time, logs, strict=True)
    ]
    spans = {
        p: (by_time[p], logs[p][1]) for p in range(partitions) if p not in exact and since[p] is not None
    }
    older, complete = await _count_older(target, topic, spans, since, report_progress, within_s)

    is_paired = len(sources) == partitions
    in_time = [since[p] for p in range(partitions) if p not in exact and since[p] is not None]
    of_sources = since if is_paired else [next(iter(in_time), None)] * len(sources)
    newer = await _count_newer(source, topic, sources, of_sources)
    begins: list[BeginOffset] = []
    for p, (first, last) in enumerate(logs):
        partners = [sources[p]] if is_paired else sources
        finished = sum(one.position - one.start + one.finished_above for one in partners)
        if (answer := exact.get(p)) is not None:
            begin, by = max(first, min(answer.next_offset, by_time[p])), OFFSET_SYNCS
            reread = answer.reread_messages
            above = sum(one.finished_above for one in partners)
            again = finished if reread is None else answer.next_offset - begin + reread + above
        else:
            begin, by = by_time[p], TIME
            counts = [newer[one.partition] for one in partners]
            again = older.get(p, 0) + sum(count.messages for count in counts)
            if not all_read or begins_by_time[p] is None:  # rule 4
                again = finished
            if since[p] is None or any(count.is_cut for count in counts):
                again = max(again, last - begin)
        begins.append(BeginOffset(begin, again, since[p], by))
    is_behind = any(begins_by_time[p] is None for p in spans)
    return BeginOffsets(begins, sum(last - first for first, last in logs), complete, is_behind)


class _Newer(NamedTuple):
    """Finished messages of a source that are not older than a time. `is_cut`: its log, which begins with one,
    has deleted earlier ones."""

    messages: int
    is_cut: bool


async def _count_older(
    client: ClusterClient,
    topic: str,
    spans: Mapping[int, Span],
    since: Sequence[int | None],
    report_progress: Callable[[int, int], None],
    within_s: float | None,
) -> tuple[dict[int, int], bool]:
    """How many records of each span may be copies of older ones, and whether all were read."""
    older = dict.fromkeys(spans, 0)

    def count(partition: int, records: Sequence[TimedRecord]) -> None:
        since_ms = since[partition]
        assert since_ms is not None
        older[partition] += sum(
            record.timestamp < since_ms or record.timestamp_type == LOG_APPEND_TIME for record in records
        )

    reached = await read_records(client, topic, spans, count, report_progress, within_s)
    unread = {p: end - reached[p] for p, (_, end) in spans.items()}
    return {p: count + unread[p] for p, count in older.items()}, not any(unread.values())


async def _count_newer(
    client: ClusterClient, topic: str, sources: Sequence[SourcePartition], since: Sequence[int | None]
) -> list[_Newer]:
    """Upper limits, because later messages may be older."""
    counts = []
    for source, found in zip(sources, await at_times(client, topic, since), strict=True):
        first = source.position if found is None else max(source.start, found)
        is_cut = found is not None and 0 < source.start >= first
        counts.append(_Newer(source.finished_above + max(0, source.position - first), is_cut))
    return counts
