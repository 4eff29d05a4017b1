"""Where a replica begins: what the tracker table and the source itself say of it.

Rules
1. The table's snapshot counts for the log that it is of. The group's commit (`switchyard-<route>`) is for
   people, and where the table knows nothing: copies behind it may come twice then.
2. Another log (the topic was made anew) begins a new lineage at its start. A route that stops at gaps halts
   before it, with the former position, until an operator skips that or resets the route.
3. Without any position a partition begins at its start, or, with `start: latest`, at the end that was
   recorded when the route was first defined (`app.replicate.topics.source_ends`): a topic or partition that
   is found later is copied from its start.
4. So it does, in a new lineage, where the copies were made of another cluster's topic, or in another
   destination, than the definition says now: nothing of them is there. Ids decide that, not names: a cluster
   that has another name in switchyard.yaml is the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from app.kafka.client.cluster import EARLIEST, ClusterClient
from app.kafka.client.commits import GroupDenied
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import LogGap
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.replicate.definition import RouteDefinition
from app.replicate.destination.handover import BadHandover, ReplicaHandover
from app.replicate.pump.route_runtime import group_of
from app.worker.jobs.start_position import LineageReset, ReportIncident, StartPosition, log_id, read_snapshot

log = structlog.get_logger(__name__)


async def find_replica_start(
    job: JobId,
    definition: RouteDefinition,
    source: DataCluster,
    answer: TakeoverAnswer,
    *,
    recorded: Callable[[str], int | None] | None,
    reset: LineageReset | None,
    report_incident: ReportIncident,
    goes_on: bool,
) -> StartPosition:
    """See the module; `recorded` tells of a topic's id what was recorded (rule 3), None while nothing was.
    `goes_on`: the copies went where they go now (`same_target`).

    Raises:
        LookupError: what it needs to know cannot be known yet.
        KafkaError, ClusterUnreachable.
    """
    # Read before any offset: should the topic be made anew in between, the fetch sees another id.
    present = await log_id(job, source)
    if reset is not None:
        return StartPosition(Snapshot(reset.next_offset), reset.lineage, present, known=False, is_first=True)
    first = partial(_first_offset, job, definition, source, present, recorded)
    if why := _other_ends(job, definition, answer, present, goes_on=goes_on):
        start = await first()
        log.info("a route leads elsewhere now and copies anew", job=str(job), why=why, start=start)
        return StartPosition(Snapshot(start), answer.lineage + 1, present, known=False, is_first=True)
    snapshot = read_snapshot(job, answer.snapshot, report_incident)
    if answer.log.is_another(present):
        why = f"{job.topic} was deleted and made anew: its position was of {answer.log}, it is {present} now"
        start = await source.fetch.offsets_at(job.topic, job.partition, EARLIEST)
        if definition.spec.on_gap == "stop" and snapshot is not None:
            key, base = (str(job), answer.epoch), snapshot.base
            gap = LogGap(key, job.topic, job.partition, base, start, why, begun_anew=True)
            return StartPosition(snapshot, answer.lineage, answer.log, known=True, gap=gap)
        report_incident(
            "log-begun-anew",
            str(job),
            f"{why}; copying begins at {start}",
            "what the old one had is copied as far as the route had come; see whether records are missing",
        )
        return StartPosition(
            Snapshot(start), answer.lineage + 1, present, known=False, is_first=True, begun_anew=True
        )
    now = answer.log.filled_in(present)
    if snapshot is not None:
        # Without a note nothing was appended yet, whoever began.
        return StartPosition(snapshot, answer.lineage, now, known=now == answer.log, is_first=not answer.note)
    if not answer.lineage:
        at = (job.topic, job.partition)
        committed = None
        with contextlib.suppress(GroupDenied):  # it is for people: a principal that only reads needs no group
            committed = (await source.committer.committed(group_of(job.name), [at])).get(at)
        if committed is not None and committed >= 0:
            return StartPosition(Snapshot(committed), answer.lineage, now, known=False)
    return StartPosition(Snapshot(await first()), answer.lineage, now, known=False, is_first=True)


async def same_target(
    job: JobId, definition: RouteDefinition, target: ClusterClient, answer: TakeoverAnswer
) -> bool:
    """Whether a former owner's copies, if there are any, went where they go now (rule 4).

    Raises:
        ClusterUnreachable, KafkaError: it cannot be known now.
    """
    note, name = _read(answer.note), _target(job, definition)
    if note is None or note.target in {"", name}:
        return True
    topic = definition.route().destination(job.topic)
    if topic is None or note.target.partition("/")[2] != topic:
        return False
    ids = await target.topic_ids([topic])
    present = LogId(await target.cluster_id(), ids.get(topic, ""))
    return _is_same(note.log, present)


def _other_ends(
    job: JobId, definition: RouteDefinition, answer: TakeoverAnswer, present: LogId, *, goes_on: bool
) -> str:
    """Which end of the route is another one since its copies were made (rule 4); "" for none."""
    note = _read(answer.note)
    if note is None:
        return ""
    if note.source not in {"", definition.spec.source} and not _is_same(answer.log, present):
        return f"it was copied from {note.source}, is from {definition.spec.source}"
    return "" if goes_on else f"it was copied to {note.target}, is to {_target(job, definition)}"


def _is_same(noted: LogId, present: LogId) -> bool:
    """Whether both are known to be one log. Without ids nobody knows."""
    return bool(noted.cluster_id and present.topic_id) and noted == present


def _read(note: bytes) -> ReplicaHandover | None:
    try:
        return ReplicaHandover.from_bytes(note) if note else None
    except BadHandover:
        return None  # whoever uses it tells of that


def _target(job: JobId, definition: RouteDefinition) -> str:
    return f"{definition.spec.target}/{definition.route().destination(job.topic)}"


async def _first_offset(
    job: JobId,
    definition: RouteDefinition,
    source: DataCluster,
    present: LogId,
    recorded: Callable[[str], int | None] | None,
) -> int:
    """Rule 3. Raises LookupError: it is not recorded yet."""
    first = await source.fetch.offsets_at(job.topic, job.partition, EARLIEST)
    if definition.spec.start == "latest":
        if recorded is None:
            raise LookupError("the leader has not recorded yet where `start: latest` begins")
        first = max(first, recorded(present.topic_id) or 0)
    return first
