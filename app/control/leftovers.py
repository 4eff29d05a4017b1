"""Topics of a workload that are pumped only while something waits in them.

    {topic}__{group}__retry_N   of a tier that the definition no longer has: what is there must not strand
    {topic}__{group}__merge     what was merged back from the dead letter queue
    {topic}__{group}__delayed   what is due far ahead (`app.core.due`)

Something waits in a partition while the group's commit is not at its end. It stays a job for `LINGER_S`
longer, so that the next letters of a merge find it running.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.config.definitions import Workload
from app.control.data_clusters import DataCluster
from app.kafka.clusters import EARLIEST, LATEST

LINGER_S = 10.0
MAX_TIERS = 10  # as many as a definition may have

At = tuple[str, int]  # topic, partition


def tier_of(workload: Workload, topic: str) -> int | None:
    """The retry tier whose topic this is, counted from 0, defined or not; None for any other topic."""
    stem = f"{workload.metadata.topic}__{workload.metadata.group}__retry_"
    number = topic.removeprefix(stem) if topic.startswith(stem) else ""
    return int(number) - 1 if number.isascii() and number.isdigit() else None


def is_left(workload: Workload, topic: str) -> bool:
    """Whether it is the topic of a tier that the definition no longer has."""
    tier = tier_of(workload, topic)
    return tier is not None and tier >= len(workload.spec.retry)


def candidates(workload: Workload) -> list[str]:
    """All topics of this kind that the workload may have."""
    stem = f"{workload.metadata.topic}__{workload.metadata.group}__retry_"
    numbers = range(len(workload.spec.retry) + 1, MAX_TIERS + 1)
    return [*(f"{stem}{number}" for number in numbers), workload.merge_topic(), workload.delayed_topic()]


class Leftovers:
    """Which partitions of such topics something waits in, by workload key."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[At, float]] = {}  # when something was last seen waiting

    def of(self, key: str) -> Iterable[At] | None:
        """As it was when last read; None when it never was."""
        return self._waiting.get(key)

    def keep(self, keys: Iterable[str]) -> None:
        """Forgets all other workloads."""
        self._waiting = {key: self._waiting[key] for key in keys if key in self._waiting}

    async def read(
        self, cluster: DataCluster, workload: Workload, sizes: dict[str, int], now_s: float
    ) -> None:
        """Reads it; `sizes` are the partition counts of those topics that exist. What cannot be read now
        stays as it was.

        Raises:
            ClusterUnreachable: the group's commits cannot be read.
        """
        known = self._waiting.get(workload.key, {})
        wanted = [(topic, p) for topic, count in sizes.items() for p in range(count)]
        waiting: dict[At, float] = {}
        if wanted:
            starts = await cluster.client.offsets(wanted, EARLIEST)
            ends = await cluster.client.offsets(wanted, LATEST)
            committed = await cluster.committer.committed(workload.metadata.group, wanted)
            for at in wanted:
                if at not in starts or at not in ends:
                    if at in known:
                        waiting[at] = known[at]
                    continue
                done = committed.get(at)
                # Above the end: the topic was made anew, and the job that pumps it will find out.
                empty = starts[at] == ends[at] if done is None else max(done, starts[at]) == ends[at]
                if not empty:
                    waiting[at] = now_s
                elif now_s - known.get(at, float("-inf")) < LINGER_S:
                    waiting[at] = known[at]
        self._waiting[workload.key] = waiting
