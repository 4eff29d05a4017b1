"""Where a workload's job starts, by the tracker table, the group's commit and the topic.

Rules
1. The table's snapshot and the group's commit are facts about one log, so their join is true. In a later
   lineage the commit may be of the former log, so it counts only if there is no readable snapshot.
2. A log with other ids is another log: the topic was recreated, or the workload moved to another cluster.
   A new lineage then starts at the log's beginning, and neither snapshot nor commit counts. Messages may
   come twice then, but none is lost.
3. A move to another cluster (`app.dispatch.move.mover`) names the start on the new log. It holds at each
   attempt until the table knows the new lineage; the group's earlier commit there does not count.
4. Without any position the workload's own topics start at their beginning, and the main topic as `start`
   says. `latest` means the ends recorded at the deployment (`StartRecorded`): later messages are
   delivered, and partitions added since start at their beginning.
5. The progress of readers of other regions' copies (`app.dispatch.jobs.remote_progress_import`) is a fact
   about this log, too. It joins the others, unless the topic was recreated since the lookup. `latest`
   never skips records after that progress. If the progress is not known, the job starts at the log's
   beginning, so that it skips no record that such a reader has not read.
"""

from __future__ import annotations

from app.controllog.events import StartRecorded
from app.dispatch.definition import Workload
from app.kafka.client.cluster import EARLIEST
from app.kafka.data_clusters import DataCluster
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.offsets.sync.remote_progress import ImportedProgress
from app.worker.jobs.start_position import LineageReset, StartPosition, log_id, read_snapshot


async def find_start_position(
    job: JobId,
    workload: Workload,
    cluster: DataCluster,
    answer: TakeoverAnswer,
    *,
    recorded: StartRecorded | None,
    reset: LineageReset | None,
    report_incident: ReportIncident,
    carried: ImportedProgress | None = None,
) -> StartPosition:
    """Raises LookupError: a fact is not known yet. KafkaError, ClusterUnreachable."""
    # Read before any offset: if the topic is recreated in between, the fetch sees another id.
    present = await log_id(job, cluster)
    if reset is not None:
        if reset.reason:
            _report_reset(job, reset.reason, answer.log, present, reset.next_offset, report_incident)
        return StartPosition(Snapshot(reset.next_offset), reset.lineage, present, known=False)
    mapped = None
    if recorded is not None:
        mapped = recorded.mapped(job.topic, job.partition, present.cluster_id, present.topic_id)
    if mapped is not None and (answer.log.is_another(present) or not answer.snapshot):
        return StartPosition(Snapshot(mapped), answer.lineage + 1, present, known=False)
    if answer.log.is_another(present):
        start = await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST)
        moved = answer.log.cluster_id and present.cluster_id and answer.log.cluster_id != present.cluster_id
        why = "the workload went to another cluster" if moved else "the topic was deleted and recreated"
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
        remote = Snapshot(carried.next_offset)
        snapshot = remote if snapshot is None else snapshot.merge(remote)
    if snapshot is None and carried is not None and carried.was_read:
        snapshot = Snapshot(await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST))
    if snapshot is None:
        snapshot = Snapshot(await _first_offset(job, workload, cluster, recorded, present))
    # With imported progress the table must learn that it was looked up.
    return StartPosition(snapshot, answer.lineage, log, known and carried is None)


def _report_reset(
    job: JobId, why: str, former: LogId, present: LogId, next_offset: int, report_incident: ReportIncident
) -> None:
    ids = f": its position was of {former}, the log is now {present}"
    report_incident(
        "log-begun-anew",
        str(job),
        f"{job.topic}-{job.partition}: {why}{ids if former.is_another(present) else ''}; "
        f"delivery begins at {next_offset}",
        "expect duplicates of messages that the former log had; no message of the present log is skipped",
    )


async def _first_offset(
    job: JobId, workload: Workload, cluster: DataCluster, recorded: StartRecorded | None, present: LogId
) -> int:
    if job.topic == workload.metadata.topic and workload.spec.start == "latest":
        if recorded is None:
            raise LookupError("the leader has not recorded the ends for `start: latest` yet")
        of_another = LogId(topic_id=recorded.topic_id).is_another(present)
        if job.partition < len(recorded.ends) and not of_another:
            return recorded.ends[job.partition]
    return await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST)
