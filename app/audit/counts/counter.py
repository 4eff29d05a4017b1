"""Counts records into windows: whole batches from their headers, others record by record, only where needed.

Rules (tests/audit/counts/test_counter.py, test_disorder.py)
1. A window holds the event times [start, start + width). Records without a timestamp are counted apart
   (`UNTIMED`). So are those with one beyond all calendars: a producer of microseconds would make windows that
   never end.
2. A header has the first record's timestamp and the highest, but later records may be older by any time. So
   the lowest is read from the records (`CountingSpec.lowest`), without decoding them to objects. A batch is
   counted from its header if lowest and highest are in one window. Source and copy then agree, however either
   cuts its batches. A plan may promise that no record is older than its batch's first by more than
   `disorder_ms`. This saves the reading: a batch is counted from its header if its first timestamp is at
   least so far behind the window's start. With the log's own time (LogAppendTime) all records of a batch have
   the highest timestamp.
3. Batches are decoded if they have a delete horizon, which replaces the first timestamp. So are batches that
   begin before the position, because not all of their records count. So are compacted batches, because their
   headers do not show the offsets.
4. Records that read_committed hides, and control batches, are not counted (`ReadCommittedFilter`).
5. A batch that cannot be decoded is counted from its header at its first timestamp (`Tally.undecodable`),
   with no more records than its offsets and bytes have room for. A batch that claims more is decoded.
6. Latencies of a batch counted from its header are spread evenly between its first and highest timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from app.kafka.records.batch import (
    HEADER,
    LOG_OVERHEAD_BYTES,
    MAX_BATCH_RECORDS,
    BatchHeader,
    ReadCommittedFilter,
    RecordBatch,
    iter_batches,
)
from app.kafka.records.header_arrays import BatchHeaderArrays, Numbers, exact, headers_of, heads_of
from app.kafka.records.record import Record
from switchyard.audit.model import fingerprint
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.tally import (
    MANY_WINDOWS,
    SKEW_MS,
    UNTIMED,
    RecordArrays,
    Tally,
    UnsettledTimes,
    add_spread_latencies,
    window_of,
)
from switchyard.audit.model.totals import LAST_MS, NEVER_MS, Sums

ANY_DISORDER = -1
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
_NOT_BY_HEADERS = TRANSACTIONAL | CONTROL | DELETE_HORIZON
LIFTS = 16  # a timestamp counts once one record in this many has reached it

Decode = Callable[[RecordBatch], Iterable[Record]]
Lowest = Callable[[RecordBatch], int]
IdOf = Callable[[Record], bytes | None]
ContentOf = Callable[[Record], int]


def mark_of(windows: Mapping[int, Sums], at_ms: int) -> int:
    """How far a source has come, from a chunk of its records; `NEVER_MS`: unknown. It is a timestamp that at
    least one record in `LIFTS` has reached, exact to a window's width. A few records ahead of all others,
    or of the clock, do not count: in a backlog they would make the following ones late. `windows`: the
    chunk's. `at_ms`: when it arrived."""
    last_ms = at_ms + SKEW_MS
    starts = sorted((start for start in windows if UNTIMED < start <= last_ms), reverse=True)
    total, reached = sum(windows[start].count for start in starts), 0
    for start in starts:
        reached += windows[start].count
        if reached * LIFTS >= total:
            return min(windows[start].last_ms, last_ms)
    return NEVER_MS


class CountingSpec(NamedTuple):
    """How a log's records are counted.

    Attributes:
        decode: A batch -> its records (`app.kafka.fetch.decoder.records_of`).
        source: The log that the offsets belong to; None: no fingerprint of offsets.
        id_of: A record's message id; None if it has none. It then counts, but not in the fingerprint of ids.
            With `id_of` every batch is decoded.
        content_of: 32 bits of a record's content, which are compared with its id; None: ids alone.
        disorder_ms: Rule 2; `ANY_DISORDER`: the plan promises nothing.
        by_value: `decode` gives times that headers do not have: every batch is decoded.
        lowest: A batch -> the lowest timestamp of its records (`app.kafka.fetch.decoder.lowest_timestamp`).
            None: with `ANY_DISORDER` every batch of several records is decoded.
    """

    decode: Decode
    source: FingerprintSource | None = None
    id_of: IdOf | None = None
    disorder_ms: int = ANY_DISORDER
    by_value: bool = False
    content_of: ContentOf | None = None
    lowest: Lowest | None = None

    @property
    def decodes_all(self) -> bool:
        """Whether no batch is counted from its header."""
        return self.by_value or self.id_of is not None


