"""Copies records again that did not come to the next tier, from where they still are.

    findings of a drill-down --missing only--> read at their places --same records?--> appended downstream

Rules
1. Only what is certainly missing is copied: nothing that waits for its copier, or of which it is not clear.
2. A copy is what the route would have made: key, value, timestamp, the headers that the route keeps or adds,
   in the partition of the same number. Without a route it goes to the same topic, as it is.
3. Into a compacted topic nothing is copied: an old value would become the newest of its key.
4. Who copies has asked right before what is missing (the drill-down reads the whole log behind the window for
   copies made meanwhile), and nobody else copies at the same time: so a second time copies nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from app.audit.prints import Reader
from app.control.audit_missing import Answer
from app.control.audit_sides import Copier, NotReadable
from app.core.audit.missing import Kind, Seen
from app.core.audit.origins import Partition
from app.core.record_batch import Batch, Committed, iter_batches
from app.kafka.append import Appender
from app.kafka.append_encode import Edit, Headers, reencoded
from app.kafka.append_lane import Lane
from app.kafka.decode import records_of
from app.kafka.read_span import read_span
from app.kafka.topic_configs import TopicSettings, describe
from app.replica.headers import HeaderEdit

if TYPE_CHECKING:
    from app.control.runtime import Runtime

MAX_BYTES, KAFKA_MAX_BYTES = "max.message.bytes", 1_048_588
NEAR = 2_000  # offsets: what lies so close is read at once
PATIENCE_S = 60.0  # of a partition's copies, until all in-sync replicas have them

Tell = Callable[[dict[str, Any]], None]


class Target(NamedTuple):
    """Where a partition's records are copied to, and how."""

    copier: Copier
    place: Partition
    edit: Edit | None


def wanted(answer: Answer) -> dict[Partition, dict[int, Seen]]:
    """What is to be copied: by partition and offset upstream (rule 1)."""
    found: dict[Partition, dict[int, Seen]] = {}
    for one in answer.findings:
        if one.kind is Kind.MISSING and one.source is not None:
            found.setdefault(one.source.place, {})[one.source.offset] = one.source
    return found


def targets(answer: Answer) -> dict[Partition, Target]:
    """Where to, by partition upstream (rule 2).

    Raises:
        NotReadable: it is not known where to.
    """
    if not answer.sides.upstream or not answer.sides.downstream:
        raise NotReadable("clients keep no log: nothing can be copied to their tiers, nor from them")
    found: dict[Partition, Target] = {}
    ids = {one.cluster: one.cluster_id for one in (*answer.sides.upstream, *answer.sides.downstream)}
    for place in wanted(answer):
        copiers = [c for c in answer.sides.copiers if (c.source, c.topic) == (place.cluster, place.topic)]
        if len({(c.target, c.target_topic) for c in copiers}) != 1:
            names = ", ".join(f"{c.target_topic} in {c.target}" for c in copiers)
            raise NotReadable(f"{place.topic} of {place.cluster} is copied to several topics ({names})")
        copier = copiers[0]
        into = Partition(copier.target, copier.target_topic, place.partition)
        topic = next(one for one in answer.sides.downstream if (one.cluster, one.name) == into[:2])
        if topic.is_compacted:
            raise NotReadable(
                f"topic {into.topic} in {into.cluster} is compacted: copied again, an old value would be the "
                "newest of its key; let its producer write what is missing"
            )
        if into.partition >= topic.partitions:
            raise NotReadable(
                f"topic {into.topic} in {into.cluster} has {topic.partitions} partitions, and no "
                f"{into.partition}: give it as many as {place.topic} in {place.cluster} has"
            )
        found[place] = Target(copier, into, _edit(copier, place, ids))
    return found


