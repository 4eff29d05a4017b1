"""Prints of fetched batches and of their records, to compare two tiers by, and the places of records.

Rules
1. A record's print covers its key, value, headers and timestamp. The timestamp counts only if both tiers'
   topics keep it. Headers that copying adds do not count, nor those that the route leaves out.
2. A verbatim copy of a batch has the print of its source, so the two need no decoding.
3. A batch is skipped if its header shows that it has no record of the window. The conditions are those under
   which the counter counts a batch by its header (`audit.counts.counter`).
4. A batch that cannot be decoded is compared by its bytes.

A print is a value of Python's `hash`, which has a secret in each process. So prints are compared only within
one process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np

from app.audit.counts.counter import (
    ANY_DISORDER,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    CountingSpec,
    IdOf,
)
from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigin, CopyOrigins
from app.audit.drilldown.findings import ObservedRecord
from app.audit.drilldown.sieve import Prints
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import SpanPiece
from app.kafka.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    ReadCommittedFilter,
    RecordBatch,
    iter_batches,
)
from app.kafka.records.record import Record

ORIGIN, ROUTE = "switchyard-origin", "switchyard-route"  # headers that copying adds
SHOWN_KEY_BYTES = 200
MOST_DIGITS = 19  # of an offset; Python refuses to parse thousands of digits
_MASK = (1 << 64) - 1
_CODEC = 0x07

Keeps = Callable[[str], bool]  # a header's name


class EventTimeWindow(NamedTuple):
    """Event times [start_ms, end_ms)."""

    start_ms: int
    end_ms: int


class RecordPrint(NamedTuple):
    """A record's print; `record` None: the record cannot be decoded."""

    offset: int
    at_ms: int
    contents: int
    record: Record | None