def count_chunk(
    tally: Tally,
    data: bytes | memoryview,
    start_offset: int,
    spec: CountingSpec,
    seen_at_ms: int | None = None,
    committed: ReadCommittedFilter | None = None,
) -> None:
    """Counts the records from `start_offset` on in a chunk of whole batches with checked checksums.

    Args:
        seen_at_ms: As in `Tally.add`.
        committed: The filter of the chunk's fetch, if it knows aborted transactions.

    Raises:
        CorruptBatch: The chunk does not consist of batches.
    """
    headers = headers_of(data)
    committed = committed or ReadCommittedFilter(())
    if headers is None:
        shown_batches = filter(committed.shows, iter_batches(data))
        wanted = (batch for batch in shown_batches if batch.header.next_offset > start_offset)
        _count_records(tally, wanted, start_offset, spec, seen_at_ms)
        return
    shown = (headers.next_offset > start_offset) & (headers.record_count > 0)
    # Only these need the filter: it shows all others, and learns nothing from them.
    for row in np.flatnonzero(headers.attributes & (TRANSACTIONAL | CONTROL)).tolist():
        shown[row] &= committed.shows(headers.batch(row))
    if spec.lowest is not None and spec.disorder_ms == ANY_DISORDER:
        headers = _with_lowest(headers, shown, start_offset, spec, tally.width_ms)
    firsts = _firsts(headers)
    whole = shown & _in_one_window(headers, firsts, start_offset, spec, tally.width_ms)
    if whole.all():
        _count_headers(tally, headers, firsts, spec.source, seen_at_ms)
        return
    if whole.any():
        _count_headers(tally, headers.of(whole), firsts[whole], spec.source, seen_at_ms)
    others = (headers.batch(row) for row in np.flatnonzero(shown & ~whole).tolist())
    _count_records(tally, others, start_offset, spec, seen_at_ms)


def countable_headers(
    data: bytes, start_offset: int, spec: CountingSpec, width_ms: int
) -> list[bytes] | None:
    """The headers of whole batches, to be kept in place of the bytes; None: they are not enough to count.
    They have the lowest timestamps of the records, where rule 2 needs these. `countable_from_headers` says
    whether all can be counted. Routes call this for every batch that they append, so it takes microseconds.
    """
    if spec.decodes_all:
        return None
    heads = heads_of(data)
    if not heads or spec.lowest is None or spec.disorder_ms != ANY_DISORDER:
        return heads or None
    view, at = memoryview(data), 0
    for row, head in enumerate(heads):
        header = BatchHeader._make(HEADER.unpack(head))
        end = at + LOG_OVERHEAD_BYTES + header.length
        if header.record_count > 1 and not header.attributes & LOG_APPEND_TIME:
            start_ms = window_of(header.max_timestamp_ms, width_ms)
            if start_ms == UNTIMED or header.first_timestamp_ms < start_ms:
                return None
            if header.base_offset < start_offset or header.attributes & _NOT_BY_HEADERS:
                return None
            lowest_ms = _lowest(RecordBatch(header, view[at:end]), spec.lowest)
            if lowest_ms < start_ms:
                return None
            heads[row] = exact(head, lowest_ms)
        at = end
    return heads


def _with_lowest(
    headers: BatchHeaderArrays,
    shown: npt.NDArray[np.bool_],
    start_offset: int,
    spec: CountingSpec,
    width_ms: int,
) -> BatchHeaderArrays:
    """The headers with the lowest timestamps of the records that need them (rule 2)."""
    assert spec.lowest is not None
    wanted = shown & _worth_reading(headers, start_offset, spec, width_ms)
    firsts, is_exact = headers.first_timestamp_ms.copy(), headers.is_exact.copy()
    for row in np.flatnonzero(wanted).tolist():
        lowest_ms = _lowest(headers.batch(row), spec.lowest)
        if lowest_ms != NEVER_MS:
            firsts[row], is_exact[row] = lowest_ms, True
    return headers._replace(first_timestamp_ms=firsts, is_exact=is_exact)


def _worth_reading(
    headers: BatchHeaderArrays, start_offset: int, spec: CountingSpec, width_ms: int
) -> npt.NDArray[np.bool_]:
    """The batches that can be counted from their headers if the lowest timestamp fits."""
    all_exact = headers._replace(is_exact=np.ones(headers.is_exact.shape, dtype=np.bool_))
    may_be = _in_one_window(all_exact, _firsts(headers), start_offset, spec, width_ms)
    by_log = (headers.attributes & LOG_APPEND_TIME) != 0
    wanted: npt.NDArray[np.bool_] = may_be & ~(headers.is_exact | (headers.record_count == 1) | by_log)
    return wanted


