"""The topics that a workload needs beside its own, and settings that existing ones must not fall below.

A message waits in a retry topic for its tier's delay and for as long as its receiver is away: retention is
twice the longest delay, at least a week. With three replicas a copy counts as safe once two brokers have it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from aiokafka.errors import KafkaError

from app.dispatch.definition import Workload
from app.dispatch.model.delayed_delivery import LEVELS_MS
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.topic_configs import alter, describe, expand, refused
from app.kafka.client.topics import MAX_REPLICATION, TopicRefused, TopicSpec, ensure_topics

log = structlog.get_logger(__name__)

MAX_PARTITIONS = 8  # retry traffic is a small share of the topic's
DAY_MS = 24 * 3_600_000
RETRY_RETENTION_MS = 7 * DAY_MS
DLQ_RETENTION_MS = 30 * DAY_MS
COPY_MAX_BYTES = 16 * 1024 * 1024  # a copy is larger than its source by the headers; never refuse one


def safe_replication(brokers: int) -> tuple[int, dict[str, str]]:
    """Replication factor and settings with which a record, once acknowledged, outlives a broker."""
    replication = min(MAX_REPLICATION, max(1, brokers))
    return replication, {"min.insync.replicas": "2" if replication >= 3 else "1"}


def retry_retention_ms(workload: Workload) -> int:
    """How long a retry topic must keep messages."""
    longest_s = max((tier.delay for tier in workload.spec.retry), default=0.0)
    return max(RETRY_RETENTION_MS, int(2 * longest_s * 1000))


def topics_of(workload: Workload, partitions: int, brokers: int) -> list[TopicSpec]:
    """Retry topics and dead letter queue of a workload whose topic has so many partitions."""
    replication, safe = safe_replication(brokers)
    kept = dict.fromkeys(workload.retry_topics(), retry_retention_ms(workload))
    if workload.spec.dlq.enabled:
        kept[workload.dlq_topic()] = DLQ_RETENTION_MS
    return [
        TopicSpec(
            topic,
            partitions=min(partitions, MAX_PARTITIONS),
            replication=replication,
            config={
                **safe, "retention.ms": str(retention_ms), "max.message.bytes": str(COPY_MAX_BYTES),
            },
        )
        for topic, retention_ms in kept.items()
    ]  # fmt: skip


async def create_topics(client: ClusterClient, workload: Workload, partitions: int) -> list[str]:
    """Creates what is missing; returns the names of topics created here.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: it could not be done now.
    """
    return await ensure_topics(client, topics_of(workload, partitions, await client.broker_count()))


async def refused_topics(client: ClusterClient, workload: Workload) -> list[TopicRefused]:
    """Those of its own topics that the cluster would not make, and why; nothing is made.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: it could not be asked now.
    """
    specs = topics_of(workload, 1, await client.broker_count())
    known = {spec.name for spec in specs}
    later = [TopicSpec(topic, 1, 1) for topic in workload.own_topics() if topic not in known]
    return await refused(client, [*specs, *later])


async def grow_topics(client: ClusterClient, workload: Workload, partitions: int) -> None:
    """Gives existing retry topics and the DLQ as many partitions as new ones would have.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: it could not be done now.
    """
    wanted = {spec.name: spec.partitions for spec in topics_of(workload, partitions, 1)}
    sizes = {topic: len(found) for _, topic, _, found in (await client.metadata([*wanted])).topics}
    changes = {topic: count for topic, count in wanted.items() if 0 < sizes.get(topic, 0) < count}
    for error in (await expand(client, changes)).values():
        raise error
    if changes:
        log.info("added partitions to topics", cluster=client.name, workload=workload.key, partitions=changes)


async def create_delayed(client: ClusterClient, workload: Workload) -> int:
    """Creates the workload's topic of delayed messages when it is missing; returns its number of partitions.

    No record waits there for long: what is due later is copied on. Raises as `create_topics`.
    """
    topic = workload.delayed_topic()
    replication, safe = safe_replication(await client.broker_count())
    config = {**safe, "retention.ms": str(RETRY_RETENTION_MS), "max.message.bytes": str(COPY_MAX_BYTES)}
    await ensure_topics(client, [TopicSpec(topic, len(LEVELS_MS), replication, config)])
    return await client.partitions(topic) or len(LEVELS_MS)


async def raise_settings(client: ClusterClient, workload: Workload, topics: Sequence[str]) -> None:
    """Raises settings of existing retry topics to what the workload needs; what is without a limit stays.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: they cannot be read or changed.
    """
    if not topics:
        return
    least = {"retention.ms": retry_retention_ms(workload), "max.message.bytes": COPY_MAX_BYTES}
    changes: dict[str, dict[str, str | None]] = {}
    for topic, found in (await describe(client, topics, least)).items():
        if isinstance(found, KafkaError):
            raise found
        low = {
            name: str(value) for name, value in least.items() if 0 <= int(found.config.get(name, -1)) < value
        }
        if low:
            changes[topic] = {**low}
    for error in (await alter(client, changes)).values():
        raise error
    if changes:
        log.info("raised settings of topics", cluster=client.name, changes=changes)
