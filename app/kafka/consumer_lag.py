"""A consumer group's lag: its commits, and the start and end of the partitions' logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.kafka.client.cluster import EARLIEST, LATEST
from app.kafka.data_clusters import DataCluster

TopicAndPartition = tuple[str, int]  # topic, partition


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """Next offsets. A partition whose leader does not answer has neither start nor end."""

    starts: dict[TopicAndPartition, int] = field(default_factory=dict)
    ends: dict[TopicAndPartition, int] = field(default_factory=dict)
    committed: dict[TopicAndPartition, int | None] = field(default_factory=dict)

    def waiting(self, at: TopicAndPartition) -> int | None:
        """The offsets between the group's commit and the end; None: not known. Negative if the commit is
        above the end: the topic was recreated, which the job finds out itself."""
        start, end = self.starts.get(at), self.ends.get(at)
        if start is None or end is None:
            return None
        return end - max(self.committed.get(at) or 0, start)


async def read_backlog(cluster: DataCluster, group: str, wanted: Sequence[TopicAndPartition]) -> ConsumerLag:
    """Reads the lag of these partitions. Raises ClusterUnreachable: the group's commits cannot be read."""
    if not wanted:
        return ConsumerLag()
    committed = await cluster.committer.committed(group, wanted)  # first: no commit is above its end then
    starts = await cluster.client.offsets(wanted, EARLIEST)
    return ConsumerLag(starts, await cluster.client.offsets(wanted, LATEST), committed)
