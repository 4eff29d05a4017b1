"""Where a moved workload begins in each partition there, and how many messages come again at most.

Rules (tests/dispatch/move/test_mover.py)
1. Where offset syncs join the two topics, they say where the unfinished copies begin
   (`app.offsets.model.translation`). What producers have already written there has no offset sync, so the
   workload begins no later than at the first record of the time of the source's latest one.
2. Otherwise it begins by time (`app.dispatch.move.time_mapping`).
3. Timestamps need not rise with offsets, so `again` is counted and not taken from two offsets by time. By
   rule 2, it is all that is there and older than the oldest unfinished message, and what is finished in the
   source and not older. What there was no time to read counts.
4. The ends there are read before the times, so that messages copied there in between lie behind them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka.errors import KafkaError

from app.dispatch.dlq.rules import Span
from app.dispatch.move.copier import at_times, ends, offsets, read_records
from app.dispatch.move.time_mapping import SourcePartition, latest_times, times
from app.kafka.client.cluster import EARLIEST, ClusterClient, ClusterUnreachable
from app.kafka.records.record import Record
from app.kernel.clock import iso
from app.kernel.json_types import JsonObject
from app.offsets.model.translation import ResumePosition
from app.offsets.store.tables import NotRead
from app.offsets.sync.mapper import NotJoined, OffsetMapper

OFFSET_SYNCS, TIME = "offset syncs", "time"

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
    """`logged`: how many offsets the topic has there."""

    partitions: list[BeginOffset]
    logged: int
    complete: bool

    @property
    def offsets(self) -> list[int]:
        return [begin.offset for begin in self.partitions]

    @property
    def again(self) -> int:
        return sum(begin.again for begin in self.partitions)

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
                since = None if begin.since_ms is None else iso(max(0, begin.since_ms))
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
            await mapper.read()
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
    lasts, firsts = await ends(target, at), await offsets(target, at, EARLIEST)  # rule 4
    logs = [(firsts[place], max(firsts[place], lasts[place])) for place in at]
    found = await map_offsets(source.name, topic, target.name, {s.partition: s.position for s in sources})
    exact = {p: answer for p, answer in found.items() if p < partitions and not answer.why}
    oldest, latest = times(sources, partitions), latest_times(sources, partitions)
    since = [(latest if p in exact else oldest)[p] for p in range(partitions)]
    firsts_since = await at_times(target, topic, [None if t is None else t - margin_ms for t in since])
    by_time = [
        first if t is None else last if offset is None else max(first, min(offset, last))
        for t, offset, (first, last) in zip(since, firsts_since, logs, strict=True)
    ]
    is_paired = len(sources) == partitions
    partners = [[sources[p]] if is_paired else list(sources) for p in range(partitions)]
    # Where nothing is unfinished, the time is the newest finished message's, which comes again.
    bounds = [
        None if p in exact or t is None else t if any(one.behind for one in partners[p]) else t + 1
        for p, t in enumerate(since)
    ]
    spans = {p: (by_time[p], logs[p][1]) for p, bound in enumerate(bounds) if bound is not None}
    older, complete = await _count_older(target, topic, spans, bounds, within_s)
    source_bounds = bounds if is_paired else [next(filter(None, bounds), None)] * len(sources)
    newer = await _finished_newer(source, topic, sources, source_bounds)
    begins: list[BeginOffset] = []
    for p, (first, last) in enumerate(logs):
        above = sum(one.finished_above for one in partners[p])
        if (answer := exact.get(p)) is not None:
            begin = max(first, min(answer.next_offset, by_time[p]))
            reread = answer.reread_messages
            again = last if reread is None else answer.next_offset - begin + reread + above
            again = min(last - begin, again)
        elif all_read:
            begin = by_time[p]
            again = older.get(p, last) + sum(newer[one.partition] for one in partners[p]) + above
            again = min(last - begin, again)
        else:  # it may begin anywhere once all is read
            begin, again = by_time[p], last - first
        since_ms = None if (since_p := since[p]) is None else since_p - margin_ms
        begins.append(BeginOffset(begin, again, since_ms, OFFSET_SYNCS if p in exact else TIME))
    return BeginOffsets(begins, sum(last - first for first, last in logs), complete)


async def _count_older(
    client: ClusterClient,
    topic: str,
    spans: Mapping[int, Span],
    bounds: Sequence[int | None],
    within_s: float | None,
) -> tuple[dict[int, int], bool]:
    """How many records of each span are older than the partition's bound, and whether all were read."""
    older = dict.fromkeys(spans, 0)

    def count(partition: int, records: Sequence[Record]) -> None:
        bound = bounds[partition]
        assert bound is not None
        older[partition] += sum(record.timestamp < bound for record in records)

    reached = await read_records(client, topic, spans, count, lambda *_: None, within_s)
    unread = {p: end - reached[p] for p, (_, end) in spans.items()}
    return {p: count + unread[p] for p, count in older.items()}, not any(unread.values())


async def _finished_newer(
    client: ClusterClient, topic: str, sources: Sequence[SourcePartition], bounds: Sequence[int | None]
) -> list[int]:
    """At most how many finished messages of each source are not older than its bound."""
    firsts = await at_times(client, topic, bounds)
    return [
        0 if first is None else max(0, source.position - max(source.start, first))
        for source, first in zip(sources, firsts, strict=True)
    ]