class PrintReader:
    """Reads fetched batches of one partition.

    Args:
        spec: The plan's.
        keeps: Says which headers count; None: all do.
        timed: Timestamps count, too.
        origins: The origins of the batches, if the partition is a copy.
        uncounted: Clusters whose copies are skipped, if they are known to come from there.
        cluster_names: Cluster id in a provenance header -> name.
    """

    def __init__(
        self,
        place: ClusterPartition,
        spec: CountingSpec,
        window: EventTimeWindow,
        *,
        keeps: Keeps | None = None,
        timed: bool = True,
        origins: CopyOrigins | None = None,
        uncounted: frozenset[str] = frozenset(),
        cluster_names: dict[str, str] | None = None,
    ) -> None:
        self.place = place
        self._spec = spec
        self._window = window
        self._keeps = keeps
        self._timed = timed
        self._origins = origins
        self._uncounted = uncounted
        self._cluster_names = cluster_names or {}

    # -- prints and places --------------------------------------------------------------------------

    def batch_prints(self, piece: SpanPiece) -> Prints:
        """The prints of batches that may have records of the window."""
        return _array([batch_print(batch) for batch in self._batches(piece)])

    def record_prints(self, piece: SpanPiece, wanted: dict[int, int] | None) -> Prints:
        """The prints of the window's records; only in the `wanted` batches, if it is given."""
        return _array(
            [row.contents for batch in self._batches(piece, wanted) for row in self._rows(batch, piece.start)]
        )

    def observed(
        self,
        piece: SpanPiece,
        wanted: dict[int, int] | None,
        contents: dict[int, int],
        first_base_offset: int = -1,
    ) -> list[ObservedRecord]:
        """The window's records with one of these prints, in batches from `first_base_offset` on."""
        found: list[ObservedRecord] = []
        for batch in self._batches(piece, wanted):
            if batch.header.base_offset < first_base_offset:
                continue
            rows = [row for row in self._rows(batch, piece.start) if row.contents in contents]
            if rows:
                origin = self._origin(batch.header)
                found += [self._observed(row, batch.header, origin) for row in rows]
        return found

    def ids(self, piece: SpanPiece) -> list[bytes]:
        """The ids of the window's records that have one."""
        id_of = self._spec.id_of
        if id_of is None:
            return []
        rows = (row.record for batch in self._batches(piece) for row in self._rows(batch, piece.start))
        return [found for record in rows if record is not None and (found := id_of(record)) is not None]

    def observed_ids(self, piece: SpanPiece, ids: Collection[bytes]) -> list[ObservedRecord]:
        """The window's records with one of these ids."""
        rows = (
            (row, batch.header) for batch in self._batches(piece) for row in self._rows(batch, piece.start)
        )
        observed = (self._observed(row, header, None) for row, header in rows)
        return [record for record in observed if record.id in ids]

    # -- batches -----------------------------------------------------------------------------------

    def _batches(self, piece: SpanPiece, wanted: dict[int, int] | None = None) -> Iterator[RecordBatch]:
        shown = ReadCommittedFilter(piece.aborted)
        for batch in iter_batches(piece.data):
            header = batch.header
            if not shown.shows(batch) or not header.record_count:
                continue
            if header.next_offset <= piece.start or header.base_offset >= piece.end:
                continue
            if not self._may_hold(header) or self._is_from_uncounted_cluster(header):
                continue
            if wanted is None or batch_print(batch) in wanted:
                yield batch

    def _may_hold(self, header: BatchHeader) -> bool:
        """Whether the batch may have records of the window (rule 3)."""
        if self._spec.by_value:
            return True
        first_ms, last_ms = header.first_timestamp_ms, header.max_timestamp_ms
        if last_ms < self._window.start_ms:
            return False
        if header.attributes & LOG_APPEND_TIME:
            return last_ms < self._window.end_ms
        if self._spec.disorder_ms == ANY_DISORDER or header.attributes & DELETE_HORIZON:
            return True
        return first_ms < self._window.end_ms + self._spec.disorder_ms

    def _is_from_uncounted_cluster(self, header: BatchHeader) -> bool:
        if not self._uncounted or self._origins is None:
            return False
        source = self._origins.source_of(header.producer_id, header.producer_epoch)
        return source is not None and source.cluster in self._uncounted

    # -- records -----------------------------------------------------------------------------------

    def _rows(self, batch: RecordBatch, start: int) -> list[RecordPrint]:
        """The window's records from offset `start` on. A batch may begin below a deleted offset."""
        window, how = self._window, self._spec
        try:
            timed = how.decode(batch) if how.by_value else records_of(batch)
            return [
                RecordPrint(record.offset, timed_record.timestamp, self.contents_of(record), record)
                for record, timed_record in zip(records_of(batch), timed, strict=True)
                if window.start_ms <= timed_record.timestamp < window.end_ms and record.offset >= start
            ]
        except Exception:  # noqa: BLE001 - decoders raise any error; the bytes are compared (rule 4)
            return self._undecodable(batch)

    def contents_of(self, record: Record) -> int:
        headers: tuple[tuple[str, bytes | None], ...] = tuple(record.headers)
        if headers:
            keeps = self._keeps
            headers = tuple(
                header
                for header in headers
                if header[0] not in (ORIGIN, ROUTE) and (keeps is None or keeps(header[0]))
            )
        at_ms = record.timestamp if self._timed else 0
        return hash((record.key, record.value, headers, at_ms)) & _MASK

    def _undecodable(self, batch: RecordBatch) -> list[RecordPrint]:
        header = batch.header
        at_ms = header.first_timestamp_ms
        if not self._window.start_ms <= at_ms < self._window.end_ms:
            return []
        data = bytes(batch.data[HEADER_BYTES:])
        return [
            RecordPrint(header.base_offset + at, at_ms, hash((data, at)) & _MASK, None)
            for at in range(min(header.record_count, header.most_records))
        ]

    def _observed(self, row: RecordPrint, header: BatchHeader, origin: CopyOrigin | None) -> ObservedRecord:
        record = row.record
        if record is None:
            return ObservedRecord(self.place, row.offset, row.contents, row.contents, row.contents, row.at_ms)
        id_of: IdOf | None = self._spec.id_of
        key = record.key
        if origin is not None:
            origin = origin.behind(row.offset - header.base_offset)
        return ObservedRecord(
            self.place,
            row.offset,
            row.contents,
            hash((key,)),
            hash((record.value,)),
            row.at_ms,
            None if id_of is None else id_of(record),
            None if key is None else bytes(key[:SHOWN_KEY_BYTES]),
            self._header_origin(record) or origin,
        )

    # -- where copies come from --------------------------------------------------------------------

    def _origin(self, header: BatchHeader) -> CopyOrigin | None:
        """The origin of the batch's first record, by its lane's sequence numbers."""
        if self._origins is None or header.attributes & CONTROL:
            return None
        return self._origins.of(
            header.base_offset, header.next_offset, header.producer_id, header.producer_epoch,
            header.base_sequence,
        )  # fmt: skip

    def _header_origin(self, record: Record) -> CopyOrigin | None:
        """The origin in the record's last provenance header."""
        if self._origins is None:
            return None
        for name, value in reversed(record.headers):
            if name == ORIGIN and value is not None:
                cluster_id, _, rest = value.decode("utf-8", "replace").partition("/")
                topic, _, at = rest.partition("/")
                partition, _, offset = at.partition("/")
                if cluster_id in self._cluster_names and _is_number(partition) and _is_number(offset):
                    source = ClusterPartition(self._cluster_names[cluster_id], topic, int(partition))
                    return CopyOrigin(source, int(offset), int(offset))
                return None
        return None


def batch_print(batch: RecordBatch) -> int:
    """The print of everything that a verbatim copy has in common with its source: records, codec, times."""
    header = batch.header
    attributes = header.attributes & (_CODEC | LOG_APPEND_TIME | DELETE_HORIZON)
    last_ms = header.max_timestamp_ms if header.attributes & LOG_APPEND_TIME else 0
    common = (attributes, header.first_timestamp_ms, last_ms, header.record_count)
    return hash((*common, bytes(batch.data[HEADER_BYTES:]))) & _MASK


def _is_number(text: str) -> bool:
    return len(text) <= MOST_DIGITS and text.isdecimal()


def _array(prints: list[int]) -> Prints:
    return np.array(prints, dtype=np.uint64)
