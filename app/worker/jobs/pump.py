"""The interface of a pump for the job manager, checkpoints, meter and heartbeats, for every kind of job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import FetchedBatches, FetchKey, LogGap
from app.kafka.fetch.shared_read_service import Counts, HeadsOf
from app.kafka.records.header_arrays import heads_of
from app.kernel.job import JobId
from app.kernel.load import JobWork
from app.kernel.ranges import Snapshot
from app.kernel.troubles import Troubles
from app.worker.jobs.start_position import StartPosition


class StartPostponed(LookupError):
    """A job cannot start now, for a reason that ends by itself; the status shows it, without an incident."""


class Pump(Protocol):
    """A job that runs on this worker: `app.dispatch.pump.partition`, `app.replicate.pump.partition` or
    `app.audit.pump.partition`.

    Attributes:
        job, epoch, lineage: The job, its assignment's epoch, and its log's lineage.
        troubles: The problems that other objects found with it.
        snapshot_version: The `version` in the tracker table; -1: the table does not know this pump.
        high_watermark: The end of its partition, as last read.
    """

    job: JobId
    epoch: int
    lineage: int
    closed: bool
    draining: bool
    troubles: Troubles
    snapshot_version: int
    high_watermark: int

    @property
    def base(self) -> int:
        """The offset to commit: everything below it is finished."""
        ...

    @property
    def version(self) -> int:
        """Grows with each change of snapshot or note."""
        ...

    @property
    def note(self) -> bytes:
        """The owner's note to its successor in the tracker table, beside the snapshot."""
        ...

    @property
    def commits_to(self) -> tuple[str, str]:
        """The cluster and the group of its commits."""
        ...

    def snapshot(self) -> Snapshot: ...

    @property
    def may_save_seldom(self) -> bool:
        """Whether rule 4 of `app.worker.runtime.progress_saver` holds for it."""
        ...

    def work(self) -> JobWork:
        """The work since the pump started."""
        ...

    def accept(self, fetched: FetchedBatches) -> None: ...

    def skip(self, gap: LogGap) -> None:
        """Passes over offsets that the log lost."""
        ...

    @property
    def is_busy(self) -> bool: ...

    def stop_intake(self) -> None: ...

    async def drain(self, grace_s: float) -> bool:
        """Waits for what is in flight; returns whether all of it ended."""
        ...

    def close(self) -> None:
        """From now on nothing of this pump counts."""
        ...


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job that this worker now owns, and how to fetch for it.

    Attributes:
        leaves_bytes: The part of the fetch memory that it leaves to other jobs.
        last_epoch: The leader epoch of the last record before the start; -1: not known.
        next_offset: Where fetching begins, if not at the snapshot's base.
        lingers_s: How long fetching waits for more where records are rare.
        counts, heads: The counts of other readers or writers that it follows, by batch headers.
    """

    pump: Pump
    start: StartPosition
    cluster: DataCluster
    leaves_bytes: int = 0
    last_epoch: int = -1
    next_offset: int | None = None
    lingers_s: float = 0.0
    counts: Counts | None = None
    heads: HeadsOf = heads_of

    @property
    def reads_from(self) -> int:
        return self.start.snapshot.base if self.next_offset is None else self.next_offset

    def fetch(self) -> None:
        job = self.pump.job
        self.cluster.fetch.add(
            FetchKey(str(job), self.pump.epoch), job.topic, job.partition, self.reads_from,
            self.start.log.topic_id, self.leaves_bytes, self.last_epoch, self.lingers_s, self.counts,
            self.heads,
        )  # fmt: skip
