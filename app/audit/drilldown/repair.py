"""Copies missing records to the next tier again, from where they still are.

    findings of a drill-down --missing only--> read at their places --same records?--> appended downstream

Rules (tests/audit/drilldown/test_repair.py, test_repair_brokers.py)
1. Only records that are certainly missing are copied, not those that wait for their copier or are unclear.
2. A copy is what the route would have made: key, value, timestamp, and the headers that the route keeps or
   adds. The partition is the same. Without a route, the copy goes unchanged into the topic of the same name.
3. Nothing is copied into a compacted topic, because an old value would become the newest of its key.
4. A repeated repair copies nothing twice, whichever worker runs it. It follows a drill-down, which looks for
   copies up to the log's end. Later copies are searched once no other repair can append (`partition_repair`).
5. A record that the destination refuses is counted and named, and does not hold up the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

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
from app.kernel.json_types import JsonObject
from app.replicate.destination.copy_headers import HeaderEdit

if TYPE_CHECKING:
    from app.worker.runtime.service import Runtime

NEAR_OFFSETS = 2_000  # records that lie this close are read together
# of a transaction: at most this many records, and about this many bytes
RECORDS_PER_TRANSACTION, BYTES_PER_TRANSACTION = 1_000, 4 << 20

ReportProgress = Callable[[JsonObject], None]


class NotLeading(RuntimeError):
    """Another worker copies now, or may. The copies made here stay; the other records were not copied."""


class CopiedAgain(NamedTuple):
    """The result of a repair, in records.

    Attributes:
        there: Copied by others since the drill-down.
        left: Gone, or unreadable.
        refused_records: At most `NAMED_REFUSED` of the `refused`.
    """

    copied: int
    there: int
    left: int
    refused: int
    refused_records: tuple[RefusedCopy, ...]

    def to_json(self) -> JsonObject:
        records = [
            {**refused.place._asdict(), "offset": refused.offset, "why": refused.why}
            for refused in self.refused_records
        ]
        return {**self._asdict(), "refused_records": records}


class RepairTarget(NamedTuple):
    """The partition that a partition's records are copied to, and the edit of their headers."""

    copy_route: CopyRoute
    place: ClusterPartition
    edit: Edit | None


def missing_records(answer: SearchResult) -> dict[ClusterPartition, dict[int, ObservedRecord]]:
    """The records to copy: partition upstream -> offset -> record (rule 1)."""
    found: dict[ClusterPartition, dict[int, ObservedRecord]] = {}
    for finding in answer.findings:
        if finding.kind is FindingKind.MISSING and finding.source is not None:
            found.setdefault(finding.source.place, {})[finding.source.offset] = finding.source
    return found


