"""Where an audit begins: what the tracker table and the log itself say of it.

Rules
1. It goes on where its former owner had come, with what that one had counted (`app.audit.counts.handover`).
   If the log does not have that any more, what is still there is a stretch of its part for itself.
2. Without a position it begins at the log's start: what was reported before is reported again, and counts
   once.
3. Who counts otherwise than the former owner begins where that one's reports end; a note that cannot be read
   is another version's. Of that, and of a log that has lost its beginning, the first windows are cut: they
   are counted, and not compared.
4. Another log (the topic was made anew, or truncated) begins a new lineage, and so does another version.
"""

from __future__ import annotations

from typing import NamedTuple

from app.audit.counts.handover import AuditNote
from app.kafka.client.cluster import EARLIEST
from app.kafka.data_clusters import DataCluster
from app.kernel.fencing import TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.worker.jobs.start_position import LineageReset, ReportIncident, StartPosition, log_id, read_snapshot


class AuditStart(NamedTuple):
    """`next_offset` is where it is read from; what is finished may be further, or not as far. `former`: what
    the last owner left, None: nothing of use. `is_cut`: rule 3."""

    start: StartPosition
    next_offset: int
    former: AuditNote | None
    is_cut: bool


async def find_audit_start(
    job: JobId,
    cluster: DataCluster,
    answer: TakeoverAnswer,
    *,
    counting: int,
    reset: LineageReset | None,
    report_incident: ReportIncident,
) -> AuditStart:
    """See the module; `counting` of the plan.

    Raises:
        LookupError: what it needs to know cannot be known yet. KafkaError, ClusterUnreachable.
    """
    # Read before any offset: should the topic be made anew in between, the fetch sees another id.
    present = await log_id(job, cluster)
    if reset is not None:
        at = Snapshot(reset.next_offset)
        beginning = StartPosition(at, reset.lineage, present, known=False)
        return AuditStart(beginning, reset.next_offset, None, is_cut=True)
    first = await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST)
    if answer.log.is_another(present):
        report_incident(
            "log-begun-anew",
            str(job),
            f"{job.topic} was deleted and made anew: its position was of {answer.log}, it is {present} now",
            "what the old one had is counted as far as the audit had come",
        )
        beginning = StartPosition(Snapshot(first), answer.lineage + 1, present, known=False)
        return AuditStart(beginning, first, None, is_cut=first > 0)
    snapshot, log = read_snapshot(job, answer.snapshot, report_incident), answer.log.filled_in(present)
    if snapshot is None:
        beginning = StartPosition(Snapshot(first), answer.lineage, log, known=False)
        return AuditStart(beginning, first, None, is_cut=first > 0)
    base, former = snapshot.base, AuditNote.from_bytes(answer.note)
    if former is None or former.counting != counting:
        # Another version's parts may be other ones.
        start, lineage = max(first, base), answer.lineage + (former is None)
        beginning = StartPosition(Snapshot(start), lineage, log, known=False)
        return AuditStart(beginning, start, None, is_cut=True)
    upto = former.next_offset
    start = upto if upto >= first else max(first, base)
    finished = Snapshot(base if start == upto else start)
    is_cut = former.is_cut or first > max(upto, base)
    beginning = StartPosition(finished, answer.lineage, log, known=log == answer.log and start == upto)
    return AuditStart(beginning, start, former, is_cut)
