"""Publishes which offset syncs consumers still need, so that thinning the offset map does not drop them.

Rules (tests/replicate/jobs/test_pinned_offset_syncs.py)
1. A group needs the offset sync below its position in a copy, or in a copy's source, while it stands still. A
   group that moves has another position when this is published, and is near the newest offset syncs or will
   be.
2. A group stands still if its position is the same as `PIN_POLL_INTERVAL_S` ago. A group that never returns
   needs nothing once Kafka forgets its positions (`offsets.retention.minutes`, seven days after its last
   member left).
3. The line itself holds the published needs, so that another leader and another writer of the table know
   them. A late or missing one costs precision only. Needs that were published before their line existed are
   published again.
4. Clusters are queried rarely, a group at a time, because no caller waits for the result.
5. A group that cannot be read now counts with its last position, because a dropped offset sync cannot be
   restored. If not all groups of a cluster are known, nothing is published about the cluster.
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
from app.kernel.job import JobId
from app.offsets.model.offset_map import NeedItem, PinnedOffsets, needs_of
from app.offsets.sync.offset_sync_sender import BarrierSender
from app.replicate.definition import REPLICATE_JOBS
from app.replicate.pump.route_runtime import group_of
from app.replicate.topics.catalog import RoutesCatalog

log = structlog.get_logger(__name__)

PIN_POLL_INTERVAL_S = 60.0
POLLS_BEFORE_RESEND = 30
ATTEMPTS_PER_GROUP = 2  # few, because the other groups wait
MAX_POLL_INTERVAL_S = 600.0
# After a slow round the leader waits this many times as long, at most `MAX_POLL_INTERVAL_S`.
BUSY_SHARE = 20
OWN_GROUP_PREFIX = group_of("")


class RoutedPartition(NamedTuple):
    """A partition that a route copies: its job, the clusters, and the copy's topic."""

    job: JobId
    source: str
    target: str
    copy: str


class ClusterPositions(NamedTuple):
    """The positions of all groups of a cluster, and its and its topics' ids."""

    positions: Mapping[str, Mapping[TopicAndPartition, int]]
    cluster_id: str
    topic_ids: Mapping[str, str]


class PinnedOffsetSyncs(Service):
    """Runs on the leader. `may_act`: whether this worker leads and its lease holds."""

    def __init__(
        self,
        control: ControlLog,
        catalog: RoutesCatalog,
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
        self._published: dict[str, tuple[LogId, PinnedOffsets]] = {}  # by line
        self._rounds = 0

    @Service.task
    async def _poll_for_ever(self) -> None:
        took_s = 0.0
        while not self.should_stop:
            await self.sleep(max(PIN_POLL_INTERVAL_S, min(BUSY_SHARE * took_s, MAX_POLL_INTERVAL_S)))
            began_s = time.monotonic()
            if not self._may_act():
                self._before, self._published = {}, {}
                continue
            try:
                await self.publish_changes()
            except Exception as error:  # noqa: BLE001 - rule 3
                log.warning("the offset syncs that consumers need were not published", error=repr(error))
            took_s = time.monotonic() - began_s

    async def publish_changes(self) -> None:
        """Publishes the changes since the last round. Raises KafkaError: the record was not acknowledged."""
        self._rounds += 1
        if self._rounds % POLLS_BEFORE_RESEND == 0:
            self._published = {}
        routed = list(self._routed_partitions())
        seen: dict[str, ClusterPositions] = {}
        for name in sorted({name for part in routed for name in (part.source, part.target)}):
            try:
                seen[name] = await self._read_positions(await self._clusters.get(name), routed)
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                log.debug("positions of a cluster are not known", cluster=name, error=repr(error))
        unmoved = {
            name: _unmoved(self._before[name], now) for name, now in seen.items() if name in self._before
        }
        self._before |= seen
        items = []
        for part in routed:
            if part.source not in unmoved or part.target not in unmoved:
                continue
            job, target = part.job, seen[part.target]
            needs = needs_of(
                unmoved[part.target].get((part.copy, job.partition), ()),
                unmoved[part.source].get((job.topic, job.partition), ()),
            )
            log_id = LogId(target.cluster_id, target.topic_ids.get(part.copy, ""))
            item = NeedItem(job.name, job.topic, job.partition, log_id, needs)
            if self._published.get(item.key) != (item.target, item.needs):
                items.append(item)
        if items and self._may_act():
            await asyncio.gather(*await self._sender.ask(items))
            self._published |= {item.key: (item.target, item.needs) for item in items}

    def _routed_partitions(self) -> Iterable[RoutedPartition]:
        for name in list(self._control.view.assignments):
            if name.startswith(REPLICATE_JOBS):
                job = JobId.parse(name)
                route = self._catalog.route(job.name)
                copy = None if route is None else route.destination(job.topic)
                known = route is not None and {route.source, route.target} <= self._clusters.specs.keys()
                if route is not None and copy is not None and known:
                    yield RoutedPartition(job, route.source, route.target, copy)

    async def _read_positions(
        self, cluster: DataCluster, routed: Iterable[RoutedPartition]
    ) -> ClusterPositions:
        client, committer = cluster.client, cluster.committer
        topics = {part.copy for part in routed if part.target == cluster.name}
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


def _unmoved(before: ClusterPositions, now: ClusterPositions) -> dict[TopicAndPartition, list[int]]:
    """The unchanged positions of all groups."""
    found: dict[TopicAndPartition, list[int]] = {}
    for group, positions in now.positions.items():
        known = before.positions.get(group, {})
        for at, next_offset in positions.items():
            if known.get(at) == next_offset:
                found.setdefault(at, []).append(next_offset)
    return found
