"""Where a replica begins: what the tracker table and the source itself say of it.

Rules
1. The table's snapshot counts for the log that it is of. The group's commit (`switchyard-<route>`) is for
   people, and where the table knows nothing: copies behind it may come twice then.
2. Another log (the topic was made anew) begins a new lineage at its start, unless the route stops at gaps.
3. Without any position a partition begins at its start, or, with `start: latest`, at the first record that is
   no older than the route's definition: a topic, or a partition, that is made later is copied from its start.
"""

from __future__ import annotations

from app.config.route import RouteDefinition
from app.control.beginning import Anew, Beginning, Trouble, log_id, read_snapshot
from app.control.data_clusters import DataCluster
from app.core.fencing import TakeoverAnswer
from app.core.job import JobId
from app.core.ranges import Snapshot
from app.kafka.clusters import EARLIEST, LATEST


async def find_replica_beginning(
    job: JobId,
    definition: RouteDefinition,
    source: DataCluster,
    answer: TakeoverAnswer,
    *,
    since_ms: int,
    anew: Anew | None,
    tell: Trouble,
) -> Beginning:
    """See the module; `since_ms` is when the route's definition was written.

    Raises:
        LookupError: what it needs to know cannot be known yet, or the route stops here.
        KafkaError, ClusterUnreachable.
    """
    # Read before any offset: should the topic be made anew in between, the fetch sees another id.
    present = await log_id(job, source)
    if anew is not None:
        return Beginning(Snapshot(anew.next_offset), anew.lineage, present, known=False, is_first=True)
    if answer.log.is_another(present):
        why = f"{job.topic} was deleted and made anew: its position was of {answer.log}, it is {present} now"
        if definition.spec.on_gap == "stop":
            raise LookupError(f"{why}; the route stops at gaps: set onGap to continue to copy what is there")
        start = await source.fetch.offsets_at(job.topic, job.partition, EARLIEST)
        tell(
            "log-begun-anew",
            str(job),
            f"{why}; copying begins at {start}",
            "what the old one had is copied as far as the route had come; see whether records are missing",
        )
        return Beginning(Snapshot(start), answer.lineage + 1, present, known=False, is_first=True)
    log = answer.log.filled_in(present)
    snapshot = read_snapshot(job, answer.snapshot, tell)
    if snapshot is not None:
        # Without a note nothing was appended yet, whoever began.
        return Beginning(snapshot, answer.lineage, log, known=log == answer.log, is_first=not answer.note)
    at, group = (job.topic, job.partition), f"switchyard-{job.name}"
    if not answer.lineage:
        committed = (await source.committer.committed(group, [at])).get(at)
        if committed is not None and committed >= 0:
            return Beginning(Snapshot(committed), answer.lineage, log, known=False)
    first = await source.fetch.offsets_at(*at, EARLIEST)
    if definition.spec.start == "latest":
        since = await source.fetch.offsets_at(*at, since_ms)
        first = since if since >= 0 else await source.fetch.offsets_at(*at, LATEST)
    return Beginning(Snapshot(first), answer.lineage, log, known=False, is_first=True)
