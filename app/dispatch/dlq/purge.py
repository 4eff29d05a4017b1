"""Purges a DLQ: all letters before a bound, or those that a query chooses.

1. With a bound, Kafka deletes the front of each partition up to it, for ever.
2. With a query, the purge is recorded like a merge (`operation_progress`), so every tool and every later
   merge ignores its letters. Then Kafka deletes the front of each partition up to the first letter that was
   neither purged nor merged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition

from app.dispatch.definition import Workload
from app.dispatch.dlq.merge import Merger, ReportOperation
from app.dispatch.dlq.operation_history import forget, keep, merges_of
from app.dispatch.dlq.operation_progress import OperationProgress, OperationTerms
from app.dispatch.dlq.query import BadQuery
from app.dispatch.dlq.reader import queue_ends, reading
from app.dispatch.dlq.rules import Span, bounded
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.fetch.offsets_at_time import offsets_at
from app.kernel.json_types import JsonObject


async def foresee_purge(
    client: ClusterClient,
    workload: Workload,
    *,
    before_ms: int | None = None,
    before_offsets: Mapping[int, int] | None = None,
    partitions: Collection[int] = (),
) -> JsonObject:
    """The offsets [start, end) of every partition that `purge` would delete.

    Without bounds: everything that is in the log now. With `before_ms`: offsets before the first letter that
    was appended at or after that time. With both bounds: offsets before both.

    Raises:
        NoQueue, BadQuery, ClusterUnreachable
    """
    topic = workload.dlq_topic()
    ends = await queue_ends(client, topic)
    wanted = {p: (0, before) for p, before in (before_offsets or {}).items()}
    spans = bounded(ends, wanted, partitions)
    if before_ms is not None:
        at = await offsets_at(client, [(topic, p) for p in spans], before_ms)
        if len(at) < len(spans):
            raise ClusterUnreachable(f"not every leader of {topic} answered; repeat the request in a moment")
        limits = {p: at[topic, p] for p in spans if at[topic, p] >= 0}  # -1: every letter is older
        spans = {p: (s, min(e, limits.get(p, e))) for p, (s, e) in spans.items()}
        spans = {p: (s, e) for p, (s, e) in spans.items() if s < e}
    operations = await merges_of(client, workload, ends)
    return {
        "topic": topic,
        "offsets": sum(end - start for start, end in spans.values()),
        "partitions": {str(n): {"start": start, "end": end} for n, (start, end) in sorted(spans.items())},
        "unfinished": sorted(name for name, merge in operations.items() if not merge.done),
    }


async def purge(client: ClusterClient, workload: Workload, spans: Mapping[int, Span]) -> dict[int, int]:
    """Deletes everything before the ends of `spans`; returns the partitions' new first offsets.

    Raises:
        NoQueue, BadQuery, KafkaError: The broker refused (authorisation, policy).
    """
    topic = workload.dlq_topic()
    ends = await queue_ends(client, topic)
    for partition, (_, end) in spans.items():
        if partition not in ends or end > ends[partition][1]:
            raise BadQuery(f"partition {partition} does not reach offset {end}; repeat the dry run")
    cut = {p: end for p, (_, end) in spans.items() if end > ends[p][0]}
    if cut:
        admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
        await admin.start()
        try:
            await admin.delete_records(
                {TopicPartition(topic, p): RecordsToDelete(before_offset=end) for p, end in cut.items()}
            )
        finally:
            await admin.close()
    return {p: max(ends[p][0], end) for p, (_, end) in spans.items()}


async def purge_chosen(
    client: ClusterClient,
    workload: Workload,
    operation: str,
    terms: OperationTerms | None = None,
    spans: Mapping[int, Span] | None = None,
    report: ReportOperation | None = None,
) -> JsonObject:
    """Purges the letters of `spans` that `terms` choose, or resumes `operation`. Returns its progress and the
    number of deleted offsets.

    A killed purge can be resumed. If it never is, Kafka forgets it like a merge, and its letters come back.

    Raises:
        The errors of `Merger.run`.
    """
    assert terms is None or terms.purge
    done = await Merger(client, workload, operation, report=report).run(terms, spans)
    await keep(client, workload, done)
    return done.to_json() | {"deleted": await _delete_front(client, workload, done)}


async def _delete_front(client: ClusterClient, workload: Workload, done: OperationProgress) -> int:
    """Deletes purged and merged letters from the front of `done`'s partitions; returns how many offsets."""
    topic = workload.dlq_topic()
    ends = await queue_ends(client, topic)
    operations = await merges_of(client, workload, ends)
    past = [merge.past(certain=True) for merge in operations.values()]
    front: dict[int, Span] = {}
    async with reading(client, topic) as reader:
        for partition in sorted(done.parts.keys() & ends.keys()):  # a recreated queue may have fewer
            first, end = ends[partition]
            until = first
            async for letters, following in reader.chunks(partition, (first, end)):
                stays_at = next((o.offset for o in letters if not any(take.took(o) for take in past)), None)
                until = following if stays_at is None else stays_at
                if stays_at is not None:
                    break
            front[partition] = (first, until)
    firsts = {p: first for p, (first, _) in ends.items()} | await purge(client, workload, front)
    spent = [
        name
        for name, merge in operations.items()
        if merge.terms.purge and all(part.end <= firsts.get(n, 0) for n, part in merge.parts.items())
    ]
    await forget(client, workload, set(spent) - {done.operation})
    return sum(end - start for start, end in front.values())
