"""Copies records again that did not come to the next tier, from where they still are.

    findings of a drill-down --missing only--> read at their places --same records?--> appended downstream

Rules
1. Only what is certainly missing is copied: nothing that waits for its copier, or of which it is not clear.
2. A copy is what the route would have made: key, value, timestamp, the headers that the route keeps or adds,
   in the partition of the same number. Without a route it goes to the same topic, as it is.
3. Into a compacted topic nothing is copied: an old value would become the newest of its key.
4. Who copies has asked right before what is missing: the drill-down reads the whole log behind the window for
   copies made meanwhile. What came behind that is looked at once nobody else can add to it (rule 5): what is
   there is not copied. So a second time, by whomever, copies nothing.
5. Copies into a partition are made in transactions under its own transactional id: who begins aborts what the
   one before has left open, and the brokers refuse whatever that one still sends, though it may believe that
   it leads. Who knows that it does not lead stops before the next transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced
from aiokafka.producer.message_accumulator import BatchBuilder

from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import FindingKind, ObservedRecord
from app.audit.drilldown.prints import PrintReader
from app.audit.drilldown.scan import ScanRange
from app.audit.drilldown.search import SearchResult
from app.audit.drilldown.sides import CopyRoute, NotReadable
from app.kafka.append.encoder import Edit, Headers
from app.kafka.append.transactions import batches_of, one_transaction, transactional
from app.kafka.client.cluster import LATEST, READ_COMMITTED, ClusterClient
from app.kafka.client.topic_configs import TopicSettings, describe
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.batch import ReadCommittedFilter, RecordBatch, iter_batches
from app.kafka.records.record import Record, size_of
from app.replicate.destination.copy_headers import HeaderEdit

if TYPE_CHECKING:
    from app.worker.runtime.service import Runtime

MAX_BYTES, KAFKA_MAX_BYTES = "max.message.bytes", 1_048_588
NEAR_OFFSETS = 2_000  # offsets: what lies so close is read at once
OPEN_TRANSACTION_TIMEOUT_S = 60.0  # until what others have open in the partition has ended
VISIBLE_TIMEOUT_S = 10.0  # until what was copied is shown to those who read
COPY_POLL_INTERVAL_S = 0.2
# of a transaction: records at most, and of how many bytes about
RECORDS_PER_TRANSACTION, BYTES_PER_TRANSACTION = 1_000, 4 << 20

ReportProgress = Callable[[dict[str, Any]], None]


_turns: WeakValueDictionary[ClusterPartition, asyncio.Lock] = WeakValueDictionary()


class NotLeading(RuntimeError):
    """Another one copies now, or may: what was copied here stays, the rest was not."""


class RepairTarget(NamedTuple):
    """Where a partition's records are copied to, and how."""

    copy_route: CopyRoute
    place: ClusterPartition
    edit: Edit | None


def wanted(answer: SearchResult) -> dict[ClusterPartition, dict[int, ObservedRecord]]:
    """What is to be copied: by partition and offset upstream (rule 1)."""
    found: dict[ClusterPartition, dict[int, ObservedRecord]] = {}
    for one in answer.findings:
        if one.kind is FindingKind.MISSING and one.source is not None:
            found.setdefault(one.source.place, {})[one.source.offset] = one.source
    return found


def targets(answer: SearchResult) -> dict[ClusterPartition, RepairTarget]:
    """Where to, by partition upstream (rule 2).

    Raises:
        NotReadable: it is not known where to.
    """
    if not answer.sides.upstream or not answer.sides.downstream:
        raise NotReadable("clients keep no log: nothing can be copied to their tiers, nor from them")
    found: dict[ClusterPartition, RepairTarget] = {}
    ids = {one.cluster: one.cluster_id for one in (*answer.sides.upstream, *answer.sides.downstream)}
    for place in wanted(answer):
        copiers = [c for c in answer.sides.copiers if (c.source, c.topic) == (place.cluster, place.topic)]
        if len({(c.target, c.target_topic) for c in copiers}) != 1:
            names = ", ".join(f"{c.target_topic} in {c.target}" for c in copiers)
            raise NotReadable(f"{place.topic} of {place.cluster} is copied to several topics ({names})")
        copier = copiers[0]
        into = ClusterPartition(copier.target, copier.target_topic, place.partition)
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
        found[place] = RepairTarget(copier, into, _edit(copier, place, ids))
    return found


def _edit(copy_route: CopyRoute, place: ClusterPartition, ids: Mapping[str, str]) -> Edit | None:
    definition = copy_route.definition
    if definition is None:
        return None
    keeps, provenance = definition.keeps_header(), definition.spec.headers.provenance
    if keeps is None and not provenance:
        return None
    source = f"{ids[copy_route.source] or copy_route.source}/{place.topic}"
    target = f"{ids[copy_route.target] or copy_route.target}/{copy_route.target_topic}"
    return HeaderEdit(definition.key, source, place.partition, target, keeps, provenance=provenance)


