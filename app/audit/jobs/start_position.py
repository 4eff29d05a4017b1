"""Finds where an audit job begins, by the tracker table and the log.

Rules (tests/audit/jobs/test_start_position.py)
1. The job continues where its former owner had come, with that owner's counts (`app.audit.counts.handover`).
   If the log no longer has that offset, the rest of the log is a stretch of its part for itself.
2. Without a saved position it begins at the log's start. Records that were reported before are reported
   again, and count once.
3. If the former owner counted by other settings, the job begins at the base, where that owner's reports end.
   The same holds if the note cannot be read: it is another version's. In both cases, and if the log has lost
   its beginning, the first windows are cut: they are counted, and not compared.
4. Another log (a recreated or truncated topic) begins a new lineage, and so does another version's note.
"""

from __future__ import annotations

from typing import NamedTuple

from app.audit.counts.handover import AuditNote, CountsFrom
from app.kafka.client.cluster import EARLIEST
from app.kafka.data_clusters import DataCluster
from app.kernel.fencing import TakeoverAnswer
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.worker.jobs.start_position import LineageReset, StartPosition, log_id, read_snapshot


class AuditStart(NamedTuple):
    """Where a job begins. `counts.is_cut`: rule 3."""

    start: StartPosition
    counts: CountsFrom


async def find_audit_start(
    job: JobId,
    cluster: DataCluster,
    answer: TakeoverAnswer,
    *,
    counting: int,
    reset: LineageReset | None,
    report_incident: ReportIncident,
) -> AuditStart:
    """The start of a job. `counting`: `AuditPlan.counting`.

    Raises:
        LookupError, KafkaError, ClusterUnreachable: Something that it needs is not known yet.
    """
    # Read before any offset: if the topic is recreated in between, the fetch sees another id.
    present = await log_id(job, cluster)
    if reset is not None:
        at = Snapshot(reset.next_offset)
        beginning = StartPosition(at, reset.lineage, present, known=False)
        return AuditStart(beginning, CountsFrom(reset.next_offset, None, is_cut=True))
    first = await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST)
    if answer.log.is_another(present):
        report_incident(
            "log-begun-anew",
            str(job),
            f"{job.topic} was deleted and recreated: its position is of {answer.log}, now it is {present}",
            "nothing to do: the old topic's records are counted as far as the audit had come",
        )
        beginning = StartPosition(Snapshot(first), answer.lineage + 1, present, known=False)
        return AuditStart(beginning, CountsFrom(first, None, is_cut=first > 0))
    snapshot, log = read_snapshot(job, answer.snapshot, report_incident), answer.log.filled_in(present)
    if snapshot is None:
        beginning = StartPosition(Snapshot(first), answer.lineage, log, known=False)
        return AuditStart(beginning, CountsFrom(first, None, is_cut=first > 0))
    base, former = snapshot.base, AuditNote.from_bytes(answer.note)
    if former is None or former.counting != counting:
        # Another version may cut a log into other parts.
        start, lineage = max(first, base), answer.lineage + (former is None)
        beginning = StartPosition(Snapshot(start), lineage, log, known=False)
        return AuditStart(beginning, CountsFrom(start, None, is_cut=True))
    upto = former.next_offset
    start = upto if upto >= first else max(first, base)
    finished = Snapshot(base if start == upto else start)
    is_cut = former.is_cut or first > max(upto, base)
    beginning = StartPosition(finished, answer.lineage, log, known=log == answer.log and start == upto)
    return AuditStart(beginning, CountsFrom(start, former, is_cut))
