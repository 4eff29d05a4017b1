"""Reads an archive without Spark. Needs pyarrow.

    archive = Archive.open(root)
    reader = ArchiveReader(archive)
    for batch in reader.read(ArchiveQuery("orders", from_ms=..., to_ms=...)):   # pyarrow record batches
        ...

Rules
1. Memory is bounded by row groups: `read` holds one, `records` one of each overlapping file of a partition.
   Both return at most `max_records` records; `truncated` says that there were more.
2. The log selects files, Parquet's statistics select row groups, and the query selects rows.
3. `read` gives rows file by file, in order of partition and offset within a file; late records are in
   files of their own. `records` gives each partition's records in the order of their offsets.
"""

from __future__ import annotations

import heapq
import importlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.archive.errors import BadOption, InvalidArchive, NotArchived
from app.archive.layout import QUARANTINE, RECORDS, ArchivedReach, ArchiveFile, ArchiveGap, FileSpan
from app.archive.log import Archive, ArchiveState

LAST_OFFSET = LAST_MS = 2**63 - 1
MAX_RECORDS = 1_000_000  # a query's default limit
BATCH_ROWS = 8_192
ARROW = ("pyarrow", "pyarrow.compute", "pyarrow.parquet")

COLUMNS = ("partition", "offset", "timestamp_ms", "timestamp_type", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class ArchiveQuery:
    """Records of a topic with timestamps in [from_ms, to_ms) and offsets in [start, end).

    `topic_id` selects one lineage of a recreated topic; None: the newest. Quarantined records have no
    usable timestamp; only `quarantined=True` returns them, whatever the times.
    """

    topic: str
    from_ms: int = -LAST_MS
    to_ms: int = LAST_MS
    partitions: frozenset[int] | None = None
    start: int = 0
    end: int = LAST_OFFSET
    topic_id: str | None = None
    quarantined: bool = False
    max_records: int = MAX_RECORDS

    def __post_init__(self) -> None:
        if self.from_ms >= self.to_ms:
            raise BadOption(f"from_ms {self.from_ms} is not before to_ms {self.to_ms}")
        if self.start >= self.end:
            raise BadOption(f"start {self.start} is not below end {self.end}")

    def wants(self, file: ArchiveFile, span: FileSpan) -> bool:
        """Whether this part of the file may have records of the query."""
        if self.partitions is not None and span.partition not in self.partitions:
            return False
        if not span.overlaps(self.start, self.end):
            return False
        return file.table == QUARANTINE or (span.first_ms < self.to_ms and self.from_ms <= span.last_ms)


class ArchivedRecord(NamedTuple):
    """An archived record; `value` None is a tombstone, `headers` are in their order."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The archived part of a partition, and its gaps."""

    partition: int
    reach: ArchivedReach
    gaps: tuple[ArchiveGap, ...]


class ArchiveReader:
    """Reads the archive as its log was when the reader was made, or at the last `refresh`."""

    __slots__ = ("archive", "state", "truncated")

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.state: ArchiveState = archive.state()
        self.truncated = False  # the last query had more than `max_records`

    def refresh(self) -> None:
        """Reads the log to its end."""
        self.archive.newer(self.state)

    def lineage(self, topic: str, topic_id: str | None = None) -> str:
        """`topic_id`, or the topic's newest id.

        Raises:
            NotArchived: The archive does not have it.
        """
        known = self.state.lineages(topic)
        if not known:
            there = ", ".join(self.state.topics()) or "nothing"
            raise NotArchived(f"{self.archive.root} has nothing of topic {topic!r}; it has: {there}")
        if topic_id is not None and topic_id not in known:
            raise NotArchived(
                f"{self.archive.root}: topic {topic!r} never had the id {topic_id!r}; had: {known}"
            )
        return topic_id or known[-1]

    def coverage(self, topic: str, topic_id: str | None = None) -> list[Coverage]:
        """The archived part of each partition; later records are in the topic itself."""
        lineage = self.lineage(topic, topic_id)
        ours = {
            partition: reach
            for partition, reach in self.state.reach.items()
            if (partition.topic, partition.topic_id) == (topic, lineage)
        }
        return [
            Coverage(at.number, reach, tuple(gap for gap in self.state.gaps if gap.partition == at))
            for at, reach in sorted(ours.items())
        ]

    def files(self, query: ArchiveQuery) -> list[ArchiveFile]:
        """The files that may have records of the query, by partition and first offset."""
        lineage = self.lineage(query.topic, query.topic_id)
        tables = {RECORDS, QUARANTINE} if query.quarantined else {RECORDS}
        found = [
            file
            for file in self.state.files.values()
            if file.topic == query.topic and file.topic_id == lineage and file.table in tables
            if any(query.wants(file, span) for span in file.spans)
        ]
        return sorted(found, key=lambda file: (file.spans[0].partition, file.spans[0].start, file.path))

    def offset_at(self, topic: str, time_ms: int, topic_id: str | None = None) -> dict[int, int]:
        """By partition, the first archived offset with a timestamp at or after `time_ms`, if there is one.

        As Kafka's `offsetsForTimes`: the least offset, whatever timestamps follow.
        """
        query = ArchiveQuery(topic, from_ms=time_ms, topic_id=topic_id)
        found: dict[int, int] = {}
        for file in self.files(query):
            for span in file.spans:
                if span.last_ms < time_ms or span.start >= found.get(span.partition, LAST_OFFSET):
                    continue
                if span.first_ms >= time_ms:  # no need to open the file
                    found[span.partition] = span.start
                    continue
                later = ArchiveQuery(
                    topic,
                    from_ms=time_ms,
                    partitions=frozenset({span.partition}),
                    end=found.get(span.partition, LAST_OFFSET),
                    topic_id=topic_id,
                )
                least = [min(batch["offset"].to_pylist()) for batch in self._rows(file, later, ("offset",))]
                if least:
                    found[span.partition] = min(least)
        return found

    def read(self, query: ArchiveQuery, columns: Sequence[str] = COLUMNS) -> Iterator[Any]:
        """The records as pyarrow's batches; sets `truncated` when there were more than `max_records`."""
        self.truncated = False
        left = query.max_records
        for file in self.files(query):
            for batch in self._rows(file, query, columns):
                if batch.num_rows > left:
                    self.truncated = True
                    if left:
                        yield batch.slice(0, left)
                    return
                left -= batch.num_rows
                yield batch

    def records(self, query: ArchiveQuery) -> Iterator[ArchivedRecord]:
        """The records partition by partition, in the order of offsets; limited as in `read`.

        Files are opened when their offsets come, so only overlapping files are open at once.
        """
        self.truncated = False
        left = query.max_records
        files = self.files(query)
        for partition in sorted({span.partition for file in files for span in file.spans}):
            if query.partitions is None or partition in query.partitions:
                for record in self._merged(
                    files, replace(query, partitions=frozenset({partition})), partition
                ):
                    if not left:
                        self.truncated = True
                        return
                    left -= 1
                    yield record

    def _merged(
        self, files: list[ArchiveFile], query: ArchiveQuery, partition: int
    ) -> Iterator[ArchivedRecord]:
        waiting = deque(
            sorted(
                ((span.start, file) for file in files for span in file.spans if span.partition == partition),
                key=lambda one: one[0],
            )
        )
        heads: list[tuple[int, int, ArchivedRecord, Iterator[ArchivedRecord]]] = []
        opened = 0
        while waiting or heads:
            while waiting and (not heads or waiting[0][0] <= heads[0][0]):
                rows = self._records(waiting.popleft()[1], query)
                opened += 1
                if first := next(rows, None):
                    heapq.heappush(heads, (first.offset, opened, first, rows))
            if heads:
                _, number, record, rows = heads[0]
                yield record
                if following := next(rows, None):
                    heapq.heapreplace(heads, (following.offset, number, following, rows))
                else:
                    heapq.heappop(heads)

    def _records(self, file: ArchiveFile, query: ArchiveQuery) -> Iterator[ArchivedRecord]:
        for batch in self._rows(file, query, COLUMNS):
            columns = [batch[name].to_pylist() for name in COLUMNS]
            for *fields, headers in zip(*columns, strict=True):
                pairs = tuple((one["key"], one["value"]) for one in headers or ())
                yield ArchivedRecord._make((*fields, pairs))

    def _rows(self, file: ArchiveFile, query: ArchiveQuery, columns: Sequence[str]) -> Iterator[Any]:
        """The query's rows of the file; columns that the file lacks are null."""
        pa, pc, parquet = (_arrow(name) for name in ARROW)
        schema = record_schema(pa)
        wanted = pa.schema([schema.field(name) for name in columns])
        chosen = ("partition", "offset", "timestamp_ms")
        with parquet.ParquetFile(self.archive.root / file.path) as content:
            there = set(content.schema_arrow.names)
            groups = [n for n in range(content.num_row_groups) if _may_hold(content, n, file, query)]
            reading = [name for name in dict.fromkeys((*columns, *chosen)) if name in there]
            if not groups:
                return
            for batch in content.iter_batches(BATCH_ROWS, row_groups=groups, columns=reading):
                mask = _mask(pc, batch, file, query)
                kept = batch if mask is None else batch.filter(mask)
                if kept.num_rows:
                    yield pa.RecordBatch.from_arrays(
                        [
                            kept[f.name].cast(f.type) if f.name in there else pa.nulls(kept.num_rows, f.type)
                            for f in wanted
                        ],
                        schema=wanted,
                    )


def record_schema(pa: Any) -> Any:
    """The columns of an archived record as pyarrow's schema. Headers keep their order and may repeat;
    `reason` says why a record is quarantined."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp_ms", pa.int64()),
            ("timestamp_type", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("reason", pa.string()),
        ]
    )


def check_arrow() -> None:
    """Raises InvalidArchive, with the remedy, when pyarrow is not installed."""
    for name in ARROW:
        _arrow(name)


def _arrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as failure:
        raise InvalidArchive(
            "archives are Parquet files, which pyarrow reads: pip install 'switchyard-kafka[parquet]'"
        ) from failure


def _bounds(file: ArchiveFile, query: ArchiveQuery) -> list[tuple[str, int, int]]:
    """Columns with their closed range in the query."""
    bounds = [("offset", query.start, query.end - 1)]
    if file.table == RECORDS:
        bounds.append(("timestamp_ms", query.from_ms, query.to_ms - 1))
    return bounds


def _may_hold(content: Any, group: int, file: ArchiveFile, query: ArchiveQuery) -> bool:
    """Whether a row group may have rows of the query, by Parquet's statistics; without statistics it may."""
    row_group = content.metadata.row_group(group)
    found = {}
    for at in range(row_group.num_columns):
        column = row_group.column(at)
        if column.statistics is not None and column.statistics.has_min_max:
            found[column.path_in_schema] = (column.statistics.min, column.statistics.max)
    for name, least, most in _bounds(file, query):
        if name in found and (found[name][1] < least or most < found[name][0]):
            return False
    if query.partitions is not None and "partition" in found:
        least, most = found["partition"]
        return any(least <= number <= most for number in query.partitions)
    return True


def _mask(pc: Any, batch: Any, file: ArchiveFile, query: ArchiveQuery) -> Any:
    """The query's rows of a batch; None: all, by the file's spans."""
    masks = []
    for name, least, most in _bounds(file, query):
        if name == "offset":
            inside = all(least <= span.start and span.end - 1 <= most for span in file.spans)
        else:
            inside = least <= file.first_ms and file.last_ms <= most
        if not inside:
            masks.append(pc.and_(pc.greater_equal(batch[name], least), pc.less_equal(batch[name], most)))
    if query.partitions is not None and any(span.partition not in query.partitions for span in file.spans):
        masks.append(
            pc.is_in(batch["partition"], value_set=_arrow("pyarrow").array(sorted(query.partitions), "int32"))
        )
    mask = None
    for one in masks:
        mask = one if mask is None else pc.and_(mask, one)
    return mask
