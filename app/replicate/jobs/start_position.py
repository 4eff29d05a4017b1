"""Finds where a replica begins, from the tracker table and the source.

Rules
1. The table's snapshot counts for the log that it belongs to. The group's commit (`switchyard-<route>`) is
   for people, and counts if the table knows nothing; then copies behind it may come twice.
2. Another log (the topic was recreated) begins a new lineage at its start. A route that stops at gaps halts
   before it at the former position, until an operator skips the gap or resets the route.
3. Without any position a partition begins at its start. With `start: latest` it begins at the end that was
   recorded when the route was first defined (`app.replicate.topics.source_ends`). A topic or partition that
   is found later is copied from its start.
4. A partition also begins there, in a new lineage, if the definition now names another source or another
   destination than its copies have. Ids decide that, not names: a cluster that has a new name in
   switchyard.yaml is the same one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from app.kafka.client.cluster import EARLIEST, ClusterClient
from app.kafka.client.commits import GroupDenied
from app.kafka.data_clusters import DataCluster
from app.kafka.fetch.deliveries import FetchKey, LogGap
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.replicate.definition import RouteDefinition
from app.replicate.destination.handover import BadHandover, ReplicaHandover
from app.replicate.pump.route_runtime import group_of
from app.worker.jobs.start_position import LineageReset, StartPosition, log_id, read_snapshot

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
    continues: bool,
) -> StartPosition:
    """The position at which a replica begins.

    Args:
        recorded: The recorded end for a topic id (rule 3); None while nothing is recorded.
        continues: The copies went to the present destination (`same_target`).

    Raises:
        LookupError: The position cannot be known yet.
        KafkaError, ClusterUnreachable: The source refuses or does not answer.
    """
    # Read before any offset: if the topic is recreated in between, the fetch finds another id.
    present = await log_id(job, source)
    if reset is not None:
        return StartPosition(Snapshot(reset.next_offset), reset.lineage, present, known=False, is_first=True)
    first = partial(_first_offset, job, definition, source, present, recorded)
    if why := _changed_end(job, definition, answer, present, continues=continues):
        start = await first()
        log.info(
            "a route has another source or target, so it copies again", job=str(job), why=why, start=start
        )
        return StartPosition(Snapshot(start), answer.lineage + 1, present, known=False, is_first=True)
    snapshot = read_snapshot(job, answer.snapshot, report_incident)
    if answer.log.is_another(present):
        why = f"{job.topic} was deleted and recreated: its position was of {answer.log}, it is now {present}"
        start = await source.fetch.offsets_at(job.topic, job.partition, EARLIEST)
        if definition.spec.on_gap == "stop" and snapshot is not None:
            key, base = FetchKey(str(job), answer.epoch), snapshot.base
            gap = LogGap(key, job.topic, job.partition, base, start, why, begun_anew=True)
            return StartPosition(snapshot, answer.lineage, answer.log, known=True, gap=gap)
        report_incident(
            "log-begun-anew",
            str(job),
            f"{why}; copying begins at {start}",
            "the old topic is copied as far as the route had come; check whether records are missing",
        )
        return StartPosition(
            Snapshot(start), answer.lineage + 1, present, known=False, is_first=True, begun_anew=True
        )
    known_log = answer.log.filled_in(present)
    if snapshot is not None:
        # Without a note no owner has appended anything.
        return StartPosition(
            snapshot, answer.lineage, known_log, known=known_log == answer.log, is_first=not answer.note
        )
    if not answer.lineage:
        at = (job.topic, job.partition)
        committed = None
        with contextlib.suppress(GroupDenied):  # the commit is for people, so this permission is optional
            committed = (await source.committer.committed(group_of(job.name), [at])).get(at)
        if committed is not None and committed >= 0:
            return StartPosition(Snapshot(committed), answer.lineage, known_log, known=False)
    return StartPosition(Snapshot(await first()), answer.lineage, known_log, known=False, is_first=True)


async def same_target(
    job: JobId, definition: RouteDefinition, target: ClusterClient, answer: TakeoverAnswer
) -> bool:
    """Whether a former owner's copies, if any, went to the present destination (rule 4).

    Raises:
        ClusterUnreachable, KafkaError: It cannot be known now.
    """
    note, name = _decoded(answer.note), _target(job, definition)
    if note is None or note.target in {"", name}:
        return True
    topic = definition.route().destination(job.topic)
    if topic is None or note.target.partition("/")[2] != topic:
        return False
    ids = await target.topic_ids([topic])
    present = LogId(await target.cluster_id(), ids.get(topic, ""))
    return _is_same(note.log, present)


def _changed_end(
    job: JobId, definition: RouteDefinition, answer: TakeoverAnswer, present: LogId, *, continues: bool
) -> str:
    """How the route's source or target has changed since its copies were made (rule 4); "": it has not."""
    note = _decoded(answer.note)
    if note is None:
        return ""
    if note.source not in {"", definition.spec.source} and not _is_same(answer.log, present):
        return f"it was copied from {note.source}, and is now copied from {definition.spec.source}"
    return (
        ""
        if continues
        else f"it was copied to {note.target}, and is now copied to {_target(job, definition)}"
    )


def _is_same(noted: LogId, present: LogId) -> bool:
    """Whether both are known to be one log. Without ids that is not known."""
    return bool(noted.cluster_id and present.topic_id) and noted == present


def _decoded(note: bytes) -> ReplicaHandover | None:
    try:
        return ReplicaHandover.from_bytes(note) if note else None
    except BadHandover:
        return None  # the destination session reports it


def _target(job: JobId, definition: RouteDefinition) -> str:
    return f"{definition.spec.target}/{definition.route().destination(job.topic)}"


async def _first_offset(
    job: JobId,
    definition: RouteDefinition,
    source: DataCluster,
    present: LogId,
    recorded: Callable[[str], int | None] | None,
) -> int:
    """The offset at which a new partition begins (rule 3). Raises LookupError: it is not recorded yet."""
    first = await source.fetch.offsets_at(job.topic, job.partition, EARLIEST)
    if definition.spec.start == "latest":
        if recorded is None:
            raise LookupError("the leader has not recorded yet where `start: latest` begins")
        first = max(first, recorded(present.topic_id) or 0)
    return first
