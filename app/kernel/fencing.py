"""A job's row in the tracker table, and how events change it: a takeover fences all older epochs.

A row is a fold over the job's events in the order of the tracker topic. Replayed events (Faust repeats some
after a kill -9) and a table rebuilt from its changelog therefore give the same row.

Rules
1. `takeover(epoch)` is granted when `epoch` is above the row's; the row then has that epoch. The same epoch
   by the same worker is granted too, because the first answer may have been lost.
2. `snapshot(epoch)` counts only under exactly the row's epoch and worker. So an older owner is refused, and
   so is a worker that never took over.
3. Snapshots of one lineage join (union of finished offsets, highest base), so no finished offset becomes
   unfinished. A new lineage (the log was truncated or recreated) replaces the old snapshot; only then may the
   base decrease.
4. A row names its log by the ids of cluster and topic. Within a lineage an id may be filled in but not
   changed; a new owner that finds another log begins a new lineage.
5. A snapshot may carry a note from the owner to its successor (`app.replicate.destination.handover`). A row
   keeps the last snapshot's note. Notes are not joined, so each one names the base that it belongs to.
6. A forged epoch above `HEADROOM` must not fence a job for ever, so a takeover that names it (`over`) is
   granted below it. A worker names it only when its control log cannot have given it
   (`app.worker.runtime.job_starter`). `app.worker.tracker.fold` refuses a lineage above
   `app.kernel.counters.highest`.

Invariants (`tests/kernel/test_fencing.py`): only rule 6 decreases a row's epoch. Within a lineage its base
never decreases, unless the stored snapshot cannot be read: then the new one replaces it (duplicates, no
loss).
"""

from __future__ import annotations

import contextlib

import msgspec

from app.kernel.counters import HEADROOM
from app.kernel.ranges import CorruptSnapshot, Snapshot


class LogId(msgspec.Struct, frozen=True, array_like=True):
    """The log that offsets belong to. A topic of the same name, recreated or in another cluster, has other
    ids.

    "" means not known: the broker does not give the id, or an older release wrote the record.
    """

    cluster_id: str = ""
    topic_id: str = ""

    def is_another(self, present: LogId) -> bool:
        """Whether `present` is certainly another log."""
        return bool(
            (self.cluster_id and present.cluster_id and self.cluster_id != present.cluster_id)
            or (self.topic_id and present.topic_id and self.topic_id != present.topic_id)
        )

    def filled_in(self, present: LogId) -> LogId:
        """This id, with its unknown parts taken from `present`."""
        return LogId(self.cluster_id or present.cluster_id, self.topic_id or present.topic_id)

    def __str__(self) -> str:
        return f"topic id {self.topic_id or 'unknown'} in cluster id {self.cluster_id or 'unknown'}"


class TrackerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job's row in the tracker table.

    Attributes:
        epoch: The epoch of the last takeover granted, the highest one except for rule 6.
        worker: The worker that took it over.
        base: The next offset to commit; all offsets below are finished (readable without decoding).
        snapshot: `Snapshot` bytes: base and the finished offsets above it; b"" before the first.
        lineage: How many times the log was truncated or recreated.
        cluster_id, topic_id: The log that the offsets belong to; "" is not known.
        at_ms: The time of the event that last changed the row.
        offset: The offset in the tracker topic of the last event applied (`app.worker.tracker.fold`).
        note: The last snapshot's note (rule 5).
    """

    epoch: int = 0
    worker: str = ""
    base: int = -1
    snapshot: bytes = b""
    lineage: int = 0
    at_ms: int = 0
    cluster_id: str = ""
    topic_id: str = ""
    offset: int = -1
    note: bytes = b""

    @property
    def log(self) -> LogId:
        """The log that the offsets belong to."""
        return LogId(self.cluster_id, self.topic_id)


class SnapshotItem(msgspec.Struct, frozen=True, array_like=True):
    """One job's snapshot in a `Snapshots` event."""

    job: str
    epoch: int
    snapshot: bytes
    lineage: int = 0
    log: LogId = LogId()
    note: bytes = b""


class Snapshots(msgspec.Struct, frozen=True, tag="snapshots", tag_field="event", kw_only=True):
    """Snapshots of one worker's jobs in one partition of the tracker topic."""

    worker: str
    at_ms: int
    items: list[SnapshotItem]


class Takeover(msgspec.Struct, frozen=True, tag="takeover", tag_field="event", kw_only=True):
    """`worker` takes `job` over under `epoch` and requests its row; `nonce` pairs request and answer.

    `over` is the higher epoch that rule 6 overrides; -1 for none.
    """

    job: str
    epoch: int
    worker: str
    nonce: str
    at_ms: int
    over: int = -1


TrackerEvent = Snapshots | Takeover


class TakeoverAnswer(msgspec.Struct, frozen=True, tag="takeover-answer", tag_field="event", kw_only=True):
    """A takeover granted with the latest snapshot, or refused with the row's epoch."""

    job: str
    epoch: int
    worker: str
    nonce: str
    granted: bool
    known_epoch: int
    snapshot: bytes = b""
    lineage: int = 0
    log: LogId = LogId()
    note: bytes = b""


def on_takeover(record: TrackerRecord | None, event: Takeover) -> tuple[TrackerRecord, TakeoverAnswer]:
    """The row after `event`, and the answer to it."""
    current = record or TrackerRecord()
    granted = (
        event.epoch > current.epoch
        or (event.epoch == current.epoch and event.worker == current.worker)
        or event.over == current.epoch > HEADROOM
    )
    if granted:
        current = msgspec.structs.replace(
            current, epoch=event.epoch, worker=event.worker, at_ms=max(current.at_ms, event.at_ms)
        )
    answer = TakeoverAnswer(
        job=event.job,
        epoch=event.epoch,
        worker=event.worker,
        nonce=event.nonce,
        granted=granted,
        known_epoch=current.epoch,
        snapshot=current.snapshot if granted else b"",
        lineage=current.lineage,
        log=current.log,
        note=current.note if granted else b"",
    )
    return current, answer


def on_snapshot(
    record: TrackerRecord | None, item: SnapshotItem, *, worker: str, at_ms: int
) -> TrackerRecord | None:
    """The row after `item`; None when the item is refused (rules 2 to 4) or changes nothing.

    Raises:
        CorruptSnapshot: The item's bytes are not a snapshot; the row stays as it is.
    """
    if record is None or item.epoch != record.epoch or worker != record.worker:
        return None
    same = item.lineage == record.lineage
    if item.lineage < record.lineage or (same and record.log.is_another(item.log)):
        return None
    log = record.log.filled_in(item.log) if same else item.log
    new = Snapshot.from_bytes(item.snapshot)
    if record.snapshot and same:
        # An unreadable stored snapshot is replaced: lost acknowledgements cost duplicates, never a message.
        with contextlib.suppress(CorruptSnapshot):
            new = Snapshot.from_bytes(record.snapshot).merge(new)
    packed = new.to_bytes()
    if packed == record.snapshot and same and log == record.log and item.note == record.note:
        return None
    return msgspec.structs.replace(
        record,
        base=new.base,
        snapshot=packed,
        lineage=item.lineage,
        at_ms=max(record.at_ms, at_ms),
        cluster_id=log.cluster_id,
        topic_id=log.topic_id,
        note=item.note,
    )