def targets(answer: SearchResult) -> dict[ClusterPartition, RepairTarget]:
    """Partition upstream -> target (rule 2). Raises NotReadable: no single target takes the records."""
    if not answer.sides.upstream or not answer.sides.downstream:
        raise NotReadable("a tier without a log cannot be copied from or to; name two tiers of clusters")
    found: dict[ClusterPartition, RepairTarget] = {}
    ids = {topic.cluster: topic.cluster_id for topic in (*answer.sides.upstream, *answer.sides.downstream)}
    for place in missing_records(answer):
        copiers = [c for c in answer.sides.copiers if (c.source, c.topic) == (place.cluster, place.topic)]
        if len({(c.target, c.target_topic) for c in copiers}) != 1:
            names = ", ".join(f"{c.target_topic} in {c.target}" for c in copiers)
            raise NotReadable(f"{place.topic} of {place.cluster} is copied to several topics: {names}")
        copier = copiers[0]
        into = ClusterPartition(copier.target, copier.target_topic, place.partition)
        topic = next(topic for topic in answer.sides.downstream if (topic.cluster, topic.name) == into[:2])
        if topic.is_compacted:
            raise NotReadable(
                f"topic {into.topic} in {into.cluster} is compacted, so an old value would become the newest "
                "of its key; let its producer write the missing records"
            )
        if into.partition >= topic.partitions:
            raise NotReadable(
                f"topic {into.topic} in {into.cluster} has {topic.partitions} partitions, and no "
                f"number {into.partition}; add as many as {place.topic} in {place.cluster} has"
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
    """Copies the missing records.

    Raises:
        NotReadable: A target is unsuitable, or its existing copies cannot be found.
        NotLeading: Another worker may copy now.
        ClusterUnreachable, KafkaError, TimeoutError: Some records were not copied; the copies made stay.
    """
    to, missing = targets(answer), missing_records(answer)
    total = sum(map(len, missing.values()))
    repairs: list[PartitionRepair] = []

    def copied() -> int:
        return sum(repair.copied for repair in repairs)

    def check_leads() -> None:
        report_copying()
        if not runtime.leader.leads:
            raise NotLeading(
                f"this worker no longer leads the region; {copied()} of {total} records were copied. Ask the "
                "leader to copy the others"
            )

    def report_copying() -> None:
        looked_at = sum(repair.copied + repair.refused + len(repair.existing) for repair in repairs)
        report_progress({"step": "copying", "looked_at": looked_at, "of": total})

    for into, places in _by_target(to).items():
        cluster = await runtime.clusters.get(into.cluster)
        lacks = [record for at in places for record in missing[at].values()]
        try:
            async with repairing(cluster.client, _part(answer, into), lacks, check_leads) as repair:
                repairs.append(repair)
                for place in places:
                    found = _records(_part(answer, place), repair.unsettled(missing[place]))
                    async for rows, codec in _chunks(found, to[place].edit):
                        await repair.add(place, rows, codec)
            report_copying()
            await repair.wait_until_visible()
        except ProducerFenced as error:
            raise NotLeading(
                f"another worker copies into {into} now; {copied()} of {total} records were copied here. "
                "Ask again which records are missing"
            ) from error
    existing, refused = sum(len(run.existing) for run in repairs), sum(run.refused for run in repairs)
    named = [copy for repair in repairs for copy in repair.first_refused]
    return CopiedAgain(
        copied(), existing, total - copied() - existing - refused, refused, tuple(named[:NAMED_REFUSED])
    )


def _by_target(to: Mapping[ClusterPartition, RepairTarget]) -> dict[ClusterPartition, list[ClusterPartition]]:
    """Target -> partitions upstream. All of a target's existing copies are found before any is added, because
    one partition's new copies look like another's."""
    found: dict[ClusterPartition, list[ClusterPartition]] = {}
    for place, target in to.items():
        found.setdefault(target.place, []).append(place)
    return found


def _part(answer: SearchResult, place: ClusterPartition) -> ScanRange:
    return next(part for part in answer.sides.parts if part.reader.place == place)


# -- the records ---------------------------------------------------------------------------------------


def runs_of(seen: Mapping[int, ObservedRecord]) -> list[dict[int, ObservedRecord]]:
    """The records, by offset, in runs without long gaps. A batch may span several runs; each run has only its
    own records."""
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
    """The records that are still there, with their batches' compression."""
    place = part.reader.place
    for run in runs_of(seen):
        start, end = min(run), max(run) + 1
        async for piece in read_span(part.client, place.topic, place.partition, start, end):
            shown = ReadCommittedFilter(piece.aborted)
            for batch in iter_batches(piece.data):
                header = batch.header
                if shown.shows(batch) and piece.start < header.next_offset and header.base_offset < end:
                    some = unchanged_records(batch, run, part.reader)
                    if some:
                        yield some, header.compression


def unchanged_records(
    batch: RecordBatch, seen: Mapping[int, ObservedRecord], reader: PrintReader
) -> list[Record]:
    """The records of the batch that are still the same as the drill-down found."""
    header = batch.header
    if not any(header.base_offset <= offset < header.next_offset for offset in seen):
        return []
    try:
        return [
            record
            for record in records_of(batch)
            if record.offset in seen and reader.contents_of(record) == seen[record.offset].contents
        ]
    except Exception:  # noqa: BLE001 - decoders raise any error; the records count as left
        return []


async def _chunks(
    found: AsyncIterable[tuple[list[Record], int]], edit: Edit | None
) -> AsyncIterator[tuple[list[tuple[Record, Headers]], int]]:
    """Fills transactions: records of one compression, with the headers of their copies. Missing records are
    often scattered, and each transaction takes time."""
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
