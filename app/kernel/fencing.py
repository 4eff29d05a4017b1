"""The tracker table's record and how events change it: takeovers fence older epochs.

Events of one job arrive in the order of the tracker topic. The record of a job is a fold over them,
so that replaying events (Faust delivers them again after kill -9) or losing the table and reading
its changelog gives the same record.

Rules
1. `takeover(epoch)` is granted when `epoch` is at or above the record's; the record then carries it.
   The same epoch by the same worker is granted again (the answer may have been lost).
2. `snapshot(epoch)` counts only under exactly the record's epoch: an older owner is refused, and so
   is one that never took over.
3. Snapshots of one lineage join (union of finished offsets, highest base): nothing finished becomes
   unfinished. A new lineage (the log was truncated or made anew) replaces what was known of the old one,
   and only there may the base go back.
4. A record says of which log it speaks: the ids of its cluster and topic. Within a lineage they are only
   ever filled in, never changed: a new owner that finds another log begins a new lineage.
5. A snapshot may carry a note, the owner's own words to its successor (`app.replicate.destination.handover`).
   The note of the last snapshot that counted stands; it is not joined with others, so that it has to say
   itself of which base it speaks.

6. An epoch that no control log gives (above `HEADROOM`) fences nobody for ever: a takeover that names it
   (`over`) is granted below it. Its asker names it only when it cannot have come from its control log
   (`app.worker.runtime.job_starter`). A lineage above `app.kernel.counters.highest` is refused.

Invariants: a record's epoch decreases by rule 6 only; within a lineage its base never decreases.
"""

from __future__ import annotations

import contextlib

import msgspec

from app.kernel.counters import HEADROOM
from app.kernel.ranges import CorruptSnapshot, Snapshot


class LogId(msgspec.Struct, frozen=True, array_like=True):
    """Which log offsets are of: another topic of the same name, or of another cluster, has other ids.

    "" is not known: the broker is too old to tell, or it was written before ids were.
    """

    cluster_id: str = ""
    topic_id: str = ""

    def is_another(self, present: LogId) -> bool:
        """Whether `present` is certainly not this log."""
        return bool(
            (self.cluster_id and present.cluster_id and self.cluster_id != present.cluster_id)
            or (self.topic_id and present.topic_id and self.topic_id != present.topic_id)
        )

    def filled_in(self, present: LogId) -> LogId:
        """This one, with what it does not know from `present`."""
        return LogId(self.cluster_id or present.cluster_id, self.topic_id or present.topic_id)

    def __str__(self) -> str:
        return f"topic id {self.topic_id or 'unknown'} in cluster id {self.cluster_id or 'unknown'}"


class TrackerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the tracker table holds for a job.

    Attributes:
        epoch: the highest epoch that took the job over.
        worker: who did.
        base: next offset to commit; everything below is finished (readable without decoding).
        snapshot: `Snapshot` bytes: base and the finished offsets above it; b"" before the first.
        lineage: how often the offsets have begun to mean something else.
        cluster_id, topic_id: of the log that the offsets are of; "" is not known.
        at_ms: when it last changed, by the event's own time.
        offset: of the last event of the tracker topic that is in it (`app.worker.tracker.fold`).
        note: of the last snapshot (rule 5).
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
        """The log that it speaks of."""
        return LogId(self.cluster_id, self.topic_id)


class SnapshotItem(msgspec.Struct, frozen=True, array_like=True):
    """One job's snapshot on its way to the table: (job, epoch, bytes, lineage, log, note)."""

    job: str
    epoch: int
    snapshot: bytes
    lineage: int = 0
    log: LogId = LogId()
    note: bytes = b""


class Snapshots(msgspec.Struct, frozen=True, tag="snapshots", tag_field="event", kw_only=True):
    """Snapshots of many jobs of one worker, all of one partition of the tracker topic."""

    worker: str
    at_ms: int
    items: list[SnapshotItem]


class Takeover(msgspec.Struct, frozen=True, tag="takeover", tag_field="event", kw_only=True):
    """`worker` takes `job` over under `epoch` and asks for its record; `nonce` pairs the answer. `over`: the
    epoch that has to give way though it is higher (rule 6), -1 for none."""

    job: str
    epoch: int
    worker: str
    nonce: str
    at_ms: int
    over: int = -1


TrackerEvent = Snapshots | Takeover


class TakeoverAnswer(msgspec.Struct, frozen=True, tag="takeover-answer", tag_field="event", kw_only=True):
    """Granted with the latest snapshot, or refused with the epoch that is known
    (`app.worker.tracker.fold`)."""

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
    """The record after `event` and the answer to it."""
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
    """The record after `item`, or None when it is refused (rule 2) or changes nothing.

    Raises:
        CorruptSnapshot: the item's bytes are not a snapshot; the record stays as it is.
    """
    if record is None or item.epoch != record.epoch or worker != record.worker:
        return None
    same = item.lineage == record.lineage
    if item.lineage < record.lineage or (same and record.log.is_another(item.log)):
        return None
    log = record.log.filled_in(item.log) if same else item.log
    new = Snapshot.from_bytes(item.snapshot)
    if record.snapshot and same:
        # A stored one that cannot be read any more gives way: the new one is the best truth there is, and a
        # lost acknowledgement costs a duplicate, never a message.
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
