"""Asks clusters for what one failover plan needs: each topic and each group once, for all workloads together.

Rules
1. A query describes up to `TOPICS_AT_ONCE` of the topics that were announced with `expect`. So a plan of
   thousands of workloads takes some dozen queries in a cluster.
2. A query reads all positions of a group at once.
3. An answer that does not arrive before `until_s` is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError

from app.failover.plan.ports import PlanPorts
from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.commits import CommittedPosition, TopicAndPartition
from app.kafka.client.topic_logs import topic_logs
from app.offsets.model.translation import Log
from app.offsets.sync.remote_progress import retrieve_exception

if TYPE_CHECKING:
    from app.kafka.data_clusters import DataCluster

# above `tables.REACH_TIMEOUT_S`, after which the tables remember that a cluster is away
CLUSTER_ANSWER_TIMEOUT_S = 5.5
TOPICS_AT_ONCE = 300
TOPIC_QUERIES_AT_ONCE = 2  # in a cluster
GROUPS_AT_ONCE = 32

Positions = dict[TopicAndPartition, CommittedPosition]


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as it is now, with `count` partitions.

    Attributes:
        logs: The logs of the partitions whose leaders answered.
        error: Why the topic cannot be described.
    """

    topic: str
    cluster: str
    cluster_id: str
    topic_id: str
    count: int
    logs: Mapping[int, Log] = field(default_factory=dict)
    error: KafkaError | None = None

    def all_logs(self) -> dict[int, Log]:
        """The logs of all partitions. Raises ClusterUnreachable when a leader does not answer."""
        if silent := [partition for partition in range(self.count) if partition not in self.logs]:
            raise ClusterUnreachable(
                f"{self.cluster}: the leaders of {len(silent)} partitions of {self.topic} do not answer"
            )
        return dict(self.logs)


class ClusterQueries:
    """The queries of one plan, and their answers. `until_s` (monotonic) is when its time is over."""

    def __init__(self, ports: PlanPorts, until_s: float) -> None:
        self._ports = ports
        self._until_s = until_s
        self._reached: dict[str, asyncio.Task[DataCluster]] = {}
        self._expected: defaultdict[str, set[str]] = defaultdict(set)
        self._expected_groups: defaultdict[str, set[str]] = defaultdict(set)
        self._topic_queries: dict[tuple[str, str], asyncio.Task[dict[str, FoundTopic]]] = {}
        self._topic_slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(TOPIC_QUERIES_AT_ONCE)
        )
        self._group_queries: dict[tuple[str, str], asyncio.Task[Positions]] = {}
        self._group_slots = asyncio.Semaphore(GROUPS_AT_ONCE)

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._until_s

    def left_s(self, most_s: float = CLUSTER_ANSWER_TIMEOUT_S) -> float:
        """The time for one query; 0: only an answer that is already known counts."""
        return max(0.0, min(most_s, self._until_s - time.monotonic()))

    def expect(self, name: str, topics: Iterable[str], groups: Iterable[str] = ()) -> None:
        """Announces topics and groups of a cluster, so that `start` asks for them together."""
        self._expected[name].update(topics)
        self._expected_groups[name].update(groups)

    def start(self) -> None:
        """Starts all announced queries in the background."""
        for name in self._expected:
            self._connect(name)
            self._query_topics(name)
            for group in sorted(self._expected_groups[name]):
                self._query_group(name, group)

    # -- clusters ------------------------------------------------------------------------------------

    def _connect(self, name: str) -> asyncio.Task[DataCluster]:
        if name not in self._reached:
            self._reached[name] = asyncio.create_task(self._reach(name))
            self._reached[name].add_done_callback(retrieve_exception)
        return self._reached[name]

    async def cluster(self, name: str) -> DataCluster:
        """The connected cluster. Raises an error when it does not answer in time."""
        return await asyncio.shield(self._connect(name))

    async def _reach(self, name: str) -> DataCluster:
        try:
            async with asyncio.timeout(self.left_s()):
                regions = self._ports.regions
                if regions is not None:
                    await regions.tables.reach(name)
                return await self._ports.clusters.get(name)
        except TimeoutError as error:
            raise ClusterUnreachable(f"cluster {name} does not answer") from error

    async def answers(self, name: str) -> bool:
        """Whether the cluster answers in time."""
        try:
            await self.cluster(name)
        except Exception:  # noqa: BLE001 - any error means that it does not answer
            return False
        return True

    # -- topics --------------------------------------------------------------------------------------

    async def topic(self, name: str, topic: str) -> FoundTopic | None:
        """A topic; None: it does not exist. Raises an error when the cluster does not answer in time."""
        if (name, topic) not in self._topic_queries:
            self._expected[name].add(topic)
            self._query_topics(name)
        found = (await asyncio.shield(self._topic_queries[name, topic])).get(topic)
        if found is not None and found.error is not None:
            raise found.error
        return found

    def _query_topics(self, name: str) -> None:
        wanted = sorted(topic for topic in self._expected[name] if (name, topic) not in self._topic_queries)
        for n in range(0, len(wanted), TOPICS_AT_ONCE):
            some = wanted[n : n + TOPICS_AT_ONCE]
            query = asyncio.create_task(self._describe_topics(name, some))
            query.add_done_callback(retrieve_exception)
            self._topic_queries |= {(name, topic): query for topic in some}

    async def _describe_topics(self, name: str, topics: Sequence[str]) -> dict[str, FoundTopic]:
        client = (await self.cluster(name)).client
        async with self._topic_slots[name], asyncio.timeout(self.left_s(2 * CLUSTER_ANSWER_TIMEOUT_S)):
            # Not atomic: of a topic recreated in between, the id is the old one and the log the new one.
            ids = await client.topic_ids(topics)
            cluster_id, logs = await topic_logs(client, topics)
        return {
            topic: FoundTopic(
                topic, name, cluster_id, ids.get(topic, ""), found.count,
                {partition: Log(*span) for partition, span in found.spans.items()}, found.error,
            )
            for topic, found in logs.items()
            if topic in ids or found.error is not None
        }  # fmt: skip

    # -- groups --------------------------------------------------------------------------------------

    async def positions(self, name: str, group: str) -> Mapping[TopicAndPartition, CommittedPosition]:
        """All committed positions of a group. Raises an error when the cluster does not answer in time."""
        return await asyncio.shield(self._query_group(name, group))

    def _query_group(self, name: str, group: str) -> asyncio.Task[Positions]:
        at = name, group
        if at not in self._group_queries:
            self._group_queries[at] = asyncio.create_task(self._positions(name, group))
            self._group_queries[at].add_done_callback(retrieve_exception)
        return self._group_queries[at]

    async def _positions(self, name: str, group: str) -> Positions:
        committer = (await self.cluster(name)).committer
        async with self._group_slots, asyncio.timeout(self.left_s()):
            return await committer.positions(group)