def _lowest(batch: RecordBatch, lowest: Lowest) -> int:
    """`NEVER_MS`: No timestamp, or the batch cannot be read; counting its records finds the cause."""
    try:
        return max(NEVER_MS, lowest(batch))
    except Exception:  # noqa: BLE001 - decoders raise any error
        return NEVER_MS


def countable_from_headers(
    headers: BatchHeaderArrays, start_offset: int, spec: CountingSpec, width_ms: int
) -> int:
    """How many of the first batches can be counted from their headers alone, all of them visible."""
    plain = (headers.attributes & (TRANSACTIONAL | CONTROL)) == 0
    whole = plain & _in_one_window(headers, _firsts(headers), start_offset, spec, width_ms)
    return len(whole) if whole.all() else int(whole.argmin())


def count_headers(
    tally: Tally, headers: BatchHeaderArrays, spec: CountingSpec, seen_at_ms: int | Numbers | None
) -> None:
    """Counts batches that their headers can count. `seen_at_ms`: of all or each; below 0: unknown."""
    _count_headers(tally, headers, _firsts(headers), spec.source, seen_at_ms)


def _firsts(headers: BatchHeaderArrays) -> Numbers:
    by_log = headers.attributes & LOG_APPEND_TIME
    return np.where(by_log, headers.max_timestamp_ms, headers.first_timestamp_ms)


