"""The fold over a partition of the tracker topic, and the answers that it gives to takeovers.

Rules
1. The fold applies the partition's events in their order (`app.kernel.fencing`). An answer depends only on
   the events before the takeover, so every reader may give it, and each of several answers is right.
2. A row names the last event that it contains (`offset`). A reader takes rows from the table's changelog
   and skips the events up to that offset. The job's row with the highest event counts, not the last
   one, because a deposed writer may write an older row behind a newer one.
3. A reader first reads the offset that the table's writer has committed, then the changelog to its end. It
   starts to fold a margin before that offset. The writer commits an event once it has sent the rows to the
   changelog; the margin covers rows that have not arrived.
4. The table's writer writes the rows that a reader has folded (`agents.trackers`), beginning with the rows
   that changed since that reader started. So each row in the changelog is right at its offset, whoever
   wrote it and however late. Rows that a former writer failed to write are written again.
5. Within an epoch an owner's finished offsets only grow, so its last snapshot contains the earlier ones.
   The fold joins only the last snapshot with the row, when a caller reads the row.
6. Another region reads two copies: the changelog's, which is late when its writer is, and the topic's end,
   whose offsets differ (`CopyFold`). It takes the further one of the two (`together`). Once the
   changelog's copy has passed the start of the copied end, each takeover is in one of them. So the reader
   refuses the same owners as the region itself. Before that, an owner counts only if its takeover is within
   the end, because a takeover between the two copies may have deposed it. Another owner's snapshot is kept
   (`early`). It counts once the changelog's copy has come that far and knows its owner. The result thus
   depends on what has arrived, not on which copy was read first.

Why the topic's order is the fence, whichever reader answers: let the takeover of an epoch have offset T. A
snapshot of an older epoch below T is in every reader's row before it comes to T, so it is in every answer.
Every reader refuses a snapshot above T, because it has applied T first. No clock, liveness or lag has a
part in this; a slow reader answers later, but never differently. A changelog that already contains events
above T gives a row with more than the answer needs. Either those events are the same owner's, which does
no harm, or they have a later epoch, and the reader refuses. A reader that starts above T does not see the
takeover. The worker repeats it above that start, and the same argument holds.

The limit: compaction may remove a job's furthest row and keep an older row that was written behind it. So
`min.compaction.lag.ms` is longer than a deposed writer's last writes take.

Tests: `tests/worker/tracker/test_fold.py`, `test_fold_copies.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from app.kernel.counters import highest
from app.kernel.fencing import (
    SnapshotItem,
    Snapshots,
    Takeover,
    TakeoverAnswer,
    TrackerEvent,
    TrackerRecord,
    on_snapshot,
    on_takeover,
)
from app.kernel.ranges import CorruptSnapshot

FOLLOWERS = 3  # readers of each partition: takeovers are answered after the loss of two at once


class TrackerFold:
    """The rows of one partition's jobs.

    Attributes:
        next_offset: The offset in the tracker topic below which all events are applied.
        changed: The jobs whose rows the table's writer has not written; the writer removes them.
    """

    __slots__ = ("_last", "_records", "changed", "next_offset")

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self.changed: set[str] = set()
        self._records: dict[str, TrackerRecord] = {}
        self._last: dict[
            str, tuple[SnapshotItem, int, int]
        ] = {}  # with at_ms and offset: not in the row yet (rule 5)

    def restore(self, job: str, record: TrackerRecord) -> None:
        """Takes a job's row from the table's changelog, before any event."""
        known = self._records.get(job)
        if known is None or _is_further(record, known):
            self._records[job] = record

    def apply(self, event: TrackerEvent, offset: int) -> TakeoverAnswer | None:
        """Applies the event at `offset`; returns the answer to a takeover."""
        self.next_offset = offset + 1
        if isinstance(event, Takeover):
            before = self.record(event.job)
            record, answer = on_takeover(before, event)
            if before is None or before.offset < offset:
                self._records[event.job] = msgspec.structs.replace(record, offset=offset)
                self.changed.add(event.job)
            return answer
        limit = highest(self.next_offset)
        for item in event.items:
            known = self._records.get(item.job)
            if known is None or (item.epoch, event.worker) != (known.epoch, known.worker):
                continue  # fenced
            if offset <= known.offset:
                continue  # in the row already
            if item.lineage > limit:
                continue  # forged: no reset gives so high a lineage
            last = self._last.get(item.job)
            if last is not None and (last[0].lineage, last[0].log) != (item.lineage, item.log):
                self.record(item.job)
            self._last[item.job] = item, event.at_ms, offset
            self.changed.add(item.job)
        return None

    def owner(self, job: str) -> tuple[int, str] | None:
        record = self._records.get(job)
        return None if record is None else (record.epoch, record.worker)

    def record(self, job: str) -> TrackerRecord | None:
        """A job's row, with the last snapshot in it."""
        record, last = self._records.get(job), self._last.pop(job, None)
        if record is not None and last is not None:
            record = self._records[job] = _joined(record, *last)
        return record


