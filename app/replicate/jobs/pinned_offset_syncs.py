"""Which barriers of the offset map somebody still needs: told by the leader, so that no thinning drops them.

Rules
1. A group needs the barrier below its position in a copy, or in a copy's source, while it lies still: one
   that moves is elsewhere by the time it is told, and is near the newest barriers or gets there.
2. It lies still when its position is the same as `PIN_POLL_INTERVAL_S` ago. A group that never comes back
   needs nothing once Kafka forgets its positions (`offsets.retention.minutes`, seven days, after its last
   member left).
3. What is told stands in the line itself, so that another leader and another writer of the table know it. A
   need that comes late, or not at all, costs precision, nothing else. What was told before its line was there
   is told again.
4. Clusters are asked seldom, a group at a time: nobody waits for it.
5. Who cannot be asked now lies where he lay: a barrier that nobody asks for is gone for good. Of a cluster
   of which not all groups are known nothing is told; of a group that cannot be read its last positions count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.controllog.log import ControlLog
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.commits import TopicAndPartition
from app.kafka.data_clusters import DataCluster, DataClusters
from app.kernel.fencing import LogId
from app.kernel.job import JobId, Kind
from app.offsets.model.offset_map import NeedItem, PinnedOffsets, needs_of
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.replicate.pump.route_runtime import group_of
from app.worker.catalog import Catalog

log = structlog.get_logger(__name__)

PIN_POLL_INTERVAL_S = 60.0
POLLS_BEFORE_RESEND = 30  # looks
ATTEMPTS_PER_GROUP = 2  # times that a group is asked: the others wait
MAX_POLL_INTERVAL_S = 600.0
# a look that takes long is not had again before so many times as long, or `MAX_POLL_INTERVAL_S`
BUSY_SHARE = 20
PREFIX = f"{Kind.REPLICATE.value}:"
OWN_GROUP_PREFIX = group_of("")


class RoutedPartition(NamedTuple):
    """A partition that a route copies: its job, the clusters, and the copy's topic."""

    job: JobId
    source: str
    target: str
    copy: str


class ClusterPositions(NamedTuple):
    """What a cluster was found to hold: the positions of all groups, and its and its topics' ids."""

    positions: Mapping[str, Mapping[TopicAndPartition, int]]
    cluster_id: str
    topic_ids: Mapping[str, str]


class PinnedOffsetSyncs(Service):
    """See the module. `may_act`: whether this worker leads, and its lease holds."""

    def __init__(
        self,
        control: ControlLog,
        catalog: Catalog,
        clusters: DataClusters,
        sender: BarrierSender,
        may_act: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._control = control
        self._catalog = catalog
        self._clusters = clusters
        self._sender = sender
        self._may_act = may_act
        self._before: dict[str, ClusterPositions] = {}
        self._told: dict[str, tuple[LogId, PinnedOffsets]] = {}  # by line
        self._looks = 0

    @Service.task
    async def _poll_for_ever(self) -> None:
        took_s = 0.0
        while not self.should_stop:
            await self.sleep(max(PIN_POLL_INTERVAL_S, min(BUSY_SHARE * took_s, MAX_POLL_INTERVAL_S)))
            began_s = time.monotonic()
            if not self._may_act():
                self._before, self._told = {}, {}
                continue
            try:
                await self.publish_changes()
            except Exception as error:  # noqa: BLE001 - rule 3
                log.warning("what is needed of the offset map was not told", error=repr(error))
            took_s = time.monotonic() - began_s

    async def publish_changes(self) -> None:
        """Tells what has changed since the last look. Raises KafkaError: it was not taken."""
        self._looks += 1
        if self._looks % POLLS_BEFORE_RESEND == 0:
            self._told = {}
        copied = list(self._copied())
        seen: dict[str, ClusterPositions] = {}
        for name in sorted({name for one in copied for name in (one.source, one.target)}):
            try:
                seen[name] = await self._see(await self._clusters.get(name), copied)
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                log.debug("positions of a cluster are not known", cluster=name, error=repr(error))
        still = {name: _still(self._before[name], now) for name, now in seen.items() if name in self._before}
        self._before |= seen
        items = []
        for one in copied:
            if one.source not in still or one.target not in still:
                continue
            job, target = one.job, seen[one.target]
            needs = needs_of(
                still[one.target].get((one.copy, job.partition), ()),
                still[one.source].get((job.topic, job.partition), ()),
            )
            log_id = LogId(target.cluster_id, target.topic_ids.get(one.copy, ""))
            item = NeedItem(job.name, job.topic, job.partition, log_id, needs)
            if self._told.get(item.key) != (item.target, item.needs):
                items.append(item)
        if items and self._may_act():
            await asyncio.gather(*await self._sender.ask(items))
            self._told |= {item.key: (item.target, item.needs) for item in items}

    def _copied(self) -> Iterable[RoutedPartition]:
        for name in list(self._control.view.assignments):
            if name.startswith(PREFIX):
                job = JobId.parse(name)
                route = self._catalog.routes.route(job.name)
                copy = None if route is None else route.destination(job.topic)
                known = route is not None and {route.source, route.target} <= self._clusters.specs.keys()
                if route is not None and copy is not None and known:
                    yield RoutedPartition(job, route.source, route.target, copy)

    async def _see(self, cluster: DataCluster, copied: Iterable[RoutedPartition]) -> ClusterPositions:
        client, committer = cluster.client, cluster.committer
        topics = {one.copy for one in copied if one.target == cluster.name}
        ids = await client.topic_ids(topics) if topics else {}
        positions: dict[str, Mapping[TopicAndPartition, int]] = {}
        before = self._before.get(cluster.name)
        for group in await committer.groups(every_broker=True):
            if group.startswith(OWN_GROUP_PREFIX):
                continue
            try:
                found = await committer.positions(group, tries=ATTEMPTS_PER_GROUP)
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                log.debug("positions of a group are not known", group=group, error=repr(error))
                if before is not None and group in before.positions:
                    positions[group] = before.positions[group]
            else:
                positions[group] = {at: position.next_offset for at, position in found.items()}
        return ClusterPositions(positions, await client.cluster_id(), ids)


def _still(before: ClusterPositions, now: ClusterPositions) -> dict[TopicAndPartition, list[int]]:
    """The positions that are what they were, of whichever group."""
    found: dict[TopicAndPartition, list[int]] = {}
    for group, positions in now.positions.items():
        known = before.positions.get(group, {})
        for at, next_offset in positions.items():
            if known.get(at) == next_offset:
                found.setdefault(at, []).append(next_offset)
    return found
