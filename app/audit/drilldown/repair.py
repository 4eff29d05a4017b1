"""Copies records again that did not come to the next tier, from where they still are.

    findings of a drill-down --missing only--> read at their places --same records?--> appended downstream

Rules
1. Only what is certainly missing is copied: nothing that waits for its copier, or of which it is not clear.
2. A copy is what the route would have made: key, value, timestamp, the headers that the route keeps or adds,
   in the partition of the same number. Without a route it goes to the same topic, as it is.
3. Into a compacted topic nothing is copied: an old value would become the newest of its key.
4. Who copies has asked right before what is missing: the drill-down reads the whole log behind the window for
   copies made meanwhile. What came behind that is looked at once nobody else can add to it
   (`partition_repair`). So a second time, by whomever, copies nothing.
5. A record that the destination refuses is named and counted, and holds up no other.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka.errors import ProducerFenced

from app.audit.drilldown.copy_origins import ClusterPartition
from app.audit.drilldown.findings import FindingKind, ObservedRecord
from app.audit.drilldown.partition_repair import NAMED_REFUSED, PartitionRepair, RefusedCopy, repairing
from app.audit.drilldown.prints import PrintReader
from app.audit.drilldown.scan import ScanRange
from app.audit.drilldown.search import SearchResult
from app.audit.drilldown.sides import CopyRoute, NotReadable
from app.kafka.append.encoder import Edit, Headers
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.batch import ReadCommittedFilter, RecordBatch, iter_batches
from app.kafka.records.record import Record, size_of
from app.replicate.destination.copy_headers import HeaderEdit

if TYPE_CHECKING:
    from app.worker.runtime.service import Runtime

NEAR_OFFSETS = 2_000  # offsets: what lies so close is read at once
# of a transaction: records at most, and of how many bytes about
RECORDS_PER_TRANSACTION, BYTES_PER_TRANSACTION = 1_000, 4 << 20

ReportProgress = Callable[[dict[str, Any]], None]


class NotLeading(RuntimeError):
    """Another one copies now, or may: what was copied here stays, the rest was not."""


class CopiedAgain(NamedTuple):
    """How many records were `copied`, how many were `there` already, how many are `left`, as they are gone or
    cannot be read, and how many the destination `refused`; the first of these by name."""

    copied: int
    there: int
    left: int
    refused: int
    refused_records: tuple[RefusedCopy, ...]

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        records = [
            {**one.place._asdict(), "offset": one.offset, "why": one.why} for one in self.refused_records
        ]
        return {**self._asdict(), "refused_records": records}


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


async def copy_again(runtime: Runtime, answer: SearchResult, report_progress: ReportProgress) -> CopiedAgain:
    """Copies.

    Raises:
        NotReadable: it is not known where to. NotLeading: another worker may copy now. ClusterUnreachable,
        KafkaError, TimeoutError: not all of them are there; what is there stays.
    """
    to, asked = targets(answer), wanted(answer)
    of = sum(map(len, asked.values()))
    begun: list[PartitionRepair] = []

    def copied() -> int:
        return sum(one.copied for one in begun)

    def go_on() -> None:
        tell()
        if not runtime.leader.leads:
            raise NotLeading(
                f"this worker does not lead the region any more; {copied()} of {of} records "
                "were copied: ask the leader again"
            )

    def tell() -> None:
        looked_at = sum(one.copied + one.refused + len(one.there) for one in begun)
        report_progress({"step": "copying", "looked_at": looked_at, "of": of})

    for into, places in _by_target(to).items():
        cluster = await runtime.clusters.get(into.cluster)
        lacks = [one for at in places for one in asked[at].values()]
        try:
            async with repairing(cluster.client, _part(answer, into), lacks, go_on) as repair:
                begun.append(repair)
                for place in places:
                    found = _records(_part(answer, place), repair.left_of(asked[place]))
                    async for rows, codec in _chunks(found, to[place].edit):
                        await repair.add(place, rows, codec)
            tell()
            await repair.shown()
        except ProducerFenced as error:
            raise NotLeading(
                f"another one copies into {into} now; {copied()} of {of} records were copied before: "
                "see what is missing then"
            ) from error
    there, refused = sum(len(one.there) for one in begun), sum(one.refused for one in begun)
    named = [one for repair in begun for one in repair.first_refused]
    return CopiedAgain(
        copied(), there, of - copied() - there - refused, refused, tuple(named[:NAMED_REFUSED])
    )


def _by_target(to: Mapping[ClusterPartition, RepairTarget]) -> dict[ClusterPartition, list[ClusterPartition]]:
    """Partitions upstream by the one that they are copied to: what is there already of all of them is looked
    at together, before any is copied, as one's copies would look like another's."""
    found: dict[ClusterPartition, list[ClusterPartition]] = {}
    for place, target in to.items():
        found.setdefault(target.place, []).append(place)
    return found


def _part(answer: SearchResult, place: ClusterPartition) -> ScanRange:
    return next(one for one in answer.sides.parts if one.reader.place == place)


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
            headers = edit(record) if edit else record.headers
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