class RemoteJobRecord(NamedTuple):
    """Another region's rows of a job: of the changelog's copy, of the end on top, and too early ones (rule
    6)."""

    table: TrackerRecord | None = None
    end: TrackerRecord | None = None
    early: TrackerRecord | None = None


class CopyFold:
    """Folds a copied partition's end on top of its jobs' known rows (rule 6).

    Args:
        prefix: The beginning of the names of the jobs to fold.
        known: Returns a job's rows from the changelog's copy and from former folds.
        joined: Whether the changelog's copy has passed the beginning of the end.
    """

    __slots__ = ("_early", "_fold", "_joined", "_known", "_prefix", "_tables", "_taken_over")

    def __init__(self, prefix: str, known: Callable[[str], RemoteJobRecord], *, joined: bool) -> None:
        self._prefix = prefix
        self._known = known
        self._joined = joined
        self._fold = TrackerFold()
        self._tables: dict[str, RemoteJobRecord] = {}  # of the jobs of applied events
        self._taken_over: set[str] = set()  # jobs whose owner's takeover is within the end
        self._early: dict[str, tuple[SnapshotItem, Snapshots]] = {}  # the last one of the latest epoch

    def apply(self, event: TrackerEvent, offset: int) -> None:
        if isinstance(event, Takeover):
            if event.job.startswith(self._prefix):
                self._load(event.job)
                changed = event.job in self._fold.changed
                answer = self._fold.apply(event, offset)
                if answer is not None and answer.granted:
                    self._taken_over.add(event.job)
                elif not changed:
                    self._fold.changed.discard(event.job)
            return
        mine = (item for item in event.items if item.job.startswith(self._prefix))
        items = [item for item in mine if self._counts(event, item)]
        self._fold.apply(msgspec.structs.replace(event, items=items), offset)

    def _load(self, job: str) -> None:
        if job not in self._tables:
            copied = self._tables[job] = self._known(job)
            if (known := together(copied, joined=self._joined)) is not None:
                self._fold.restore(job, known)
            if copied.end is not None and not _is_past(copied.table, copied.end):
                self._taken_over.add(job)

    def _counts(self, event: Snapshots, item: SnapshotItem) -> bool:
        self._load(item.job)
        table = self._tables[item.job].table
        sender = item.epoch, event.worker, item.lineage
        if (
            table is not None
            and event.at_ms < table.at_ms
            and sender == (table.epoch, table.worker, table.lineage)
        ):
            return False  # the table has a later snapshot of this owner, with its note
        if self._joined:
            return True
        owner = self._fold.owner(item.job)
        if owner == (item.epoch, event.worker) and item.job in self._taken_over:
            return True
        early = self._early.get(item.job)
        if (owner is None or item.epoch >= owner[0]) and (early is None or item.epoch >= early[0].epoch):
            self._early[item.job] = item, event
        return False

    def records(self) -> dict[str, TrackerRecord]:
        """The rows that changed, by job; the next fold needs them as `known`."""
        found = {job: self._fold.record(job) for job in self._fold.changed}
        return {job: _of_no_offset(record) for job, record in found.items() if record is not None}

    def early(self) -> dict[str, TrackerRecord]:
        """The rows of early snapshots that changed, by job; the next fold needs them as `known`."""
        found: dict[str, TrackerRecord] = {}
        for job, (item, event) in self._early.items():
            early = self._tables[job].early
            if early is not None and early.epoch > item.epoch:
                continue  # its owner was deposed by then
            if early is None or (early.epoch, early.worker) != (item.epoch, event.worker):
                early = TrackerRecord(epoch=item.epoch, worker=event.worker)
            with contextlib.suppress(CorruptSnapshot):  # the next one contains more
                if (row := on_snapshot(early, item, worker=event.worker, at_ms=event.at_ms)) is not None:
                    found[job] = row
        return found


