"""What routes have left behind that copy no more: told by the leader, so that it holds nobody back for ever.

A line of the offset map whose job has no owner gets no barriers. Its copies lie where they lie, and no more
come: that is told as the destination goes on (`app.offsets.model.offset_map.LineEnd`), as an owner tells idle
barriers.

Rules
1. A job has had no owner for `UNOWNED_AFTER_S` before anything is told: what its last one sent has landed by
   then.
2. Ends are asked for first, then the control log is read to its end. Who copies later is given the job behind
   that, and copies behind those ends.
3. Of a destination's log two ends count. What was sent last may lie above the high watermark for long, while
   replicas are missing: nothing of it lies behind the leader's own end. But that may be lost with its leader:
   who comes next copies behind what was shown, no more. So it is told once the watermark has come, in the
   same leader epoch, to where the log ended when that was first asked.
4. Behind the source's end, asked for after that time, nothing was ever read: so nothing from there on was
   copied. Without it (its cluster is away, or its log is another one) that is not told, and what was copied
   holds back who may not have read it until retention takes it.
5. What is told late or not at all costs precision, nothing else. Copies of regions' bookkeeping are left out:
   nobody's position is in them, and each word on them would be copied in turn.
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
from app.kernel.job import JobId, Kind
from app.offsets.model.offset_map import NO_PINS, EndedItem, LineEnd, OffsetMapLine, at_end, line_key
from app.offsets.store.records import CHECKPOINTS, RegionStore
from app.offsets.store.tables import ReadableCluster, RegionTables
from app.offsets.sync.offset_sync_sender import BarrierSender

log = structlog.get_logger(__name__)

ORPHAN_POLL_INTERVAL_S = 60.0
UNOWNED_AFTER_S = 60.0
LINES_PER_S = 100  # a line is up to 40 kB, written anew with every word on it
TABLE_READ_TIMEOUT_S = 30.0  # patience with the region's own table: it goes on there
POLLS_BEFORE_REREAD = 60  # then lines are read again
PREFIX = f"{Kind.REPLICATE.value}:"

ReadLines = Callable[[Collection[str]], Awaitable[Mapping[str, OffsetMapLine]]]
ReachCluster = Callable[[str], Awaitable[ReadableCluster]]


class _Seen(NamedTuple):
    """When an end was seen: the job's epoch, the destination's log, its leader's epoch."""

    epoch: int
    target: LogId
    leader_epoch: int