async def copy_again(
    runtime: Runtime, answer: SearchResult, report_progress: ReportProgress
) -> dict[str, int]:
    """Copies; how many were `copied`, how many were `there` already, and how many `left`, as they are gone or
    cannot be read.

    Raises:
        NotReadable: it is not known where to. NotLeading: another worker may copy now. ClusterUnreachable,
        KafkaError, TimeoutError: not all of them are there; what is there stays.
    """
    to, asked = targets(answer), wanted(answer)
    copied = there = 0
    of = sum(map(len, asked.values()))
    for into, places in _by_target(to).items():
        cluster = await runtime.clusters.get(into.cluster)
        most_bytes = await _max_bytes(cluster.client, into.topic)
        try:
            async with _turn(into), _alone(cluster.client, into, most_bytes) as producer:
                last = -1
                known = await _there(
                    _part(answer, into), [one for at in places for one in asked[at].values()]
                )
                there += len(known)
                for place in places:
                    left = {
                        offset: one for offset, one in asked[place].items() if (place, offset) not in known
                    }
                    found = _records(_part(answer, place), left)
                    async for rows, codec in _chunks(found, to[place].edit):
                        if not runtime.leader.leads:
                            raise NotLeading(
                                f"this worker does not lead the region any more; {copied} of {of} records "
                                "were copied: ask the leader again"
                            )
                        last = await _append(producer, into, batches_of(rows, codec, most_bytes))
                        copied += len(rows)
                    report_progress({"step": "copying", "looked_at": copied + there, "of": of})
            if last >= 0:
                await _shown(cluster.client, into, last)
        except ProducerFenced as error:
            raise NotLeading(
                f"another one copies into {into} now; {copied} of {of} records were copied before: "
                "see what is missing then"
            ) from error
    return {"copied": copied, "there": there, "left": of - copied - there}


def _by_target(to: Mapping[ClusterPartition, RepairTarget]) -> dict[ClusterPartition, list[ClusterPartition]]:
    """Partitions upstream by the one that they are copied to: what is there already of all of them is looked
    at together, before any is copied, as one's copies would look like another's."""
    found: dict[ClusterPartition, list[ClusterPartition]] = {}
    for place, target in to.items():
        found.setdefault(target.place, []).append(place)
    return found


def _part(answer: SearchResult, place: ClusterPartition) -> ScanRange:
    return next(one for one in answer.sides.parts if one.reader.place == place)


# -- alone -----------------------------------------------------------------------------------------------


def _turn(place: ClusterPartition) -> asyncio.Lock:
    """Those of this worker come one after the other: they would end each other."""
    return _turns.setdefault(place, asyncio.Lock())


def _alone(
    client: ClusterClient, place: ClusterPartition, most_bytes: int
) -> AbstractAsyncContextManager[AIOKafkaProducer]:
    """Rule 5."""
    name = f"switchyard-copy-again/{place.topic}/{place.partition}"
    return transactional(client, name, max_request_bytes=2 * most_bytes)


async def _there(part: ScanRange, seen: Collection[ObservedRecord]) -> set[tuple[ClusterPartition, int]]:
    """Which of them, by place and offset, came into the copy's partition behind what the drill-down has read
    of it.

    Raises:
        NotReadable: that cannot be told.
    """
    place = part.reader.place
    end = await _settled_end(part.client, place)
    if end < part.log_end:
        raise NotReadable(f"{place} has lost its end since it was read; ask again what is missing")
    found: list[ObservedRecord] = []
    contents = {one.contents: 1 for one in seen}
    async for piece in read_span(part.client, place.topic, place.partition, part.log_end, end):
        if piece.damage:
            raise NotReadable(f"what came into {place} meanwhile cannot be read: {piece.damage}")
        found += await asyncio.to_thread(part.reader.seen, piece, None, contents)
    return copied_already(seen, found)


def copied_already(
    asked: Iterable[ObservedRecord], copies: Iterable[ObservedRecord]
) -> set[tuple[ClusterPartition, int]]:
    """Which of these records the copies are of: by where they come from, if that is known, else the first of
    the same contents. A copy stands for one record."""
    left: dict[int, list[tuple[ClusterPartition, int]]] = {}
    for one in sorted(asked, key=lambda one: (one.place, one.offset)):
        left.setdefault(one.contents, []).append((one.place, one.offset))
    found: set[tuple[ClusterPartition, int]] = set()
    for copy in copies:
        places = left.get(copy.contents, [])
        may_be = [at for at in places if copy.origin is None or copy.origin.may_be(*at)]
        if may_be:
            places.remove(may_be[0])
            found.add(may_be[0])
    return found


