"""Topics of a workload that have jobs only while messages wait in them.

    {topic}__{group}__retry_N   of a tier that the definition no longer has: its messages must not strand
    {topic}__{group}__merge     messages merged back from the dead letter queue
    {topic}__{group}__delayed   messages that are due far ahead (`app.dispatch.model.delayed_delivery`)

Messages wait in a partition while the group's commit is below its end. Its job stays for
`LEFTOVER_LINGER_S` longer, so that the next letters of a merge find it running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.dispatch.definition import Workload
from app.kafka.consumer_lag import ConsumerLag, TopicAndPartition

LEFTOVER_LINGER_S = 10.0
MAX_TIERS = 10  # as many as a definition may have


def tier_of(workload: Workload, topic: str) -> int | None:
    """The retry tier whose topic this is, from 0, even if it is no longer defined; None: another topic."""
    stem = f"{workload.metadata.topic}__{workload.metadata.group}__retry_"
    number = topic.removeprefix(stem) if topic.startswith(stem) else ""
    return int(number) - 1 if number.isascii() and number.isdigit() else None


def is_left(workload: Workload, topic: str) -> bool:
    """Whether it is the topic of a tier that the definition no longer has."""
    tier = tier_of(workload, topic)
    return tier is not None and tier >= len(workload.spec.retry)


def candidates(workload: Workload) -> list[str]:
    """All topics of these kinds that the workload may have."""
    stem = f"{workload.metadata.topic}__{workload.metadata.group}__retry_"
    numbers = range(len(workload.spec.retry) + 1, MAX_TIERS + 1)
    return [*(f"{stem}{number}" for number in numbers), workload.merge_topic(), workload.delayed_topic()]


def partitions_of(sizes: Mapping[str, int]) -> list[TopicAndPartition]:
    return [(topic, partition) for topic, count in sizes.items() for partition in range(count)]


class TierLeftovers:
    """The partitions of such topics in which messages wait, by workload key."""

    def __init__(self) -> None:
        # The etag of the evaluated definition, and when messages were last seen waiting.
        self._waiting: dict[str, tuple[str, dict[TopicAndPartition, float]]] = {}

    def of(self, key: str) -> Mapping[TopicAndPartition, float]:
        """The partitions in which messages wait, with the time at which they were last seen."""
        return self._waiting.get(key, ("", {}))[1]

    def knows(self, key: str, etag: str) -> bool:
        """Whether the workload was evaluated under this definition."""
        return key in self._waiting and self._waiting[key][0] == etag

    def keep(self, keys: Iterable[str]) -> None:
        """Forgets all other workloads."""
        self._waiting = {key: self._waiting[key] for key in keys if key in self._waiting}

    def update(
        self, workload: Workload, etag: str, sizes: Mapping[str, int], backlog: ConsumerLag, now_s: float
    ) -> None:
        """Takes the present lag; `sizes` are the partition counts of the existing topics. A partition whose
        lag is unknown keeps its state."""
        known, found = self.of(workload.key), dict[TopicAndPartition, float]()
        for at in partitions_of(sizes):
            waiting, seen_s = backlog.waiting(at), known.get(at)
            if waiting:
                found[at] = now_s
            elif seen_s is not None and (waiting is None or now_s - seen_s < LEFTOVER_LINGER_S):
                found[at] = seen_s
        self._waiting[workload.key] = etag, found