def together(copied: RemoteJobRecord, *, joined: bool) -> TrackerRecord | None:
    """A job's row from both copies; either may be behind the other. `joined`: see `CopyFold`, as of now."""
    table, end, early = copied
    if joined and table and early and (table.epoch, table.worker) == (early.epoch, early.worker):
        table = _put_together(table, early)
    if end is not None and table is not None and not _is_past(table, end):
        return _put_together(table, end)
    known = end if table is None else table
    return None if known is None else _of_no_offset(known)


def _put_together(table: TrackerRecord, end: TrackerRecord) -> TrackerRecord:
    """The row of the changelog with the row of the end, which has the same owner or a later one."""
    known = msgspec.structs.replace(table, epoch=end.epoch, worker=end.worker, offset=-1)
    newest = max(end, table, key=lambda record: (record.lineage, record.base, record.at_ms))
    item = SnapshotItem("", end.epoch, end.snapshot, end.lineage, end.log, newest.note)
    with contextlib.suppress(CorruptSnapshot):  # or the end has none: the changelog's row stays
        known = on_snapshot(known, item, worker=end.worker, at_ms=end.at_ms) or known
    return known


def _is_past(table: TrackerRecord | None, end: TrackerRecord) -> bool:
    """Whether the changelog knows a later owner."""
    if table is None:
        return False
    return table.epoch > end.epoch or (table.epoch == end.epoch and table.worker != end.worker)


def _of_no_offset(record: TrackerRecord) -> TrackerRecord:
    """The row without an offset: those of a copy differ."""
    return msgspec.structs.replace(record, offset=-1)


def _is_further(record: TrackerRecord, known: TrackerRecord) -> bool:
    """Whether `record` is at least as far as `known`; one of them may lack its offset."""
    if record.offset >= 0 and known.offset >= 0:
        return record.offset >= known.offset
    places = [(one.epoch, one.lineage, one.base, one.offset) for one in (record, known)]
    return places[0] >= places[1]


def _joined(record: TrackerRecord, item: SnapshotItem, at_ms: int, offset: int) -> TrackerRecord:
    """The row with its owner's snapshot; a corrupt one changes nothing, and the next one contains more."""
    with contextlib.suppress(CorruptSnapshot):
        record = on_snapshot(record, item, worker=record.worker, at_ms=at_ms) or record
    return msgspec.structs.replace(record, offset=offset)


def followers(partition: int, workers: Iterable[str], count: int = FOLLOWERS) -> list[str]:
    """The `count` workers that follow a partition. When a worker comes or goes, only its own share changes.

    Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """

    def weight(worker: str) -> bytes:
        return hashlib.blake2b(f"{partition}/{worker}".encode(), digest_size=8).digest()

    return sorted(workers, key=lambda worker: (weight(worker), worker), reverse=True)[:count]