def own_lines(tables: RegionTables) -> ReadLines:
    """Lines of this region by their keys, without those that cannot be read. Raises NotRead, KafkaError."""
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
    """See the module.

    Args:
        names: of the data clusters. reach: one that answers; raises ClusterUnreachable.
        read: lines of this region by their keys; raises what its table does.
        read_control: reads the control log to its end; raises ClusterUnreachable, KafkaError, TimeoutError.
        may_act: whether this worker leads, and its lease holds.
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
        self._behind: dict[str, tuple[_Seen, int]] = {}  # by job: where the log first ended (rule 3)
        self._looks = 0

    @Service.task
    async def _poll_for_ever(self) -> None:
        told = 0
        while not self.should_stop:
            await self.sleep(max(ORPHAN_POLL_INTERVAL_S, told / LINES_PER_S))
            told = 0
            if not self._may_act():
                self._unowned, self._lines, self._behind = {}, {}, {}
                continue
            try:
                told = await self.publish_new(time.monotonic())
            except Exception as error:  # noqa: BLE001 - rule 5
                log.warning("what ended routes have left behind was not told", error=repr(error))

    async def publish_new(self, now_s: float) -> int:
        """Tells what is new; of how many lines. Raises what `read` and `read_control` do, and KafkaError."""
        jobs = self._settled(now_s)
        self._looks += 1
        known = self._lines if self._looks % POLLS_BEFORE_REREAD else {}
        self._lines = {job: known[job] for job in jobs if job in known}
        self._behind = {job: self._behind[job] for job in jobs if job in self._behind}
        if missing := {_key(job): job for job in jobs if job not in self._lines}:
            found = await self._read(missing)
            self._lines |= {job: _end_of(found.get(key)) for key, job in missing.items()}
        lines = {job: line for job, line in self._lines.items() if line is not None}
        if not lines:
            return 0
        items = await self._ended(lines, jobs)
        new = {job: line for job, item in items.items() if (line := at_end(lines[job], item)) is not None}
        if not new:
            return 0
        await self._read_control()
        still = self._jobs()
        new = {job: line for job, line in new.items() if still.get(job) == jobs[job]}
        if new and self._may_act():
            await asyncio.gather(*await self._sender.end([items[job] for job in new]))
            self._lines |= new
        return len(new)

    def _jobs(self) -> dict[str, int]:
        """Those without an owner, and the highest epoch of each."""
        view = self._control.view
        return {
            job: view.floor[job]
            for job, held in list(view.assignments.items())
            if job.startswith(PREFIX)
            and not held.worker
            and not JobId.parse(job).topic.startswith(BOOKKEEPING)
        }

    def _settled(self, now_s: float) -> dict[str, int]:
        """Rule 1."""
        jobs, before = self._jobs(), self._unowned
        self._unowned = {
            job: before[job] if job in before and before[job][0] == epoch else (epoch, now_s)
            for job, epoch in jobs.items()
        }
        return {
            job: epoch
            for job, (epoch, since_s) in self._unowned.items()
            if now_s - since_s >= UNOWNED_AFTER_S
        }

    async def _ended(
        self, lines: Mapping[str, OffsetMapLine], jobs: Mapping[str, int]
    ) -> dict[str, EndedItem]:
        asked: dict[str, set[TopicAndPartition]] = defaultdict(set)
        for job, line in lines.items():
            asked[line.target.cluster_id].add((line.target_topic, line.target_partition))
            if _lacks_source(line, jobs[job]):
                identity = JobId.parse(job)
                asked[line.source.cluster_id].add((identity.topic, identity.partition))
        clusters = await self._clusters()
        at_hand = [cluster_id for cluster_id in asked if cluster_id in clusters]
        answered = await asyncio.gather(*(_ends(clusters[one], asked[one]) for one in at_hand))
        ends = dict(zip(at_hand, answered, strict=True))
        found: dict[str, EndedItem] = {}
        for job, line in lines.items():
            identity, target = JobId.parse(job), line.target.cluster_id
            at = line.target_topic, line.target_partition
            if at not in ends.get(target, {}):
                continue
            topic_id, end = ends[target][at]
            seen = _Seen(jobs[job], LogId(target, topic_id), end.leader_epoch)
            if job not in self._behind or self._behind[job][0] != seen:
                self._behind[job] = seen, end.end
            since = self._behind[job][1]
            if end.shown < since:
                continue
            source_end = _source_end(line, identity, ends.get(line.source.cluster_id, {}))
            ended = LineEnd(seen.epoch, seen.target, source_end, since, end.shown)
            found[job] = EndedItem(
                identity.name, identity.topic, identity.partition, line.lineage, line.source, ended
            )
        return found

    async def _clusters(self) -> dict[str, ClusterClient]:
        """Those that answer, by their ids."""

        async def reached(name: str) -> tuple[str, ClusterClient] | None:
            try:
                client = (await self._reach(name)).client
                return await client.cluster_id(), client
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError):
                return None

        found = await asyncio.gather(*map(reached, sorted(self._names)))
        return dict(one for one in found if one is not None)


def _end_of(line: OffsetMapLine | None) -> OffsetMapLine | None:
    """What is needed here: of many ended lines that stays in memory."""
    if line is None:
        return None
    return msgspec.structs.replace(line, barriers=line.barriers[-1:], needs=NO_PINS, epochs=())


async def _ends(
    client: ClusterClient, asked: Iterable[TopicAndPartition]
) -> dict[TopicAndPartition, tuple[str, LogEnd]]:
    """Topic ids and ends; without what is not there, or is not known now."""
    asked = sorted(asked)
    try:
        # The ids first: should a topic be made anew in between, this is told of one that is not there.
        ids = await client.topic_ids({topic for topic, _ in asked})
        ends = await log_ends(client, [at for at in asked if at[0] in ids])
    except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
        log.debug("ends of a cluster are not known", cluster=client.name, error=repr(error))
        return {}
    return {at: (ids[at[0]], end) for at, end in ends.items()}


def _lacks_source(line: OffsetMapLine, epoch: int) -> bool:
    return line.ended is None or line.ended.epoch != epoch or line.ended.source_end == ENDLESS


def _source_end(line: OffsetMapLine, job: JobId, ends: Mapping[TopicAndPartition, tuple[str, LogEnd]]) -> int:
    """Rule 4."""
    topic_id, end = ends.get((job.topic, job.partition), ("", None))
    if end is None or line.source.is_another(LogId(line.source.cluster_id, topic_id)):
        return ENDLESS
    return max(end.end, line.barriers[-1].source_end)  # it may have lost its end since


def _key(job: str) -> str:
    identity = JobId.parse(job)
    return line_key(identity.name, identity.topic, identity.partition)
