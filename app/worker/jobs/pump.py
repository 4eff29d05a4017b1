"""What the job manager, checkpoints, meter and heartbeats use of a pump, whatever it pumps for."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.controllog.codec import JobStatus
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import FetchedBatches, LogGap
from app.kafka.fetch.shared_read_service import Counts, HeadsOf
from app.kafka.records.header_arrays import heads_of
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.worker.jobs.start_position import StartPosition


class StartPostponed(LookupError):
    """A job cannot start now, and what is in its way passes by itself, as a change of its definition does: it
    is shown, and nobody is told."""


class Pump(Protocol):
    """A job that flows here. `app.dispatch.pump.partition`, `app.replicate.pump.partition` and
    `app.audit.pump.partition` are such.

    Attributes:
        job, epoch, lineage: whose, under which assignment, and since which log.
        trouble: what others have found out about it; "" for none.
        snapshot_version: the `version` that the tracker table has; -1: it has to learn of this pump.
        high_watermark: where its partition ends, as last heard.
    """

    job: JobId
    epoch: int
    lineage: int
    closed: bool
    draining: bool
    trouble: str
    snapshot_version: int
    high_watermark: int

    @property
    def base(self) -> int:
        """Everything below it is finished: what may be committed."""
        ...

    @property
    def version(self) -> int:
        """Grows whenever snapshot or note change."""
        ...

    @property
    def note(self) -> bytes:
        """What the tracker table keeps for the successor, beside the snapshot."""
        ...

    @property
    def commits_to(self) -> tuple[str, str]:
        """Cluster and group that the base is committed to."""
        ...

    def snapshot(self) -> Snapshot:
        """All that is finished."""
        ...

    def status(self) -> JobStatus:
        """What the heartbeat says of it."""
        ...

    def accept(self, fetched: FetchedBatches) -> None:
        """Takes what was fetched."""
        ...

    def skip(self, gap: LogGap) -> None:
        """The log lost these offsets."""
        ...

    @property
    def is_busy(self) -> bool:
        """Something of it is on its way."""
        ...

    def stop_intake(self) -> None:
        """Begins nothing new."""
        ...

    async def drain(self, grace_s: float) -> bool:
        """Waits for what is on its way; whether all of it ended."""
        ...

    def close(self) -> None:
        """Nothing of it counts from now on."""
        ...


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job that is this worker's now, and what it flows by; its fetching `leaves_bytes` to others, and
    begins behind what was written in `last_epoch` of its leader, or before (-1: not known); at `next_offset`,
    unless that is where it has come (None). `lingers_s`: where little comes, it is
    fetched so much later, and more at once. `counts`: it follows others that read or write there, by the
    headers that `heads` takes of batches."""

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
        """Where its fetching begins."""
        return self.start.snapshot.base if self.next_offset is None else self.next_offset

    def fetch(self) -> None:
        """Its fetching begins."""
        job = self.pump.job
        self.cluster.fetch.add(
            (str(job), self.pump.epoch), job.topic, job.partition, self.reads_from,
            self.start.log.topic_id, self.leaves_bytes, self.last_epoch, self.lingers_s, self.counts,
            self.heads,
        )  # fmt: skip


def together(*kinds: Mapping[str, Any]) -> Mapping[str, Pump]:
    """Pumps of several kinds by job, as they are when it is looked into."""
    maps: list[Any] = [*kinds]
    return ChainMap(*maps)