async def _settled_end(client: ClusterClient, place: ClusterPartition) -> int:
    """Where the log ends, once no transaction hides what is there.

    Raises:
        TimeoutError: one does, for `OPEN_TRANSACTION_TIMEOUT_S`, or nobody tells.
    """
    at, deadline_s = (place.topic, place.partition), time.monotonic() + OPEN_TRANSACTION_TIMEOUT_S
    high = (await client.offsets([at], LATEST)).get(at)
    while time.monotonic() < deadline_s:
        end = (await client.offsets([at], LATEST, READ_COMMITTED)).get(at, -1)
        if high is not None and end >= high:
            return end
        await asyncio.sleep(COPY_POLL_INTERVAL_S)
        high = high if high is not None else (await client.offsets([at], LATEST)).get(at)
    raise TimeoutError(
        f"an open transaction hides the end of {place}, or its leader does not answer: what is there already "
        "cannot be told; ask again once it has ended"
    )


async def _append(producer: AIOKafkaProducer, place: ClusterPartition, batches: list[BatchBuilder]) -> int:
    """All of them, or none; where the last batch begins in the log."""
    async with one_transaction(producer):
        sent = [await producer.send_batch(batch, place.topic, partition=place.partition) for batch in batches]
        return max(int(one.offset) for one in await asyncio.gather(*sent))


async def _shown(client: ClusterClient, place: ClusterPartition, offset: int) -> None:
    """Waits until who reads what is committed gets what was copied there: brokers say that a transaction is
    committed before its partitions know, and who asks then what is missing would be told the same again.
    Others' transactions may hide it for longer; that is theirs to end."""
    at, deadline_s = (place.topic, place.partition), time.monotonic() + VISIBLE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if (await client.offsets([at], LATEST, READ_COMMITTED)).get(at, -1) > offset:
            return
        await asyncio.sleep(COPY_POLL_INTERVAL_S)


async def _max_bytes(client: Any, topic: str) -> int:
    found = (await describe(client, [topic], [MAX_BYTES])).get(topic)
    return int(found.config[MAX_BYTES]) if isinstance(found, TopicSettings) else KAFKA_MAX_BYTES


# -- what is copied --------------------------------------------------------------------------------------


def runs_of(seen: Mapping[int, ObservedRecord]) -> list[dict[int, ObservedRecord]]:
    """All of them, by offset, in runs without long gaps. A batch may hold some of several runs: of each run
    only its own are copied."""
    found: list[dict[int, ObservedRecord]] = []
    last = -NEAR_OFFSETS - 1
    for offset in sorted(seen):
        if offset - last > NEAR_OFFSETS:
            found.append({})
        found[-1][offset] = seen[offset]
        last = offset
    return found


async def _records(
    part: ScanRange, seen: Mapping[int, ObservedRecord]
) -> AsyncIterator[tuple[list[Record], int]]:
    """Those of them that are there still, with their batches' compression."""
    place = part.reader.place
    for run in runs_of(seen):
        start, end = min(run), max(run) + 1
        async for piece in read_span(part.client, place.topic, place.partition, start, end):
            shown = ReadCommittedFilter(piece.aborted)
            for batch in iter_batches(piece.data):
                header = batch.header
                if shown.shows(batch) and piece.start < header.next_offset and header.base_offset < end:
                    some = same_of(batch, run, part.reader)
                    if some:
                        yield some, header.compression


def same_of(batch: RecordBatch, seen: Mapping[int, ObservedRecord], reader: PrintReader) -> list[Record]:
    """Those records of the batch that are what was found at their offsets."""
    header = batch.header
    if not any(header.base_offset <= offset < header.next_offset for offset in seen):
        return []
    try:
        return [
            record
            for record in records_of(batch)
            if record.offset in seen and reader.contents_of(record) == seen[record.offset].contents
        ]
    except Exception:  # noqa: BLE001 - decoders raise what they like; it is told as left
        return []


async def _chunks(
    found: AsyncIterable[tuple[list[Record], int]], edit: Edit | None
) -> AsyncIterator[tuple[list[tuple[Record, Headers]], int]]:
    """As many as go in one transaction each, of one compression, with the headers of their copies: missing
    records are often one here and one there, and a transaction takes its time."""
    rows: list[tuple[Record, Headers]] = []
    rows_codec = nbytes = 0
    async for records, codec in found:
        for record in records:
            headers = edit(record.offset, record.headers) if edit else record.headers
            if headers is None:
                continue
            if rows and (
                codec != rows_codec or len(rows) >= RECORDS_PER_TRANSACTION or nbytes >= BYTES_PER_TRANSACTION
            ):
                yield rows, rows_codec
                rows, nbytes = [], 0
            rows.append((record, headers))
            rows_codec = codec
            nbytes += size_of(record)
    if rows:
        yield rows, rows_codec
