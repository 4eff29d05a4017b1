"""Plans a cluster move: checks that it is possible, and maps what is unfinished to start offsets there.

Rules
1. The owners' bases are the positions: everything below is finished. They are read before the ends of topics,
   so that a message that changes its topic meanwhile is found in at least one of them.
2. A plan by which more than `MOST_AGAIN` of the topic there would come again is refused unless it is forced.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from app.config.problems import first_wrong
from app.controllog.codec import JobStatus
from app.controllog.events import WorkloadPut
from app.controllog.log import ControlLog
from app.definitions.plan import plan as plan_changes
from app.dispatch.definition import Workload, dispatch_job
from app.dispatch.dlq.rules import Span
from app.dispatch.move.begin_offsets import BeginOffsets, MapOffsets, find_begin_offsets
from app.dispatch.move.copier import TopicAndPartition, ends, offsets, read_times
from app.dispatch.move.time_mapping import SourcePartition
from app.dispatch.topics.leftovers import candidates
from app.dispatch.topics.settings import refused_topics
from app.kafka.client.cluster import EARLIEST
from app.kafka.client.group_members import SHARE
from app.kafka.data_clusters import DataCluster, DataClusters
from app.kernel.job import JobId
from app.kernel.json_types import JsonMapping, JsonObject
from app.worker.jobs.operator_acts import OperationRefused
from app.worker.members.membership import Members

DEFAULT_MARGIN_MS = 10_000
MOST_AGAIN = 0.01  # of the topic's offsets in the destination, without `force`

ReportProgress = Callable[[JsonObject], None]


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Move workload `key` to cluster `to`; with `letters`, its dead letters too; with `force`, however many
    messages come again."""

    key: str
    to: str
    margin_ms: int = DEFAULT_MARGIN_MS
    letters: bool = True
    force: bool = False


@dataclass(frozen=True, slots=True)
class MovePath:
    """The start and the destination of a move. `ids`: cluster and topic id of either."""

    put: WorkloadPut
    workload: Workload
    moved: Workload
    source: DataCluster
    target: DataCluster
    ids: tuple[tuple[str, str], tuple[str, str]]
    partitions: tuple[int, int]


@dataclass(slots=True)
class MoveView:
    """The plan of a move as of now.

    Attributes:
        waiting: Topic -> spans by partition, of retry, merge and delayed topics.
        letters: Spans by partition, of the dead letter queue.
        left_there: Topic -> older messages in the destination's retry topics, which will not be read.
        complete: All timestamps were read; otherwise the counts are not final.
    """

    sources: list[SourcePartition]
    begins: BeginOffsets
    waiting: dict[str, dict[int, Span]]
    letters: dict[int, Span]
    complete: bool
    left_there: dict[str, int] = field(default_factory=dict)

    @property
    def needs_force(self) -> bool:
        """Rule 2."""
        return self.begins.again > MOST_AGAIN * self.begins.logged

    def to_json(self, path: MovePath, request: MoveRequest) -> JsonObject:
        retry = {topic: _sum(spans) for topic, spans in self.waiting.items()}
        return {
            "key": request.key, "from": path.workload.metadata.cluster, "to": request.to,
            "margin_ms": request.margin_ms, "partitions": self.begins.rows(self.sources),
            "complete": self.complete, "again": self.begins.again, "logged": self.begins.logged,
            "behind": self.begins.is_behind, "needs_force": self.needs_force,
            "unfinished": sum(source.unfinished for source in self.sources),
            "waiting": retry, "left_there": self.left_there,
            "dlq": {"offsets": _sum(self.letters), "action": "copy" if request.letters else "leave"},
        }  # fmt: skip


def check_repetitions(plan: JsonObject, request: MoveRequest) -> None:
    """Raises OperationRefused: rule 2, for a plan as `MoveView.to_json` gives it."""
    if plan["needs_force"] and not request.force:
        remedy = "wait until the copies there have caught up" if plan["behind"] else "choose a smaller margin"
        raise OperationRefused(
            f"up to {plan['again']} finished messages of {request.key} would be delivered again, more than "
            f"{MOST_AGAIN:.0%} of the {plan['logged']} in {request.to}; nothing was moved: {remedy}, or move "
            "with --force if its receivers can take them"
        )


