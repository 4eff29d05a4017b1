"""Where an audit begins: what the tracker table and the log itself say of it.

Rules
1. It begins where the part began that its former owner was counting (`app.core.audit.reader`), so that it
   says of that part the same, or more. If the log does not have that any more, it begins where the former
   owner had come: that stretch of the part counts for itself.
2. Without a position it begins at the log's start: what was reported before is reported again, and counts
   once.
3. Who counts otherwise than the former owner begins where that one had come, too. Of that, and of a log that
   has lost its beginning, the first windows are cut: they are counted, and not compared.
4. Another log (the topic was made anew, or truncated) begins a new lineage.
"""

from __future__ import annotations

from typing import NamedTuple

from app.audit.pump import Note
from app.control.beginning import Anew, Beginning, Trouble, log_id, read_snapshot
from app.control.data_clusters import DataCluster
from app.core.audit.reader import begins_at
from app.core.fencing import TakeoverAnswer
from app.core.job import JobId
from app.core.ranges import Snapshot
from app.kafka.clusters import EARLIEST


class AuditBeginning(NamedTuple):
    """`next_offset` is where it is read from; what is finished may be further. `is_cut`: rule 3."""

    beginning: Beginning
    next_offset: int
    is_cut: bool


async def find_audit_beginning(
    job: JobId,
    cluster: DataCluster,
    answer: TakeoverAnswer,
    *,
    counting: int,
    anew: Anew | None,
    tell: Trouble,
) -> AuditBeginning:
    """See the module; `counting` of the plan.

    Raises:
        LookupError: what it needs to know cannot be known yet. KafkaError, ClusterUnreachable.
    """
    # Read before any offset: should the topic be made anew in between, the fetch sees another id.
    present = await log_id(job, cluster)
    if anew is not None:
        at = Snapshot(anew.next_offset)
        return AuditBeginning(Beginning(at, anew.lineage, present, known=False), anew.next_offset, True)
    first = await cluster.fetch.offsets_at(job.topic, job.partition, EARLIEST)
    if answer.log.is_another(present):
        tell(
            "log-begun-anew",
            str(job),
            f"{job.topic} was deleted and made anew: its position was of {answer.log}, it is {present} now",
            "what the old one had is counted as far as the audit had come",
        )
        beginning = Beginning(Snapshot(first), answer.lineage + 1, present, known=False)
        return AuditBeginning(beginning, first, first > 0)
    snapshot, log = read_snapshot(job, answer.snapshot, tell), answer.log.filled_in(present)
    if snapshot is None:
        return AuditBeginning(Beginning(Snapshot(first), answer.lineage, log, known=False), first, first > 0)
    note = Note.from_bytes(answer.note) or Note(-1, counting, is_cut=True)
    start = (
        note.since if begins_at(snapshot.base) <= note.since <= snapshot.base else begins_at(snapshot.base)
    )
    is_other = note.counting != counting
    if start < first or is_other:
        start = max(first, snapshot.base)
    is_known = log == answer.log and start <= snapshot.base
    finished = Snapshot(max(start, snapshot.base))
    beginning = Beginning(finished, answer.lineage, log, known=is_known and not is_other)
    return AuditBeginning(beginning, start, note.is_cut or is_other or first > snapshot.base)
