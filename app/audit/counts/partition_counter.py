"""The auditor of one partition: counts what is fetched, part by part, and makes reports of it.

    chunks --fetched--> tallies of parts --reports--> [report, …] --acknowledged--> committable_offset
    a successor resumes from `state()`, or from the part's start: it reports the same of the part, or more

A batch belongs to the part of its base offset, so every reader cuts a log in the same places. A reader that
begins in the middle of a part (where auditing or the log begins) says so in its reports (`Report.since`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from app.audit.counts.counter import (
    CountingSpec,
    count_chunk,
    count_headers,
    countable_from_headers,
    countable_headers,
    mark_of,
)
from app.kafka.records.batch import LOG_OVERHEAD_BYTES, ReadCommittedFilter
from app.kafka.records.header_arrays import BatchHeaderArrays, Numbers
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import (
    INCARNATION,
    PART_OFFSETS,
    Increment,
    Report,
    Scope,
    report_id,
    shard_of,
)
from switchyard.audit.model.tally import UNTIMED, Tally
from switchyard.audit.model.totals import NEVER_MS, Sums

# A source counts as complete once its log was read to the end for this long. A copy's log stands still, too,
# while its route hangs, and closed windows would then show records as lost that are only on their way. So it
# is longer than usual interruptions.
IDLE_MS = 300_000
MOST_WINDOWS = 16  # the last ones of a part, whose counts a successor gets
MOST_HELD = 16_384  # with more a successor gets none: choosing among them would take too long
_FRAME = struct.Struct(">qi")  # base offset and length


class PartState(msgspec.Struct, frozen=True, array_like=True):
    """The counts of [since, upto) of a part. `whole_ms`: earlier windows are in `windows` only if the topic
    lacks them."""

    part: int
    since: int
    upto: int
    final: bool
    windows: tuple[Increment, ...]
    whole_ms: int = NEVER_MS


def new_part(part: int, since: int) -> PartState:
    """The state of a part without counts."""
    return PartState(part, since, since, False, ())


class PartitionReader:
    """Counts a partition. It uses no clock: times are given.

    Args:
        lineage: The log's: a truncated log has other records at the same offsets.
        part_offsets: The length of a part, the same for all readers of a log at a tier.

    Attributes:
        next_offset: Everything below is counted.
        max_timestamp_ms: The highest that was counted; it does not show how far the source has come
            (`mark_of`).
        complete_ms: As in `Report`.
        records: The number that was counted here.
        is_lacking: A record belongs to a window whose counts the predecessor left out. The part must be
            counted again from its start, and nothing of it may be reported before.
    """

    __slots__ = (
        "_acknowledged",
        "_arrived_ms",
        "_ended_ms",
        "_finished",
        "_idle_ms",
        "_late_ms",
        "_mark_ms",
        "_name",
        "_part",
        "_part_offsets",
        "_partition",
        "_reported_upto",
        "_scope",
        "_since",
        "_spec",
        "_tally",
        "_whole_ms",
        "complete_ms",
        "is_lacking",
        "max_timestamp_ms",
        "next_offset",
        "records",
    )  # fmt: skip

    def __init__(
        self,
        scope: Scope,
        source: FingerprintSource,
        spec: CountingSpec,
        next_offset: int,
        idle_ms: int = IDLE_MS,
        lineage: int = 0,
        part_offsets: int = PART_OFFSETS,
    ) -> None:
        self._scope = scope
        self._part_offsets = part_offsets
        self._name = f"{source.topic_id}/{source.partition}" + (f"{INCARNATION}{lineage}" if lineage else "")
        self._partition = source.partition
        self._spec = spec
        self._idle_ms = idle_ms
        self._finished: list[Report] = []  # final, and not acknowledged
        self._ended_ms = self._arrived_ms = self._mark_ms = self.max_timestamp_ms = NEVER_MS
        self.records, self.is_lacking = 0, False
        self.complete_ms = NEVER_MS
        self._late_ms = 0  # since the last report that was acknowledged
        self._part = self._since = self.next_offset = self._reported_upto = 0
        self._tally = Tally(scope.width_ms)
        self._acknowledged: dict[int, int] = {}  # records by window
        self._start_part(next_offset // self._part_offsets, next_offset)

    def fetched(
        self,
        data: bytes | memoryview,
        next_offset: int,
        *,
        at_ms: int,
        seen_at_ms: int | None = None,
        at_end: bool = False,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Counts a chunk of whole batches for the offsets up to `next_offset`.

        Args:
            at_ms: When it arrived.
            seen_at_ms: The same if the records are new; None: a backlog, whose latencies would be the audit's
                own.
            at_end: The log has nothing behind it.
            aborted: Producer ids and first offsets of aborted transactions, from the broker.

        Raises:
            CorruptBatch: The chunk does not consist of batches.
        """
        view, committed = memoryview(data), ReadCommittedFilter(aborted)
        if self.next_offset == self._part * self._part_offsets:
            view = view[bytes_below(view, self.next_offset) :]  # these belong to the part before
        for part, batches in by_part(view, self._part, next_offset, self._part_offsets):
            self._enter_part(part, at_ms)
            tally = Tally(self._scope.width_ms)
            count_chunk(tally, batches, self.next_offset, self._spec, seen_at_ms, committed)
            self._add(tally, at_ms)
        self.next_offset = max(self.next_offset, next_offset)
        if at_end:
            self.ended(at_ms)

    def countable_from_headers(self, headers: BatchHeaderArrays, start_offset: int = 0) -> int:
        """How many of the first batches headers alone can count, from `start_offset` on."""
        return countable_from_headers(headers, start_offset, self._spec, self._scope.width_ms)

    def heads_of(self, data: bytes, start_offset: int = 0) -> list[bytes] | None:
        """The headers of whole batches, and what counting them needs (`countable_headers`)."""
        return countable_headers(data, start_offset, self._spec, self._scope.width_ms)

    def add_headers(
        self, headers: BatchHeaderArrays, next_offset: int, *, at_ms: int, seen_at_ms: int | Numbers
    ) -> None:
        """Counts batches up to `next_offset` by their headers. `seen_at_ms`: when this tier got all, or
        each."""
        for part, rows in rows_by_part(headers, self._part_offsets):
            self._enter_part(part, at_ms)
            tally = Tally(self._scope.width_ms)
            seen = seen_at_ms if isinstance(seen_at_ms, int) else seen_at_ms[rows]
            count_headers(tally, headers.of(rows), self._spec, seen)
            self._add(tally, at_ms)
        self._enter_part(next_offset // self._part_offsets, at_ms)
        self.next_offset = max(self.next_offset, next_offset)

    def add_parts(self, parts: Iterable[tuple[int, Tally]], next_offset: int, at_ms: int) -> None:
        """Adds tallies of parts up to `next_offset`, which the caller counted."""
        for part, tally in parts:
            self._enter_part(part, at_ms)
            self._add(tally, at_ms)
        self._enter_part(next_offset // self._part_offsets, at_ms)
        self.next_offset = max(self.next_offset, next_offset)

    def ended(self, at_ms: int) -> None:
        """The log has nothing behind `next_offset`."""
        self._ended_ms = max(self._ended_ms, at_ms)

    def pass_over(self, next_offset: int, at_ms: int) -> None:
        """Leaves offsets below `next_offset` uncounted; earlier counts are a stretch of their own."""
        if self.next_offset > self._since:
            self._finished.append(self._report(self._increments(), self.next_offset, at_ms, final=False))
        self._start_part(next_offset // self._part_offsets, next_offset)

    # -- for a successor ---------------------------------------------------------------------------

    def state(self, most_windows: int = MOST_WINDOWS, *, whole: bool = False) -> tuple[PartState, ...]:
        """The counts that may not have arrived; the last is of the current part, up to `next_offset`. The
        current part also has its last windows that have arrived (`whole`: all). If a record of another window
        comes, the successor `is_lacking`. With too many windows the state is only the start of the first
        part, from which a successor counts again."""
        held, reported, whole_ms = self._tally.windows, self._acknowledged, self._whole_ms
        if self.is_lacking or len(held) > MOST_HELD:
            return self._new_parts()
        windows = sorted(held.items())
        if not whole and len(windows) > most_windows:
            old, windows = windows[:-most_windows], windows[-most_windows:]
            whole_ms = max(whole_ms, windows[0][0])
            windows += (item for item in old if item[0] == UNTIMED or item[1].count != reported.get(item[0]))
            if whole_ms > self._mark_ms:  # times ahead of all others: the next records would be lacking
                return self._new_parts()
        if sum(len(report.windows) for report in self._finished) + len(windows) > 4 * MOST_WINDOWS:
            return self._new_parts()
        finished = (
            PartState(report.part, report.since, report.upto, report.final, report.windows)
            for report in self._finished
        )
        now = PartState(self._part, self._since, self.next_offset, False, _increments(windows), whole_ms)
        return *finished, now

    def _new_parts(self) -> tuple[PartState, ...]:
        if self._finished:
            return (new_part(self._finished[0].part, self._finished[0].since),)
        return (new_part(self._part, self._since),)

    def resume(self, state: Sequence[PartState], at_ms: int) -> None:
        """Continues a predecessor's state; only for a reader that has counted nothing yet."""
        for ended in state[:-1]:
            self._start_part(ended.part, ended.since)
            self._finished.append(self._report(ended.windows, ended.upto, at_ms, final=ended.final))
        last = state[-1]
        self._start_part(last.part, last.since)
        for increment in last.windows:
            self._tally.windows[increment.start_ms] = Sums(increment.totals, increment.span)
            self.max_timestamp_ms = max(self.max_timestamp_ms, increment.totals.last_ms)
        self._whole_ms = last.whole_ms
        self._mark_ms = mark_of(self._tally.windows, at_ms)
        self._tally.max_timestamp_ms = self.max_timestamp_ms
        self.next_offset = last.upto

    # -- reports -----------------------------------------------------------------------------------

    def drop_oldest(self) -> None:
        """Drops the oldest unacknowledged final report: its windows are no longer complete."""
        lost = self._finished.pop(0)
        after_ms = max((increment.start_ms + 1 for increment in lost.windows), default=NEVER_MS)
        self.complete_ms = max(self.complete_ms, after_ms)

    def reports(self, at_ms: int) -> list[Report]:
        """The reports to append: unacknowledged final ones, and always one of the current part."""
        reported = self._acknowledged
        changed = (item for item in self._tally.windows.items() if item[1].count != reported.get(item[0]))
        return [*self._finished, self._report(_increments(changed), self.next_offset, at_ms, final=False)]

    def acknowledged(self, report: Report) -> None:
        remaining = [waiting for waiting in self._finished if waiting.id != report.id]
        if len(remaining) < len(self._finished):
            self._finished = remaining
        elif (report.part, report.since) == (self._part, self._since):
            for increment in report.windows:
                known = self._acknowledged.get(increment.start_ms, 0)
                self._acknowledged[increment.start_ms] = max(known, increment.totals.count)
                sums = self._tally.windows.get(increment.start_ms)
                if sums is not None and sums.count == increment.totals.count:
                    sums.pack()  # a part may last for months, and have thousands of windows
            self._late_ms = 0
            if not self._finished:
                self._arrived_ms = max(self._arrived_ms, report.watermark_ms)
            self._reported_upto = max(self._reported_upto, report.upto)

    @property
    def committable_offset(self) -> int:
        """A successor may begin here: the topic has all counts below."""
        return self._finished[0].since if self._finished else self._reported_upto

    @property
    def first_ms(self) -> int:
        """The lowest timestamp of the current part; -1: none."""
        found = [sums.first_ms for sums in self._tally.windows.values() if sums.first_ms != NEVER_MS]
        return min(found, default=NEVER_MS)

    @property
    def pending(self) -> int:
        """The number of unacknowledged final reports."""
        return len(self._finished)

    def watermark_ms(self, at_ms: int) -> int:
        """No record below this time is expected, except late ones; -1: unknown."""
        quiet_ms = self._ended_ms - self._idle_ms if self._ended_ms != NEVER_MS else NEVER_MS
        return max(NEVER_MS, min(self._mark_ms, at_ms), quiet_ms)

    def _start_part(self, part: int, since: int) -> None:
        self._part, self._since = part, since
        self.next_offset = self._reported_upto = since
        self._tally = Tally(self._scope.width_ms)
        self._acknowledged = {}
        self._whole_ms = NEVER_MS

    def _enter_part(self, part: int, at_ms: int) -> None:
        """Begins `part`, if it is not the current one."""
        if part != self._part:
            self._finish((self._part + 1) * self._part_offsets, at_ms)
            self._start_part(part, part * self._part_offsets)

    def _add(self, tally: Tally, at_ms: int) -> None:
        width_ms, known = self._scope.width_ms, self._tally.windows
        if self._whole_ms != NEVER_MS and not self.is_lacking:
            others = (start for start in tally.windows if UNTIMED != start < self._whole_ms)
            self.is_lacking = any(start not in known for start in others)
        mark_ms = min(self._mark_ms, at_ms)  # a time in the future makes nothing late
        for start, sums in tally.windows.items():
            self.records += sums.count
            if start != UNTIMED and start + width_ms < mark_ms:
                self._late_ms = max(self._late_ms, mark_ms - start - width_ms)
        self._mark_ms = max(self._mark_ms, mark_of(tally.windows, at_ms))
        self._tally.merge(tally)
        self.max_timestamp_ms = max(self.max_timestamp_ms, tally.max_timestamp_ms)

    def _finish(self, upto: int, at_ms: int) -> None:
        self._finished.append(self._report(self._increments(), upto, at_ms, final=True))

    def _increments(self) -> tuple[Increment, ...]:
        return _increments(self._tally.windows.items())

    def _report(self, windows: tuple[Increment, ...], upto: int, at_ms: int, *, final: bool) -> Report:
        return Report(
            id=report_id(self._scope, self._name, self._part, self._since, upto, final=final),
            topic=self._scope.topic,
            tier=self._scope.tier,
            cluster=self._scope.cluster,
            width_ms=self._scope.width_ms,
            source=self._name,
            at_ms=at_ms,
            windows=windows,
            part=self._part,
            since=self._since,
            upto=upto,
            final=final,
            # It must not close windows while an earlier report may not have arrived.
            watermark_ms=self._arrived_ms if final or self._finished else self.watermark_ms(at_ms),
            late_ms=self._late_ms,
            shard=shard_of(self._partition),
            complete_ms=self.complete_ms,
        )


def _increments(windows: Iterable[tuple[int, Sums]]) -> tuple[Increment, ...]:
    return tuple(Increment(start, sums.totals(), sums.span) for start, sums in sorted(windows, key=_start))


def _start(window: tuple[int, Sums]) -> int:
    return window[0]


def by_part(
    view: memoryview, part: int, next_offset: int, part_offsets: int
) -> Iterator[tuple[int, memoryview]]:
    """Splits whole batches for the offsets up to `next_offset` by parts, from `part` on; all but the last
    have ended."""
    while next_offset >= (part_end := (part + 1) * part_offsets):
        cut = bytes_below(view, part_end)
        yield part, view[:cut]
        view = view[cut:]
        part = (_FRAME.unpack_from(view)[0] if len(view) >= _FRAME.size else next_offset) // part_offsets
    yield part, view


def rows_by_part(
    headers: BatchHeaderArrays, part_offsets: int
) -> Iterator[tuple[int, slice | npt.NDArray[np.bool_]]]:
    """The rows of each part in headers, of which there is at least one."""
    parts = headers.base_offset // part_offsets
    first, last = int(parts[0]), int(parts[-1])
    for part in [first] if first == last else np.unique(parts).tolist():
        yield part, slice(None) if first == last else parts == part


def bytes_below(view: bytes | memoryview, offset: int) -> int:
    """The length of the batches with base offsets below `offset`, which come first."""
    at, size = 0, len(view)
    while size - at >= _FRAME.size:
        base_offset, length = _FRAME.unpack_from(view, at)
        if base_offset >= offset or length <= 0:
            return at
        at += LOG_OVERHEAD_BYTES + length
    return size
