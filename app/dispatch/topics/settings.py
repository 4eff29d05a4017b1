"""The topics that a workload needs beside its own, and the settings that existing ones must have.

1. A message waits in a retry topic for its tier's delay, and while its receiver is away. So retention is
   twice the longest delay, and at least a week.
2. None of these topics may be compacted: a message would replace others with its key.
3. The limits of existing retry topics are raised. Other topics are only checked and reported, because their
   settings may be deliberate.
4. With three replicas, a copy is acknowledged only if at least two brokers have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog
from aiokafka.errors import KafkaError

from app.dispatch.definition import Workload
from app.dispatch.model.delayed_delivery import LEVELS_MS
from app.kafka.client.cluster import ClusterClient
from app.kafka.client.needed_settings import (
    DELETE,
    KEPT_MS,
    LEAST,
    MOST_BYTES,
    POLICY,
    SettingsProblem,
    problem_of,
    wrong_settings,
)
from app.kafka.client.topic_configs import TopicSettings, alter, describe, expand, refused
from app.kafka.client.topics import MAX_REPLICATION, TopicRefused, TopicSpec, ensure_topics

log = structlog.get_logger(__name__)

MAX_PARTITIONS = 8  # retry traffic is a small share of the main topic's
DAY_MS = 24 * 3_600_000
RETRY_RETENTION_MS = 7 * DAY_MS
DLQ_RETENTION_MS = 30 * DAY_MS
UNCOMPACTED = {POLICY: DELETE}  # brokers may have another default
COPY_MAX_BYTES = 16 * 1024 * 1024  # a copy is larger than its source, by the headers; none may be refused
COPY_HEADERS_BYTES = 16 * 1024  # roughly the most that those headers have


def safe_replication(brokers: int) -> tuple[int, dict[str, str]]:
    """Replication factor and settings with which acknowledged records outlive a broker, if there are
    enough."""
    replication = min(MAX_REPLICATION, max(1, brokers))
    return replication, {"min.insync.replicas": "2" if replication >= 3 else "1"}


def retry_retention_ms(workload: Workload) -> int:
    longest_s = max((tier.delay for tier in workload.spec.retry), default=0.0)
    return max(RETRY_RETENTION_MS, int(2 * longest_s * 1000))


def topics_of(workload: Workload, partitions: int, brokers: int) -> list[TopicSpec]:
    """Retry topics and dead letter queue of a workload whose topic has this many partitions."""
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
                **safe, **UNCOMPACTED, KEPT_MS: str(retention_ms), MOST_BYTES: str(COPY_MAX_BYTES),
            },
        )
        for topic, retention_ms in kept.items()
    ]  # fmt: skip


async def create_topics(client: ClusterClient, workload: Workload, partitions: int) -> list[str]:
    """Creates missing topics; returns their names.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: Topics could not be created now.
    """
    return await ensure_topics(client, topics_of(workload, partitions, await client.broker_count()))


async def refused_topics(client: ClusterClient, workload: Workload) -> list[TopicRefused]:
    """The workload's own topics that the cluster would not create, and why. Creates none.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable: The cluster did not answer.
    """
    specs = topics_of(workload, 1, await client.broker_count())
    known = {spec.name for spec in specs}
    later = [TopicSpec(topic, 1, 1) for topic in workload.own_topics() if topic not in known]
    return await refused(client, [*specs, *later])


async def grow_topics(client: ClusterClient, workload: Workload, partitions: int) -> None:
    """Adds partitions to existing retry topics and the DLQ, up to the number that new ones would have.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: They could not be added now.
    """
    wanted = {spec.name: spec.partitions for spec in topics_of(workload, partitions, 1)}
    sizes = {topic: len(found) for _, topic, _, found in (await client.metadata([*wanted])).topics}
    changes = {topic: count for topic, count in wanted.items() if 0 < sizes.get(topic, 0) < count}
    for error in (await expand(client, changes)).values():
        raise error
    if changes:
        log.info("added partitions to topics", cluster=client.name, workload=workload.key, partitions=changes)


async def create_delayed(client: ClusterClient, workload: Workload) -> int:
    """Creates the workload's missing topic of delayed messages; returns its number of partitions.

    Records wait there briefly: messages that are due later are copied again. Raises as `create_topics`.
    """
    topic = workload.delayed_topic()
    replication, safe = safe_replication(await client.broker_count())
    kept = {KEPT_MS: str(RETRY_RETENTION_MS), MOST_BYTES: str(COPY_MAX_BYTES)}
    config = {**safe, **UNCOMPACTED, **kept}
    await ensure_topics(client, [TopicSpec(topic, len(LEVELS_MS), replication, config)])
    return await client.partitions(topic) or len(LEVELS_MS)


def needed_settings(workload: Workload, most_bytes: int = COPY_MAX_BYTES) -> dict[str, dict[str, str]]:
    """Own topic -> the settings that it must have, for records of `most_bytes`. A DLQ may have a shorter
    retention than a new one gets."""
    kept = dict.fromkeys(workload.own_topics(), RETRY_RETENTION_MS)
    kept |= dict.fromkeys(workload.retry_topics(), retry_retention_ms(workload))
    return {
        topic: {**UNCOMPACTED, KEPT_MS: str(retention_ms), MOST_BYTES: str(most_bytes)}
        for topic, retention_ms in kept.items()
    }


async def check_settings(
    client: ClusterClient, workload: Workload, topics: Collection[str]
) -> tuple[list[SettingsProblem], dict[str, KafkaError]]:
    """Problems with the settings of the existing own `topics`, and the topics whose settings cannot be read.

    Raises the limits of retry topics, and reports those that the cluster refuses. If records are capped, a
    limit of what the main topic accepts, plus headers, is enough.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: No settings could be read.
    """
    source, names = workload.metadata.topic, {POLICY, KEPT_MS, MOST_BYTES}
    needed = {topic: wanted for topic, wanted in needed_settings(workload).items() if topic in topics}
    found = await describe(client, [*needed, source], names)
    source_settings = found.pop(source, None)
    unread = {topic: settings for topic, settings in found.items() if isinstance(settings, KafkaError)}
    configs = {topic: {**one.config} for topic, one in found.items() if isinstance(one, TopicSettings)}
    too_low: dict[str, dict[str, str]] = {}
    for topic in configs.keys() & {*workload.retry_topics()}:
        wrong = wrong_settings(configs[topic], needed[topic])
        if changes := {name: value for name, value in wrong.items() if name in LEAST}:
            too_low[topic] = changes
    unraised = await _raise_limits(client, too_low)
    for topic in too_low.keys() - unraised.keys():
        configs[topic] |= too_low[topic]
    if isinstance(source_settings, TopicSettings):
        most_bytes = min(COPY_MAX_BYTES, _most_bytes(source_settings) + COPY_HEADERS_BYTES)
        needed = needed_settings(workload, most_bytes)
    problems = [
        problem_of(client.spec, topic, config, wrong, str(unraised.get(topic, "")))
        for topic, config in sorted(configs.items())
        if (wrong := wrong_settings(config, needed[topic]))
    ]
    return problems, unread


def _most_bytes(settings: TopicSettings) -> int:
    try:
        return int(settings.config[MOST_BYTES])
    except (KeyError, ValueError):  # the broker did not report it
        return COPY_MAX_BYTES


async def _raise_limits(
    client: ClusterClient, changes: Mapping[str, Mapping[str, str]]
) -> Mapping[str, KafkaError]:
    """Raises the settings; returns the topics that refused, with the error."""
    try:
        unraised = await alter(client, changes)
    except NotImplementedError:  # brokers before Kafka 2.3
        unraised = {
            topic: KafkaError("its brokers are too old to change settings of topics") for topic in changes
        }
    if raised := {topic: values for topic, values in changes.items() if topic not in unraised}:
        log.info("raised settings of topics", cluster=client.name, changes=raised)
    return unraised


async def raise_settings(client: ClusterClient, workload: Workload, topics: Collection[str]) -> None:
    """Raises the limits of existing retry topics to the workload's needs, before messages are copied there.

    Raises:
        aiokafka.errors.KafkaError, ClusterUnreachable, NotImplementedError: They cannot be read or changed.
    """
    problems, unread = await check_settings(client, workload, topics)
    for error in unread.values():
        raise error
    for problem in problems:
        raise KafkaError(f"{problem.message}; {problem.remedy}")
