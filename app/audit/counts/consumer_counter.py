"""The auditor of a partition's consumer: counts what is fetched, and reports it once it is finished.

    chunks --fetched--> pieces, counted ........ finished(base) --> PartitionReader --> reports
                        (not reported yet)                          of the prefix only

`partition_counter` reports a log as it is read; this module waits for the group's base.

Rules (tests/audit/counts/test_consumer_counter.py)
1. A chunk counts for the consumer once everything in it is finished: below `base`. If headers are enough to
   count it, they are kept until then. Headers of many small chunks are counted together, which costs hardly
   more than one. Other chunks are counted at once. The bytes are dropped either way.
2. Pieces do not overlap, and are cut between batches, though two readers may bring them (of a backlog, and of
   new records). Offsets below the base that no reader brought were finished where this consumer did not see
   them. They are not counted, and reports say which windows may lack them (`complete_ms`).
3. A successor begins with the predecessor's `state`: its parts with their counts, reported or not. So its
   reports begin where the parts did, although it reads on from `next_offset`: the widest report of a part
   counts, whoever makes it (`app.audit.counts`). It must know where the first stretch began. So reports are
   made only once the state is sure to reach a successor (`is_known`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from app.audit.counts.counter import CountingSpec, count_chunk, count_headers
from app.audit.counts.handover import CountsFrom
from app.audit.counts.partition_counter import PartitionReader, by_part, bytes_below, rows_by_part
from app.kafka.records.batch import ReadCommittedFilter
from app.kafka.records.header_arrays import BatchHeaderArrays, headers_of_heads
from app.kernel.ranges import MAX_OFFSET
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import PART_OFFSETS, Report, Scope
from switchyard.audit.model.tally import Tally

MOST_PIECES = 256  # with more, neighbours are joined
MOST_HEADS = 256  # headers that are kept and counted together; a tally takes less room than more headers
MOST_PENDING = 256  # final reports; with more, the oldest are dropped, because nothing waits for an audit


class CountedSpan:
    """Offsets [start, end), cut between batches: as tallies of parts, or as headers to be counted."""

    __slots__ = ("end", "heads", "parts", "start")

    def __init__(
        self, start: int, end: int, parts: list[tuple[int, Tally]], heads: list[bytes] | None
    ) -> None:
        self.start = start
        self.end = end
        self.parts = parts
        self.heads = heads

    def join(self, other: CountedSpan) -> None:
        """Takes in the next span, both counted. Their separate times of finishing are lost."""
        (part, last), (next_part, first) = self.parts[-1], other.parts[0]
        if part == next_part:
            last.merge(first)
        self.parts += other.parts[part == next_part :]
        self.end = other.end


class ConsumerReader:
    """Counts for one consumer. It uses no clock: times are given.

    Args:
        counts: Everything below `counts.next_offset` is counted, or not this reader's to count.
        lateness_ms: By how much records of the first windows may be older than the first one.

    Attributes:
        reader: Makes the reports.
        is_known: A successor knows the state (rule 3).
        version: Grows when a successor must know more.
    """

    __slots__ = (
        "_lateness_ms",
        "_log_end",
        "_log_end_ms",
        "_pieces",
        "_scope",
        "_spec",
        "is_cut",
        "is_known",
        "reader",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        source: FingerprintSource,
        spec: CountingSpec,
        counts: CountsFrom,
        *,
        lineage: int = 0,
        lateness_ms: int,
        at_ms: int,
    ) -> None:
        self._scope = scope
        self._spec = spec
        self._lateness_ms = lateness_ms
        self._pieces: list[CountedSpan] = []
        self._log_end, self._log_end_ms = MAX_OFFSET, at_ms  # where the log ended, and when; see `ended`
        self.reader = PartitionReader(
            scope, source, spec, counts.next_offset, lineage=lineage, part_offsets=PART_OFFSETS
        )
        self.is_cut = counts.is_cut
        self.is_known = counts.former is not None and counts.former.next_offset == counts.next_offset
        self.version = 1
        if counts.former is not None:
            self.reader.resume(counts.former.state, at_ms)
            if not self.is_known:
                self.reader.pass_over(counts.next_offset, at_ms)

    @property
    def next_offset(self) -> int:
        """Everything below is counted and finished; a successor begins here."""
        return self.reader.next_offset

    def fetched(self, data: bytes, start: int, end: int, aborted: Sequence[tuple[int, int]] = ()) -> None:
        """Takes in whole batches for the offsets [start, end), without the known ones. No data: the log does
        not have these offsets. Raises CorruptBatch: The data does not consist of batches."""
        pieces = self._pieces
        at = bisect_right(pieces, start, key=attrgetter("start"))
        first = max(start, pieces[at - 1].end if at else self.next_offset)
        if at < len(pieces):
            end = min(end, pieces[at].start)
        if first >= end:
            return
        if first > start or first % PART_OFFSETS == 0:
            data = data[bytes_below(data, first) :]
        if at < len(pieces):
            data = data[: bytes_below(data, end)]
        heads = self._countable_headers(data, first)
        parts = [] if heads else self._counted(data, first, end, aborted)
        pieces.insert(at, CountedSpan(first, end, parts, heads))
        if len(pieces) > MOST_PIECES:
            self._join()

    def _countable_headers(self, data: bytes, start: int) -> list[bytes] | None:
        """The headers from `start` on, if they are enough to count everything."""
        heads = self.reader.heads_of(data, start)
        if not heads or len(heads) > MOST_HEADS or (headers := headers_of_heads(heads)) is None:
            return None
        return heads if self.reader.countable_from_headers(headers, start) == len(heads) else None

    def _counted(
        self, data: bytes, start: int, end: int, aborted: Sequence[tuple[int, int]]
    ) -> list[tuple[int, Tally]]:
        committed, parts = ReadCommittedFilter(aborted), list[tuple[int, Tally]]()
        for part, batches in by_part(memoryview(data), start // PART_OFFSETS, end, PART_OFFSETS):
            tally = Tally(self._scope.width_ms, timed=True)
            count_chunk(tally, batches, start, self._spec, committed=committed)
            parts.append((part, tally))
        return parts

    def _join(self) -> None:
        """Joins the first two neighbours that are at most a part together."""
        pieces = self._pieces
        for at in range(len(pieces) - 1):
            piece, following = pieces[at], pieces[at + 1]
            if piece.end == following.start and following.end - piece.start <= PART_OFFSETS:
                self._tally(piece)
                self._tally(following)
                piece.join(following)
                del pieces[at + 1]
                return

    def _tally(self, piece: CountedSpan) -> None:
        """Counts a piece that is kept as headers."""
        if piece.heads is None:
            return
        headers = _headers_of([piece])
        for part, rows in rows_by_part(headers, PART_OFFSETS):
            tally = Tally(self._scope.width_ms, timed=True)
            count_headers(tally, headers.of(rows), self._spec, None)
            piece.parts.append((part, tally))
        piece.heads = None

    def finished(self, base: int, at_ms: int) -> None:
        """Everything below `base` is finished at `at_ms`."""
        reader = self.reader
        passed = bisect_right(self._pieces, base, key=attrgetter("end"))
        for run in _runs(self._pieces[:passed]):
            first = run[0]
            if first.start > reader.next_offset:
                self._cut(first.start, at_ms)
            if first.heads is None:
                for _, tally in first.parts:
                    tally.seen(at_ms)
                reader.add_parts(first.parts, first.end, at_ms)
            else:
                reader.add_headers(_headers_of(run), run[-1].end, at_ms=at_ms, seen_at_ms=at_ms)
        del self._pieces[:passed]
        if self._pieces and reader.next_offset < self._pieces[0].start <= base:
            self._cut(self._pieces[0].start, at_ms)
        while reader.pending > MOST_PENDING:
            reader.drop_oldest()
        if self.is_cut and reader.complete_ms < 0 and reader.first_ms >= 0:
            reader.complete_ms = reader.first_ms + self._lateness_ms

    def _cut(self, offset: int, at_ms: int) -> None:
        """Passes over offsets that no reader brings (rule 2)."""
        self.reader.pass_over(offset, at_ms)
        self.is_cut, self.is_known = True, False
        self.version += 1
        # The windows of the other records are unknown, but began before now.
        self.reader.complete_ms = max(self.reader.complete_ms, at_ms)

    def ended(self, end: int, base: int, at_ms: int) -> None:
        """The log ends at `end` now. If that is finished, no older record is on its way. A log that grows all
        the time is never finished to its end. So its end of some time ago is kept: once that is finished, the
        records to come are newer than that time."""
        upto = min(base, self.next_offset)
        if end <= upto or end < self._log_end:
            self._log_end, self._log_end_ms = end, at_ms
        if self._log_end <= upto:
            self.reader.ended(self._log_end_ms)
            self._log_end, self._log_end_ms = end, at_ms
            if self.is_cut and self.reader.complete_ms < 0:
                self.reader.complete_ms = at_ms

    @property
    def is_silent(self) -> bool:
        """Whether reports must wait until a successor knows the state, and incomplete windows are known."""
        return not self.is_known or (self.is_cut and self.reader.complete_ms < 0)

    def acknowledged(self, report: Report) -> None:
        self.reader.acknowledged(report)
        was_cut, self.is_cut = self.is_cut, self.is_cut and report.complete_ms < 0
        if report.windows or report.final or was_cut:
            self.version += 1


def _headers_of(run: Iterable[CountedSpan]) -> BatchHeaderArrays:
    headers = headers_of_heads([head for piece in run for head in piece.heads or ()])
    assert headers is not None, "checked when they were kept"
    return headers


def _runs(pieces: Iterable[CountedSpan]) -> list[list[CountedSpan]]:
    """Runs of adjacent pieces that are kept as headers; any other piece alone."""
    found: list[list[CountedSpan]] = []
    last, count = None, 0
    for piece in pieces:
        size = len(piece.heads or ())
        is_adjacent = last is not None and last.heads and size and last.end == piece.start
        if is_adjacent and count + size <= MOST_HEADS:
            found[-1].append(piece)
            count += size
        else:
            found.append([piece])
            count = size
        last = piece
    return found
