"""Start and end of the logs of many topics, in few requests: one for metadata, then two to each leader.

Unlike `ClusterClient.offsets`, this does not keep the topics' metadata up to date afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.offset import OffsetRequest

from app.kafka.client.aiokafka_types import ResponseFields
from app.kafka.client.cluster import EARLIEST, LATEST, READ_UNCOMMITTED, TOPIC_UNKNOWN, ClusterClient

Topics = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class TopicLogs:
    """A topic's `count` of partitions, and the `spans` [start, end) of those whose leaders answered. `error`:
    why the topic cannot be described."""

    count: int
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    error: KafkaError | None = None


async def topic_logs(client: ClusterClient, topics: Iterable[str]) -> tuple[str, dict[str, TopicLogs]]:
    """The cluster's id ("" if it has none), and the logs of the existing topics. Raises ClusterUnreachable:
    no broker answered."""
    response = await client.metadata(sorted(set(topics)))
    errors: dict[str, KafkaError] = {}
    counts: dict[str, int] = {}
    by_leader: dict[int, Topics] = {}
    for code, topic, _, partitions in response.topics:
        if code in TOPIC_UNKNOWN:
            continue
        counts[topic] = len(partitions)
        if code and not partitions:
            errors[topic] = for_code(code)(topic)
        for _, partition, leader, *_ in partitions:
            if leader >= 0:
                by_leader.setdefault(leader, {}).setdefault(topic, []).append(partition)
    # Starts first: retention must not move a start past an end that was read before.
    starts = await _offsets(client, by_leader, EARLIEST)
    ends = await _offsets(client, by_leader, LATEST)
    spans: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in counts}
    for topic, partition in starts.keys() & ends.keys():
        at = topic, partition
        spans[topic][partition] = starts[at], ends[at]
    found = {topic: TopicLogs(count, spans[topic], errors.get(topic)) for topic, count in counts.items()}
    return str(response.cluster_id or ""), found


async def _offsets(
    client: ClusterClient, by_leader: Mapping[int, Topics], timestamp: int
) -> dict[tuple[str, int], int]:

    async def ask(node: int, topics: Topics) -> ResponseFields:
        wanted = [(topic, [(at, timestamp) for at in partitions]) for topic, partitions in topics.items()]
        try:
            return await client.send(node, OffsetRequest(-1, READ_UNCOMMITTED, wanted))
        except (KafkaError, OSError, TimeoutError):
            return None

    answers = await asyncio.gather(*(ask(node, topics) for node, topics in by_leader.items()))
    return {
        (topic, partition): offset
        for answer in answers
        if answer is not None
        for topic, partitions in answer.topics
        for partition, code, _, offset in partitions
        if code == 0
    }
