"""A partition of the tracker topic, folded: what any worker that reads it knows, and answers.

Rules
1. The records are a fold over the partition's events in their order (`app.kernel.fencing`). An answer depends
   on what stands before the question: anybody may answer it, several readers do, and any of their answers
   is good.
2. A record says with which event it ends (`offset`). What a reader takes over from the table's changelog is
   thus a fold over all events up to there, and those are not folded in again. Of several records of a job
   the one with the furthest event counts, not the last: a writer that was paused, and deposed meanwhile, may
   have written an old one behind a newer.
3. A reader begins with the changelog, read to its end *after* the offset was read that the table's writer has
   committed, and goes on from a margin before that offset. The writer commits an event after it has sent
   what it made of it to the changelog; the margin is for what was sent and had not arrived.
4. The table's writer writes down what a reader has folded (`agents.trackers`), first of all what changed
   since the beginning of that reader. So every record in the changelog is right at its offset, whoever wrote
   it and however late, and what a former writer sent in vain is written again.
5. What an owner has finished under an epoch only grows, so the last of its snapshots says it all, and only
   that one is joined with the record, once somebody asks.
6. Another region reads copies: of the changelog, which is late when its writer is, and of the topic's end,
   whose offsets are others (`CopyFold`). Of both it knows the further (`together`). Where the changelog's
   copy has come past the beginning of that end, every takeover is in one or the other, and whom this region
   refuses is refused there. Until then only owners count who asked within the end: a snapshot of an epoch
   whose question is above it may be of one who was deposed in between. It is kept (`early`), and counts once
   the changelog's copy has come so far and knows its owner: what is known depends on what has come, not on
   which of the two was read first.

Why the order of the topic is the fence, whoever answers: let the question of an epoch stand at offset T. A
snapshot of an older epoch below T is in every reader's record when it comes to T, so it is in every answer.
One above T is refused by every reader, since each has come past T first. There is nothing in between, and
nobody's clock, liveness or lag has a part in it: a slow reader answers later, never otherwise. A reader whose
changelog already holds events above T knows more than it was asked for: facts of the same owner, which do no
harm, or a later epoch, and then it refuses. One that began above T does not know the question; it is asked
again, above its beginning, and again the same holds.

It ends where compaction has removed the furthest record in favour of an old one that was written behind it:
`min.compaction.lag` is longer than a deposed writer's last writes take.
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

FOLLOWERS = 3  # readers of each partition: two may be lost at once, and takeovers are answered


class TrackerFold:
    """What is known of one partition's jobs. See the module.

    Attributes: `next_offset` (of the topic: everything below is folded in), `changed` (the jobs whose records
    the table's writer has not written down; it takes them out).
    """

    __slots__ = ("_last", "_records", "changed", "next_offset")

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self.changed: set[str] = set()
        self._records: dict[str, TrackerRecord] = {}
        self._last: dict[str, tuple[SnapshotItem, int, int]] = {}  # with `at_ms`, offset: not joined yet

    def restore(self, job: str, record: TrackerRecord) -> None:
        """Takes in what the table's changelog says of a job, before any event."""
        known = self._records.get(job)
        if known is None or _is_further(record, known):
            self._records[job] = record

    def apply(self, event: TrackerEvent, offset: int) -> TakeoverAnswer | None:
        """Folds the event at `offset` in; the answer, when it is a question."""
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
                continue  # in the record already
            if item.lineage > limit:
                continue  # a jump: a reset could not go above it
            last = self._last.get(item.job)
            if last is not None and (last[0].lineage, last[0].log) != (item.lineage, item.log):
                self.record(item.job)
            self._last[item.job] = item, event.at_ms, offset
            self.changed.add(item.job)
        return None

    def owner(self, job: str) -> tuple[int, str] | None:
        """The epoch of a job, and who has it."""
        record = self._records.get(job)
        return None if record is None else (record.epoch, record.worker)

    def record(self, job: str) -> TrackerRecord | None:
        """A job's record, with all that was saved so far."""
        record, last = self._records.get(job), self._last.pop(job, None)
        if record is not None and last is not None:
            record = self._records[job] = _joined(record, *last)
        return record


class RemoteJobRecord(NamedTuple):
    """What is known of a job elsewhere: its record of the changelog's copy, what was folded of the end on top
    of it, and what came too early to count."""

    table: TrackerRecord | None = None
    end: TrackerRecord | None = None
    early: TrackerRecord | None = None


class CopyFold:
    """Events of a copied partition's end, folded on top of what was known of their jobs (rule 6).

    Args:
        prefix: of the jobs that are meant.
        known: a job -> what the changelog's copy and former folds say of it.
        joined: whether the changelog's copy has come past the beginning of that end.
    """

    __slots__ = ("_asked", "_early", "_fold", "_joined", "_known", "_prefix", "_tables")

    def __init__(self, prefix: str, known: Callable[[str], RemoteJobRecord], *, joined: bool) -> None:
        self._prefix = prefix
        self._known = known
        self._joined = joined
        self._fold = TrackerFold()
        self._tables: dict[str, RemoteJobRecord] = {}  # of jobs that were looked at
        self._asked: set[str] = set()  # jobs whose owner has asked within the end
        self._early: dict[str, tuple[SnapshotItem, Snapshots]] = {}  # the last of the latest epoch

    def apply(self, event: TrackerEvent, offset: int) -> None:
        """Folds the event at `offset` of the copy in."""
        if isinstance(event, Takeover):
            if event.job.startswith(self._prefix):
                self._load(event.job)
                changed = event.job in self._fold.changed
                answer = self._fold.apply(event, offset)
                if answer is not None and answer.granted:
                    self._asked.add(event.job)
                elif not changed:
                    self._fold.changed.discard(event.job)
            return
        items = [
            item for item in event.items if item.job.startswith(self._prefix) and self._counts(event, item)
        ]
        self._fold.apply(msgspec.structs.replace(event, items=items), offset)

    def _load(self, job: str) -> None:
        if job not in self._tables:
            copied = self._tables[job] = self._known(job)
            if (known := together(copied, joined=self._joined)) is not None:
                self._fold.restore(job, known)
            if copied.end is not None and not _is_past(copied.table, copied.end):
                self._asked.add(job)

    def _counts(self, event: Snapshots, item: SnapshotItem) -> bool:
        self._load(item.job)
        table = self._tables[item.job].table
        if table is not None and event.at_ms < table.at_ms:
            told = item.epoch, event.worker, item.lineage
            if told == (table.epoch, table.worker, table.lineage):
                return False  # the table has a later one of it, whose note says more
        if self._joined:
            return True
        owner = self._fold.owner(item.job)
        if owner == (item.epoch, event.worker) and item.job in self._asked:
            return True
        early = self._early.get(item.job)
        if (owner is None or item.epoch >= owner[0]) and (early is None or item.epoch >= early[0].epoch):
            self._early[item.job] = item, event
        return False

    def records(self) -> dict[str, TrackerRecord]:
        """What has changed, by job: to be `known` to the next."""
        found = {job: self._fold.record(job) for job in self._fold.changed}
        return {job: _of_no_offset(record) for job, record in found.items() if record is not None}

    def early(self) -> dict[str, TrackerRecord]:
        """What came too early, by job, where that has changed: likewise."""
        found: dict[str, TrackerRecord] = {}
        for job, (item, event) in self._early.items():
            early = self._tables[job].early
            if early is not None and early.epoch > item.epoch:
                continue  # of one who was deposed by then
            if early is None or (early.epoch, early.worker) != (item.epoch, event.worker):
                early = TrackerRecord(epoch=item.epoch, worker=event.worker)
            with contextlib.suppress(CorruptSnapshot):  # the next says more
                if (told := on_snapshot(early, item, worker=event.worker, at_ms=event.at_ms)) is not None:
                    found[job] = told
        return found


def together(copied: RemoteJobRecord, *, joined: bool) -> TrackerRecord | None:
    """What the copies of the changelog and of the topic's end say of a job. Either may be behind the other;
    what the changelog says is right. `joined`: as for `CopyFold`, by now."""
    table, end, early = copied
    if joined and table is not None and early is not None and _is_owner(table, early):
        table = _put_together(table, early)
    if end is not None and table is not None and not _is_past(table, end):
        return _put_together(table, end)
    known = end if table is None else table
    return None if known is None else _of_no_offset(known)


def _put_together(table: TrackerRecord, end: TrackerRecord) -> TrackerRecord:
    """The record with what was read of the end, of the same owner or a later one."""
    known = msgspec.structs.replace(table, epoch=end.epoch, worker=end.worker, offset=-1)
    newest = max(end, table, key=lambda record: (record.lineage, record.base, record.at_ms))
    item = SnapshotItem("", end.epoch, end.snapshot, end.lineage, end.log, newest.note)
    with contextlib.suppress(CorruptSnapshot):  # or none: then the changelog's is all there is
        known = on_snapshot(known, item, worker=end.worker, at_ms=end.at_ms) or known
    return known


def _is_owner(table: TrackerRecord, early: TrackerRecord) -> bool:
    return (table.epoch, table.worker) == (early.epoch, early.worker)


def _is_past(table: TrackerRecord | None, end: TrackerRecord) -> bool:
    """Whether the changelog knows a later owner."""
    if table is None:
        return False
    return table.epoch > end.epoch or (table.epoch == end.epoch and table.worker != end.worker)


def _of_no_offset(record: TrackerRecord) -> TrackerRecord:
    """The record as one of no event: those of a copy have other offsets."""
    return msgspec.structs.replace(record, offset=-1)


def _is_further(record: TrackerRecord, known: TrackerRecord) -> bool:
    """Whether it is at least as far as `known`, also where one of them was written without its offset."""
    if record.offset >= 0 and known.offset >= 0:
        return record.offset >= known.offset
    places = [(one.epoch, one.lineage, one.base, one.offset) for one in (record, known)]
    return places[0] >= places[1]


def _joined(record: TrackerRecord, item: SnapshotItem, at_ms: int, offset: int) -> TrackerRecord:
    """The record with what its owner saved; a corrupt one changes nothing, and the next says more."""
    with contextlib.suppress(CorruptSnapshot):
        record = on_snapshot(record, item, worker=record.worker, at_ms=at_ms) or record
    return msgspec.structs.replace(record, offset=offset)


def followers(partition: int, workers: Iterable[str], count: int = FOLLOWERS) -> list[str]:
    """The `count` of `workers` that follow a partition; when one comes or goes, only its own share changes.

    Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """

    def weight(worker: str) -> bytes:
        return hashlib.blake2b(f"{partition}/{worker}".encode(), digest_size=8).digest()

    return sorted(workers, key=lambda worker: (weight(worker), worker), reverse=True)[:count]