class MovePlanner:
    """Plans `request`; changes nothing."""

    def __init__(
        self,
        request: MoveRequest,
        control: ControlLog,
        clusters: DataClusters,
        members: Members,
        map_offsets: MapOffsets,
    ) -> None:
        self.request = request
        self._control = control
        self._clusters = clusters
        self._members = members
        self._map_offsets = map_offsets

    async def path(self) -> MovePath:
        """Checks all that can be known before the workload is drained.

        Raises:
            OperationRefused: The move is not possible. ClusterUnreachable, KafkaError.
        """
        key, to = self.request.key, self.request.to
        view, specs = self._control.view, self._clusters.specs
        put = view.workloads.get(key)
        if put is None:
            raise OperationRefused(f"there is no workload {key}")
        try:
            workload = Workload.from_wire(put.definition)
        except ValidationError as error:
            raise OperationRefused(
                f"this version cannot read {key}: {first_wrong(error)}; deploy it again"
            ) from error
        at = workload.metadata.cluster
        if workload.spec.mode is not None:
            raise OperationRefused(
                f"{key} has a mode: each region reads its own cluster of a tier; move it between regions "
                "with a failover, or remove spec.mode first"
            )
        if to not in specs:
            raise OperationRefused(
                f"there is no cluster {to!r}; this worker knows {', '.join(sorted(specs))}"
            )
        if at == to:
            raise OperationRefused(f"{key} is in {to} already")
        if workload.spec.start == "latest" and not view.start_parts_of(key):
            raise OperationRefused("the start offsets of `start: latest` are not recorded yet; retry later")
        moved = workload.model_copy(update={"metadata": workload.metadata.model_copy(update={"cluster": to})})
        known = _readable({k: p.definition for k, p in view.workloads.items() if k != key})
        if conflicts := plan_changes(known, [moved]).conflicts:
            raise OperationRefused("; ".join(conflicts))
        source, target = await self._clusters.get(at), await self._clusters.get(to)
        ids, partitions = [], []
        for cluster in (source, target):
            topic = workload.metadata.topic
            count = await cluster.client.partitions(topic)
            if not count:
                raise OperationRefused(f"topic {topic} does not exist in {cluster.name}; copy it there first")
            cluster_id = await cluster.client.cluster_id()
            if not cluster_id:
                raise OperationRefused(
                    f"{cluster.name} reports no cluster id, without which its offsets cannot be identified"
                )
            ids.append((cluster_id, (await cluster.client.topic_ids([topic])).get(topic, "")))
            partitions.append(count)
        if ids[0][0] == ids[1][0]:
            raise OperationRefused(f"{at} and {to} are the same cluster, {ids[0][0]}")
        for refused in await refused_topics(target.client, moved):
            raise OperationRefused(f"{refused}; {refused.remedy}")
        group = moved.metadata.group
        members = await target.committer.members(group)
        if members.words:
            remedy = "rename it there" if members.type_ == SHARE else "stop its consumers there first"
            raise OperationRefused(f"group {group} in {to} {members.words}; {remedy}")
        return MovePath(
            put, workload, moved, source, target, (ids[0], ids[1]), (partitions[0], partitions[1])
        )

    def statuses(self, since_s: float = float("-inf")) -> dict[str, JobStatus | None]:
        """Each assigned job's status, from its owner's heartbeat; None: none came after `since_s`."""
        found: dict[str, JobStatus | None] = {
            job: None
            for job, held in self._control.view.assignments.items()
            if held.worker and JobId.parse(job).name == self.request.key
        }
        for worker, beat in self._members.live(time.monotonic()).items():
            for status in beat.jobs if self._members.heard[worker][0] > since_s else ():
                held = self._control.view.assignments.get(status.job)
                if status.job in found and held and (held.worker, held.epoch) == (worker, status.epoch):
                    found[status.job] = status
        return found

    async def view(self, path: MovePath, report_progress: ReportProgress, within_s: float | None) -> MoveView:
        """The plan as of now; reads timestamps for at most `within_s`.

        Raises:
            ClusterUnreachable, KafkaError, TimeoutError.
        """
        topic, client = path.workload.metadata.topic, path.source.client
        present = await client.topics()
        topics = [topic, *path.workload.retry_topics(), *candidates(path.workload)]
        at = [(name, p) for name in topics for p in range(present.get(name, 0))]
        positions = await self._positions(path, at)  # rule 1: before the ends
        starts = await offsets(client, at, EARLIEST)
        logs = await ends(client, [place for place in at if place[0] == topic], committed_only=False)
        logs |= await ends(client, [place for place in at if place[0] != topic])
        statuses = self.statuses()
        sources: list[SourcePartition] = []
        waiting: dict[str, dict[int, Span]] = {}
        for name, p in at:
            start, end = starts[name, p], max(starts[name, p], logs[name, p])
            position = min(max(positions.get((name, p), start), start), end)
            if name != topic:
                if position < end:
                    waiting.setdefault(name, {})[p] = (position, end)
                continue
            status = statuses.get(str(dispatch_job(self.request.key, name, p)))
            above = 0 if status is None else max(0, status.fetched - status.committed - status.unfinished)
            sources.append(SourcePartition(p, start, position, end, above))

        def read(looked_at: int, of: int) -> None:
            report_progress({"step": "map", "looked_at": looked_at, "of": of})

        until_s = None if within_s is None else time.monotonic() + within_s
        complete = await read_times(client, topic, sources, read, within_s)
        begins = await find_begin_offsets(
            client, path.target.client, topic, sources, path.partitions[1], self.request.margin_ms,
            self._map_offsets, read, None if until_s is None else until_s - time.monotonic(),
            all_read=complete,
        )  # fmt: skip
        queue = path.workload.dlq_topic()
        letters = [(queue, p) for p in range(present.get(queue, 0))]
        first, last = await offsets(client, letters, EARLIEST), await ends(client, letters)
        spans = {p: (first[queue, p], max(first[queue, p], last[queue, p])) for _, p in letters}
        left_there = await self._left_there(path)
        return MoveView(sources, begins, waiting, spans, complete and begins.complete, left_there)

    async def _left_there(self, path: MovePath) -> dict[str, int]:
        """Messages in the destination's retry topics above the group's commit there, by topic."""
        client, moved = path.target.client, path.moved
        present = await client.topics()
        at = [(t, p) for t in (*moved.retry_topics(), *candidates(moved)) for p in range(present.get(t, 0))]
        if not at:
            return {}
        committed = await path.target.committer.committed(moved.metadata.group, at)
        firsts, lasts = await offsets(client, at, EARLIEST), await ends(client, at)
        found: dict[str, int] = {}
        for place in at:
            unread = lasts[place] - max(firsts[place], committed.get(place) or 0)
            if unread > 0:
                found[place[0]] = found.get(place[0], 0) + unread
        return found

    async def _positions(
        self, path: MovePath, at: Sequence[TopicAndPartition]
    ) -> dict[TopicAndPartition, int]:
        """The known next offsets: an owner's base, else the group's commit, else the recorded start."""
        group, start = path.workload.metadata.group, self._control.view.start_of(self.request.key)
        found: dict[TopicAndPartition, int] = {}
        if start is not None:
            main = path.workload.metadata.topic
            ids = await path.source.client.topic_ids({topic for topic, _ in at})
            for topic, p in at:
                mapped = start.mapped(topic, p, path.ids[0][0], ids.get(topic, ""))
                if mapped is not None:
                    found[topic, p] = mapped
                elif (
                    topic == main
                    and not start.cluster_id
                    and start.topic_id == ids.get(topic)
                    and p < len(start.ends)
                ):
                    found[topic, p] = start.ends[p]
        committed = await path.source.committer.committed(group, at)
        found |= {place: offset for place, offset in committed.items() if offset is not None}
        for job, status in self.statuses().items():
            if status is not None and status.committed >= 0:
                parsed = JobId.parse(job)
                found[parsed.topic, parsed.partition] = status.committed
        return found


def _readable(definitions: Mapping[str, JsonMapping]) -> dict[str, Workload]:
    """The definitions that this version can read; a newer one may have written others."""
    found = {}
    for key, definition in definitions.items():
        with contextlib.suppress(ValidationError):
            found[key] = Workload.from_wire(definition)
    return found


def _sum(spans: dict[int, Span]) -> int:
    return sum(end - start for start, end in spans.values())
