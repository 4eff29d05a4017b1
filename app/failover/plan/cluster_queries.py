"""What a failover plan asks of clusters: each thing once, however many workloads want to know it.

Rules
1. Topics are asked for together: all that were announced (`expect`), as many at once as a broker answers in a
   moment. So a plan of thousands of workloads asks a cluster some dozen times, not some times for each.
2. A group is asked for once, all of it.
3. What has not answered when the time is over is not known.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiokafka.errors import KafkaError

from app.kafka.client.cluster import ClusterUnreachable
from app.kafka.client.commits import CommittedPosition, TopicAndPartition
from app.kafka.client.topic_logs import topic_logs
from app.offsets.model.translation import Log
from app.offsets.sync.remote_progress import retrieve_exception

if TYPE_CHECKING:
    from app.kafka.data_clusters import DataCluster
    from app.worker.runtime.service import Runtime

# a cluster's time to answer: above `tables.REACH_TIMEOUT_S`, which remembers who is away
CLUSTER_ANSWER_TIMEOUT_S = 5.5
TOPICS_AT_ONCE = 300
TOPIC_QUERIES_AT_ONCE = 2  # of a cluster
GROUPS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as it is now. `logs`: of those of its `count` partitions whose leaders answer; `error`: why it
    cannot be described."""

    topic: str
    cluster: str
    cluster_id: str
    topic_id: str
    count: int
    logs: Mapping[int, Log] = field(default_factory=dict)
    error: KafkaError | None = None

    def all_logs(self) -> dict[int, Log]:
        """Of all partitions. Raises ClusterUnreachable: some leader does not answer."""
        if silent := [partition for partition in range(self.count) if partition not in self.logs]:
            raise ClusterUnreachable(
                f"{self.cluster}: the leaders of {len(silent)} partitions of {self.topic} do not answer"
            )
        return dict(self.logs)


class ClusterQueries:
    """See the module; of one plan. `until_s`: when its time is over, by the monotonic clock."""

    def __init__(self, runtime: Runtime, until_s: float) -> None:
        self._runtime = runtime
        self._until_s = until_s
        self._reached: dict[str, asyncio.Task[DataCluster]] = {}
        self._expected: defaultdict[str, set[str]] = defaultdict(set)
        self._expected_groups: defaultdict[str, set[str]] = defaultdict(set)
        self._looks: dict[tuple[str, str], asyncio.Task[dict[str, FoundTopic]]] = {}
        self._looking: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(TOPIC_QUERIES_AT_ONCE)
        )
        self._groups: dict[tuple[str, str], asyncio.Task[dict[TopicAndPartition, CommittedPosition]]] = {}
        self._asking = asyncio.Semaphore(GROUPS_AT_ONCE)

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() >= self._until_s

    def left_s(self, most_s: float = CLUSTER_ANSWER_TIMEOUT_S) -> float:
        """The time that one question may take; 0: what does not answer at once is not known."""
        return max(0.0, min(most_s, self._until_s - time.monotonic()))

    def expect(self, name: str, topics: Iterable[str], groups: Iterable[str] = ()) -> None:
        """These are going to be asked for."""
        self._expected[name].update(topics)
        self._expected_groups[name].update(groups)

    def start(self) -> None:
        """Begins to ask for all that is expected."""
        for name in self._expected:
            self._start(name)
            self._find_all(name)
            for group in sorted(self._expected_groups[name]):
                self._ask_for(name, group)

    # -- clusters ------------------------------------------------------------------------------------

    def _start(self, name: str) -> asyncio.Task[DataCluster]:
        if name not in self._reached:
            self._reached[name] = asyncio.create_task(self._reach(name))
            self._reached[name].add_done_callback(retrieve_exception)
        return self._reached[name]

    async def cluster(self, name: str) -> DataCluster:
        """Raises whatever says that it does not answer in time."""
        return await asyncio.shield(self._start(name))

    async def _reach(self, name: str) -> DataCluster:
        try:
            async with asyncio.timeout(self.left_s()):
                regions = self._runtime.regions
                if regions is not None:
                    await regions.tables.reach(name)
                return await self._runtime.clusters.get(name)
        except TimeoutError as error:
            raise ClusterUnreachable(f"cluster {name} does not answer") from error

    async def answers(self, name: str) -> bool:
        """Whether it does in time."""
        try:
            await self.cluster(name)
        except Exception:  # noqa: BLE001 - that is what is asked
            return False
        return True

    # -- topics --------------------------------------------------------------------------------------

    async def topic(self, name: str, topic: str) -> FoundTopic | None:
        """A topic of a cluster; None: it does not exist. Raises whatever says that this cannot be known."""
        if (name, topic) not in self._looks:
            self._expected[name].add(topic)
            self._find_all(name)
        found = (await asyncio.shield(self._looks[name, topic])).get(topic)
        if found is not None and found.error is not None:
            raise found.error
        return found

    def _find_all(self, name: str) -> None:
        wanted = sorted(topic for topic in self._expected[name] if (name, topic) not in self._looks)
        for n in range(0, len(wanted), TOPICS_AT_ONCE):
            some = wanted[n : n + TOPICS_AT_ONCE]
            look = asyncio.create_task(self._find_topics(name, some))
            look.add_done_callback(retrieve_exception)
            self._looks |= {(name, topic): look for topic in some}

    async def _find_topics(self, name: str, topics: Sequence[str]) -> dict[str, FoundTopic]:
        client = (await self.cluster(name)).client
        async with self._looking[name], asyncio.timeout(self.left_s(2 * CLUSTER_ANSWER_TIMEOUT_S)):
            # Before the logs: should a topic be made anew in between, its positions are of another one.
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
        """All that a group has committed. Raises whatever says that this cannot be known."""
        return await asyncio.shield(self._ask_for(name, group))

    def _ask_for(self, name: str, group: str) -> asyncio.Task[dict[TopicAndPartition, CommittedPosition]]:
        at = name, group
        if at not in self._groups:
            self._groups[at] = asyncio.create_task(self._positions(name, group))
            self._groups[at].add_done_callback(retrieve_exception)
        return self._groups[at]

    async def _positions(self, name: str, group: str) -> dict[TopicAndPartition, CommittedPosition]:
        committer = (await self.cluster(name)).committer
        async with self._asking, asyncio.timeout(self.left_s()):
            return await committer.positions(group)
