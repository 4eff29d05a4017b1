"""What a fetched batch, and each of its records, is: prints to compare two tiers by, and places to tell.

Rules
1. A record is its key, value, headers and timestamp. Its timestamp counts where both tiers' topics keep it;
   headers that copying adds do not count, nor those that it is told to leave out.
2. A batch that is the same at both tiers, byte for byte but for what copying changes, has the same records:
   it needs no decoding.
3. A batch that may hold no record of the window is passed over by its header, under the same conditions under
   which it is counted by it (`audit.counts.counter`).
4. What cannot be decoded is compared by its bytes.

Prints are Python's own hashes: they are compared within one process, and its secret makes them 64 good bits.
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

ORIGIN, ROUTE = "switchyard-origin", "switchyard-route"  # what copying adds
SHOWN_KEY_BYTES = 200
MOST_DIGITS = 19  # of an offset; of thousands Python makes no number
_MASK = (1 << 64) - 1
_CODEC = 0x07

Keeps = Callable[[str], bool]  # a header's name


class EventTimeWindow(NamedTuple):
    """Event times [start_ms, end_ms)."""

    start_ms: int
    end_ms: int


class RecordPrint(NamedTuple):
    """A record, or what stands for one that cannot be decoded."""

    offset: int
    at_ms: int
    contents: int
    record: Record | None


class PrintReader:
    """Reads what was fetched of one partition.

    Args:
        spec: the plan's. keeps: headers that count; None: all do. timed: timestamps count, too.
        origins: of a copy, where its batches come from. others: clusters whose copies are passed over, where
            it is known that they are. names: how the clusters of provenance headers are called, by their ids.
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
        others: frozenset[str] = frozenset(),
        names: dict[str, str] | None = None,
    ) -> None:
        self.place = place
        self._spec = spec
        self._window = window
        self._keeps = keeps
        self._timed = timed
        self._origins = origins
        self._others = others
        self._names = names or {}

    # -- what is compared --------------------------------------------------------------------------

    def batch_prints(self, piece: SpanPiece) -> Prints:
        """Of the batches that may hold records of the window."""
        return _array([batch_print(batch) for batch in self._batches(piece)])

    def record_prints(self, piece: SpanPiece, wanted: dict[int, int] | None) -> Prints:
        """Of the window's records, in batches of these prints only, if any are given."""
        return _array(
            [row.contents for batch in self._batches(piece, wanted) for row in self._rows(batch, piece.start)]
        )

    def seen(
        self, piece: SpanPiece, wanted: dict[int, int] | None, contents: dict[int, int], begins_at: int = -1
    ) -> list[ObservedRecord]:
        """Where the window's records of these contents are, in batches that begin at `begins_at` or later."""
        found: list[ObservedRecord] = []
        for batch in self._batches(piece, wanted):
            if batch.header.base_offset < begins_at:
                continue
            rows = [row for row in self._rows(batch, piece.start) if row.contents in contents]
            if rows:
                origin = self._origin(batch.header)
                found += [self._seen(row, batch.header, origin) for row in rows]
        return found

    def ids(self, piece: SpanPiece) -> list[bytes]:
        """The ids of the window's records, of those that have one."""
        id_of = self._spec.id_of
        if id_of is None:
            return []
        rows = (row.record for batch in self._batches(piece) for row in self._rows(batch, piece.start))
        return [found for record in rows if record is not None and (found := id_of(record)) is not None]

    def seen_ids(self, piece: SpanPiece, ids: Collection[bytes]) -> list[ObservedRecord]:
        """Where the window's records with these ids are."""
        rows = (
            (row, batch.header) for batch in self._batches(piece) for row in self._rows(batch, piece.start)
        )
        seen = (self._seen(row, header, None) for row, header in rows)
        return [one for one in seen if one.id in ids]

    # -- batches -----------------------------------------------------------------------------------

    def _batches(self, piece: SpanPiece, wanted: dict[int, int] | None = None) -> Iterator[RecordBatch]:
        shown = ReadCommittedFilter(piece.aborted)
        for batch in iter_batches(piece.data):
            header = batch.header
            if not shown.shows(batch) or not header.record_count:
                continue
            if header.next_offset <= piece.start or header.base_offset >= piece.end:
                continue
            if not self._may_hold(header) or self._is_of_others(header):
                continue
            if wanted is None or batch_print(batch) in wanted:
                yield batch

    def _may_hold(self, header: BatchHeader) -> bool:
        """Rule 3."""
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

    def _is_of_others(self, header: BatchHeader) -> bool:
        if not self._others or self._origins is None:
            return False
        source = self._origins.source_of(header.producer_id, header.producer_epoch)
        return source is not None and source.cluster in self._others

    # -- records -----------------------------------------------------------------------------------

    def _rows(self, batch: RecordBatch, start: int) -> list[RecordPrint]:
        """The records from offset `start` on: what lies before in a batch may have been deleted."""
        window, how = self._window, self._spec
        try:
            timed = how.decode(batch) if how.by_value else records_of(batch)
            return [
                RecordPrint(record.offset, one.timestamp, self.contents_of(record), record)
                for record, one in zip(records_of(batch), timed, strict=True)
                if window.start_ms <= one.timestamp < window.end_ms and record.offset >= start
            ]
        except Exception:  # noqa: BLE001 - decoders raise what they like; the bytes tell it (rule 4)
            return self._undecodable(batch)

    def contents_of(self, record: Record) -> int:
        """The print of a record."""
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
            for at in range(header.record_count)
        ]

    def _seen(self, row: RecordPrint, header: BatchHeader, origin: CopyOrigin | None) -> ObservedRecord:
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
        """Of the batch's first record, by its lane's numbers."""
        if self._origins is None or header.attributes & CONTROL:
            return None
        return self._origins.of(
            header.base_offset, header.next_offset, header.producer_id, header.producer_epoch,
            header.base_sequence,
        )  # fmt: skip

    def _header_origin(self, record: Record) -> CopyOrigin | None:
        """By its provenance header, the last one of several."""
        if self._origins is None:
            return None
        for name, value in reversed(record.headers):
            if name == ORIGIN and value is not None:
                cluster_id, _, rest = value.decode("utf-8", "replace").partition("/")
                topic, _, at = rest.partition("/")
                partition, _, offset = at.partition("/")
                if cluster_id in self._names and _is_number(partition) and _is_number(offset):
                    source = ClusterPartition(self._names[cluster_id], topic, int(partition))
                    return CopyOrigin(source, int(offset), int(offset))
                return None
        return None


def batch_print(batch: RecordBatch) -> int:
    """Of all that a verbatim copy has in common with its source: records, codec, times."""
    header = batch.header
    attributes = header.attributes & (_CODEC | LOG_APPEND_TIME | DELETE_HORIZON)
    last_ms = header.max_timestamp_ms if header.attributes & LOG_APPEND_TIME else 0
    told = (attributes, header.first_timestamp_ms, last_ms, header.record_count)
    return hash((*told, bytes(batch.data[HEADER_BYTES:]))) & _MASK


def _is_number(text: str) -> bool:
    return len(text) <= MOST_DIGITS and text.isdecimal()


def _array(prints: list[int]) -> Prints:
    return np.array(prints, dtype=np.uint64)
