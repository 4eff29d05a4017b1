"""A partition of the tracker topic, folded: what any worker that reads it knows, and answers.

Rules
1. The records are a fold over the partition's events in their order (`app.core.fencing`). An answer depends
   on what stands before the question: anybody may answer it, several readers do, and any of their answers
   is good.
2. A reader begins with the table's changelog (`restore`), read to its end *after* the offset was read that
   the table's writer has committed, and goes on from that offset. The writer commits an event only after what
   it made of it is in the changelog, so no event is missed; what is in the changelog already is folded in
   again, which changes nothing.
3. Of several changelog records of a job the furthest counts, not the last: a writer that was paused, and
   deposed meanwhile, may have written an old one behind a newer. Two that are as far are joined.
4. What an owner has finished under an epoch only grows, so the last of its snapshots says it all, and only
   that one is joined with the record, once somebody asks.

Why the order of the topic is the fence, whoever answers: let the question of an epoch stand at offset T. A
snapshot of an older epoch below T is in every reader's record when it comes to T, so it is in every answer.
One above T is refused by every reader, since each has come past T first. There is nothing in between, and
nobody's clock, liveness or lag has a part in it: a slow reader answers later, never otherwise. A reader whose
changelog already holds events above T knows more than it was asked for: facts of the same owner, which do no
harm, or a later epoch, and then it refuses. One that began above T does not know the question; it is asked
again, above its beginning, and again the same holds.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable

from app.core.fencing import (
    SnapshotItem,
    Takeover,
    TakeoverAnswer,
    TrackerEvent,
    TrackerRecord,
    on_snapshot,
    on_takeover,
)
from app.core.tracker import CorruptSnapshot

FOLLOWERS = 3  # readers of each partition: two may be lost at once, and takeovers are answered


class TrackerFold:
    """What is known of one partition's jobs. See the module.

    Attributes: `next_offset` (of the topic: everything below is folded in).
    """

    __slots__ = ("_last", "_records", "next_offset")

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self._records: dict[str, TrackerRecord] = {}
        self._last: dict[str, tuple[SnapshotItem, int]] = {}  # with its `at_ms`: counts, not joined yet

    def restore(self, job: str, record: TrackerRecord) -> None:
        """Takes in what the table's changelog says of a job, before any event."""
        known = self._records.get(job)
        if known is None or _furthest(record) > _furthest(known):
            self._records[job] = record
        elif _furthest(record) == _furthest(known):
            item = SnapshotItem(job, record.epoch, record.snapshot, record.lineage, record.log)
            self._records[job] = _joined(known, item, record.at_ms)

    def apply(self, event: TrackerEvent) -> TakeoverAnswer | None:
        """Folds one event in; the answer, when it is a question."""
        if isinstance(event, Takeover):
            self._records[event.job], answer = on_takeover(self.record(event.job), event)
            return answer
        for item in event.items:
            record = self._records.get(item.job)
            if record is None or (item.epoch, event.worker) != (record.epoch, record.worker):
                continue  # fenced
            last = self._last.get(item.job)
            if last is not None and (last[0].lineage, last[0].log) != (item.lineage, item.log):
                self.record(item.job)
            self._last[item.job] = item, event.at_ms
        return None

    def record(self, job: str) -> TrackerRecord | None:
        """A job's record, with all that was saved so far."""
        record, last = self._records.get(job), self._last.pop(job, None)
        if record is not None and last is not None:
            record = self._records[job] = _joined(record, *last)
        return record


def _joined(record: TrackerRecord, item: SnapshotItem, at_ms: int) -> TrackerRecord:
    """The record with what its owner saved; a corrupt snapshot, which the writer tells, changes nothing."""
    with contextlib.suppress(CorruptSnapshot):
        record = on_snapshot(record, item, worker=record.worker, at_ms=at_ms) or record
    return record


def _furthest(record: TrackerRecord) -> tuple[int, int, int]:
    return record.epoch, record.lineage, record.base


def followers(partition: int, workers: Iterable[str], count: int = FOLLOWERS) -> list[str]:
    """The `count` of `workers` that follow a partition; when one comes or goes, only its own share changes.

    Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """

    def weight(worker: str) -> bytes:
        return hashlib.blake2b(f"{partition}/{worker}".encode(), digest_size=8).digest()

    return sorted(workers, key=lambda worker: (weight(worker), worker), reverse=True)[:count]
