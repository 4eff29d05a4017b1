"""Where a job begins: what the tracker table, Kafka's group and the topic itself say of it.

Rules
1. The table's snapshot and the group's commit are both facts about one log, so their join is true. In a later
   lineage the commit may still be of the one before; there the snapshot alone counts.
2. A log with other ids is another log (the topic was made anew, or the workload went to another cluster):
   a new lineage begins at the start of what is there, and neither snapshot nor commit is believed. That may
   deliver twice what somebody copied over; it loses nothing.
3. A new lineage on a log that the workload was moved to (`app.dispatch.move.mover`) begins where that move
   says, as often as it is tried until the table knows it; what the group committed there before does not
   count.
4. Without any position a topic of the workload's own begins at its start, and the main topic as `start` says.
   `latest` are the ends that were recorded when it was deployed (`StartRecorded`): what came since is
   delivered, and partitions that were added since begin at their start.
5. What readers of other regions' copies have finished (`app.dispatch.jobs.remote_progress_import`) is a fact
   about this log, too, and joined with the others, unless the topic was made anew since that was looked up.
   Where they have come is not passed over by `latest`, nor is what they may have read where that is not
   known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.controllog.events import StartRecorded
from app.dispatch.definition import Workload
from app.kafka.client.cluster import EARLIEST
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import LogGap
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.ranges import CorruptSnapshot, Snapshot
from app.offsets.sync.remote_progress import ImportedProgress

ReportIncident = Callable[[str, str, str, str], None]


@dataclass(frozen=True, slots=True)
class LineageReset:
    """A flowing job begins again at `next_offset`, in a new lineage: its log was truncated or made anew, as
    `reason` says, or (without one) an operator reset it, who needs not be told. `source_epoch`: of a replica,
    the leader epoch in which its log was truncated; None: it was not."""

    epoch: int
    lineage: int
    next_offset: int
    reason: str = ""
    source_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class StartPosition:
    """`snapshot` says what is finished; `known`: the table holds exactly this already; `is_first`: nothing of
    this log was ever copied; `gap`: a route stops here, before anything else is fetched; `begun_anew`: the
    log of a replica was deleted and made anew."""

    snapshot: Snapshot
    lineage: int
    log: LogId
    known: bool
    is_first: bool = False
    gap: LogGap | None = None
    begun_anew: bool = False


async def find_start_position(
    job: JobId,
    workload: Workload,
    cluster: DataCluster,
    answer: TakeoverAnswer,
    *,
    begun: StartRecorded | None,
    reset: LineageReset | None,
    report_incident: ReportIncident,
    carried: ImportedProgress | None = None,
) -> StartPosition:
    """See the module.

    Raises:
        LookupError: what it needs to know cannot be known yet. KafkaError, ClusterUnreachable.
    """
    # Read before any offset: should the topic be made anew in between, the fetch sees another id.
    present = await log_id(job, cluster)
    if reset is not None:
        if reset.reason:
            _report_reset(job, reset.reason, answer.log, present, reset.next_offset, report_incident)
        return StartPosition(Snapshot(reset.next_offset), reset.lineage, present, known=False)
    mapped = None
    if begun is not None:
        mapped = begun.mapped(job.topic, job.partition, present.cluster_id, present.topic_id)
    if mapped is not None and (answer.log.is_another(present) or not answer.snapshot):
        return StartPosition(Snapshot(mapped), answer.lineage + 1, present, known=False)
    if answer.log.is_another(present):
        start = await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST)
        moved = answer.log.cluster_id and present.cluster_id and answer.log.cluster_id != present.cluster_id
        why = "the workload went to another cluster" if moved else "the topic was deleted and made anew"
        _report_reset(job, why, answer.log, present, start, report_incident)
        return StartPosition(Snapshot(start), answer.lineage + 1, present, known=False)
    log = answer.log.filled_in(present)
    snapshot = read_snapshot(job, answer.snapshot, report_incident)
    known = snapshot is not None and log == answer.log
    if snapshot is None or not answer.lineage:
        at = (job.topic, job.partition)
        committed = (await cluster.committer.committed(workload.metadata.group, [at])).get(at)
        if committed is not None and committed >= 0:
            snapshot = snapshot.merge(Snapshot(committed)) if snapshot else Snapshot(committed)
    if carried is not None and carried.next_offset is not None and not carried.log.is_another(present):
        elsewhere = Snapshot(carried.next_offset)
        snapshot = elsewhere if snapshot is None else snapshot.merge(elsewhere)
    if snapshot is None and carried is not None and carried.was_read:
        snapshot = Snapshot(await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST))
    if snapshot is None:
        snapshot = Snapshot(await _first_offset(job, workload, cluster, begun, present))
    # That it was looked up is to be known, too.
    return StartPosition(snapshot, answer.lineage, log, known and carried is None)


def _report_reset(
    job: JobId, why: str, former: LogId, present: LogId, next_offset: int, report_incident: ReportIncident
) -> None:
    ids = f": its position was of {former}, what is there now is of {present}"
    report_incident(
        "log-begun-anew",
        str(job),
        f"{job.topic}-{job.partition}: {why}{ids if former.is_another(present) else ''}; "
        f"delivery begins at {next_offset}",
        "expect duplicates of what was there before; nothing that is there now is passed over",
    )


async def log_id(job: JobId, cluster: DataCluster) -> LogId:
    """Which log the job's topic is now. Raises LookupError: it does not exist. KafkaError: it may not be
    described."""
    topic_ids = await cluster.client.topic_ids([job.topic])
    if job.topic not in topic_ids:
        await cluster.client.partitions(job.topic)
        raise LookupError(f"topic {job.topic} does not exist in {cluster.name}")
    return LogId(await cluster.client.cluster_id(), topic_ids[job.topic])


async def _first_offset(
    job: JobId, workload: Workload, cluster: DataCluster, begun: StartRecorded | None, present: LogId
) -> int:
    if job.topic == workload.metadata.topic and workload.spec.start == "latest":
        if begun is None:
            raise LookupError("the leader has not recorded yet where `start: latest` begins")
        of_another = LogId(topic_id=begun.topic_id).is_another(present)
        if job.partition < len(begun.ends) and not of_another:
            return begun.ends[job.partition]
    return await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST)


def read_snapshot(job: JobId, data: bytes, report_incident: ReportIncident) -> Snapshot | None:
    """What the table knows; None when that is nothing, or cannot be read."""
    if not data:
        return None
    try:
        return Snapshot.from_bytes(data)
    except CorruptSnapshot as error:
        report_incident(
            "snapshot-corrupt", str(job), str(error), "the job starts from Kafka's commit; expect duplicates"
        )
        return None
