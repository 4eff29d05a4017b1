"""Publishes how far the copies of routes without an owner reach, so that consumers do not wait for them for
ever.

A line of the offset map whose job has no owner gets no offset syncs, and no more copies come. As the
destination grows, the leader publishes that (`app.offsets.model.offset_map.LineEnd`), as an owner emits idle
offset syncs.

Rules (tests/replicate/jobs/test_orphaned_lines.py)
1. The leader publishes nothing about a job before it has had no owner for `UNOWNED_AFTER_S`. The last owner's
   batches have arrived by then.
2. It reads the end offsets first, and then the control log to its end. A later owner gets the job behind that
   point, so its copies lie behind those ends.
3. Two ends of a destination's log count. While replicas are missing, the last batches may lie above the high
   watermark for long, but not above the leader's own end. Such batches may be lost with the leader, and the
   next owner's copies then lie from the high watermark on. So the leader publishes only once, in the same
   leader epoch, the high watermark has reached the first known end of the log.
4. Nothing behind the source's end was ever read or copied, if that end was read after the time in rule 1. The
   source's cluster may be unreachable, or its log may be another one. Then this end is not published. The
   copied records hold back consumers who may not have read them, until retention deletes the records.
5. A late or missing publication costs precision only. Copies of regions' control topics are left out: no
   consumer has positions in them, and each publication would be copied in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog import codec
from app.controllog.log import ControlLog
from app.failover.topology import RESERVED as BOOKKEEPING
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.commits import TopicAndPartition
from app.kafka.client.log_ends import LogEnd, log_ends
from app.kafka.records.leader_epochs import ENDLESS
from app.kernel.fencing import LogId
from app.kernel.job import JobId
from app.offsets.model.offset_map import NO_PINS, EndedItem, LineEnd, OffsetMapLine, at_end, line_key
from app.offsets.store.records import CHECKPOINTS, RegionStore
from app.offsets.store.tables import ReadableCluster, RegionTables
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.replicate.definition import REPLICATE_JOBS

log = structlog.get_logger(__name__)

ORPHAN_POLL_INTERVAL_S = 60.0
UNOWNED_AFTER_S = 60.0
LINES_PER_S = 100  # a line has up to 40 kB, and each publication writes it again
TABLE_READ_TIMEOUT_S = 30.0  # for the region's own table; a later call continues the read
POLLS_BEFORE_REREAD = 60  # then lines are read again

ReadLines = Callable[[Collection[str]], Awaitable[Mapping[str, OffsetMapLine]]]
ReachCluster = Callable[[str], Awaitable[ReadableCluster]]


class _Seen(NamedTuple):
    """The circumstances of an observed end: the job's epoch, the destination's log, its leader epoch."""

    epoch: int
    target: LogId
    leader_epoch: int


def own_lines(tables: RegionTables) -> ReadLines:
    """Reads lines of this region by their keys, without unreadable ones. Raises NotRead, KafkaError."""
    region = tables.atlas.region

    async def read(keys: Collection[str]) -> Mapping[str, OffsetMapLine]:
        await tables.read(TABLE_READ_TIMEOUT_S, (CHECKPOINTS,), {region})

        def found(store: RegionStore) -> dict[str, OffsetMapLine]:
            lines = {}
            for key in keys:
                with contextlib.suppress(codec.BadEvent):
                    lines[key] = codec.checkpoint_line(store.record(CHECKPOINTS, region, key))
            return lines

        return await tables.ask(found)

    return read


class OrphanedLines(Service):
    """Runs on the leader.

    Args:
        names: The data clusters.
        reach: Connects to a cluster; raises ClusterUnreachable.
        read: Reads lines of this region by their keys; raises its table's errors.
        read_control: Reads the control log to its end; raises ClusterUnreachable, KafkaError, TimeoutError.
        may_act: Whether this worker leads and its lease holds.
    """

    def __init__(
        self,
        control: ControlLog,
        names: Collection[str],
        reach: ReachCluster,
        read: ReadLines,
        sender: BarrierSender,
        read_control: Callable[[], Awaitable[None]],
        may_act: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._control = control
        self._names = names
        self._reach = reach
        self._read = read
        self._sender = sender
        self._read_control = read_control
        self._may_act = may_act
        self._unowned: dict[str, tuple[int, float]] = {}  # job -> its highest epoch, and since when
        self._lines: dict[str, OffsetMapLine | None] = {}  # by job
        self._first_ends: dict[str, tuple[_Seen, int]] = {}  # by job: where the log first ended (rule 3)
        self._rounds = 0

    @Service.task
    async def _poll_for_ever(self) -> None:
        published_lines = 0
        while not self.should_stop:
            await self.sleep(max(ORPHAN_POLL_INTERVAL_S, published_lines / LINES_PER_S))
            published_lines = 0
            if not self._may_act():
                self._unowned, self._lines, self._first_ends = {}, {}, {}
                continue
            try:
                published_lines = await self.publish_new(time.monotonic())
            except Exception as error:  # noqa: BLE001 - rule 5
                log.warning("the ends of copies without an owner were not published", error=repr(error))

    async def publish_new(self, now_s: float) -> int:
        """Publishes new ends; returns the number of lines. Raises `read`'s and `read_control`'s errors,
        KafkaError."""
        jobs = self._settled_jobs(now_s)
        self._rounds += 1
        known = self._lines if self._rounds % POLLS_BEFORE_REREAD else {}
        self._lines = {job: known[job] for job in jobs if job in known}
        self._first_ends = {job: self._first_ends[job] for job in jobs if job in self._first_ends}
        if missing := {_key(job): job for job in jobs if job not in self._lines}:
            found = await self._read(missing)
            self._lines |= {job: _compacted(found.get(key)) for key, job in missing.items()}
        lines = {job: line for job, line in self._lines.items() if line is not None}
        if not lines:
            return 0
        items = await self._ended_items(lines, jobs)
        new = {job: line for job, item in items.items() if (line := at_end(lines[job], item)) is not None}
        if not new:
            return 0
        await self._read_control()
        unowned = self._unowned_jobs()
        new = {job: line for job, line in new.items() if unowned.get(job) == jobs[job]}
        if new and self._may_act():
            await asyncio.gather(*await self._sender.end([items[job] for job in new]))
            self._lines |= new
        return len(new)

    def _unowned_jobs(self) -> dict[str, int]:
        """The jobs without an owner, and the highest epoch of each."""
        view = self._control.view
        return {
            job: view.floor[job]
            for job, held in list(view.assignments.items())
            if job.startswith(REPLICATE_JOBS)
            and not held.worker
            and not JobId.parse(job).topic.startswith(BOOKKEEPING)
        }

    def _settled_jobs(self, now_s: float) -> dict[str, int]:
        """The jobs without an owner for long enough (rule 1), with their epochs."""
        jobs, before = self._unowned_jobs(), self._unowned
        self._unowned = {
            job: before[job] if job in before and before[job][0] == epoch else (epoch, now_s)
            for job, epoch in jobs.items()
        }
        return {
            job: epoch
            for job, (epoch, since_s) in self._unowned.items()
            if now_s - since_s >= UNOWNED_AFTER_S
        }

    async def _ended_items(
        self, lines: Mapping[str, OffsetMapLine], jobs: Mapping[str, int]
    ) -> dict[str, EndedItem]:
        partitions: dict[str, set[TopicAndPartition]] = defaultdict(set)  # by cluster id
        for job, line in lines.items():
            partitions[line.target.cluster_id].add((line.target_topic, line.target_partition))
            if _lacks_source(line, jobs[job]):
                identity = JobId.parse(job)
                partitions[line.source.cluster_id].add((identity.topic, identity.partition))
        clusters = await self._clusters()
        reachable = [cluster_id for cluster_id in partitions if cluster_id in clusters]
        answers = await asyncio.gather(*(_read_ends(clusters[id_], partitions[id_]) for id_ in reachable))
        ends = dict(zip(reachable, answers, strict=True))
        found: dict[str, EndedItem] = {}
        for job, line in lines.items():
            identity, target = JobId.parse(job), line.target.cluster_id
            at = line.target_topic, line.target_partition
            if at not in ends.get(target, {}):
                continue
            topic_id, end = ends[target][at]
            seen = _Seen(jobs[job], LogId(target, topic_id), end.leader_epoch)
            if job not in self._first_ends or self._first_ends[job][0] != seen:
                self._first_ends[job] = seen, end.end
            first_end = self._first_ends[job][1]
            if end.shown < first_end:
                continue
            source_end = _source_end(line, identity, ends.get(line.source.cluster_id, {}))
            ended = LineEnd(seen.epoch, seen.target, source_end, first_end, end.shown)
            found[job] = EndedItem(
                identity.name, identity.topic, identity.partition, line.lineage, line.source, ended
            )
        return found

    async def _clusters(self) -> dict[str, ClusterClient]:
        async def connect(name: str) -> tuple[str, ClusterClient] | None:
            try:
                client = (await self._reach(name)).client
                return await client.cluster_id(), client
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError):
                return None

        found = await asyncio.gather(*map(connect, sorted(self._names)))
        return dict(pair for pair in found if pair is not None)


def _compacted(line: OffsetMapLine | None) -> OffsetMapLine | None:
    """The part of a line that is needed here, because many ended lines stay in memory."""
    if line is None:
        return None
    return msgspec.structs.replace(line, barriers=line.barriers[-1:], needs=NO_PINS, epochs=())


async def _read_ends(
    client: ClusterClient, partitions: Iterable[TopicAndPartition]
) -> dict[TopicAndPartition, tuple[str, LogEnd]]:
    """Topic ids and ends, without partitions that do not exist or are not known now."""
    partitions = sorted(partitions)
    try:
        # The ids first: if a topic is recreated in between, the end is published for the former one.
        ids = await client.topic_ids({topic for topic, _ in partitions})
        ends = await log_ends(client, [at for at in partitions if at[0] in ids])
    except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
        log.debug("ends of a cluster are not known", cluster=client.name, error=repr(error))
        return {}
    return {at: (ids[at[0]], end) for at, end in ends.items()}


def _lacks_source(line: OffsetMapLine, epoch: int) -> bool:
    return line.ended is None or line.ended.epoch != epoch or line.ended.source_end == ENDLESS


def _source_end(line: OffsetMapLine, job: JobId, ends: Mapping[TopicAndPartition, tuple[str, LogEnd]]) -> int:
    """The source's end for rule 4; `ENDLESS`: not known."""
    topic_id, end = ends.get((job.topic, job.partition), ("", None))
    if end is None or line.source.is_another(LogId(line.source.cluster_id, topic_id)):
        return ENDLESS
    return max(end.end, line.barriers[-1].source_end)  # the source may have lost its end since


def _key(job: str) -> str:
    identity = JobId.parse(job)
    return line_key(identity.name, identity.topic, identity.partition)
