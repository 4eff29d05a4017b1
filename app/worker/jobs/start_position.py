"""Where a job starts, for every kind of job.

`app.dispatch.jobs.start_position`, `app.replicate.jobs.start_position` and `app.audit.jobs.start_position`
find it, by the tracker table, Kafka's commit and the topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import LogGap
from app.kernel.fencing import LogId
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.ranges import CorruptSnapshot, Snapshot


@dataclass(frozen=True, slots=True)
class LineageReset:
    """A running job starts again at `next_offset`, in a new lineage.

    `reason`: why, if its log was truncated or recreated; an operator's reset has none, and needs no
    incident. `source_epoch`: the leader epoch in which a replica's source was truncated; None: it was not.
    """

    epoch: int
    lineage: int
    next_offset: int
    reason: str = ""
    source_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a job starts.

    `known`: the tracker table has a snapshot of this log; the commit may be further. `is_first`: no record of
    this log was ever copied. `gap`: a route stops there before it fetches anything. `begun_anew`: a replica's
    log was deleted and recreated.
    """

    snapshot: Snapshot
    lineage: int
    log: LogId
    known: bool
    is_first: bool = False
    gap: LogGap | None = None
    begun_anew: bool = False


async def log_id(job: JobId, cluster: DataCluster) -> LogId:
    """The ids of the job's log. Raises LookupError: there is no topic. KafkaError: it may not be
    described."""
    topic_ids = await cluster.client.topic_ids([job.topic])
    if job.topic not in topic_ids:
        await cluster.client.partitions(job.topic)
        raise LookupError(f"topic {job.topic} does not exist in {cluster.name}")
    return LogId(await cluster.client.cluster_id(), topic_ids[job.topic])


def read_snapshot(job: JobId, data: bytes, report_incident: ReportIncident) -> Snapshot | None:
    """The table's snapshot; None when there is none, or it cannot be read."""
    if not data:
        return None
    try:
        return Snapshot.from_bytes(data)
    except CorruptSnapshot as error:
        remedy = "the job starts from Kafka's commit; expect duplicates"
        report_incident("snapshot-corrupt", str(job), str(error), remedy)
        return None