def _in_one_window(
    headers: BatchHeaderArrays, firsts: Numbers, start_offset: int, spec: CountingSpec, width_ms: int
) -> npt.NDArray[np.bool_]:
    """The batches that are counted from their headers (rules 2 and 3)."""
    if spec.decodes_all:
        return np.zeros(firsts.shape, dtype=np.bool_)
    lasts = headers.max_timestamp_ms
    by_log = (headers.attributes & LOG_APPEND_TIME) != 0
    alone = by_log | (headers.record_count == 1) | headers.is_exact
    sure: npt.NDArray[np.bool_] = (
        alone if spec.disorder_ms == ANY_DISORDER else alone | (firsts % width_ms >= spec.disorder_ms)
    )
    sure = (
        sure
        & (firsts >= 0)
        & (firsts <= lasts)
        & (lasts <= LAST_MS)
        & (firsts // width_ms == lasts // width_ms)
    )
    sure = sure & (headers.base_offset >= start_offset) & ((headers.attributes & DELETE_HORIZON) == 0)
    sure = sure & (headers.record_count >= 0) & (headers.record_count <= headers.most_records)
    if spec.source is not None:
        sure = sure & (headers.record_count == headers.last_offset_delta + 1)
    return sure


def _count_headers(
    tally: Tally,
    headers: BatchHeaderArrays,
    firsts: Numbers,
    source: FingerprintSource | None,
    seen_at_ms: int | Numbers | None,
) -> None:
    """Counts batches that lie in one window each."""
    lasts = headers.max_timestamp_ms
    if not lasts.size:
        return
    starts = lasts - lasts % tally.width_ms
    tally.from_headers += int(lasts.size)
    tally.max_timestamp_ms = max(tally.max_timestamp_ms, int(lasts.max()))
    low, high = int(starts.min()), int(starts.max())
    found = [low] if low == high else np.unique(starts).tolist()
    for start in found:
        rows = slice(None) if low == high else starts == start
        counts, sums = headers.record_count[rows], tally.sums(start)
        count = int(counts.sum())
        sums.count += count
        sums.nbytes += int(headers.nbytes[rows].sum())
        sums.seen(int(firsts[rows].min()), int(lasts[rows].max()))
        sums.at(int(headers.base_offset[rows].min()), int(headers.next_offset[rows].max()))
        if source is not None:
            for begin, end in _ranges(headers.base_offset[rows], headers.next_offset[rows]):
                sums.offsets = sums.offsets.plus(fingerprint.of_range(source, begin, end))
            sums.offsets_of.add(source.cluster_id)
            sums.sourced += count
        if seen_at_ms is not None:
            some_lasts, spans = lasts[rows], lasts[rows] - firsts[rows]
            seen = seen_at_ms if isinstance(seen_at_ms, int) else seen_at_ms[rows]
            if not isinstance(seen, int) and not (known := seen >= 0).all():
                seen, some_lasts, spans, counts = seen[known], some_lasts[known], spans[known], counts[known]
            if some_lasts.size:
                add_spread_latencies(sums.latencies, seen - some_lasts, spans, counts)
                if len(found) > MANY_WINDOWS:
                    sums.pack()
        elif tally.times is not None:
            tally.times.append(UnsettledTimes(start, lasts[rows], lasts[rows] - firsts[rows], counts))


def _ranges(begins: Numbers, ends: Numbers) -> Iterable[tuple[int, int]]:
    """The offset ranges of batches in order; adjacent ones are joined."""
    breaks = np.flatnonzero(begins[1:] != ends[:-1])
    firsts = begins[np.concatenate(([0], breaks + 1))]
    lasts = ends[np.concatenate((breaks, [len(ends) - 1]))]
    return zip(firsts.tolist(), lasts.tolist(), strict=True)


def _count_records(
    tally: Tally,
    batches: Iterable[RecordBatch],
    start_offset: int,
    spec: CountingSpec,
    seen_at_ms: int | None,
) -> None:
    """Counts batches record by record, all together: arrays of a few records would cost more."""
    timestamps: list[int] = []
    offsets: list[int] = []
    nbytes: list[int] = []
    names: list[bytes | None] = []
    checksums: list[int] = []
    for batch in batches:
        try:
            read = _read(batch, start_offset, spec)
        except Exception:  # noqa: BLE001 - decoders raise any error; the batch counts all the same
            _count_undecodable(tally, batch)
            continue
        tally.decoded += 1
        count = len(read.offsets)
        if not count:
            continue
        timestamps += read.timestamps
        offsets += read.offsets
        share, rest = divmod(batch.header.length + LOG_OVERHEAD_BYTES, count)
        nbytes += [share + rest] + [share] * (count - 1)
        names += read.names
        checksums += read.checksums
    rows = RecordArrays(_numbers(timestamps), _numbers(nbytes), _numbers(offsets))
    if spec.id_of is None:
        tally.add(rows, seen_at_ms, spec.source)
        return
    has_id = np.array([name is not None for name in names], dtype=np.bool_)
    ids = fingerprint.ids_of([name for name in names if name is not None])
    contents = None
    if spec.content_of is not None:
        contents = fingerprint.with_content(ids, np.array(checksums, dtype=np.uint32))
    for mask, *prints in ((has_id, ids, contents), (~has_id, None, None)):
        part = RecordArrays(rows.timestamps_ms[mask], rows.nbytes[mask], _numbers(offsets)[mask], *prints)
        tally.add(part, seen_at_ms, spec.source)


class _Read(NamedTuple):
    """The counted fields of a batch's records: not all of the records are in memory at once."""

    timestamps: list[int]
    offsets: list[int]
    names: list[bytes | None]
    checksums: list[int]


def _read(batch: RecordBatch, start_offset: int, spec: CountingSpec) -> _Read:
    """Raises ValueError: It has more than `MAX_BATCH_RECORDS` records; and any error of the decoder."""
    if batch.header.record_count > MAX_BATCH_RECORDS:
        raise ValueError(
            f"{batch.header.record_count} records in a batch; at most {MAX_BATCH_RECORDS} are decoded"
        )
    read = _Read([], [], [], [])
    for record in spec.decode(batch):
        if record.offset < start_offset:
            continue
        read.timestamps.append(record.timestamp)
        read.offsets.append(record.offset)
        if spec.id_of is None:
            continue
        name = spec.id_of(record)
        read.names.append(name)
        if name is not None and spec.content_of is not None:
            read.checksums.append(spec.content_of(record))
    return read


def _numbers(numbers: list[int]) -> Numbers:
    return np.array(numbers, dtype=np.int64)


def _count_undecodable(tally: Tally, batch: RecordBatch) -> None:
    header = batch.header
    tally.undecodable += 1
    first_ms = header.first_timestamp_ms if header.first_timestamp_ms <= LAST_MS else NEVER_MS
    sums = tally.sums(window_of(first_ms, tally.width_ms))
    sums.count += min(header.record_count, header.most_records)
    sums.nbytes += header.length + LOG_OVERHEAD_BYTES
    sums.seen(first_ms, first_ms)
    sums.at(header.base_offset, header.next_offset)
    tally.max_timestamp_ms = max(tally.max_timestamp_ms, first_ms)