def _edit(copier: Copier, place: Partition, ids: Mapping[str, str]) -> Edit | None:
    definition = copier.definition
    if definition is None:
        return None
    keeps, provenance = definition.keeps_header(), definition.spec.headers.provenance
    if keeps is None and not provenance:
        return None
    source = f"{ids[copier.source] or copier.source}/{place.topic}"
    target = f"{ids[copier.target] or copier.target}/{copier.target_topic}"
    return HeaderEdit(definition.key, source, place.partition, target, keeps, provenance=provenance)


async def copy_again(runtime: Runtime, answer: Answer, tell: Tell) -> dict[str, int]:
    """Copies; how many were `copied`, and how many `left`, as they are not there any more or cannot be read.

    Raises:
        NotReadable: it is not known where to. ClusterUnreachable, KafkaError, AppendError, TimeoutError: not
        all of them are there; what is there stays.
    """
    to, asked = targets(answer), wanted(answer)
    copied = 0
    of = sum(map(len, asked.values()))
    for place, seen in asked.items():
        target = to[place]
        cluster = await runtime.clusters.get(target.place.cluster)
        part = next(one for one in answer.sides.parts if one.reader.place == place)
        lane = await _lane(cluster.appender, target.place)
        try:
            waiting: list[asyncio.Future[int]] = []
            most_bytes = await _max_bytes(cluster.client, target.place.topic)
            for run in runs_of(seen):
                async for batch in _batches(part.client, place, (min(run), max(run) + 1)):
                    there = same_of(batch, run, part.reader)
                    for data, count in _encoded(batch, there, target.edit, most_bytes):
                        waiting.append(await lane.append(data, count))
                        copied += count
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*waiting)
        finally:
            lane.close()
        tell({"step": "copying", "looked_at": copied, "of": of})
    return {"copied": copied, "left": of - copied}


async def _lane(appender: Appender, place: Partition) -> Lane:
    async with asyncio.timeout(PATIENCE_S):
        return await appender.lane(place.topic, place.partition)


async def _max_bytes(client: Any, topic: str) -> int:
    found = (await describe(client, [topic], [MAX_BYTES])).get(topic)
    return int(found.config[MAX_BYTES]) if isinstance(found, TopicSettings) else KAFKA_MAX_BYTES


def runs_of(seen: Mapping[int, Seen]) -> list[dict[int, Seen]]:
    """All of them, by offset, in runs without long gaps. A batch may hold some of several runs: of each run
    only its own are copied."""
    found: list[dict[int, Seen]] = []
    last = -NEAR - 1
    for offset in sorted(seen):
        if offset - last > NEAR:
            found.append({})
        found[-1][offset] = seen[offset]
        last = offset
    return found


async def _batches(client: Any, place: Partition, run: tuple[int, int]) -> Any:
    async for piece in read_span(client, place.topic, place.partition, *run):
        shown = Committed(piece.aborted)
        for batch in iter_batches(piece.data):
            header = batch.header
            if shown.shows(batch) and piece.start < header.next_offset and header.base_offset < run[1]:
                yield batch


def same_of(batch: Batch, seen: Mapping[int, Seen], reader: Reader) -> set[int]:
    """Those offsets of the batch that hold what was found there."""
    header = batch.header
    if not any(header.base_offset <= offset < header.next_offset for offset in seen):
        return set()
    try:
        records = list(records_of(batch))
    except Exception:  # noqa: BLE001 - decoders raise what they like; it is told as left
        return set()
    return {
        record.offset
        for record in records
        if record.offset in seen and reader.contents_of(record) == seen[record.offset].contents
    }


def _encoded(batch: Batch, offsets: set[int], edit: Edit | None, most_bytes: int) -> list[tuple[Any, int]]:
    """These records of a batch, in batches of their own."""
    if not offsets:
        return []

    def only(offset: int, headers: Headers) -> Headers | None:
        if offset not in offsets:
            return None
        return edit(offset, headers) if edit is not None else headers

    return [(copy.data, copy.record_count) for copy in reencoded(batch, min(offsets), most_bytes, only)]
